"""Waterfalls as text and HTML, how a traced trial is stored, and how a launch is traced."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner

from nearmetal.cli.explain import command
from nearmetal.errors import BadInputError, ForeignFileError, UnavailableError
from nearmetal.facts import tracing
from nearmetal.facts.waterfall import RoundTrip
from nearmetal.hosts.host import HYPERVISOR
from nearmetal.process import Finished
from nearmetal.report import as_html, waterfall
from nearmetal.results.paths import build_view
from nearmetal.results.waterfalls import Waterfall, trimmed, waterfalls
from nearmetal.stats.summary import trimmed_mean
from nearmetal.store.bundle import read_bundle, write_bundle
from nearmetal.store.rundir import RunDir, RunInfo, TrialRecord
from nearmetal.study.facts import VARIANT
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.study.spec import digest
from nearmetal.workloads.sample_file import SampleFile, SampleHeader, read_sample_file
from nearmetal.workloads.samples import decode
from tests.fake_runs import list_anew
from tests.unit.report.synthetic_run import make_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.store.samples import StoredCell
    from nearmetal.study.order import Scalar

GOLDEN = Path(__file__).parents[2] / "golden" / "waterfall-v1.zip"
STUDY = """
name = "one"
baseline = "vf"
[[path]]
name = "vf"
[[workload]]
name = "traced"
operation = "latency"
sizes = [64]
options = { waterfall = true }
[[setting]]
name = "default"
"""


def _run(root: Path, plain: dict[str, Scalar], kind: str = "engine", *, busy: bool = False) -> RunDir:
    """A run with one traced trial and one untraced trial of the same samples, each under its own options.

    If it is `busy`, other programs use the machine, and the kernel is another one for the second trial.
    """
    counters = {"cpu.user": 100, "cpu.idle": 100, "others.cc1plus": 70} if busy else {}
    info = RunInfo("one", digest(STUDY), "lab", "a test", "0", "2026-01-01T00:00:00+00:00")
    made = RunDir.create(root, info, STUDY)
    files = read_bundle(GOLDEN)
    for number, (label, options) in enumerate((("traced", {"waterfall": True}), ("plain", plain))):
        of_kind = "engine" if label == "traced" else kind
        order = Order(number, 0, PathOrder("vf", "vf"), WorkloadOrder(label, of_kind, dict(options)), "default")
        kept = files if label == "traced" else {"samples": files["samples"]}
        facts: dict[str, Scalar] = {"kernel.release": f"6.{number}"} if busy else {}
        outcome = Outcome(TrialStatus.VALID, files=kept, facts=facts, counters=counters)
        made.append(order, outcome, decode(outcome), attempt=1, started_utc="2026-01-01T00:00:00+00:00")
    made.close()
    return made


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return _run(tmp_path / "run", {})


@pytest.fixture
def one(run: RunDir) -> Waterfall:
    (found,) = waterfalls(run)
    return found


def test_a_traced_trial_keeps_its_trace_and_gives_a_waterfall(run: RunDir, one: Waterfall) -> None:
    assert [bool(run.files("traces", record)) for record in run.trials()] == [True, False]
    assert (one.path, one.setting, one.message_bytes, len(one.trips), one.trials) == ("vf", "default", 64, 30, 1)
    assert one.residue < 0.05
    assert one.untraced_ns is not None
    assert sum(one.parts_ns.values()) == pytest.approx(one.mean_ns)


def test_means_exclude_what_comparisons_exclude(one: Waterfall) -> None:
    trips = list(one.trips) * 7
    ordered = np.sort([trip.measured_ns for trip in trips])
    means = [np.mean([trip.measured_ns for trip in found]) for found in (trips, trimmed(trips))]
    assert means[1] == pytest.approx(trimmed_mean(ordered))
    assert means[1] != pytest.approx(means[0])
    assert one.mean_ns == pytest.approx(one.untraced_ns, rel=0.05)  # the same samples, traced and not


@pytest.mark.parametrize(("option", "value"), [("pace_us", 500), ("compute_us", 20), ("working_set", 1 << 20)])
def test_an_untraced_workload_of_another_kind_is_not_a_reference(tmp_path: Path, option: str, value: int) -> None:
    (found,) = waterfalls(_run(tmp_path / "run", {option: value}))
    assert found.untraced_ns is None


def test_an_untraced_program_of_a_suite_is_not_a_reference(tmp_path: Path) -> None:
    """Of OSU's `latency` in the same run the mean went into that of the engine's."""
    (found,) = waterfalls(_run(tmp_path / "run", {}, "omb"))
    assert found.untraced_ns is None


def test_an_untraced_workload_with_other_counts_is_a_reference(tmp_path: Path) -> None:
    (found,) = waterfalls(_run(tmp_path / "run", {"iterations": 500, "sizes": [8, 64], "operation": "latency"}))
    assert found.untraced_ns is not None


def test_the_baseline_is_explained_by_its_launches_under_both_names(tmp_path: Path) -> None:
    """Its untraced mean was of its first launches alone, beside a report's of both, and its second name a lane."""
    root = tmp_path / "run"
    made = RunDir.create(root, RunInfo("one", digest(STUDY), "lab", "a test", "0", "2026-01-01T00:00:00+00:00"), STUDY)
    files = read_bundle(GOLDEN)
    for number, (label, path, times) in enumerate(
        [("traced", "vf", 1), ("traced", "vf-again", 1), ("plain", "vf", 1), ("plain", "vf-again", 4)]
    ):
        options: dict[str, Scalar | list[Scalar]] = {"waterfall": True} if label == "traced" else {}
        order = Order(number, 0, PathOrder(path, "vf"), WorkloadOrder(label, "engine", options), "default")
        outcome = Outcome(TrialStatus.VALID, files=files if label == "traced" else {"samples": files["samples"]})
        cells = [replace(cell, ns=cell.ns * times) for cell in decode(outcome)]
        made.append(order, outcome, cells, attempt=1, started_utc="2026-01-01T00:00:00+00:00")
    made.close()
    (found,) = waterfalls(RunDir.open(root))
    assert (found.path, found.trials, len(found.trips)) == ("vf", 2, 60)
    plain = next(cell for cell in build_view(RunDir.open(root)).cells if cell.group.workload == "plain")
    (level,) = (one.headline.value for one in plain.paths if one.path == "vf")
    assert level is not None
    assert found.untraced_ns == pytest.approx(level * 1000, rel=1e-12)


def test_paths_with_different_numbers_of_round_trips_are_not_said_to_have_as_many(one: Waterfall) -> None:
    fewer = replace(one, path="native", trips=one.trips[:20])
    assert "30 traced round trips each" in waterfall.as_text([one, one], "native", "a test")
    assert "20 to 30 traced round trips each" in " ".join(waterfall.as_text([one, fewer], "native", "a test").split())


def _two(one: Waterfall) -> list[Waterfall]:
    """Return the waterfall, and that of another path that waits half as long for its interrupts."""
    trips = [
        replace(
            trip,
            there={part: ns // (2 if part == "moderation wait" else 1) for part, ns in trip.there.items()},
        )
        for trip in one.trips
    ]
    quick = [replace(trip, measured_ns=sum(trip.there.values()) + sum(trip.back.values())) for trip in trips]
    return [replace(one, path="native", trips=tuple(quick), blocks={0: tuple(quick)}, untraced_ns=None), one]


def test_the_text_begins_with_the_answer_and_fits_a_screen(one: Waterfall) -> None:
    lines = waterfall.as_text(_two(one), "native", "a test").splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    assert re.fullmatch(r"vf, default takes (\S+) us more than native: \1 us more in moderation wait\.", lines[2])
    assert lines[-1] == "Figures from a test."


@pytest.mark.parametrize("columns", [40, 60, 79])
def test_a_narrow_terminal_loses_nothing(one: Waterfall, columns: int) -> None:
    lanes = [replace(found, setting=setting) for setting in ("default", "tuned") for found in _two(one)]
    whole, text = (waterfall.as_text(lanes, "native", "an emulated cluster " * 3, 60, wide) for wide in (120, columns))
    assert max(map(len, whole.splitlines())) <= 80
    assert max(map(len, text.splitlines())) <= columns
    figures = r"(?<!\S)(?:[+]?\d+\.\d+[*]?|[a-z']{3,})(?![^\s,:])"
    assert set(re.findall(figures, whole)) <= set(re.findall(figures, text))


@pytest.mark.parametrize(
    ("waits_us", "said"),
    [
        ([10, 12, 14], "takes 12.0 us [7.03, 17.0] more than native: 12.0 us [7.03, 17.0] more in moderation wait."),
        ([-14, -12, -10], "takes 12.0 us [7.03, 17.0] less than native."),
        (
            [-2, 12, 26],
            "is not shown to differ from native: 12.0 us [-22.8, 46.8] more.",
        ),
        ([12], "takes 12.0 us more than native: 12.0 us more in moderation wait."),
    ],
)
def test_a_difference_has_the_interval_of_its_blocks(one: Waterfall, waits_us: list[int], said: str) -> None:
    """What launches differ by was named as what a path adds."""
    trips, part = one.blocks[0], "moderation wait"

    def waiting(us: int) -> tuple[RoundTrip, ...]:
        waits = [(trip, trip.there.get(part, 0) + 2000 * us) for trip in trips]
        return tuple(
            replace(trip, measured_ns=trip.measured_ns + 2000 * us, there={**trip.there, part: ns})
            for trip, ns in waits
        )

    native = replace(one, path="native", blocks=dict.fromkeys(range(len(waits_us)), trips))
    vf = replace(one, blocks={block: waiting(us) for block, us in enumerate(waits_us)})
    (_, lanes), *_ = waterfall.by_size([native, vf], "native")
    alone = ["CAUTION: no interval from one block: launches of another may differ as much."][: len(waits_us) == 1]
    assert waterfall.sentences(lanes) == [f"vf, default {said}", *alone]
    told = [vf.more_ns(native), replace(vf, occasions=2).more_ns(native)]
    assert all(told) == (len(waits_us) > 1)
    assert not told[0] or told[0].high < told[1].high, "one more occasion varies more than the mean of blocks"


@pytest.mark.parametrize(("last", "blocks"), [(15, {0: 60, 15: 30}), (16, {0: 60, 1: 30})])
def test_round_trips_are_those_of_blocks_or_of_several_occasions(
    tmp_path: Path, last: int, blocks: dict[int, int]
) -> None:
    made = RunDir.create(tmp_path / "run", RunInfo("one", digest(STUDY), "lab", "a test", "0", "2026-01-01"), STUDY)
    for number, (path, block) in enumerate([("vf", 0), ("vf-again", 0), ("vf", last)]):
        workload = WorkloadOrder("traced", "engine", {"waterfall": True})
        outcome = Outcome(TrialStatus.VALID, files=read_bundle(GOLDEN), facts={VARIANT: block})
        order = Order(number, block, PathOrder(path, "vf"), workload, "default")
        made.append(order, outcome, decode(outcome), attempt=1, started_utc="2026-01-01T00:00:00+00:00")
    made.close()
    (found,) = waterfalls(RunDir.open(tmp_path / "run"))
    assert {block: len(trips) for block, trips in found.blocks.items()} == blocks
    assert (found.occasions, found.boots) == ((1, {0: 0, 15: 15}) if last < 16 else (2, {}))


def test_bars_share_one_axis_with_its_unit(one: Waterfall) -> None:
    lines = waterfall.as_text(_two(one), "native", "a test").splitlines()
    ruler, ticks, native, vf = lines[5:9]
    assert ruler.endswith(" us")
    assert len(ruler.split()) >= 4
    assert ticks.count("|") == len(ruler.split()) - 1
    start = ticks.index("|")
    assert native[start:].count("M") < vf[start:].count("M")
    per_us = (ticks.rindex("|") - start) / float(ruler.split()[-2])
    assert len(vf) - start == round(per_us * one.mean_ns / 1000)


def test_the_part_that_adds_most_is_marked(one: Waterfall) -> None:
    (_, lanes), *others = waterfall.by_size(_two(one), "native")
    table = waterfall.table(lanes)
    marked = [row[0] for row in table.rows if row[2].endswith("*")]
    assert (marked, others) == (["M  moderation wait"], [])
    assert all("+" not in row[1] for row in table.rows)
    assert table.rows[-1][1:] == ("not known", waterfall.us(one.untraced_ns or 0))


def test_many_lanes_and_sizes_stay_on_one_screen(one: Waterfall) -> None:
    many = [replace(one, path=f"path{n}", message_bytes=size) for size in (64, 128) for n in range(9)]
    lines = waterfall.as_text(many, "path0", "a test").splitlines()
    assert len(lines) <= 40
    assert "5 more lanes: choose with --path and --setting." in lines
    assert "Also traced, see --size and --workload: 128 B (traced)." in lines


def test_parts_that_do_not_add_up_to_the_measured_time_are_reported(one: Waterfall) -> None:
    trips = tuple(replace(trip, measured_ns=2 * trip.measured_ns) for trip in one.trips)
    (_, lanes), *_ = waterfall.by_size([replace(one, trips=trips)], "native")
    assert "CAUTION: the parts of vf, default miss the measured time by" in waterfall.sentences(lanes)[-1]


def test_a_caution_is_reported_beside_as_many_answers_as_a_screen_holds(one: Waterfall) -> None:
    """Four answers left no line for it: means that do not add up were printed as if they did."""
    trips = tuple(replace(trip, measured_ns=2 * trip.measured_ns) for trip in one.trips)
    lanes = [replace(found, setting=f"s{number}") for number in range(4) for found in _two(one)]
    text = waterfall.as_text([*lanes[:-1], replace(lanes[-1], trips=trips)], "native", "a test")
    assert text.count("more than native: ") == 4
    assert text.count("CAUTION: the parts of vf, s3 miss the measured time by") == 1


def test_the_longest_part_is_not_called_most_of_a_message(one: Waterfall) -> None:
    """`Most of vf, default, 35 %, is ...` was printed of a part below half."""
    (_, lanes), *_ = waterfall.by_size([one], "native")
    part, ns = max(one.parts_ns.items(), key=lambda item: item[1])
    assert waterfall.sentences(lanes) == [
        f"The longest part of vf, default, {100 * ns / one.mean_ns:.0f} % of it, is {part}."
    ]


def test_explain_prints_the_waterfall_or_reports_that_there_is_none(run: RunDir) -> None:
    result = CliRunner().invoke(command, [str(run.root)], catch_exceptions=False)
    output = result.stdout
    assert result.stderr.startswith("NOT FINISHED: it has 1 of at least 5 blocks."), "as other verbs say"
    assert "The longest part of vf, default, " in output
    assert "moderation wait" in output
    for none, unknown in (
        (["--path", "native"], "path native"),
        (["--workload", "plain"], "workload plain"),
        (["--path", "vf", "--path", "native", "--path", "virtio"], "path native, virtio"),
        (["--setting", "default", "--setting", "tuned"], "setting tuned"),
        (["--size", "64,128"], "size 128"),
    ):
        with pytest.raises(BadInputError, match=rf"no traced trial of {unknown}\n") as refused:
            CliRunner().invoke(command, [str(run.root), *none], catch_exceptions=False)
        assert refused.value.hint == "those that it has: vf with default, traced of 64 B"


def test_explain_of_an_untraced_run_names_what_explains_it_by_counters(tmp_path: Path) -> None:
    untraced = make_run(tmp_path / "run")
    with pytest.raises(BadInputError, match="has no traced trial") as refused:
        CliRunner().invoke(command, [str(untraced.root)], catch_exceptions=False)
    assert refused.value.hint.startswith(f"`nearmetal advise {untraced.root}` gives reasons")


def test_explain_gives_json(run: RunDir, one: Waterfall) -> None:
    result = CliRunner().invoke(command, [str(run.root), "--size", "64", "--format", "json"], catch_exceptions=False)
    whole = json.loads(result.stdout)
    (lane,) = whole["lanes"]
    assert (whole["baseline"], lane["path"], lane["message_bytes"], lane["round_trips"]) == ("vf", "vf", 64, 30)
    assert sum(lane["parts_ns"].values()) == pytest.approx(one.mean_ns) == lane["mean_ns"]
    assert set(lane["parts_ns"]) <= set(whole["parts"])


def test_explain_says_what_else_speaks_against_its_figures(tmp_path: Path, run: RunDir) -> None:
    """Parts of launches under two kernels, on a busy machine, stood there as those of any others."""
    busy = "2 of 2 launches ran on a busy machine; in the worst of them cc1plus used 35 % of the processors"
    root = str(_run(tmp_path / "busy", {}, busy=True).root)
    told = CliRunner().invoke(command, [root], catch_exceptions=False).stderr
    assert f"MIXED PROVENANCE: kernel.release: 6.0 | 6.1\nCAUTION: {busy}\n" in told
    whole = json.loads(CliRunner().invoke(command, [root, "--format", "json"], catch_exceptions=False).stdout)
    assert (whole["mixed_provenance"], whole["cautions"]) == (["kernel.release: 6.0 | 6.1"], [busy])
    assert whole["unfinished"]["says"] == "it has 1 of at least 5 blocks"
    quiet = json.loads(CliRunner().invoke(command, [str(run.root), "--format", "json"], catch_exceptions=False).stdout)
    assert (quiet["mixed_provenance"], quiet["cautions"]) == ([], [])


def test_the_json_of_explain_has_the_answer_with_its_intervals(one: Waterfall) -> None:
    """Other programs got means alone, and so a difference of which no launch was known to be free."""
    blocks = {0: one.trips[:15], 1: one.trips[15:]}
    base = {
        block: tuple(replace(trip, measured_ns=trip.measured_ns - 7000) for trip in of) for block, of in blocks.items()
    }
    pair = [replace(one, path="native", blocks=base), replace(one, blocks=blocks)]
    native, vf = json.loads(waterfall.as_json(pair, "native", "a test"))["lanes"]
    assert native["more"] is None
    assert (vf["more"]["mean_ns"], vf["more"]["part"]) == (pytest.approx(3500), None)
    assert vf["more"]["interval_ns"]["low"] == pytest.approx(3500)
    (_, longer) = json.loads(waterfall.as_json(_two(one), "native", "a test"))["lanes"]
    assert (longer["more"]["part"], longer["more"]["interval_ns"]) == ("moderation wait", None)
    assert longer["more"]["part_mean_ns"] > 0


def test_the_report_has_a_section_of_its_own(run: RunDir, one: Waterfall) -> None:
    view = build_view(run, allow_mixed=True)
    assert 'id="waterfalls"' in as_html.render(view, [one])
    assert 'id="waterfalls"' not in as_html.render(view)


def test_a_damaged_trace_is_refused(run: RunDir) -> None:
    path = next((run.root / "traces").glob("*.zip"))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ForeignFileError, match="has changed since it was recorded"):
        waterfalls(run)


def _of_four_ranks(header: SampleHeader) -> SampleHeader:
    by_cell = ("clock_offset_ns", "clock_error_ns", "migrations")
    lists = {name: tuple(one * 2 for one in getattr(header, name)) for name in by_cell}
    lists |= {name: getattr(header, name) * 2 for name in ("clock_cost_ns", "processors")}
    return replace(header, ranks=4, **lists)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda header: replace(header, kind="collective"),
            "latency (collective) of 2 ranks, stamped with CLOCK_MONOTONIC_RAW",
        ),
        (_of_four_ranks, "latency (round_trip) of 4 ranks, stamped with CLOCK_MONOTONIC_RAW"),
        (lambda header: replace(header, clock="tsc"), "latency (round_trip) of 2 ranks, stamped with tsc"),
    ],
)
def test_a_trace_of_anything_but_a_ping_pong_is_not_cut_into_messages(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, change: Callable[[SampleHeader], SampleHeader], said: str
) -> None:
    def read(data: bytes) -> SampleFile:
        samples = read_sample_file(data)
        return replace(samples, header=change(samples.header))

    monkeypatch.setattr("nearmetal.results.waterfalls.read_sample_file", read)
    with pytest.raises(ForeignFileError) as raised:
        waterfalls(run)
    assert raised.value.message == f"trial 0 cannot be cut into messages: {said}"
    assert raised.value.hint == "a waterfall needs a ping-pong such as `latency` between two ranks"


def test_a_bundle_is_reproducible_to_the_byte(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_bundle(tmp_path / name, {"y": b"2", "x": b"1"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_bundle(tmp_path / "a") == {"x": b"1", "y": b"2"}


class _Shell:
    """Answers the collector's commands and records them."""

    scratch = agent = ""

    def __init__(self, *, works: bool) -> None:
        self.fails_from = 99 if works else 0
        self.asked: list[str] = []

    def run(self, argv: list[str], *, check: bool = True, node: str = HYPERVISOR, timeout_s: float = 1.0) -> Finished:
        del check, node, timeout_s
        failed = "start" in argv and self.asked.count("start") >= self.fails_from
        self.asked.append(argv[4] if argv[0] == "sh" else argv[0])
        output = {"ls": b"cpu0\ncpu1\n", "dd": b"pages"}.get(argv[0], b"layouts" if "formats" in argv else b"")
        return Finished(tuple(argv), int(failed), output, b"no tracefs" if failed else b"", 1)


def _order(option: object) -> Order:
    return Order(0, 0, PathOrder("vf", "vf"), WorkloadOrder("traced", "engine", {"waterfall": option}))  # type: ignore[dict-item]


def test_a_launch_is_traced_and_tracing_is_reset() -> None:
    shell = _Shell(works=True)
    with tracing.recorded(shell, _order(option=True)) as files:  # type: ignore[arg-type]
        assert shell.asked == ["start"]
    assert files == {"trace/formats": b"layouts", "trace/cpu0": b"pages", "trace/cpu1": b"pages"}
    assert shell.asked == ["start", "stop", "formats", "ls", "dd", "dd", "forget"]


def test_a_launch_is_traced_only_on_request() -> None:
    shell = _Shell(works=True)
    with tracing.recorded(shell, _order(option=False)) as files:  # type: ignore[arg-type]
        pass
    assert (files, shell.asked) == ({}, [])


def test_a_kernel_that_cannot_be_traced_is_reported_and_others_are_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = _Shell(works=False)
    with pytest.raises(UnavailableError, match="no tracefs"), tracing.recorded(shell, _order(option=True)):  # type: ignore[arg-type]
        pass
    assert shell.asked == ["start"]
    monkeypatch.setattr(tracing, "machines_of", lambda _: ("n0", "n1"))
    shell.fails_from = 2
    with pytest.raises(UnavailableError, match="no tracefs"), tracing.recorded(shell, _order(option=True)):  # type: ignore[arg-type]
        pass
    assert shell.asked[1:] == ["start", "start", "forget"]
    with pytest.raises(BadInputError, match="true or false"), tracing.recorded(shell, _order(option="yes")):  # type: ignore[arg-type]
        pass


def test_summaries_are_read_only_with_a_trace(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    summary = RunDir.summary

    def noted(self: RunDir, record: TrialRecord, cell: StoredCell) -> object:
        read.append(record.order.trial)
        return summary(self, record, cell)

    monkeypatch.setattr(RunDir, "summary", noted)
    (found,) = waterfalls(run)
    assert (read, found.untraced_ns is None) == ([1], False)
    (run.root / "trials" / "000000.json").unlink()
    list_anew(run.root)
    read.clear()
    assert waterfalls(run) == []
    assert read == []


@pytest.mark.parametrize(("height", "shorter"), [(28, 3), (25, 6), (10, 6)])
def test_the_shortest_parts_are_merged_on_a_low_screen(one: Waterfall, height: int, shorter: int) -> None:
    lanes = [replace(found, setting=setting) for setting in ("default", "tuned") for found in _two(one)]
    text = waterfall.as_text(lanes, "native", "a test", height)
    assert height < 25 or len(text.splitlines()) < height
    assert max(map(len, text.splitlines())) <= 80
    drawn = re.search(rf"{shorter} shorter parts +([\d.]+) +([\d.]+)", text)
    assert drawn
    kept = [part for part in one.parts_ns if f"  {part} " in text]
    assert max(one.parts_ns, key=lambda part: one.parts_ns[part]) in kept
    assert len(kept) == len(one.parts_ns) - shorter
    whole = waterfall.as_text(lanes, "native", "a test", 60)
    assert "shorter parts" not in whole
