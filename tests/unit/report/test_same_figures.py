"""Every output format has the same figures: those of the samples, computed independently here.

The reference uses numpy and the definitions of docs/explanation/statistics.md and docs/reference/engine.md alone.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy import stats

from nearmetal.cli.main import run as cli
from nearmetal.gate import as_json as gate_as_json
from nearmetal.history.collect import collect
from nearmetal.history.view import build_history
from nearmetal.report import as_csv, as_json, as_latex, as_markdown, words
from nearmetal.results.between import judge_runs
from nearmetal.results.paths import build_view
from nearmetal.stats.summary import Metric
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.samples import CellSamples
from nearmetal.study import plan
from nearmetal.study.order import AGAIN, Order, Outcome, TrialStatus
from nearmetal.study.spec import digest, parse_study

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOCKS = 4
STUDY = f"""
format = 1
name = "all"
seed = 15
baseline = "veth"
margin = "20 %"
path = [{{ name = "veth" }}, {{ name = "tap" }}]
setting = [{{ name = "as-found" }}, {{ name = "bound", knobs = {{ "mpi.bind" = "core" }} }}]
[[workload]]
name = "latency"
sizes = [8, "64 KiB"]
iterations = 40
warmup = 4
[[workload]]
name = "bw"
sizes = ["64 KiB"]
iterations = 400
warmup = 4
options = {{ window = 16 }}
[[workload]]
name = "bibw"
sizes = [8]
iterations = 40
warmup = 4
[[workload]]
name = "rate"
operation = "message_rate"
placement = [0, 0, 1, 1]
sizes = [8]
iterations = 40
warmup = 4
[[workload]]
name = "barrier"
placement = [0, 1, 0, 1]
iterations = 40
warmup = 4
[[workload]]
name = "ft"
kind = "application"
[trials]
min_blocks = {BLOCKS}
max_blocks = {BLOCKS}
"""
BASE_NS = {"latency": 20_000, "bw": 500_000, "bibw": 90_000, "message_rate": 700_000, "barrier": 15_000}
PAIRED = {"latency", "bw", "bibw", "message_rate"}


@dataclass(frozen=True)
class Known:
    """A cell's truth: its unit, which way is better, and the figure of a duration."""

    unit: str
    better: str
    value: Callable[[float], float]


def known(operation: str, size: int) -> Known:
    """Return how an operation is shown, from docs/reference/engine.md; an iteration of `ft` takes about 1 ms here."""
    return {
        "latency": Known("us", "smaller", lambda ns: ns / 2 / 1e3),
        "bw": Known("MB/s", "larger", lambda ns: size * 16 / 1e6 / (ns / 1e9)),
        "bibw": Known("MB/s", "larger", lambda ns: 2 * size * 64 / 1e6 / (ns / 1e9)),
        "message_rate": Known("messages/s", "larger", lambda ns: 2 * 64 / (ns / 1e9)),
        "barrier": Known("us", "smaller", lambda ns: ns / 1e3),
    }.get(operation, Known("ms", "smaller", lambda ns: ns / 1e6))


def cells(order: Order, seed: int) -> list[CellSamples]:
    """Return made up samples: iterations spread by 10 %, so that a margin of 5 % would refuse their median.

    Those of the first seed take 25 % longer.
    """
    rng, work = np.random.default_rng((seed, order.trial)), order.workload
    operation, ranks = str(work.options["operation"]), len(work.placement)
    cost = (1.7 if order.path.label == "tap" else 1.0) * (0.9 if order.setting == "bound" else 1.0)
    cost *= float(np.exp(rng.normal(0, 0.01))) / (1.25 if seed > 1 else 1.0)

    def samples(name: str, size: int, warmup: int, count: int, typical_ns: float) -> CellSamples:
        ns = np.rint(typical_ns * cost * np.exp(rng.normal(0, 0.1, (ranks, warmup + count)))).astype(np.int64)
        begin = np.cumsum(ns + 7, axis=1) - ns
        counting = tuple(range(ranks // 2 if name in PAIRED else ranks))
        flags = np.zeros(ns.shape, np.uint8)
        if name == "barrier":
            flags[:, 11] = 2  # a missed time window: an iteration without a value
        return CellSamples(name, size, warmup, counting, begin, ns, flags)

    if work.kind == "application":
        # Only launches of the baseline's second name take more than 1 ms, and one of them is the first of all.
        of = samples("ft.S", 0, 0, 40, (1.3e6 if order.path.label.endswith(AGAIN) else 0.5e6) / cost)
        whole = of.begin_ns[:, -1:] + of.ns[:, -1:] - of.begin_ns[:, :1]
        flags = np.zeros((ranks, 1), np.uint8)
        return [CellSamples("ft.S.total", 0, 0, of.value_ranks, of.begin_ns[:, :1], whole, flags), of]
    sizes = [int(str(size)) for size in work.numbers("sizes") or [0]]
    counts = (work.number("warmup"), work.number("iterations"))
    return [samples(operation, size, *counts, BASE_NS[operation] + 0.4 * size) for size in sizes]


def make(root: Path, seed: int) -> RunDir:
    """Write a run: in block 1 the first launch of `bw` over `tap` fails, in block 2 all of `latency` over it do."""
    study = parse_study(STUDY, "study.toml")
    info = RunInfo(study.name, digest(STUDY), "local", "made up", "0", f"2026-11-2{seed}T09:00:00+00:00")
    run = RunDir.create(root, info, STUDY)
    failed = Outcome(TrialStatus.FAILED, reason="the launch did not end within 30 s")
    for order in (one for block in range(BLOCKS) for one in plan.block(study, block)):
        lost = (order.block, order.path.label, order.workload.label) == (2, "tap", "latency")
        torn = (order.block, order.path.label, order.workload.label) == (1, "tap", "bw")
        started = f"2026-11-2{seed}T09:{order.block:02d}:{order.trial % 60:02d}+00:00"
        for attempt in (1, 2):
            if lost or (torn and attempt == 1):
                run.append(order, failed, [], attempt=attempt, started_utc=started)
            else:
                run.append(order, Outcome(TrialStatus.VALID), cells(order, seed), attempt=attempt, started_utc=started)
                break
    run.close()
    return RunDir.open(root)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, RunDir]:
    folder = tmp_path_factory.mktemp("runs")
    return make(folder / "one", 1), make(folder / "other", 2)


# ---- the truth, from what is on disk

Key = tuple[str, str, str, int]
Figures = dict[Key, dict[str, dict[int, NDArray[np.int64]]]]
"""Cell -> path -> block -> values in the order of measurement."""


def truth(run: RunDir) -> Figures:
    found: Figures = defaultdict(lambda: defaultdict(dict))
    for path in sorted((run.root / "trials").glob("*.json")):
        record = json.loads(path.read_bytes())
        if record["outcome"]["status"] != "valid":
            continue
        order = record["order"]
        table = pq.read_table(run.root / "samples" / f"{path.stem}.parquet")
        column = {name: table.column(name).to_numpy() for name in table.column_names}
        ranks = len(order["workload"]["placement"])
        for number, cell in enumerate(record["cells"]):
            of = column["cell"] == number
            ns, flags, warmup = (column[name][of].reshape(ranks, -1) for name in ("ns", "flags", "warmup"))
            counting = ranks // 2 if cell["operation"] in PAIRED else ranks
            values = ns[:counting].max(axis=0)[(flags.max(axis=0) == 0) & ~warmup[0]]
            key = (order["workload"]["label"], cell["operation"], order["setting"], cell["message_bytes"])
            found[key][order["path"]["label"]][order["block"]] = values
    return found


def of_launch(values: NDArray[np.int64], metric: Metric) -> float | None:
    """Return a launch's figure in ns; None where it has too few samples."""
    if metric is Metric.MEAN:
        cut = values.size // 100
        return float(np.sort(values)[cut : values.size - cut].mean())
    if values.size < (6 if metric is Metric.MEDIAN else 368):
        return None
    return float(np.quantile(values, 0.5 if metric is Metric.MEDIAN else 0.99))


def by_block(key: Key, paths: dict[str, dict[int, NDArray[np.int64]]], path: str, metric: Metric) -> dict[int, float]:
    """Return the log of a path's figure in each block; both launches of the baseline count."""
    found: dict[int, list[float]] = defaultdict(list)
    for name in (path, path + AGAIN):
        for block, values in paths.get(name, {}).items():
            ns = of_launch(values, metric)
            found[block] += [] if ns is None else [np.log(known(key[1], key[3]).value(ns))]
    return {block: float(np.mean(logs)) for block, logs in found.items() if logs}


def level(key: Key, paths: dict[str, dict[int, NDArray[np.int64]]], path: str, metric: Metric) -> float | None:
    logs = [*by_block(key, paths, path, metric).values()]
    return float(np.exp(np.mean(logs))) if logs else None


def ratio(key: Key, paths: dict[str, dict[int, NDArray[np.int64]]], metric: Metric) -> float | None:
    """Return `tap` / `veth` over the blocks that both have."""
    ours, theirs = (by_block(key, paths, path, metric) for path in ("tap", "veth"))
    return float(np.exp(np.mean([ours[block] - theirs[block] for block in ours])))


def has(key: Key, metric: Metric) -> bool:
    return metric is Metric.MEAN or (metric is Metric.MEDIAN and key[1] != "ft.S.total") or key[1] == "bw"


def same(shown: object, true: float | None) -> bool:
    return shown is None if true is None else shown == pytest.approx(true, rel=1e-9)


# ---- the forms


def test_json_has_the_figures_of_the_samples(runs: tuple[RunDir, RunDir]) -> None:
    report: dict[str, Any] = json.loads(as_json.render(build_view(runs[0], distributions=False)))
    figures = truth(runs[0])
    assert len(report["cells"]) == len(figures)
    for cell in report["cells"]:
        key = (cell["workload"], cell["operation"], cell["setting"], cell["message_bytes"])
        assert (cell["unit"], cell["better"]) == (known(key[1], key[3]).unit, known(key[1], key[3]).better)
        for one in cell["paths"]:
            launches = figures[key][one["path"]]
            assert one["iterations"] == sum(values.size for values in launches.values())
            for metric in Metric:
                true = level(key, figures[key], one["path"], metric)
                assert same(one[metric]["value"], true), (key, one["path"], metric)
                if one["path"] == "tap":
                    estimate = one["comparison"][metric]
                    assert (estimate is not None) == has(key, metric)
                    assert estimate is None or same(estimate["ratio"], ratio(key, figures[key], metric)), key


def test_csv_has_the_same_figures_as_json(runs: tuple[RunDir, RunDir]) -> None:
    view = build_view(runs[0], distributions=False)
    report: dict[str, Any] = json.loads(as_json.render(view))
    rows = list(csv.DictReader(io.StringIO(as_csv.render(view))))
    paths = [(cell, one) for cell in report["cells"] for one in cell["paths"]]
    names = {"mean": "ratio", "median": "median_ratio", "p99": "p99_ratio"}

    def ends(of: dict[str, Any] | None, value: str) -> list[str]:
        interval = of["interval"] or {"low": None, "high": None} if of else {"low": None, "high": None}
        figures = (of[value] if of else None, interval["low"], interval["high"])
        return ["" if figure is None else repr(figure) for figure in figures]

    assert len(rows) == len(paths)
    for row, (cell, one) in zip(rows, paths, strict=True):
        assert all(row[name] == str(cell[name]) for name in ("workload", "operation", "setting", "unit", "better"))
        assert (row["path"], int(row["message_bytes"])) == (one["path"], cell["message_bytes"])
        for metric, name in names.items():
            compared = one["comparison"][metric] if one["comparison"] else None
            assert [row[metric], row[f"{metric}_low"], row[f"{metric}_high"]] == ends(one[metric], "value")
            assert [row[name], row[f"{name}_low"], row[f"{name}_high"]] == ends(compared, "ratio")


@pytest.mark.parametrize("form", ["markdown", "latex"])
def test_tables_have_the_same_figures_rounded(runs: tuple[RunDir, RunDir], form: str) -> None:
    text = {"markdown": as_markdown.render, "latex": as_latex.render}[form](build_view(runs[0], distributions=False))
    lines = text.replace("\\_", "_").splitlines()
    for key, paths in truth(runs[0]).items():
        of, (workload, operation, setting, _) = known(key[1], key[3]), key
        name = workload if workload == operation else f"{workload} ({operation})"
        for metric in filter(lambda one: has(key, one), Metric):
            label = "p99 of the durations" if metric is Metric.P99 and of.better == "larger" else str(metric)
            start = next(n for n, line in enumerate(lines) if f"{name}, setting {setting}: {label}, " in line)
            assert f", {of.unit}" in lines[start]
            figures = [level(key, paths, path, metric) for path in ("veth", "tap")]
            row = re.compile(".*".join(re.escape(words.figure(one)) for one in figures if one is not None))
            assert any(row.search(line) for line in lines[start : start + 12]), (key, metric)


def test_gate_and_history_have_the_same_figures_in_the_same_unit(runs: tuple[RunDir, RunDir]) -> None:
    """The unit of a plain time is that of a run's first launch, under either name of the baseline."""
    run, base = runs
    assert next(one for one in run.trials() if one.order.workload.label == "ft").order.path.label == "veth" + AGAIN
    gate: dict[str, Any] = json.loads(gate_as_json.render(judge_runs(run, base)))
    sides = {"run": truth(run), "base": truth(base)}
    for cell in (*gate["cells"], *gate["others"]):
        key, metric = (cell["workload"], cell["operation"], cell["setting"], cell["message_bytes"]), cell["metric"]
        assert (cell["unit"], cell["better"]) == (known(key[1], key[3]).unit, known(key[1], key[3]).better)
        for name, figures in sides.items():
            assert same(cell[name], level(key, figures[key], cell["path"], Metric(metric))), (key, metric)
        if cell["difference"]:
            assert same(cell["difference"]["ratio"], cell["run"] / cell["base"])
            low, high = (cell["difference"]["interval"][end] for end in ("low", "high"))
            assert low < cell["difference"]["ratio"] < high
    for metric in Metric:
        for series in build_history("here", [collect(run.root)], metric).series:
            of = series.cell
            key = (of.workload, of.operation, of.setting, of.message_bytes)
            assert (series.shown.unit, series.shown.better) == (gate_unit(gate, key), known(key[1], key[3]).better)
            assert same(series.points[-1].level.value, level(key, sides["run"][key], of.path, metric))


def test_gate_corrects_each_figure_over_the_cells_that_can_have_it(runs: tuple[RunDir, RunDir]) -> None:
    """Holm's correction of Welch's one-sided tests against the margin; four blocks are too few to widen them.

    A launch of one sample has no median: it is none of the cells. One that is too short for a p99 is. Parts of a
    program are a family of their own.
    """
    gate: dict[str, Any] = json.loads(gate_as_json.render(judge_runs(*runs)))
    figures = [truth(run) for run in runs]
    parts = {one["operation"] for one in gate["cells"] if one["part"]}
    margins = zip(Metric, (gate["margin"], gate["margin"], gate["tail_margin"]), strict=True)
    for (metric, margin), part in itertools.product(margins, (False, True)):
        judged = [one for one in (*gate["cells"], *gate["others"]) if one["metric"] == metric and one["part"] == part]
        cells = [one for one in judged if one["difference"]]
        found = []
        for one in cells:
            key = (one["workload"], one["operation"], one["setting"], one["message_bytes"])
            cost = 1 if one["better"] == "smaller" else -1
            run, base = (cost * np.array([*by_block(key, of[key], one["path"], metric).values()]) for of in figures)
            shifted = run - np.log1p(margin)
            found.append(float(stats.ttest_ind(shifted, base, equal_var=False, alternative="greater").pvalue))
        operations = [operation for _, operation, *_ in figures[0] if (operation in parts) == part]
        family = 2 * sum(metric is Metric.MEAN or operation != "ft.S.total" for operation in operations)
        order, least = np.argsort(found), 0.0
        for rank, at in enumerate(order):
            least = max(least, min(1.0, found[at] * (family - rank)))
            assert cells[at]["difference"]["p_worse"] == pytest.approx(least, rel=1e-6), (metric, rank)


def gate_unit(gate: dict[str, Any], key: Key) -> str:
    return next(
        str(cell["unit"])
        for cell in gate["cells"]
        if (cell["workload"], cell["operation"], cell["setting"], cell["message_bytes"]) == key
    )


def test_show_has_the_figures_that_compare_uses(
    runs: tuple[RunDir, RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial's figures have the unit of the report, and a median is refused by the margin of the study."""
    run = runs[0]
    seen = set()
    for record in run.trials():
        what = (record.order.workload.label, record.order.path.label)
        if not record.valid or what in seen:
            continue
        seen.add(what)
        assert cli(["show", str(run.root), "--trial", str(record.order.trial)]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cell: ")]
        for line, cell in zip(lines, record.cells, strict=True):
            key = (record.order.workload.label, cell.operation, record.order.setting, cell.message_bytes)
            of, values = known(key[1], key[3]), run.values(record, cell)
            for metric in Metric:
                label = "p99 of the durations" if metric is Metric.P99 and of.better == "larger" else str(metric)
                ns = of_launch(values, metric)
                assert ns is None or f"{label} {words.figure(of.value(ns))} {of.unit}" in line, line
