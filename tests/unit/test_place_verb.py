"""`nearmetal place` on small programs: what it refuses to recommend or compare, and programs that take no time."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal.cli.place import command as place
from nearmetal.cli.predict import command as predict
from nearmetal.errors import BadInputError
from nearmetal.predict.launcher_files import WRITERS
from nearmetal.predict.model_file import ModelFile, write_model
from nearmetal.predict.models import Cores, Distribution, Machine, MeasuredCollective, NamedMachine, PathModel
from nearmetal.predict.place import Candidate
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Peer, Program, Schedule, exchange
from nearmetal.predict.trace import DoCall, DoGap
from nearmetal.predict.trace_view import read_placement
from nearmetal.report.prediction_json import PlacedJson
from nearmetal.report.prediction_text import placements
from tests.unit.simulated import computing
from tests.unit.test_predict_verbs import measured, run

if TYPE_CHECKING:
    from pathlib import Path


def shared(*ops: Op) -> Schedule:
    return Schedule(4, (Program(tuple(map(DoCall, range(len(ops)))), ops, (Comm(0, size=4),)),), name="mine")


def placed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, program: Schedule | list[Schedule], *argv: str, **machine: object
) -> str:
    launches = program if isinstance(program, list) else [program]
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: launches)
    slow, fast = measured(50, 8, 1 << 20), measured(1, 8, 1024)
    machines = [
        NamedMachine("veth", "as-found", "polling", replace(Machine(slow, fast), **machine)),  # type: ignore[arg-type]
        NamedMachine("vf", "as-found", "polling", replace(Machine(slow, slow), **machine)),  # type: ignore[arg-type]
    ]
    write_model(ModelFile("nearmetal-model", 1, "run", tuple(machines)), folder / "model.json")
    on = ("mine", "--on", str(folder / "model.json"), "--hosts", "a:2,b:2", "--replicas", "1", "--tries", "0")
    return run(place, *on, *argv)[1]


def test_sizes_sent_between_nodes_only_by_the_recommended_placement_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doubts covered only the launcher's default placement, which keeps these large messages inside nodes."""
    beside = Op(
        OpKind.SENDRECV, rule=Peer.XOR, peer=1, recv_rule=Peer.XOR, recv_peer=1, message_bytes=1 << 20
    )  # fmt: skip
    with pytest.raises(BadInputError, match="100 % of messages and 100 % of bytes between nodes are larger"):
        placed(monkeypatch, tmp_path, shared(beside), "--path", "veth")
    output = placed(monkeypatch, tmp_path, shared(beside), "--path", "veth", "--extrapolate")
    assert "warning: 100 % of messages" in output


def test_all_doubts_that_share_a_hint_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`place` kept one doubt per hint, while `predict` reported both."""
    beside = shared(exchange(Peer.XOR, 1, 8), exchange(Peer.XOR, 2, 8))
    argv = ("--path", "vf", "--interrupts", "igbvf:usecs=50")
    output = " ".join(placed(monkeypatch, tmp_path, beside, *argv, cores=Cores(1)).split())
    assert output.count("the cost of waiting for a turn is assumed") == 1
    assert output.count("moderation is simulated by a rule, not measured") == 1


def test_break_even_includes_messages_of_collectives_replayed_as_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They send no messages in a replay, so the share was that of a program that sends messages of 0 B."""
    reduce = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=1024)
    took = MeasuredCollective("allreduce", (0, 0, 1, 1), ((1024, Distribution((0.0,), (1000,))),))
    argv = ("--break-even", "veth", "vf")
    assert "messages of 1 KiB" in placed(monkeypatch, tmp_path, shared(reduce), *argv, measured=(took,))
    with pytest.raises(BadInputError, match="mine sends no message, so its paths have no break-even share"):
        placed(monkeypatch, tmp_path, shared(), *argv)


def test_the_time_of_collectives_measured_in_one_placement_is_not_compared_with_replays_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allreduce that took 50 us in the default placement made every other one gain up to 81 %, and surely."""
    reduce = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=8)
    outputs = []
    for ms in (1, 1000):
        took = MeasuredCollective("allreduce", (0, 0, 1, 1), ((8, Distribution((0.0,), (ms * 1_000_000_000,))),))
        outputs.append(placed(monkeypatch, tmp_path, shared(reduce), "--path", "veth", measured=(took,)))
    assert outputs[0] == outputs[1] == placed(monkeypatch, tmp_path, shared(reduce), "--path", "veth")


def test_break_even_scales_computing_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times under --compute-scale 3 had nine times the computing, beside a title that gave three times."""
    computing = Distribution((0.0,), (1_000_000_000,))  # 1 ms
    schedule = shared(exchange(Peer.XOR, 2, 8))
    program = replace(schedule.programs[0], steps=(DoGap(0), *schedule.programs[0].steps), gaps=(0,))
    schedule = replace(schedule, programs=(program,), gaps=(computing,))
    kept = tmp_path / "mine.placement.json"
    placed(
        monkeypatch, tmp_path, schedule, "--break-even", "veth", "vf", "--compute-scale", "3", "--save", str(kept)
    )  # fmt: skip
    found = json.loads(kept.read_text())["break_even"]
    assert found["compute_ns"] == 3e6
    # A step has 100 messages of each of four ranks, with 3 ms of computing for each message.
    assert [round(ns / 1e8) for ns in (found["first_ns"][0], found["second_ns"][0])] == [3, 3]


def test_break_even_names_processors_that_only_its_curves_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The curves have two ranks on each node; the program's had a processor each, so no doubt was told."""
    far = shared(exchange(Peer.XOR, 1, 8))
    argv = ("--break-even", "veth", "vf", "--hosts", "a:1,b:1,c:1,d:1")
    alone = " ".join(placed(monkeypatch, tmp_path, far, *argv, cores=Cores(1)).split())
    assert "waiting for a turn" not in alone
    assert "two ranks on each of two nodes, which share processors (veth, vf)." in alone
    assert "which share" not in placed(monkeypatch, tmp_path, far, *argv, cores=Cores(2))
    assert "which share" in placed(monkeypatch, tmp_path, far, *argv, cores=Cores(2, one_computer=True))


def test_break_even_refuses_sizes_that_only_its_curves_send_inside_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program sends them between nodes alone, so no doubt was told, and half of the curves was a guess."""
    apart = shared(exchange(Peer.XOR, 2, 1024))
    argv = ("--break-even", "veth", "vf")
    few = {"intra": measured(90, 8, 64)}
    with pytest.raises(
        BadInputError, match=r"--break-even, veth / .*inside a node are larger than the largest measured"
    ):
        placed(monkeypatch, tmp_path, apart, *argv, **few)
    output = " ".join(placed(monkeypatch, tmp_path, apart, *argv, "--extrapolate", **few).split())
    assert "On vf, 100 % of messages and 100 % of bytes inside a node are larger than the largest measured" in output
    output = placed(monkeypatch, tmp_path, apart, *argv, intra=measured(90, 8, 1024))
    assert "inside a node" not in " ".join(output.split())


def test_a_path_has_no_break_even_with_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was reported as not slower than itself at any share."""
    with pytest.raises(BadInputError, match="--break-even compares two paths, not vf with itself"):
        placed(monkeypatch, tmp_path, shared(), "--break-even", "vf", "vf")


def test_break_even_is_reported_with_the_share_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The break-even share counts messages, but the program's share beside it weighed bytes and messages."""
    near, far = (exchange(Peer.XOR, to, size) for to, size in ((1, 8), (2, 1000)))
    err = placed(monkeypatch, tmp_path, shared(near, far), "--break-even", "veth", "vf", "--path", "veth,vf")
    assert "50 % of messages are between nodes if hosts are filled one after another." in " ".join(err.split())
    assert "messages between nodes" in err
    assert err.count(" 50 %") >= 2
    for lines in (r"^between nodes .*$|^\d+ % .* ms$", r"^path .* between nodes$|^v.* in-order .*$"):
        ends = set(map(len, re.findall(lines, err, re.MULTILINE)))
        assert len(ends) == 1, "figures of a last column end below the end of its heading"


@pytest.mark.parametrize(("latency_us", "shown"), [(103, False), (150, True)])
def test_no_path_is_faster_by_less_than_the_errors_of_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, latency_us: int, shown: bool
) -> None:
    """A path was `faster wherever the two are shown to differ` by 3 %, which `predict` leaves open."""
    slower = measured(latency_us, 8, 1024)
    schedule = shared(exchange(Peer.XOR, 1, 8), exchange(Peer.XOR, 2, 8))
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: [schedule])
    inside = measured(100, 8, 1024)
    machines = (
        NamedMachine("veth", "as-found", "polling", Machine(inside, inside)),
        NamedMachine("vf", "as-found", "polling", Machine(inside, slower)),
    )
    write_model(ModelFile("nearmetal-model", 1, "run", machines), tmp_path / "model.json")
    argv = ("mine", "--on", str(tmp_path / "model.json"), "--hosts", "a:2,b:2", "--replicas", "1", "--tries", "0")
    said = " ".join(run(place, *argv, "--break-even", "veth", "vf")[1].split())
    assert ("neither is shown to be faster at any share" in said) is not shown
    assert ("veth is faster wherever the two are shown to differ" in said) is shown
    assert "90 % of validated pairs of paths (own cores) were 0.93 to 1.10 times the predicted ratio" in said
    alike = "vf / as-found / polling: not shown to be slower than veth / as-found / polling, as far as"
    assert (alike in said) is not shown, "the first path of the table was recommended without a word"
    assert ("not shown to be slower" in said) is not shown


def test_break_even_is_of_all_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was that of the first launch, without a word."""
    first, second = (shared(exchange(Peer.XOR, *to_size)) for to_size in ((1, 8), (2, 1000)))
    computed = replace(computing(4, 4, 4, 4, ops=second.programs[0].ops), name="mine")
    argv = ("--break-even", "veth", "vf")
    for launches in ([first, computed], [computed, first]):
        said = " ".join(placed(monkeypatch, tmp_path, launches, *argv).split())
        assert "messages of 504 B, 2 ms of compute per message" in said
        assert "In this program 50 % of messages are between nodes" in said


def test_a_grid_that_does_not_match_the_program_or_hosts_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either was silently left out of the candidates."""
    with pytest.raises(BadInputError, match="a grid of 3x2 has 6 ranks, the program 4"):
        placed(monkeypatch, tmp_path, shared(), "--dims", "3x2")
    argv = ("--path", "vf", "--dims", "4x1")
    assert "blocks of a grid" not in placed(monkeypatch, tmp_path, shared(), *argv)
    output = placed(monkeypatch, tmp_path, shared(), *argv, "--hosts", "a:3,b:1")
    assert "no blocks of a grid of 4x1 fill a:3,b:1" in " ".join(output.split())


def test_a_program_that_takes_no_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended in a division by zero."""
    placed(monkeypatch, tmp_path, shared())
    with pytest.raises(BadInputError, match="the program takes no time") as error:
        run(predict, "mine", "--on", str(tmp_path / "model.json"), "--replicas", "1")
    assert "or give the pattern `compute`" in error.value.hint


def test_a_placement_not_shown_to_be_faster_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of the replays was recommended; only the table showed that its gain was between -31 and +26 %."""
    ring = Op(OpKind.SENDRECV, rule=Peer.SHIFT, peer=2, recv_rule=Peer.SHIFT, recv_peer=2, message_bytes=8)

    def spread(middle_us: int, most_us: int) -> PathModel:
        residual = Distribution((0.0, 0.5, 1.0), (0, middle_us * 1_000_000, most_us * 1_000_000))
        one = measured(3, 8, 1024)
        return replace(one, segments=tuple(replace(segment, residual=residual) for segment in one.segments))

    argv = ("--path", "vf", "--replicas", "40", "--seed", "1")
    expected = "round-robin is not shown to be faster than the launcher's default on vf / as-found / polling"
    err = placed(monkeypatch, tmp_path, shared(ring), *argv, intra=spread(300, 600), inter=spread(100, 900))
    assert expected in " ".join(err.split())
    err = placed(monkeypatch, tmp_path, shared(ring), *argv, intra=measured(1, 8, 1024), inter=measured(50, 8, 1024))
    assert "round-robin" in err
    assert expected not in " ".join(err.split())


def test_a_placement_that_loses_in_paired_replays_is_not_recommended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its median was the smaller one, of launches that differ more than placements, and its gain -10 %."""
    times = {"in-order": [100, 50, 60], "round-robin": [55, 55, 66], "partition": [140, 90, 95]}

    def recommended(*_: object, **__: object) -> list[Candidate]:
        hosts = {"in-order": [0, 0, 1, 1], "round-robin": [0, 1, 0, 1], "partition": [0, 1, 1, 0]}
        made = [Candidate(m, np.array(hosts[m], np.uint32), 0.5, np.array(ns, np.int64)) for m, ns in times.items()]
        return sorted(made, key=lambda one: one.median_ns)

    monkeypatch.setattr("nearmetal.cli.place.recommend", recommended)
    ring = Op(OpKind.SENDRECV, rule=Peer.SHIFT, peer=2, recv_rule=Peer.SHIFT, recv_peer=2, message_bytes=8)
    argv = ("--path", "vf", "-o", str(tmp_path / "ranks"))
    err = " ".join(placed(monkeypatch, tmp_path, shared(ring), *argv).split())
    best = "The order at hand, in-order on vf / as-found / polling, is the best one known"
    assert best in err
    assert "-10.0 %" in err, "the others are listed with what they lose"
    assert (tmp_path / "ranks").read_text().startswith("# in-order on vf / as-found / polling")
    times["round-robin"] = [55, 45, 54]
    err = " ".join(placed(monkeypatch, tmp_path, shared(ring), *argv).split())
    assert best not in err
    assert (tmp_path / "ranks").read_text().startswith("# round-robin on vf / as-found / polling")
    times |= {"in-order": [1000] * 10, "round-robin": [900] * 9 + [1001], "partition": [1400] * 10}
    err = " ".join(placed(monkeypatch, tmp_path, shared(ring), *argv).split())
    shown = "round-robin is not shown to be faster than the launcher's default on vf / as-found / polling"
    assert f"{shown}: +10.0 % [-0.1 %, +10.0 %] in 95 % of replays" in err, "one of ten loses: it was [+2.2 %, +10.0 %]"


@pytest.mark.parametrize("launcher", WRITERS)
def test_a_launcher_file_states_the_gain_of_its_placement(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose gain was not shown looked like any other, and files are kept longer than terminal output."""
    ring = Op(OpKind.SENDRECV, rule=Peer.SHIFT, peer=2, recv_rule=Peer.SHIFT, recv_peer=2, message_bytes=8)
    near, far = measured(3, 8, 1024), measured(50, 8, 1024)
    tails = (
        Distribution((0.0, 0.5, 1.0), (0, us * 1_000_000, most_us * 1_000_000))
        for us, most_us in ((300, 600), (100, 900))
    )
    lucky = [replace(near, segments=tuple(replace(one, residual=tail) for one in near.segments)) for tail in tails]

    def written(schedule: Schedule, **machine: PathModel) -> tuple[str, str]:
        argv = ("--path", "vf", "--replicas", "40", "--seed", "1", "--launcher", launcher)
        stderr = placed(monkeypatch, tmp_path, schedule, *argv, "-o", str(tmp_path / "ranks"), **machine)
        return (tmp_path / "ranks").read_text(), " ".join(stderr.split())

    file, stderr = written(shared(ring), intra=lucky[0], inter=lucky[1])
    assert "The default needs no file; --check measures both." in stderr
    shown, _ = written(shared(ring), intra=near, inter=far)
    default, _ = written(shared(exchange(Peer.XOR, 1, 8)), intra=near, inter=far)
    if launcher == "reorder":  # the program itself reads it, and programs do not expect comments
        assert "#" not in file + shown + default
        return
    assert file.splitlines()[0].startswith("# round-robin on vf / as-found / polling, by nearmetal place: ")
    assert file.splitlines()[1].startswith("# That is not shown to be faster.")
    assert sum(line.startswith("#") for line in shown.splitlines()) == 1 + (launcher == "mpich")  # ranks are dealt out
    assert default.startswith("# in-order on vf / as-found / polling, by nearmetal place: what launchers do by default")
    assert read_placement(tmp_path / "ranks", 4).nodes == ("a", "a", "b", "b")


def test_equal_placements_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    err = placed(monkeypatch, tmp_path, computing(1, 1), "--hosts", "a:1,b:1", "--path", "vf")
    assert "in-order" in err
    assert "round-robin" not in err


@pytest.mark.parametrize("name", ["x", "vf / a / b / polling"])
def test_a_machine_with_any_name_has_its_line(name: str) -> None:
    """A setting named by --as, or a saved file with such a name, ended in a traceback."""
    row = PlacedJson(name=name, method="in-order", median_ns=1.0, gain=(0.0, 0.0, 0.0), inter_share=0.0)
    other = replace(row, name="vf / tuned / polling")
    lines = placements((row, other)).rows
    assert [line[0].partition(" / ")[0] for line in lines] == [name.partition(" / ")[0], "vf"]
    assert lines[0][3] == "+0.0 %\n[+0.0 %, +0.0 %]", "the interval stands below the whole figure"


@pytest.mark.parametrize("option", [("--check-blocks", "5"), ("--check-figure", "took (.*)")])
def test_options_of_a_check_need_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, str]) -> None:
    with pytest.raises(BadInputError, match=f"{option[0]} has no effect without --check"):
        placed(monkeypatch, tmp_path, shared(), *option)
