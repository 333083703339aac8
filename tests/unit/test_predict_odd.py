"""`predict` on odd but legal input: machines, runs and programs at the edge of what was measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nearmetal.cli.place import command as place
from nearmetal.cli.predict import command as predict
from nearmetal.cli.replay import tell_doubts
from nearmetal.errors import BadInputError
from nearmetal.predict.calibration import JobCase
from nearmetal.predict.doubt import Doubt
from nearmetal.predict.doubts import _of_busy_machines, find_doubts
from nearmetal.predict.machine_file import Changes, read_changes
from nearmetal.predict.model_file import ModelFile, read_model, write_model
from nearmetal.predict.models import Cores, Distribution, Machine, MeasuredCollective, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.trace import DoCall, Repeat, Trace
from nearmetal.predict.validate import MeasuredLaunches, doubts_of_launches
from nearmetal.report.prediction_html import predicted
from nearmetal.report.prediction_json import PlacementFile, PredictionFile, read
from tests.unit.simulated import computing, ping, program, recv, send
from tests.unit.test_predict_verbs import marked, measured, model_of, path, run
from tests.unit.test_validate import one_message

NAMED = NamedMachine("vf", "as-found", "polling", Machine(path(1), path(5)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vms_per_host = 0", "vms_per_host: .* equal to 1 .it is 0"),
        ("cores = 0", "cores: .* equal to 1 .it is 0"),
        ("vms_per_host = 1000000000000", "vms_per_host: .*it is 1000000000000"),
        ("cores = 1000000000000", "cores: .*it is 1000000000000"),
        ("compute_scale = 0", "compute_scale: .* greater than 0 .it is 0"),
        ("compute_scale = 1e6", "compute_scale: .* less than or equal to 1000 .it is 1000000"),
        ("compute_scale = inf", "compute_scale: .* finite number .it is inf"),
    ],
)
def test_a_machine_with_zero_or_too_many_parts_is_refused(tmp_path: Path, line: str, message: str) -> None:
    """Zero cores were accepted as the measured number, and a number beyond 32 bits ended in a traceback."""
    (tmp_path / "machine.toml").write_text(line + "\n")
    with pytest.raises(BadInputError, match=message):
        read_changes(tmp_path / "machine.toml")


def test_too_many_ranks_per_node_are_refused() -> None:
    with pytest.raises(BadInputError, match="cannot be split"):
        Placement.block(2, 1 << 40)


def two_paths(tmp_path: Path, *settings: str) -> str:
    machines = [
        replace(NAMED, path=name, setting=setting) for name in ("veth", "bridge") for setting in settings or ("only",)
    ]
    write_model(ModelFile("nearmetal-model", 1, "run", tuple(machines)), tmp_path / "two.json")
    return str(tmp_path / "two.json")


def output_of(monkeypatch: pytest.MonkeyPatch, schedule: Schedule, *argv: str) -> tuple[str, str]:
    """Return the output for a program at 80 columns: the answer, and the doubts in one line."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: [schedule])
    out, err = run(predict, "mine", "--replicas", "1", "--on", *argv)
    return out, " ".join(err.split())


@pytest.mark.parametrize("figures_from", ["", "an emulated machine: not a real one's microseconds"])
def test_answers_state_what_the_paths_were_measured_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures_from: str
) -> None:
    """Reports did, but not predictions, which were no more of real machines than those."""
    source = tmp_path / "one.json"
    write_model(ModelFile("nearmetal-model", 1, "run", (NAMED,), figures_from=figures_from), source)
    out, _ = output_of(monkeypatch, marked(10), str(source))
    _, err = run(place, "mine", "--replicas", "1", "--hosts", "a:2", "--on", str(source))
    row, *_ = json.loads(output_of(monkeypatch, marked(10), str(source), "--format", "json")[0])
    assert row["figures_from"] == figures_from
    for told in (out, err):
        assert " ".join(told.split()).count(
            "Paths measured on an emulated machine: not a real one's microseconds."
        ) == (1 if figures_from else 0)
        assert figures_from or "Paths measured" not in told


def test_no_table_cell_is_truncated_or_wrapped_at_eighty_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = output_of(monkeypatch, marked(10), two_paths(tmp_path))
    assert "on 2 ranks, 2 nodes" in out
    lines = out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("path "))  # all have one setting
    assert lines[at].split("  ")[-1].strip() == "p99 of iterations"
    assert [line.split()[0] for line in lines[at + 2 :] if "us" in line][:2] == ["veth", "bridge"]
    assert max(map(len, lines)) <= 80
    out, _ = output_of(monkeypatch, marked(10), two_paths(tmp_path, "default", "tuned"))
    assert "path / setting" in out
    assert "veth / tuned" in out
    (head,) = (line for line in out.splitlines() if line.startswith("path / setting"))
    assert re.search(r" to veth / (default|tuned) ", head), "`veth / tuned` was so many times `veth`"
    assert max(map(len, out.splitlines())) <= 80


def test_a_small_ratio_has_the_digits_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory against a network had `0.003 [0.00 to 0.01]`, which says nothing."""
    named = [
        replace(NAMED, path=name, machine=Machine(path(1), path(far))) for name, far in (("veth", 500), ("near", 1))
    ]
    write_model(ModelFile("nearmetal-model", 1, "run", tuple(named)), tmp_path / "two.json")
    out, _ = output_of(monkeypatch, marked(10), str(tmp_path / "two.json"))
    row = re.search(r"(?m)^near .* (0\.00\d{3,})( .*)?\n +\[(0\.00\d{2,}) to (0\.00\d{2,})\]", out)
    assert row, out
    low, median, high = (float(row[at]) for at in (3, 1, 4))
    assert low < median < high


def test_columns_show_only_values_that_intervals_cover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 95th percentile over replays alone was inside the interval of launches, which includes the model's error."""
    out, _ = output_of(monkeypatch, computing(1), two_paths(tmp_path))
    assert "p95" not in out
    assert "Ratios: 90 % of validated pairs of paths (own cores) were 0.93 to 1.10 times" in " ".join(out.split())


def test_intervals_of_several_kinds_name_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = tuple(replace(NAMED, path=name) for name in ("veth", "bridge", "tap"))
    write_model(ModelFile("nearmetal-model", 1, "run", machines), tmp_path / "three.json")
    out = " ".join(output_of(monkeypatch, computing(1), str(tmp_path / "three.json"))[0].split())
    assert re.search(
        r"Intervals of (veth, bridge|bridge, veth): .* \(own cores\): .* Intervals of tap: .* \(relay\)", out
    )
    assert "Ratios of bridge: 90 % of validated pairs of paths (own cores)" in out


def test_a_doubt_names_the_paths_that_it_concerns_wherever_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the warning on the terminal did: the summary, pages and placements said it of all paths."""
    machines = (replace(NAMED, path="veth"), replace(NAMED, path="tap", busy="3 of 4"))
    write_model(ModelFile("nearmetal-model", 1, "run", machines), tmp_path / "two.json")
    on = (str(tmp_path / "two.json"), "--replicas", "1")
    said = "tap / as-found / polling: most trials of the path were disturbed: 3 of 4"
    out, _ = output_of(monkeypatch, computing(1, 1), *on, "--save", str(tmp_path / "x.prediction.json"))
    assert f"Largest doubt, not in the intervals: {said}." in " ".join(out.split())
    assert f"<li>{said}: measure again" in predicted(read(tmp_path / "x.prediction.json", PredictionFile))
    run(place, "mine", "--on", *on, "--hosts", "a:1,b:1", "--save", str(tmp_path / "x.placement.json"))
    assert said in read(tmp_path / "x.placement.json", PlacementFile).doubts
    out, _ = output_of(monkeypatch, computing(1, 1), *on, "--path", "tap")
    assert "intervals: most trials" in " ".join(out.split())


def test_a_program_without_messages_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = output_of(monkeypatch, computing(1), two_paths(tmp_path))
    assert "on 1 rank, 1 node\n" in out.replace(" \n", "\n").replace("  ", "")
    assert "No messages are replayed" in out
    assert "of messages are between nodes" not in out


def test_connections_that_the_first_messages_open_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, said = output_of(monkeypatch, ping(), model_of(tmp_path, NAMED.machine))
    assert "100.00 % of messages are the first between two ranks of different nodes: they open a connection" in said
    _, said = output_of(monkeypatch, computing(1, 1), model_of(tmp_path, NAMED.machine))
    assert "open a connection" not in said


@pytest.mark.parametrize(("times", "told"), [(1, "1 collective takes the time"), (3, "3 collectives take the time")])
def test_paths_without_the_measured_collectives_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, told: str
) -> None:
    """The number of the path that has most stood for all, also beside paths that replay each as messages."""
    reduce = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=8)
    programs = Program((Repeat(times, (DoCall(0),)),), (reduce,), (Comm(0, size=2),))
    took = MeasuredCollective("allreduce", (0, 1), ((8, Distribution((0.0,), (9_000_000,))),))
    model = read_model(Path(two_paths(tmp_path)))
    for measured_too in (False, True):
        having = [
            replace(one, machine=replace(one.machine, measured=(took,)), launches=())
            if measured_too or one.path == "veth"
            else one
            for one in model.machines
        ]
        write_model(replace(model, machines=tuple(having)), tmp_path / "two.json")
        out, _ = output_of(monkeypatch, Schedule(2, (programs, programs)), str(tmp_path / "two.json"))
        of_each = f"{told} measured among ranks placed like these."
        assert (of_each in " ".join(out.split())) == measured_too
        assert (f"{times} (veth)" in out and "0 (bridge)" in out) != measured_too


CLOCKS = "computing is assumed to take as long there"


@pytest.mark.parametrize(
    ("traced_on", "measured_on", "host", "argv", "doubted"),
    [
        ("AMD EPYC", "QEMU TCG CPU", "lab", (), True),
        ("QEMU TCG CPU", "AMD EPYC", "ssh", (), True),
        ("", "QEMU TCG CPU", "lab", (), True),
        ("", "AMD EPYC", "ssh", (), False),  # the trace does not record it, as usual
        ("QEMU TCG CPU", "QEMU TCG CPU", "lab", (), False),
        ("AMD EPYC", "QEMU TCG CPU", "lab", ("--compute-scale", "2"), False),
        ("an emulated EPYC", "an emulated QEMU TCG CPU", "lab", (), True),
        ("an emulated EPYC", "an emulated processor of the lab", "lab", (), False),  # a file of an older version
    ],
)
def test_a_trace_by_another_clock_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    traced_on: str,
    measured_on: str,
    host: str,
    argv: tuple[str, ...],
    doubted: bool,
) -> None:
    """A trace of a real machine on a run of the lab added real computing to the virtual time of its messages."""
    schedule = replace(computing(1), mpi="Open MPI v4.1.4", processor=traced_on)
    about = {"host": host, "conditions": (("on a processor", measured_on),), "mpi": "openmpi 4.1.4"}
    _, err = output_of(monkeypatch, schedule, model_of(tmp_path, Machine(path(1), path(5)), **about), *argv)
    assert (CLOCKS in err) == doubted
    _, err = output_of(monkeypatch, replace(schedule, mpi=""), model_of(tmp_path, Machine(path(1), path(5)), **about))
    assert CLOCKS not in err  # a pattern has no clock


@pytest.mark.parametrize(
    ("gaps", "processors", "nodes", "crowd"),
    [
        ("elapsed", {"processors": "1"}, "aa", 2),
        ("elapsed", {"processors": "1"}, "ab", 0),
        ("elapsed", {"processors": "2"}, "aa", 0),
        ("processor", {"processors": "1"}, "aa", 0),
        ("elapsed", {}, "aa", 0),  # older traces do not record it
        ("elapsed", {"processors": "8", "affinity": "3"}, "aa", 2),  # both may use one of eight
        ("elapsed", {"processors": "8", "affinity": "0,2-3"}, "aa", 0),
        ("elapsed", {"processors": "1", "affinity": "1,0"}, "aa", 2),  # no such list: as if absent
    ],
)
def test_computing_that_waited_for_processors_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gaps: str,
    processors: dict[str, str],
    nodes: str,
    crowd: int,
) -> None:
    """Two ranks traced on one processor by the wall clock compute twice as long as on two."""
    meta = {"gaps": gaps, "processor": "EPYC"} | processors
    ranks = tuple(replace(one_message(rank), meta=meta | {"node": nodes[rank]}) for rank in (0, 1))
    schedule = schedule_from_trace(Trace(ranks))
    assert (schedule.crowd, schedule.processor) == (crowd, "EPYC")
    _, err = output_of(monkeypatch, schedule, model_of(tmp_path, Machine(path(1), path(5))))
    assert ("2 ranks of a node were traced on fewer processors" in err) == bool(crowd)


@pytest.mark.parametrize(
    ("affinities", "crowd"),
    [
        (("0", "1", "2"), 0),
        (("0", "0", "1-3"), 2),
        (("0-1", "0-1", "1"), 3),
        (("0-3", "0-3", "5"), 0),
    ],
)
def test_ranks_bound_to_the_same_processors_crowd_them(affinities: tuple[str, ...], crowd: int) -> None:
    """Ranks were compared with all processors of the node, whichever they might use."""
    meta = {"gaps": "elapsed", "processors": "8", "node": "a"}
    ranks = (replace(one_message(0), meta=meta | {"affinity": one}) for one in affinities)
    assert Trace(tuple(ranks)).crowd == crowd


@pytest.mark.parametrize(
    ("quotas", "crowd"),
    [
        (("2 /", "2 /", "2 /"), 3),
        (("3 /", "3 /", "3 /"), 0),
        (("1 /a", "1 /b", "1 /c"), 0),
        (("1 /a,2 /", "1 /b,2 /", "1 /c,2 /"), 3),
        (("1 /a", "1 /a", ""), 2),
        (("1 /a,1 /a", "", ""), 0),  # in both versions' hierarchies
        (("all /", "no quota", ""), 0),
    ],
)
def test_ranks_that_share_a_quota_of_processor_time_crowd_it(quotas: tuple[str, ...], crowd: int) -> None:
    """The computing of ranks in a container with a limit was taken for that of ranks with a processor each."""
    meta = {"gaps": "elapsed", "processors": "8", "affinity": "0-7", "node": "a"}
    ranks = (replace(one_message(0), meta=meta | {"quotas": one}) for one in quotas)
    assert Trace(tuple(ranks)).crowd == crowd


def test_the_prediction_error_of_guests_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("guest-vf", "vf"):
        _, err = output_of(monkeypatch, computing(1), model_of(tmp_path, Machine(path(1), path(5)), kind=kind))
        assert ("no validated case has guests" in err) == (kind == "guest-vf")
        assert ("measure `bibw` too" in err) == (kind == "guest-vf")
    streamed = Machine(path(1), replace(path(5), copy_fs_per_byte=1000))
    _, err = output_of(monkeypatch, computing(1), model_of(tmp_path, streamed, kind="guest-vf"))
    assert "eight programs in guests took" in err
    assert "bibw" not in err
    source = Path(model_of(tmp_path, streamed, kind="guest-vf"))
    for cases in (18, 19):  # too few for an interval, then enough
        write_model(replace(read_model(source), validated={"guest": (0.0,) * cases}), source)
        _, err = output_of(monkeypatch, computing(1), str(source))
        assert ("no validated case has guests" in err) == (cases == 18)
    source = Path(model_of(tmp_path, streamed, kind="guest-vf", host="lab"))
    own = (JobCase("guest", ("vf", "as-found", "polling"), 0.0),)
    for jobs in ((), (own,)):  # the lab's guests have cases that ship, some far off: only one's own replace the doubt
        write_model(replace(read_model(source), validated={"guest": (0.0,) * 19}, jobs=jobs, version=3), source)
        _, err = output_of(monkeypatch, computing(1), str(source))
        assert ("warning: in the lab, eight programs in guests took" in err) == (not jobs)
        assert "no validated case" not in err


def test_ranks_that_share_processors_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for count, one_computer in ((2, False), (1, False), (1, True)):
        machine = Machine(path(1), path(5), cores=Cores(count, one_computer=one_computer))
        _, err = output_of(monkeypatch, computing(1, 1), model_of(tmp_path, machine))
        assert ("2 ranks of a computer share 1 processor:" in err) == (count == 1 and one_computer)


def test_paths_of_an_interrupted_run_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one launch each, a bridge was silently ranked before the cable that it extends."""
    machine = Machine(path(1), measured(5, 8, 1024))
    schedule = computing(1)
    for launches in (0, 1, 2, 3):
        _, err = output_of(monkeypatch, schedule, model_of(tmp_path, machine, launches=(machine,) * launches))
        assert (f"only {launches} launch" in err) == (launches < 3)


def test_messages_of_many_packets_under_an_interrupt_stage_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage predicted half of the time that ping-pongs of 16 and 32 KiB took over a moderated port."""
    source, stage = model_of(tmp_path, Machine(path(1), path(5))), ("--interrupts", "igb-queue:usecs=3")
    for message_bytes, argv, doubted in ((16_384, stage, True), (8192, stage, False), (16_384, (), False)):
        _, err = output_of(monkeypatch, ping(message_bytes), source, *argv)
        assert ("100 % of messages are larger than 14,480 B" in err) is doubted
        assert ("moderation is simulated by a rule" in err) is bool(argv)


def test_a_setting_can_be_replaced_by_another_with_the_drivers_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moderation delays a ping-pong differently than a program; the rule on samples without it is more accurate."""
    off, on = ((("under the setting", f"nic.rx-usecs = {usecs}"),) for usecs in (0, 3))
    fitted = Machine(path(1), measured(5, 8, 1024))
    tuned = replace(NAMED, setting="tuned", machine=fitted, launches=(fitted,) * 3, conditions=off)
    machines = (tuned, replace(tuned, setting="default", conditions=on))
    write_model(ModelFile("nearmetal-model", 1, "run", machines), tmp_path / "both.json")
    source, rule = str(tmp_path / "both.json"), ("--interrupts", "igb-queue:usecs=3,emulated=0")
    out, err = output_of(
        monkeypatch, ping(8), source, "--setting", "tuned", *rule, "--as", "default", "--format", "json"
    )  # fmt: skip
    (row,) = json.loads(out)
    assert row["setting"] == "default"
    assert "default is tuned with igb-queue:usecs=3,emulated=0, not fitted from samples of its own" in err
    assert "is added to the interrupts" not in err
    _, err = output_of(monkeypatch, ping(8), source, "--setting", "default", *rule)
    assert "is added to the interrupts" in err
    for argv in ((*rule,), ("--setting", "default", *rule)):
        with pytest.raises(BadInputError, match="exactly one setting must be chosen"):
            output_of(monkeypatch, ping(8), source, *argv, "--as", "default")
    with pytest.raises(BadInputError, match="--as has no effect without --interrupts"):
        output_of(monkeypatch, ping(8), source, "--setting", "tuned", "--as", "default")
    with pytest.raises(BadInputError, match="--moderated has no effect without --interrupts"):
        output_of(monkeypatch, ping(8), source, "--setting", "tuned", "--moderated", source)
    with pytest.raises(BadInputError, match=f"--moderated has no effect on {tuned.path}"):  # it knows no work
        output_of(monkeypatch, ping(8), source, "--setting", "tuned", *rule, "--moderated", source)
    working = replace(fitted.inter, copy_fs_per_byte=4, work_ps=((0, 1000), (1024, 2000)), single_copy=(0, 0))
    known: list[NamedMachine] = []
    for copy_fs, of, moderation in ((4, "off", off), (1, "on", on)):
        inter = replace(working, copy_fs_per_byte=copy_fs * 1_000_000)
        one = replace(tuned, machine=replace(fitted, inter=inter), launches=(), conditions=moderation)
        write_model(ModelFile("nearmetal-model", 1, "run", (one,)), tmp_path / f"{of}.json")
        known.append(replace(one, setting="tuned" if of == "off" else "default"))
    write_model(ModelFile("nearmetal-model", 1, "run", tuple(known)), tmp_path / "known.json")
    source, streams = str(tmp_path / "off.json"), ("--moderated", str(tmp_path / "on.json"))
    both = [[*(send(peer, 8192) for _ in range(4)), *(recv(peer, 8192) for _ in range(4))] for peer in (1, 0)]
    exchange = Schedule(2, tuple(map(program, both)))
    took = [
        json.loads(output_of(monkeypatch, exchange, source, *rule, *more, "--extrapolate", "--format", "json")[0])[0]
        for more in ((), streams)
    ]
    assert took[0]["quantiles"][0]["ns"] > took[1]["quantiles"][0]["ns"]
    one_run, two_settings = (source, *rule), (str(tmp_path / "known.json"), "--setting", "tuned", *rule)
    for argv, unknown in ((one_run, True), ((*one_run, *streams), False), (two_settings, False), ((source,), False)):
        _, err = output_of(monkeypatch, ping(8), *argv)
        assert ("what copying takes under moderation is not known" in err) is unknown
    named = Changes(interrupts=rule[1], stands_for="default").apply(tuned)
    launches = MeasuredLaunches(*named.key, (0, 1), True, np.array([1.0]), conditions=tuple(on))
    assert not list(doubts_of_launches([ping(8)], named, launches))


def test_a_host_has_the_processors_of_all_its_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host was given one guest's processors, so guests that used all of theirs waited for each other."""
    machine = Machine(path(1), path(5), cores=Cores(2))
    eight = computing(*(10,) * 8)
    argv = ("--per-node", "2", "--format", "json", "--vms-per-host", "4")

    def took_ms(*more: str, **about: object) -> tuple[float, bool]:
        out, err = output_of(monkeypatch, eight, model_of(tmp_path, machine, **about), *argv, *more)
        assert "give the number of guests per host" not in err  # the measured number
        return json.loads(out)[0]["quantiles"][0]["ns"] / 1e6, "taken as 8 for 4 guests" in err

    assert took_ms(host="ssh", virtual=True) == (10.0, True)
    assert took_ms("--cores", "8", host="ssh", virtual=True) == (10.0, False)
    time_ms, doubted = took_ms(host="ssh")  # bare nodes: a host has as many as one node
    assert time_ms > 35
    assert not doubted


@pytest.mark.parametrize(("cores", "reported"), [(None, False), (1, False), (16, True)])
def test_time_slices_measured_on_a_shared_processor_are_reported_for_more_processors(
    cores: int | None, reported: bool
) -> None:
    """With --cores 16, messages inside nodes silently took as long as between ranks that share one processor."""
    shared = Machine(replace(path(1), one_processor=True), path(5), cores=Cores(1))
    changed = Changes(cores=cores).apply(replace(NAMED, machine=shared))
    for per_host, inside in ((2, reported), (1, False)):
        doubts = find_doubts([ping(8)], changed, Placement.block(2, per_host))
        assert any("measured between ranks that shared one" in one.said for one in doubts) is inside


def test_requesting_the_measured_number_of_processors_changes_nothing() -> None:
    """When requested, they had no scheduler."""
    named = replace(NAMED, machine=Machine(path(1), path(5), cores=Cores(1, lead_ps=7)))
    assert [Changes(cores=count).apply(named).machine.cores for count in (1, 2)] == [Cores(1, lead_ps=7), Cores(2)]


def test_a_doubt_with_different_shares_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    """It was repeated identically for each path."""
    tell_doubts({path: [Doubt("it is so", "mend it", share)] for path, share in (("native", 0.5), ("vf", 1.0))})
    assert capsys.readouterr().err.splitlines() == ["warning: it is so", "hint: mend it"]


def test_a_busy_machine_is_told_once_for_all_paths(capsys: pytest.CaptureFixture[str]) -> None:
    busy = {"native": "9 of 9 launches ran beside qemu", "vf": "8 of 9 launches ran beside python", "vhost": ""}
    tell_doubts({path: _of_busy_machines(SimpleNamespace(busy=text)) for path, text in busy.items()})  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1
    assert said.startswith("warning: native: most trials of the path were disturbed: 9 of 9 launches ran beside qemu (")
    assert "(much the same on vf)" in said


def test_bare_metal_has_no_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks on one host sent messages over the wire, as those in guests do, so the baseline was too slow."""
    machine = Machine(path(1), path(50), cores=Cores(2))
    bare = replace(NAMED, path="native", kind="native", machine=machine)
    guests = replace(NAMED, path="guest-vf", kind="guest-vf", machine=machine)

    def rows(*machines: NamedMachine) -> tuple[str, str, list[float]]:
        write_model(ModelFile("nearmetal-model", 1, "run", machines), tmp_path / "both.json")
        argv = (ping(8), str(tmp_path / "both.json"), "--vms-per-host", "2")
        out, err = output_of(monkeypatch, *argv)
        found = json.loads(output_of(monkeypatch, *argv, "--format", "json")[0])
        return " ".join(out.split()), " ".join(err.split()), [row["inter_share"] for row in found]

    out, _, shares = rows(bare, guests)
    assert "on 2 ranks, 2 guests, 1 host" in out
    assert "0 % (native), 100 % (guest-vf) of messages are between nodes." in out
    assert shares == [0.0, 1.0]
    unknown = replace(bare, machine=replace(machine, intra=None))
    _, err, shares = rows(unknown)
    assert (
        "100 % of messages are inside a host, which on bare metal is one node: assumed to take as long as between hosts"
        in err
    )
    assert shares == [1.0]
    assert rows(replace(bare, host="ssh", virtual=True))[2] == [1.0]  # a machine that is itself virtual


def test_one_path_gives_no_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer was that nothing cheaper than the path itself stays within 10 % of the path itself."""
    with pytest.raises(BadInputError, match="nothing to choose from but vf / as-found / polling"):
        output_of(monkeypatch, ping(8), model_of(tmp_path, Machine(path(1), path(5))), "--decide")
    assert "cheap" in output_of(monkeypatch, ping(8), two_paths(tmp_path), "--decide")[0]


def test_one_moderation_rule_for_several_paths_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = ("--interrupts", "igbvf:usecs=3,emulated=0")
    _, err = output_of(monkeypatch, ping(8), two_paths(tmp_path), *rule)
    assert "the rule igbvf:usecs=3,emulated=0 is added to all of veth, bridge" in err
    _, err = output_of(monkeypatch, ping(8), two_paths(tmp_path), *rule, "--path", "bridge")
    assert "alike" not in err
