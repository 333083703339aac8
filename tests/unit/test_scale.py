"""Scaling a trace to another number of ranks: exact where possible, otherwise refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from nearmetal.cli.predict import command as predict
from nearmetal.cli.replay import scaled
from nearmetal.errors import BadInputError
from nearmetal.predict.model_file import ModelFile, write_model
from nearmetal.predict.models import Distribution, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.scale import scale, scale_on
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.simulate import simulate
from nearmetal.predict.trace import DoCall, DoGap, Repeat
from tests.unit.simulated import MACHINE, US, recv, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REDUCE = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=16)


def traced(ranks: int, ops_of: Callable[[int, int], list[Op]], comm: Comm | None = None) -> Schedule:
    """Return three steps, each of 100 us of computing, the ops of a rank, and a reduction over all ranks."""

    def program(rank: int) -> Program:
        ops = (*ops_of(rank, ranks), REDUCE)
        comms = (comm or Comm(0, size=ranks), Comm(1 + rank, (rank,), 0))
        body = (DoGap(0), *map(DoCall, range(len(ops))))
        return Program((Repeat(3, body),), ops, comms, (rank,), size_lists=((rank,),), slots=2, slot_sets=((0, 1),))

    gaps = tuple(Distribution((0.0,), (100 * US,)) for _ in range(ranks))
    return Schedule(ranks, tuple(map(program, range(ranks))), gaps, name="mine")


def ring(rank: int, ranks: int) -> list[Op]:
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    return [Op(OpKind.SENDRECV, peer=after, recv_peer=before, message_bytes=1000)]


def token(rank: int, ranks: int) -> list[Op]:
    """Rank 0 begins; all others wait for it."""
    out, into = send((rank + 1) % ranks, 8), recv((rank - 1) % ranks, 8)
    return [out, into] if rank == 0 else [into, out]


def chain(rank: int, ranks: int) -> list[Op]:
    """Non-blocking exchanges of faces with both neighbours in an open chain; the ends have one neighbour."""
    there = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < ranks]
    posted = [recv(peer, 512, nonblocking=True, slot=at) for at, peer in enumerate(there)]
    waits = [Op(OpKind.WAIT, slots=0)] if len(there) == 2 else []
    return [*posted, *(send(peer, 512) for peer in there), *waits]


def nothing(rank: int, ranks: int) -> list[Op]:
    del rank, ranks
    return [replace(REDUCE, collective=Collective.BCAST, peer=0), replace(REDUCE, collective=Collective.BARRIER)]


@pytest.mark.parametrize("ops_of", [ring, token, chain, nothing])
@pytest.mark.parametrize(("few", "many"), [(4, 16), (5, 4), (8, 9)])
def test_a_scaled_trace_equals_one_of_that_many_ranks(
    ops_of: Callable[[int, int], list[Op]], few: int, many: int
) -> None:
    scaled, truth = scale(traced(few, ops_of), many), traced(many, ops_of)
    for per_node in (1, 4):
        placed = Placement.block(many, per_node)
        found, expected = (simulate(one, MACHINE, placed) for one in (scaled, truth))
        assert replace(found, makespan_ns=expected.makespan_ns) == expected
        assert found.makespan_ns.tolist() == expected.makespan_ns.tolist()
    assert scaled.traced_ranks == few


def test_collectives_of_all_ranks_need_no_chain() -> None:
    for few, many in ((1, 3), (2, 4), (2, 1)):
        found = simulate(scale(traced(few, nothing), many), MACHINE, Placement.block(many, 1))
        assert found.messages == simulate(traced(many, nothing), MACHINE, Placement.block(many, 1)).messages


def pairs(rank: int, ranks: int) -> list[Op]:
    del ranks
    return [Op(OpKind.SENDRECV, peer=rank ^ 1, recv_peer=rank ^ 1, message_bytes=8)]


def grid(rank: int, ranks: int) -> list[Op]:
    del ranks
    return [Op(OpKind.SENDRECV, peer=rank ^ 2, recv_peer=rank ^ 2, message_bytes=8)]


def workers(rank: int, ranks: int) -> list[Op]:
    return [send(0)] if rank else [recv(-1)] * (ranks - 1)


def one_longer(rank: int, ranks: int) -> list[Op]:
    own = ring(rank, ranks)
    return [replace(own[0], message_bytes=own[0].message_bytes + rank // 2)]


def calls(**changed: object) -> Callable[[int, int], list[Op]]:
    return lambda *_: [replace(REDUCE, **changed)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "ops_of", "why"),
    [
        (3, ring, "of 3 ranks cannot be scaled: neighbours look like pairs"),
        (4, pairs, "rank 2 makes other calls than rank 1"),
        (4, grid, "sendrecv of rank 0 is with rank 2, which is not a neighbour in a ring or chain"),
        (4, workers, "send of rank 2 is with rank 0, which is not a neighbour"),
        (6, one_longer, "rank 2 makes other calls than rank 1"),
        (4, calls(collective=Collective.ALLTOALL), "alltoall of rank 0 of 16 B changes its size"),
        (4, calls(collective=Collective.ALLGATHER), "allgather of rank 0 of 16 B changes its size"),
        (4, calls(vector=True), "allreduce of rank 0 of 16 B changes its size"),
        (4, calls(collective=Collective.BCAST, peer=3), "bcast of rank 0 has rank 3 as its root"),
        (4, calls(comm=1), "allreduce of rank 0 uses a communicator with only some of the ranks"),
    ],
)
def test_scaling_that_one_trace_cannot_determine_is_refused(
    ranks: int, ops_of: Callable[[int, int], list[Op]], why: str
) -> None:
    with pytest.raises(BadInputError, match=why):
        scale(traced(ranks, ops_of), 16)


def test_a_process_grid_is_refused_but_gathering_one_element_is_not() -> None:
    with pytest.raises(BadInputError, match="is on a grid of 4x1, which would differ on more ranks"):
        scale(traced(4, ring, Comm(0, size=4, dims=(4, 1), periods=(1, 1))), 16)
    scale(traced(4, ring, Comm(0, size=4, dims=(4,), periods=(1,))), 16)
    scale(traced(4, calls(collective=Collective.ALLGATHER, message_bytes=8)), 16)
    with pytest.raises(BadInputError, match="to 3 ranks cannot be scaled: neighbours look like pairs"):
        scale(traced(4, ring), 3)


@pytest.mark.parametrize("closed", [0, 1])
def test_a_line_of_ranks_grows_with_them(closed: int) -> None:
    """It kept the length that was traced, which the simulator refused as a damaged trace."""

    def exchanged(rank: int, ranks: int) -> list[Op]:
        return [*ring(rank, ranks), replace(REDUCE, collective=Collective.NEIGHBOR_ALLTOALL)]

    def of_line(ranks: int) -> Schedule:
        return traced(ranks, exchanged, Comm(0, size=ranks, dims=(ranks,), periods=(closed,)))

    (found,), expected = scale_on([of_line(4)], [of_line(8)], 16), of_line(16)
    sent = [simulate(one, MACHINE, Placement.block(16, 1)) for one in (found, expected)]
    assert sent[0].messages == sent[1].messages == 3 * (16 + 2 * 16 - 2 * (1 - closed) + 64)
    assert sent[0].makespan_ns.tolist() == sent[1].makespan_ns.tolist()
    grid = traced(4, nothing)
    unused = [replace(one, comms=(*one.comms, Comm(9, size=4, dims=(2, 2), periods=(1, 1)))) for one in grid.programs]
    simulate(scale(replace(grid, programs=tuple(unused)), 16), MACHINE, Placement.block(16, 1))


def test_the_number_of_ranks_can_be_set_by_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.cli.replay.read_trace", lambda _: None)
    monkeypatch.setattr("nearmetal.cli.replay.schedule_from_trace", lambda _: traced(4, ring))
    machine = NamedMachine("veth", "as-found", "polling", MACHINE)
    write_model(ModelFile("nearmetal-model", 1, "run", (machine,)), tmp_path / "model.json")

    def output_of(*argv: str) -> str:
        on = ("mine", "--on", str(tmp_path / "model.json"), "--replicas", "1", "--format", "json", *argv)
        found = CliRunner().invoke(predict, on, catch_exceptions=False, standalone_mode=False)
        if found.exception:
            raise found.exception
        return found.stdout + found.stderr

    assert '"messages": 36' in output_of()  # of three exchanges and three reductions
    weak, strong = output_of("--ranks", "8", "--scaling", "weak"), output_of("--ranks", "8", "--scaling", "strong")
    assert "the trace has 4 ranks, not 8: the program is assumed to make as many iterations" in weak.replace("\n", " ")
    assert ('"compute": 300000.0' in weak, '"compute": 150000.0' in strong) == (True, True)
    with pytest.raises(BadInputError, match="the trace has 1 rank, not 2"):
        scaled([replace(traced(4, ring), ranks=1)], 2, None)
    for argv, why in (
        (("--ranks", "8"), "the trace has 4 ranks, not 8"),
        (("--scaling", "weak"), "--scaling has no effect on a trace of 4 ranks"),
        (("--ranks", "4", "--scaling", "weak"), "--scaling has no effect on a trace of 4 ranks"),
    ):
        with pytest.raises(BadInputError, match=why):
            output_of(*argv)


def spectral(rank: int, ranks: int) -> list[Op]:
    """Return a transpose of a volume cut into slabs: each pair exchanges less by the square of the number of ranks."""
    del rank
    return [replace(REDUCE, collective=Collective.ALLTOALL, message_bytes=(1 << 22) // ranks**2)]


def computing_less(ranks: int) -> Schedule:
    schedule = traced(ranks, spectral)
    return replace(schedule, gaps=tuple(Distribution((0.0,), (1600 * US // ranks,)) for _ in range(ranks)))


def test_two_traces_show_how_sizes_and_computing_scale_with_the_ranks() -> None:
    """One trace of an alltoall is refused; traces of 4 and 16 ranks give exactly the trace of 64 ranks."""
    (found,) = scale_on([computing_less(4)], [computing_less(16)], 64)
    there = computing_less(64)
    assert found.ranks == 64
    assert [program.ops for program in found.programs] == [program.ops for program in there.programs]
    assert found.compute_scale == pytest.approx(1 / 4)
    assert (found.traced_before, found.traced_ranks) == (4, 16)
    for ops_of in (ring, chain, nothing):
        one, (two,) = scale(traced(8, ops_of), 64), scale_on([traced(4, ops_of)], [traced(8, ops_of)], 64)
        assert [program.ops for program in one.programs] == [program.ops for program in two.programs]
        assert two.compute_scale == pytest.approx(1.0)


def test_every_launch_on_both_numbers_of_ranks_counts_for_scaling_computing() -> None:
    """Only the first trace of each number was used, so their order decided the predicted duration of computing."""

    def launch(ranks: int, us: int) -> Schedule:
        return replace(traced(ranks, nothing), gaps=(Distribution((0.0,), (us * US,)),) * ranks)

    few, many = [launch(4, 300), launch(4, 500)], [launch(8, 150), launch(8, 250)]
    for one in (scaled([*few, *many], 16, None), scaled([*few[::-1], *many[::-1]], 16, None)):
        assert [launched.compute_scale for launched in one] == pytest.approx([0.5, 0.5])
        assert sorted(launched.gaps[0].values_ps[0] for launched in one) == [150 * US, 250 * US]  # type: ignore[union-attr]
    longer = traced(4, lambda *_: [replace(REDUCE, message_bytes=32)])
    shorter, same = (traced(ranks, lambda *_: [REDUCE]) for ranks in (4, 8))
    with pytest.raises(BadInputError, match="of 4 ranks cannot be scaled: another one has messages of other sizes"):
        scale_on([shorter, longer], [same], 16)


@pytest.mark.parametrize(("few", "many"), [(1, 2), (1, 4), (2, 3), (4, 5)])
def test_traces_of_very_few_ranks_show_how_collectives_scale(few: int, many: int) -> None:
    """One of a single rank ended in `list index out of range`: it has no rank between its ends."""
    (found,) = scale_on([traced(few, nothing)], [traced(many, nothing)], 16)
    assert [one.ops for one in found.programs] == [one.ops for one in scale(traced(many, nothing), 16).programs]
    assert (found.ranks, found.traced_before, found.traced_ranks, found.compute_scale) == (16, few, many, 1.0)


def odd_sizes(rank: int, ranks: int) -> list[Op]:
    del rank
    return [replace(REDUCE, collective=Collective.ALLGATHER, message_bytes={4: 1000, 16: 1100}[ranks])]


def vanishing(rank: int, ranks: int) -> list[Op]:
    del rank
    return [replace(REDUCE, collective=Collective.ALLGATHER, message_bytes={4: 1000, 16: 0}[ranks])]


def one_call_more(rank: int, ranks: int) -> list[Op]:
    return nothing(rank, ranks)[: 1 if ranks == 4 else 2]


@pytest.mark.parametrize(
    ("ops_of", "why"),
    [
        (odd_sizes, "1000 B on 4 ranks and 1100 B on 16, which is no power"),
        (vanishing, "1000 B on 4 ranks and 0 B on 16"),
        (one_call_more, "rank 0 makes different calls than on 4 ranks"),
    ],
)
def test_traces_that_disagree_are_refused(ops_of: Callable[[int, int], list[Op]], why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        scale_on([traced(4, ops_of)], [traced(16, ops_of)], 64)


def test_computing_of_two_processors_shows_no_scaling() -> None:
    """A slower processor passed for computing that more ranks do not divide."""
    few, many = (replace(computing_less(ranks), processor=model) for ranks, model in ((4, "EPYC"), (16, "Xeon")))
    with pytest.raises(BadInputError, match="traces are of several processors: EPYC and Xeon"):
        scale_on([few], [many], 64)
    assert scale_on([few], [replace(many, processor="")], 64)[0].compute_scale == pytest.approx(1 / 4)


def test_two_traces_need_no_scaling_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = NamedMachine("veth", "as-found", "polling", MACHINE)
    write_model(ModelFile("nearmetal-model", 1, "run", (named,)), tmp_path / "model.json")
    by_name = {"few": computing_less(4), "many": computing_less(16)}
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda program, *_: [by_name[str(program)]])

    def predict_scaled(*argv: str) -> tuple[float, str]:
        argv = (*argv, "--on", str(tmp_path / "model.json"), "--replicas", "1", "--format", "json")
        result = CliRunner().invoke(predict, list(argv), catch_exceptions=False, standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return json.loads(result.stdout)[0]["parts_ns"]["compute"], result.stderr

    compute_ns, err = predict_scaled("few", "many", "--ranks", "64")
    assert compute_ns == pytest.approx(3 * 1_600_000 / 64)
    assert "the traces have 4 and 16 ranks, not 64" in " ".join(err.split())
    with pytest.raises(BadInputError, match="the traces have 4 and 16 ranks, and --ranks 8 is not more than both"):
        predict_scaled("few", "many", "--ranks", "8")
