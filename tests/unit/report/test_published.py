"""Our figures beside published tables: order, direction, crossovers; and every shipped table is complete."""

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearmetal.cli.main import run as cli
from nearmetal.errors import ForeignFileError
from nearmetal.report import published as report
from nearmetal.results import published
from nearmetal.results.paths import build_view
from nearmetal.results.published import PublishedEffect
from nearmetal.results.published_tables import Bound, Column, Statistic, every_table, load, parse, published_named
from nearmetal.results.records import TrialSummary, View
from nearmetal.stats.bootstrap import IntervalMethod
from nearmetal.stats.compare import RatioEstimate, estimate_ratio
from nearmetal.stats.interval import Interval
from nearmetal.stats.summary import summarize
from nearmetal.stats.widen import BlockFigures
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.study import plan
from nearmetal.study.order import Order, Outcome, TrialStatus
from nearmetal.study.spec import digest, parse_study
from nearmetal.workloads.samples import one_cell
from nearmetal.workloads.tools.tool import Spans
from tests.unit.report.synthetic_run import COST, Recipe, make_run
from tests.unit.report.synthetic_run import STUDY as SYNTHETIC
from tests.unit.test_parts import cell


def ratio(*ratios: float) -> RatioEstimate:
    ours = np.array(ratios)
    return estimate_ratio(BlockFigures(ours, np.ones_like(ours)), rng=np.random.default_rng(1))


@pytest.mark.parametrize("name", every_table())
def test_every_shipped_table_can_be_read(name: str) -> None:
    table = published_named(name)
    figures = load(table)
    for column in table.columns:
        assert figures.values[column.name], column.name
    for pair in table.effects:
        assert set(pair) <= {one.name for one in table.columns}


def test_the_figures_match_the_paper() -> None:
    third = load(published_named("musleh-table3")).values
    assert (third["native_rx88"][64], third["vm_rx1"][16384]) == (5.05, 14.2)
    assert load(published_named("nasa-nuttcp")).values["sw_virt"][0] == pytest.approx(145.93, abs=0.1)
    assert load(published_named("nanos-table1")).values["bridged"][0] == 425.97


def test_a_table_that_lacks_a_column_is_refused() -> None:
    with pytest.raises(ForeignFileError, match="not the expected table"):
        parse(published_named("musleh-table3"), "bytes,native_rx88\n64,5.05\n")


@pytest.mark.parametrize(
    ("theirs", "ours", "agrees"),
    [
        (1.40, (1.2, 1.21, 1.19, 1.22), "same"),
        (1.40, (0.8, 0.81, 0.79, 0.82), "different"),
        (1.40, (0.7, 1.5, 0.9, 1.2), "undecided"),
        (1.40, (1.001, 1.002, 1.0, 0.999), "different"),
        (1.01, (1.001, 1.002, 1.0, 0.999), "same"),
        (1.01, (1.3, 1.31, 1.29, 1.3), "different"),
    ],
)
def test_direction_is_judged_by_our_interval(theirs: float, ours: tuple[float, ...], agrees: str) -> None:
    assert published.agreement(theirs, ratio(*ours)) == agrees  # type: ignore[arg-type]


def within(low: float, high: float, equivalence: Interval | None = None) -> RatioEstimate:
    """Return a ratio of this interval."""
    one = estimate_ratio(BlockFigures(np.ones(2), np.ones(2)), rng=np.random.default_rng(1))
    return replace(one, interval=Interval(low, high, 0.95), equivalence_interval=equivalence)


@pytest.mark.parametrize(
    ("theirs", "bound", "ends", "agrees"),
    [
        (1.0, "", (0.95, 1.05), "same"),
        (1.0, "", (0.949, 1.05), "undecided"),
        (1.0, "", (0.95, 1.051), "undecided"),
        (1.0, "", (1.05, 1.2), "undecided"),
        (1.0, "", (0.9, 0.95), "undecided"),
        (1.015, "", (0.95, 1.05), "same"),
        (1.4, "", (0.95, 1.05), "different"),
        (1.06, "", (0.95, 1.05), "different"),
        (1.04, "", (0.95, 1.05), "undecided"),
        (1.04, "", (1.01, 1.05), "same"),
        (1.4, "", (1.0, 1.2), "undecided"),
        (1.4, "", (0.8, 1.0), "undecided"),
        (0.6, "", (0.8, 0.9), "same"),
        (1.25, "<", (1.1, 1.25), "same"),
        (1.25, "<", (1.25, 1.3), "undecided"),
        (1.25, ">", (1.25, 1.3), "same"),
        (1.25, ">", (1.1, 1.25), "undecided"),
    ],
)
def test_the_ends_of_an_interval_belong_to_it(
    theirs: float, bound: Bound, ends: tuple[float, float], agrees: str
) -> None:
    assert published.agreement(theirs, within(*ends), bound) == agrees


def test_no_effect_is_judged_by_the_interval_of_equivalence() -> None:
    assert published.agreement(1.0, within(0.9, 1.1, Interval(0.96, 1.04, 0.9))) == "same"
    assert published.agreement(1.0, within(0.96, 1.04, Interval(0.9, 1.1, 0.9))) == "undecided"


@pytest.mark.parametrize(
    ("statistic", "ns"),
    [("mean", 5100), ("median", 5000), ("p90", 9000), ("p95", 9500), ("p99", 9900), ("max", 110000)],
)
def test_each_statistic_of_a_column_is_taken_of_a_launch(statistic: Statistic, ns: float) -> None:
    values = np.arange(10, 10001, 10)
    values[-1] = 110_000
    trial = TrialSummary(0, 1, 0, "", summarize(values))
    column = Column("one", ("veth",), statistic=statistic)
    assert published._statistic(trial, column) == pytest.approx(ns, abs=20)


def test_crossovers_are_between_neighbouring_sizes() -> None:
    assert published.crossovers([(64, 1.4), (128, 1.2), (256, 1.001), (512, 0.9), (1024, 0.8)]) == [(128, 512)]
    assert published.crossovers([(64, 1.4), (128, 1.2)]) == []


def test_an_effect_changes_sign_where_intervals_show_it() -> None:
    """Estimates of noisy launches on both sides of 1 were crossovers, however wide their intervals."""
    ours = {8: (0.4, 1.6, 0.5, 1.1), 16: (1.5, 1.4, 1.6, 1.5), 32: (0.6, 0.7, 0.6, 0.6)}
    effects = (PublishedEffect("sriov", "native", n, 1.3, ratio(*of), published.OPEN) for n, of in ours.items())
    found = published.TableShape(load(published_named("lockwood-latency")), {}, {}, (), tuple(effects))
    (row,) = report.tables(found)[-1].rows
    assert row == ("sriov / native", "nowhere", "16 B to 32 B (8 B to 32 B, undecided at 1 of 3 sizes)")


STUDY = """
name = "table3"
baseline = "native"
host = { kind = "fake", options = { "base_ns.veth" = 10000, "base_ns.bridge" = 16000 } }
path = [{ name = "native", kind = "veth" }, { name = "vf", kind = "bridge" }]
setting = [{ name = "moderated" }, { name = "immediate" }]
workload = [{ name = "latency", sizes = [64, 128], iterations = 50, warmup = 5 }]
trials = { min_blocks = 4, max_blocks = 4 }
"""


Compared = Callable[..., str]


@pytest.fixture
def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compared:
    """Return a function that makes a study's run once, compares it with a published table, and gives the output."""

    def compare(table: str, *more: str, study: str = STUDY, status: int = 0) -> str:
        if not (tmp_path / "s.toml").exists():
            (tmp_path / "s.toml").write_text(study)
            assert cli(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "run")]) == 0
        capsys.readouterr()
        assert cli(["compare", str(tmp_path / "run"), "--published", table, *more]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return compare


def test_a_run_is_compared_with_a_table(compared: Compared) -> None:
    output = compared("musleh-table3")
    assert "the fake host" in output
    assert "blocking mode: published | ours (us)" in " ".join(output.split())
    assert "vm_rx88 / native_rx88" in output
    assert "not judged" in output
    assert "our means are of all samples, none trimmed, as other programs take them." in " ".join(output.split())
    assert "same in " in output
    assert "not measured in" in output
    # The two native columns differ only by chance here, so their published order is neither confirmed nor refuted.
    orders = [line for line in output.splitlines() if line.startswith(("64 B", "128 B")) and " < " in line]
    assert len(orders) == 2
    assert all(line.rstrip().endswith("undecided") for line in orders)
    assert "undecided where the interval of our ratio holds 1" in " ".join(output.split())
    assert "nowhere (64 B to 128 B)" in output, "a crossover between unmeasured sizes is not ruled out"
    assert max(map(len, output.splitlines())) <= 80


def test_a_column_that_is_mapped_to_a_path_alone_keeps_the_settings_of_the_table(compared: Compared) -> None:
    """All columns of a path were of one setting, so that an effect was a figure against itself: 1.000..1.000."""
    paths = {"native_rx88": "bare1", "native_rx1": "bare1", "vm_rx88": "guest1", "vm_rx1": "guest1"}
    study = STUDY.replace('"native"', '"bare1"').replace('"vf"', '"guest1"')
    named = [word for column, path in paths.items() for word in ("--map", f"{column}={path}")]
    printed = compared("musleh-table3", *named, study=study)
    assert "1.000..1.000" not in printed
    assert "Ours under the setting" not in printed, "the table names them"
    rows = json.loads(compared("musleh-table3", *named, "--format", "json"))["rows"]
    ours = {row["column"]: row["ours"] for row in rows if row["message_bytes"] == 64}
    assert len(set(ours.values())) == 4
    named = [word.replace("bare1", "bare1/immediate") for word in named]
    rows = json.loads(compared("musleh-table3", *named, "--format", "json"))["rows"]
    assert {row["ours"] for row in rows if row["message_bytes"] == 64} == set(ours.values()) - {ours["native_rx88"]}


def test_equal_published_figures_are_not_ordered(compared: Compared) -> None:
    study = STUDY.replace('name = "latency", sizes = [64, 128]', 'name = "allgather", sizes = [128]')
    output = compared("musleh-table4", "--map", "native_rx88=vf/moderated", study=study)
    (order,) = [line for line in output.splitlines() if line.startswith("128 B") and " < " in line]
    assert "native_rx88 < native_rx1  native_rx1 < native_rx88" in order
    assert order.rstrip().endswith("different"), "3.60 and 3.67 us count as equal, 16 and 10 do not"


def test_a_p_value_below_the_printed_digits_is_shown_as_below(compared: Compared) -> None:
    ours = 'name = "allgather-4", operation = "allgather", ranks = 2, sizes = [128]'
    output = compared("musleh-table5", study=STUDY.replace('name = "latency", sizes = [64, 128]', ours))
    (row,) = [line for line in output.splitlines() if line.startswith("n4_ppn2   128 B")]
    assert row.split()[3:7] == ["<", "0.001", "<", "0.001"], "ours had digits that no ten launches have: 8.59e-25"


def test_a_run_is_compared_with_ratios_stated_in_a_papers_text(compared: Compared) -> None:
    output = compared("lockwood-latency", study=STUDY.replace("sizes = [64, 128]", "sizes = [64, 1024, 3000]"))
    (small,) = [line for line in output.splitlines() if line.startswith("sriov / native") and " 64 B " in line]
    (large,) = [line for line in output.splitlines() if line.startswith("sriov / native") and " 1 KiB " in line]
    assert "1.300" in small
    assert small.rstrip().endswith("same"), "the made-up 1.6 is slower, as in the text"
    assert "< 1.100" in large
    assert large.rstrip().endswith("different"), "1.6 is beyond the text's 10 %"
    assert "3000" not in output, "the text does not mention that size"
    assert "none trimmed" in " ".join(output.split())
    assert "Ours under the setting moderated; another: --map" in " ".join(output.split()), (
        "the study has two, the text has none"
    )
    named = ["--map", "native=native/immediate", "--map", "sriov=vf/immediate"]
    assert "Ours under" not in compared("lockwood-latency", *named)


@pytest.mark.parametrize(
    ("bound", "ours", "agrees"),
    [
        ("<", (0.8, 0.81, 0.79, 0.82), "same"),
        ("<", (1.2, 1.21, 1.19, 1.22), "different"),
        (">", (1.2, 1.21, 1.19, 1.22), "same"),
        (">", (0.8, 0.81, 0.79, 0.82), "different"),
        (">", (0.7, 1.5, 0.9, 1.2), "undecided"),
    ],
)
def test_a_bound_holds_only_for_the_whole_interval(bound: str, ours: tuple[float, ...], agrees: str) -> None:
    assert published.agreement(1.0, ratio(*ours), bound) == agrees  # type: ignore[arg-type]


def test_a_comparison_with_a_table_is_written_for_other_programs(compared: Compared) -> None:
    outputs = {form: compared("musleh-table3", "--format", form) for form in ("json", "csv", "markdown", "latex")}
    whole = json.loads(outputs["json"])
    label = whole["figures_from"]
    assert label
    assert outputs["markdown"].startswith(f"Ours: {label}.")
    assert f"Ours: {label}" in outputs["latex"]
    assert {row["figures_from"] for row in csv.DictReader(outputs["csv"].splitlines())} == {label}
    assert whole["published"] == "musleh-table3"
    rows = list(csv.DictReader(outputs["csv"].splitlines()))
    assert len(rows) == len(whole["rows"])
    judged = [row for row in rows if row["reference"] and row["ours"]]
    assert judged
    for row in judged:
        assert float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"])
        assert row["direction"] in {published.SAME, published.OTHER, published.OPEN}
    assert "| vm_rx88 / native_rx88 |" in outputs["markdown"].replace("\\_", "_")


def test_machine_readable_formats_have_every_effect_of_a_column(compared: Compared) -> None:
    """The virtual function is compared with both the bare port and the bridge."""
    study = """
name = "three"
baseline = "native"
host = { kind = "fake" }
path = [{ name = "native", kind = "veth" }, { name = "bridge", kind = "bridge" }, { name = "vf", kind = "macvlan" }]
workload = [{ name = "rate", operation = "message_rate", sizes = [64], iterations = 50, warmup = 5 }]
trials = { min_blocks = 4, max_blocks = 4 }
"""
    rows = json.loads(compared("nanos-table1", "--format", "json", study=study))["rows"]
    assert [(row["column"], row.get("reference")) for row in rows] == [
        ("native", None),
        ("bridged", "native"),
        ("iov", "native"),
        ("iov", "bridged"),
    ]
    figures = {row["column"]: row["ours"] for row in rows}
    for row in rows[1:]:
        assert row["ratio"] == pytest.approx(figures[row["column"]] / figures[row["reference"]])


def test_published_and_our_figures_each_have_their_own_unit(compared: Compared) -> None:
    """Nuttcp's Mbit/s are not MB/s."""
    study = """
name = "streams"
baseline = "native"
host = { kind = "fake" }
path = [{ name = "native", kind = "veth" }, { name = "vf", kind = "macvlan" }]
workload = [{ name = "tcp", kind = "nuttcp", operation = "tcp_stream" }]
trials = { min_blocks = 3, max_blocks = 3 }
"""
    output = compared("nasa-nuttcp", study=study)
    assert "published (Mbit/s) | ours (MB/s)" in " ".join(output.split())
    (bare, *_), (line, *_) = (
        json.loads(compared("nasa-nuttcp", "--format", "json"))["rows"],
        csv.DictReader(compared("nasa-nuttcp", "--format", "csv").splitlines()),
    )
    assert (bare["column"], bare["unit"], bare["published_unit"]) == ("bare", "MB/s", "Mbit/s")
    assert (line["published"], line["published_unit"]) == (str(bare["published"]), "Mbit/s")


def npb_run(root: Path, ms: dict[tuple[str, str], float]) -> View:
    """Return a view of a run of programs of class S: what each takes under each setting."""
    programs = ", ".join(f'{{ name = "{one}", kind = "application" }}' for one in dict.fromkeys(one for one, _ in ms))
    text = f"""
name = "npb"
baseline = "vf"
path = [{{ name = "vf", kind = "veth" }}]
setting = [{{ name = "default" }}, {{ name = "window-40" }}]
workload = [{programs}]
trials = {{ min_blocks = 5, max_blocks = 5 }}
"""
    study = parse_study(text, "study.toml")
    info = RunInfo(study.name, digest(text), "local", "here", "0.1.0", "2026-11-23T09:00:00+00:00")
    with RunDir.create(root, info, text) as run:
        for order in (one for number in range(5) for one in plan.block(study, number)):
            name = order.workload.label
            launch = [cell(f"{name}.S.total", ms[name, order.setting] + order.block)]
            run.append(order, Outcome(TrialStatus.VALID), launch, attempt=1, started_utc=info.created_utc)
    return build_view(RunDir.open(root))


def test_settings_on_both_sides_of_a_second_share_one_unit(tmp_path: Path) -> None:
    """CG takes 1.01 s under one setting and 0.99 s under the other: a ratio of 0.98, not of 990 ms to 1.01 s."""
    view = npb_run(tmp_path / "run", {("cg", "default"): 1010.0, ("cg", "window-40"): 990.0})
    assert len({one.shown for one in view.cells}) == 1
    found = published.shape(view, load(published_named("musleh-figs10-13")), {})
    (effect,) = [one for one in found.effects if one.ours]
    assert effect.ours
    assert effect.ours.ratio == pytest.approx(992 / 1012, rel=1e-4)
    assert found.units == dict.fromkeys(("cg_default", "cg_window"), view.cells[0].shown.unit)


def test_ratios_that_a_text_states_have_no_order_among_each_other(tmp_path: Path) -> None:
    """JSON had the times of CG in seconds among those of EP in ms, as if the paper had said which is less."""
    cg = {("cg", "default"): 1010.0, ("cg", "window-40"): 990.0}
    view = npb_run(tmp_path / "run", cg | {("ep", "default"): 140.0, ("ep", "window-40"): 150.0})
    found = published.shape(view, load(published_named("musleh-figs10-13")), {})
    assert {one.agrees for one in found.effects if one.ours} == {published.SAME, published.OTHER}
    assert json.loads(report.as_json(found))["orders"] == []


def beside_lockwood(root: Path, recipe: Recipe) -> published.TableShape:
    """Return vf and veth of a run of the synthetic study, whose bridge is named vf, beside a table of both."""
    study = recipe.study.replace('name = "bridge"', 'name = "vf"\nkind = "veth"').replace('"1 KiB"', "1024")
    view = build_view(make_run(root, replace(recipe, study=study, cost={**COST, "vf": 1.12})))
    named = {"native": ("veth", ""), "sriov": ("vf", "")}
    return published.shape(view, load(published_named("lockwood-latency")), named)


def ratios_beside_lockwood(root: Path, recipe: Recipe) -> list[RatioEstimate]:
    """Return our ratios of vf to veth."""
    ours = [one.ours for one in beside_lockwood(root, recipe).effects if one.ours]
    assert ours
    return ours


FIXED = SYNTHETIC.replace("min_blocks = 5", "min_blocks = 8")


def test_directions_over_occasions_use_the_interval_for_another_occasion(tmp_path: Path) -> None:
    """Intervals beside a published table are those of the report, not narrower ones over all occasions' blocks."""
    ours = ratios_beside_lockwood(tmp_path / "run", Recipe(study=FIXED, blocks=24, hours=(1.0, 3.0, 2.0)))
    assert all(one.method is IntervalMethod.ANOTHER and (one.n, one.launches) == (3, 24) for one in ours)


def test_our_figures_beside_a_table_are_of_occasions_as_their_ratios(tmp_path: Path) -> None:
    """Blocks of a longer occasion counted more in the figures than in their ratio: 1.04 against 1.15."""
    recipe = Recipe(study=FIXED, blocks=12, hours=(1.0, 3.0), spread=0.0001)
    recipe = replace(recipe, fails=lambda order, attempt: order.path.label == "vf" and order.block >= 10)
    found = beside_lockwood(tmp_path / "run", recipe)
    native, vf = (found.ours[name] for name in ("native", "sriov"))
    compared = {effect.size_bytes: effect.ours.ratio for effect in found.effects if effect.ours}
    assert len(compared) == 3
    for size, ratio in compared.items():
        assert ratio == pytest.approx(vf[size] / native[size], rel=0.05)


SECOND = "[[workload]]\nname = 'second'\noperation = 'latency'\nsizes = [8]\n[trials]"
TWO_OF_EACH = SYNTHETIC.replace("[trials]", SECOND) + "[[setting]]\nname = 'default'\n[[setting]]\nname = 'tuned'\n"


def test_both_sides_of_an_effect_are_of_one_workload_and_setting(tmp_path: Path) -> None:
    """Where vf failed in the first, its figures of the second stood against those of veth in the first: 3.4 times."""

    def fails(order: Order, _: int) -> bool:
        return order.path.label == "vf" and (order.workload.label, order.setting) != ("second", "tuned")

    recipe = Recipe(study=TWO_OF_EACH, blocks=5, setting_cost={"tuned": 3.0}, fails=fails)
    found = beside_lockwood(tmp_path / "run", recipe)
    (ratio,) = [one.ours.ratio for one in found.effects if one.ours]
    assert ratio == pytest.approx(1.12, rel=0.05)
    assert (found.workloads, found.taken) == (("second", "latency"), ("tuned", "default"))


def test_columns_without_sizes_are_of_one_size_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Writes of 64 B in one workload stood against those of 2 B, the first, in another: 4 times for 1.25."""
    us = {"write-1000": {2: 1.0, 64: 3.2}, "write-10000": {64: 4.0}}
    of_tool = 'kind = "perftest", operation = "ib_write_lat"'
    workloads = ", ".join(f'{{ name = "{name}", {of_tool}, sizes = {[*of]} }}' for name, of in us.items())
    text = f"""
name = "writes"
baseline = "native"
path = [{{ name = "native", kind = "veth" }}]
workload = [{workloads}]
trials = {{ min_blocks = 5, max_blocks = 5 }}
"""
    study = parse_study(text, "study.toml")
    info = RunInfo(study.name, digest(text), "local", "here", "0.1.0", "2026-11-23T09:00:00+00:00")
    with RunDir.create(tmp_path / "run", info, text) as run:
        for order in (one for number in range(5) for one in plan.block(study, number)):
            costs = us[order.workload.label].items()
            cells = [one_cell("ib_write_lat", size, Spans([round(1000 * cost)] * 100)) for size, cost in costs]
            run.append(order, Outcome(TrialStatus.VALID), cells, attempt=1, started_utc=info.created_utc)
    found = published.shape(build_view(RunDir.open(tmp_path / "run")), load(published_named("musleh-fig5")), {})
    (ratio,) = [one.ours.ratio for one in found.effects if one.ours]
    assert ratio == pytest.approx(1.25)
    assert json.loads(report.as_json(found))["taken"] == {"workloads": [], "settings": [], "sizes": [64]}
    assert cli(["compare", str(tmp_path / "run"), "--published", "musleh-fig5"]) == 0
    assert "Ours at 64 B." in " ".join(capsys.readouterr().out.split())


def test_columns_of_the_same_paths_are_of_one_path(tmp_path: Path) -> None:
    """Where native failed under one setting, veth stood for it: three times slower than native under the other."""
    study = """
name = "two-that-stand-for-bare-metal"
baseline = "native"
path = [{ name = "native", kind = "veth" }, { name = "veth" }, { name = "vf", kind = "veth" }]
setting = [{ name = "moderated" }, { name = "immediate" }]
workload = [{ name = "latency", sizes = [64] }]
trials = { min_blocks = 5, max_blocks = 5 }
"""

    def fails(order: Order, _: int) -> bool:
        return order.path.label.startswith("native") and order.setting == "immediate"

    recipe = Recipe(study=study, blocks=5, cost={"native": 1.0, "veth": 3.0, "vf": 3.9}, fails=fails)
    view = build_view(make_run(tmp_path / "run", recipe))
    found = published.shape(view, load(published_named("musleh-table3")), {})
    ratios = {(one.column, one.reference): one.ours.ratio for one in found.effects if one.ours}
    assert ratios["native_rx1", "native_rx88"] == pytest.approx(1, rel=0.05)
    assert ratios["vm_rx88", "native_rx88"] == pytest.approx(1.3, rel=0.05)


def test_boots_that_differ_widen_the_intervals_beside_a_table(tmp_path: Path) -> None:
    for one in ratios_beside_lockwood(tmp_path / "run", Recipe(study=FIXED, boots=(0.8, 1.0, 1.3))):
        assert one.interval
        assert one.evidence
        assert "boots of the machine differ" in one.evidence.wider
        assert one.interval.contains(1), "the next boot may fall on either side"


def test_a_baseline_that_differs_from_itself_widens_the_intervals_beside_a_table(tmp_path: Path) -> None:
    for one in ratios_beside_lockwood(tmp_path / "run", Recipe(study=FIXED, again=1.2, spread=0.001)):
        assert one.interval
        assert one.evidence
        assert one.evidence.offset == pytest.approx(math.log(1.2), abs=0.02)
        assert one.ratio == pytest.approx(1.12 / math.sqrt(1.2), rel=0.05), "both launches of the baseline count"


def test_a_run_that_stops_early_is_compared_by_its_repeated_intervals(tmp_path: Path) -> None:
    ours = ratios_beside_lockwood(tmp_path / "run", Recipe(blocks=6))
    assert all(one.method is IntervalMethod.REPEATED for one in ours)


def test_a_column_is_mapped_once(compared: Compared) -> None:
    """Of two paths for a column the last was taken without a word."""
    named = ["--map", "vm_rx1=vf", "--map", "vm_rx1=native"]
    assert "--map names the column vm_rx1 twice" in compared("musleh-table3", *named, status=2)


@pytest.mark.parametrize(
    ("target", "message"), [("vff", "'vff', no path of this run"), ("vf/immidiate", "'immidiate', no setting")]
)
def test_mapping_a_column_to_something_the_run_lacks_is_refused(compared: Compared, target: str, message: str) -> None:
    assert message in (asked := compared("musleh-table3", "--map", f"vm_rx1={target}", status=2))
    assert "vf" in asked or "immediate" in asked.partition("hint")[2]


def test_a_run_without_any_column_of_a_table_reports_what_it_needs(compared: Compared) -> None:
    stderr = compared("nanos-table1", status=2) + compared("nonsense", status=2)
    assert "--map" in stderr
    assert "musleh-table3" in stderr


def test_a_run_with_one_side_of_every_stated_effect_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was printed but where our figures are from."""
    make_run(tmp_path / "r", Recipe(blocks=2))
    assert cli(["compare", str(tmp_path / "r"), "--published", "lockwood-latency"]) == 2
    needed = "latency on native/veth/bare (native) and on vf/vm/guest-vf/passthrough (sriov)"
    assert f"can be compared with lockwood-latency: it needs {needed}\nhint: name" in capsys.readouterr().err
