"""What a pattern makes each rank do: sizes, computing and grids by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearmetal.errors import BadInputError
from nearmetal.predict.models import Distribution
from nearmetal.predict.patterns import Pattern, cubic_dims, parse_pattern, schedule_from_pattern
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Peer
from nearmetal.predict.trace import DoCall, DoGap, Repeat
from tests.unit.simulated import US

HALO = Pattern(kind="halo", ranks=64, steps=2, message_bytes=1000, compute="80 us", compute_spread=0.1)
STRONG = replace(HALO, scaling="strong", scaling_ranks=8)


@pytest.mark.parametrize(
    ("pattern", "message_bytes", "compute_us"),
    [
        (HALO, 1000, 80),
        (STRONG, 250, 10),  # of a cube of an eighth: a face of a quarter
        (replace(STRONG, dims=(8, 8)), 354, 10),  # of a square: an edge
        (replace(STRONG, scaling_ranks=0), 1000, 80),
        (replace(STRONG, kind="cg", scaling_ranks=16), 500, 20),  # a row's part of the vector
        (replace(STRONG, kind="alltoall", scaling_ranks=16), 62, 20),  # of the square of the ranks
        (replace(STRONG, kind="alltoall", scaling_ranks=1), 1, 1.25),  # a quarter of a byte
        (replace(STRONG, kind="alltoall", message_bytes=0), 0, 10),
        (replace(HALO, scaling_ranks=8), 1000, 80),
        (replace(HALO, kind="cg", scaling_ranks=16), 2000, 80),  # of four times the vector, to twice the columns
        (replace(HALO, kind="alltoall", scaling_ranks=16), 250, 80),  # as many bytes of a rank, to four times the ranks
    ],
)
def test_a_rank_s_share_of_the_problem(pattern: Pattern, message_bytes: int, compute_us: float) -> None:
    """Under weak scaling, messages of `cg` and `alltoall` had one size on any number of ranks."""
    schedule = schedule_from_pattern(pattern)
    assert schedule.programs[0].ops[0].message_bytes == message_bytes
    values = tuple(round(compute_us * US * factor) for factor in (0.85, 0.9, 1.0, 1.1))
    assert schedule.gaps == (Distribution((0.0, 0.01, 0.5, 0.99), values),)
    assert (schedule.ranks, schedule.name) == (64, pattern.kind)


def test_a_halo_exchanges_every_face_at_once() -> None:
    line = Pattern(kind="halo", ranks=4, steps=3, message_bytes=8, dims=(4,), periodic=False, allreduce_bytes=1)
    (program,) = schedule_from_pattern(line).programs
    face = Op(OpKind.RECV, nonblocking=True, rule=Peer.CART, message_bytes=8)
    assert program.ops == (
        replace(face, peer=0, tag=1, slot=0),
        replace(face, peer=1, tag=0, slot=1),
        replace(face, kind=OpKind.SEND, peer=0, tag=0, slot=2),
        replace(face, kind=OpKind.SEND, peer=1, tag=1, slot=3),
        Op(OpKind.WAIT, slots=0),
        Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=1),
    )
    assert program.steps == (Repeat(3, (DoGap(0), *map(DoCall, range(6)))),)
    assert (program.dims, program.periods, program.slots, program.slot_sets) == ((4,), (0,), 4, ((0, 1, 2, 3),))
    ring = schedule_from_pattern(replace(line, periodic=True, allreduce_bytes=0)).programs[0]
    assert (ring.periods, len(ring.ops)) == ((1,), 5)


def test_rows_of_cg_have_communicators_of_their_own() -> None:
    square, twice = (
        schedule_from_pattern(Pattern(kind="cg", ranks=ranks, steps=1, message_bytes=8)).programs[0]
        for ranks in (16, 8)
    )
    assert square.comms == (Comm(0, size=16), Comm(1, stride=1, size=4))
    assert twice.comms == (Comm(0, size=8), Comm(1, stride=1, size=4))


@pytest.mark.parametrize(
    ("ranks", "dimensions", "dims"),
    [
        (1, 3, (1, 1, 1)),
        (2, 3, (2, 1, 1)),
        (7, 3, (7, 1, 1)),
        (12, 3, (3, 2, 2)),
        (16, 3, (4, 2, 2)),
        (36, 2, (6, 6)),
        (24, 2, (6, 4)),
        (24, 1, (24,)),
        (6, 2, (3, 2)),
    ],
)
def test_a_grid_is_as_cubic_as_its_ranks_allow(ranks: int, dimensions: int, dims: tuple[int, ...]) -> None:
    assert cubic_dims(ranks, dimensions) == dims


def test_a_pattern_on_other_ranks_keeps_the_number_that_its_figures_belong_to() -> None:
    cube = replace(HALO, dims=(4, 4, 4))
    assert cube.at(64) is cube
    assert cube.at(8) == replace(cube, ranks=8, dims=(2, 2, 2), scaling_ranks=64)
    assert STRONG.at(512) == replace(STRONG, ranks=512)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dims": (4, 4)}, r"dims \[4, 4\] hold 16 ranks, not 64"),
        ({"kind": "cg", "dims": (64,)}, "dims belongs to a halo"),
        ({"kind": "alltoall", "periodic": False}, "periodic belongs to a halo"),
        ({"kind": "cg", "ranks": 12}, "ranks is 12; cg needs a power of two"),
        ({"compute": "5"}, "compute: "),
    ],
)
def test_figures_that_do_not_fit_each_other_are_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        replace(HALO, **changed)  # type: ignore[arg-type]


def test_a_pattern_is_one_table() -> None:
    table = {"kind": "halo", "ranks": 64, "steps": 2, "message_bytes": 1000, "compute": "80 us", "compute_spread": 0.1}
    assert parse_pattern({"pattern": table}) == HALO
    with pytest.raises(BadInputError, match="mine has no table"):
        parse_pattern({}, "mine")
    with pytest.raises(BadInputError, match="mine has the tables other, pattern"):
        parse_pattern({"pattern": table, "other": {}}, "mine")
    most = {"ranks": 1 << 24, "steps": 1 << 28, "message_bytes": 1 << 40, "allreduce_bytes": 1 << 40}
    for key, number in most.items():
        assert parse_pattern({"pattern": table | {key: number}})
        for beyond in (number + 1, -1):
            with pytest.raises(BadInputError, match=rf"^mine: {key}: "):
                parse_pattern({"pattern": table | {key: beyond}}, "mine")
