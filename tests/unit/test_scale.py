"""A trace on another number of ranks: exact where it can be known, refused with the reason where not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from nearmetal.cli.predict import command as predict
from nearmetal.errors import BadInputError
from nearmetal.predict.models import Distribution, ModelFile, NamedMachine, write_model
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Program, Schedule, scale
from nearmetal.predict.simulate import simulate
from nearmetal.predict.trace import DoCall, DoGap, Repeat
from tests.unit.simulated import MACHINE, US, recv, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REDUCE = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=16)


def traced(ranks: int, ops_of: Callable[[int, int], list[Op]], comm: Comm | None = None) -> Schedule:
    """Return three steps of computing for 100 us, the ops of a rank, and a reduction over all."""

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
    """Rank 0 begins; everybody else waits for it."""
    out, into = send((rank + 1) % ranks, 8), recv((rank - 1) % ranks, 8)
    return [out, into] if rank == 0 else [into, out]


def chain(rank: int, ranks: int) -> list[Op]:
    """Faces to both neighbours of an open chain, not blocking; the ends have one."""
    there = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < ranks]
    posted = [recv(peer, 512, nonblocking=True, slot=at) for at, peer in enumerate(there)]
    waits = [Op(OpKind.WAIT, slots=0)] if len(there) == 2 else []
    return [*posted, *(send(peer, 512) for peer in there), *waits]


def nothing(rank: int, ranks: int) -> list[Op]:
    del rank, ranks
    return [replace(REDUCE, collective=Collective.BCAST, peer=0), replace(REDUCE, collective=Collective.BARRIER)]


@pytest.mark.parametrize("ops_of", [ring, token, chain, nothing])
@pytest.mark.parametrize(("few", "many"), [(4, 16), (5, 4), (8, 9)])
def test_a_scaled_trace_is_that_of_as_many_ranks(ops_of: Callable[[int, int], list[Op]], few: int, many: int) -> None:
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
        (4, grid, "sendrecv of rank 0 is with rank 2, which is no neighbour in a ring or chain"),
        (4, workers, "send of rank 2 is with rank 0, which is no neighbour"),
        (6, one_longer, "rank 2 makes other calls than rank 1"),
        (4, calls(collective=Collective.ALLTOALL), "alltoall of rank 0 of 16 B changes its size"),
        (4, calls(collective=Collective.ALLGATHER), "allgather of rank 0 of 16 B changes its size"),
        (4, calls(sizes=0), "allreduce of rank 0 of 16 B changes its size"),
        (4, calls(collective=Collective.BCAST, peer=3), "bcast of rank 0 has rank 3 as its root"),
        (4, calls(comm=1), "allreduce of rank 0 is on a communicator of a part of the ranks"),
    ],
)
def test_what_one_trace_does_not_tell_is_refused(ranks: int, ops_of: Callable[[int, int], list[Op]], why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        scale(traced(ranks, ops_of), 16)


def test_a_process_grid_is_refused_and_an_element_gathered_is_not() -> None:
    with pytest.raises(BadInputError, match="is on a grid of 4x1, which would be another on more ranks"):
        scale(traced(4, ring, Comm(0, size=4, dims=(4, 1), periods=(1, 1))), 16)
    scale(traced(4, ring, Comm(0, size=4, dims=(4,), periods=(1,))), 16)
    scale(traced(4, calls(collective=Collective.ALLGATHER, message_bytes=8)), 16)
    with pytest.raises(BadInputError, match="to 3 ranks cannot be scaled: neighbours look like pairs"):
        scale(traced(4, ring), 3)


def test_the_number_of_ranks_of_a_trace_is_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.cli.replay.read_trace", lambda _: None)
    monkeypatch.setattr("nearmetal.cli.replay.schedule_from_trace", lambda _: traced(4, ring))
    machine = NamedMachine("veth", "as-found", "polling", MACHINE)
    write_model(ModelFile("nearmetal-model", 1, "run", (machine,)), tmp_path / "model.json")

    def told(*argv: str) -> str:
        on = ("mine", "--on", str(tmp_path / "model.json"), "--replicas", "1", "--format", "json", *argv)
        found = CliRunner().invoke(predict, on, catch_exceptions=False, standalone_mode=False)
        if found.exception:
            raise found.exception
        return found.stdout + found.stderr

    assert '"messages": 36' in told()  # of three exchanges and three reductions
    weak, strong = told("--ranks", "8", "--scaling", "weak"), told("--ranks", "8", "--scaling", "strong")
    assert "the trace is of 4 ranks, not of 8: taken to make as many iterations" in weak.replace("\n", " ")
    assert ('"compute": 300000.0' in weak, '"compute": 150000.0' in strong) == (True, True)
    for argv, why in (
        (("--ranks", "8"), "the trace has 4 ranks, not 8"),
        (("--scaling", "weak"), "--scaling has no effect on a trace of 4 ranks"),
        (("--ranks", "4", "--scaling", "weak"), "--scaling has no effect on a trace of 4 ranks"),
    ):
        with pytest.raises(BadInputError, match=why):
            told(*argv)
