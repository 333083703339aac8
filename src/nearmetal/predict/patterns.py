"""Regular communication patterns, read from a small TOML file and extrapolated to any number of ranks.

The program is written once and shared by all ranks; peers are worked out by the simulator when they are needed, so
a million ranks cost their state and nothing else.

    [pattern]
    kind = "halo"             # halo, cg or alltoall
    ranks = 1024
    steps = 100
    message_bytes = 8192      # halo: one face; cg: one vector; alltoall: one pair (at `scaling_ranks`)
    compute = "50 us"         # median compute time of a step (at `scaling_ranks`)
    compute_spread = 0.1      # p99 of it is (1 + spread) times the median, p1 (1 - spread)
    dims = [16, 8, 8]         # halo only; left out: as cubic as the ranks allow
    periodic = true           # halo only
    allreduce_bytes = 8       # after every step; 0 for none
    scaling = "weak"          # weak: a rank's part of the problem is constant; strong: the whole problem is
    scaling_ranks = 1024      # the ranks that the figures above belong to
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from nearmetal.errors import BadInputError
from nearmetal.predict.models import PS_PER_NS, Distribution
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Peer, Program, Schedule, exchange
from nearmetal.predict.trace import DoCall, DoGap, Repeat, Step
from nearmetal.study.spec import read_table, read_toml
from nearmetal.units import parse_duration_ns

MAX_RANKS = 1 << 24
MAX_DIMS = 16
_HINT = "docs/explanation/prediction.md lists the keys"


_Ranks = Annotated[int, Field(strict=True, ge=1, le=MAX_RANKS)]
_Bytes = Annotated[int, Field(strict=True, ge=0, le=1 << 40)]
_Parts = tuple[list[Op], list[Step], tuple[Comm, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern, as in the `[pattern]` table; sizes in bytes, `compute` as text with a unit.

    Raises BadInputError for figures that do not fit each other.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["halo", "cg", "alltoall"]
    ranks: _Ranks
    steps: Annotated[int, Field(strict=True, ge=1, le=1 << 28)]
    message_bytes: _Bytes
    compute: str = "0 us"
    compute_spread: Annotated[float, Field(strict=True, ge=0, lt=2 / 3)] = 0.0
    dims: Annotated[tuple[_Ranks, ...], Field(max_length=MAX_DIMS)] = ()
    periodic: Annotated[bool, Field(strict=True)] = True
    allreduce_bytes: _Bytes = 0
    scaling: Literal["weak", "strong"] = "weak"
    scaling_ranks: Annotated[int, Field(strict=True, ge=0, le=MAX_RANKS)] = 0

    def __post_init__(self) -> None:
        if self.dims and math.prod(self.dims) != self.ranks:
            text = f"dims {list(self.dims)} hold {math.prod(self.dims)} ranks, not {self.ranks}"
            raise BadInputError(text, hint="leave dims out for a grid as cubic as the ranks allow")
        if self.kind != "halo" and (self.dims or not self.periodic):
            text = f"{'dims' if self.dims else 'periodic'} belongs to a halo, but the pattern is {self.kind}"
            raise BadInputError(text, hint=f"leave it out: {_HINT}")
        if self.kind == "cg" and self.ranks & (self.ranks - 1):
            raise BadInputError(f"ranks is {self.ranks}; cg needs a power of two", hint=_HINT)
        try:
            parse_duration_ns(self.compute)
        except BadInputError as error:
            raise BadInputError(f"compute: {error.message}", hint=error.hint) from error

    def at(self, ranks: int) -> Pattern:
        """Return the same pattern at another number of ranks, on a grid of as many dimensions, as cubic as can be."""
        if ranks == self.ranks:
            return self
        dims = cubic_dims(ranks, len(self.dims)) if self.dims else ()
        changed = {"ranks": ranks, "dims": dims, "scaling_ranks": self.scaling_ranks or self.ranks}
        return read_table(Pattern, asdict(self) | changed, "the pattern", _HINT)

    @property
    def shrink(self) -> float:
        """Return a rank's part of the problem relative to `scaling_ranks`: 1 under weak scaling."""
        return self._fewer if self.scaling == "strong" else 1.0

    @property
    def _fewer(self) -> float:
        return (self.scaling_ranks or self.ranks) / self.ranks

    def size(self, *, strong: float, weak: float) -> int:
        """Return the bytes of a message, which go with the inverse of the ranks to one of these powers.

        A byte is left of any: messages without data may not be sent at all.
        """
        share: float = self._fewer ** (strong if self.scaling == "strong" else weak)
        return max(round(self.message_bytes * share), min(1, self.message_bytes))


def read_pattern(path: Path) -> Pattern:
    """Read a pattern file; raise BadInputError naming every wrong key."""
    hint = "name a pattern, or the directory of a trace: docs/explanation/prediction.md"
    return parse_pattern(read_toml(path, "a readable TOML file", hint), str(path))


def parse_pattern(data: dict[str, object], name: str = "pattern") -> Pattern:
    """Check the content of a pattern file; raise BadInputError naming every wrong key."""
    if set(data) != {"pattern"}:
        has = f"the tables {', '.join(sorted(data))}" if data else "no table"
        raise BadInputError(f"{name} has {has}", hint=f"a pattern is one table, [pattern]: {_HINT}")
    try:
        return read_table(Pattern, data["pattern"], name, _HINT)
    except BadInputError as error:
        if error.message.startswith(name):
            raise
        raise BadInputError(f"{name}: {error.message}", hint=error.hint) from error


def cubic_dims(ranks: int, dimensions: int = 3) -> tuple[int, ...]:
    """Split ranks into nearly equal factors, largest first, like MPI_Dims_create."""
    dims: list[int] = []
    left = ranks
    for remaining in range(dimensions, 0, -1):
        target = round(left ** (1 / remaining))
        factor = next(
            (d for near in range(target) for d in (target - near, target + near) if d >= 1 and left % d == 0), 1
        )
        if remaining == 1:
            factor = left
        dims.append(factor)
        left //= factor
    return tuple(sorted(dims, reverse=True))


def schedule_from_pattern(pattern: Pattern) -> Schedule:
    """Return the schedule of a pattern; its size does not depend on the number of ranks."""
    build = {"halo": _halo, "cg": _cg, "alltoall": _alltoall}[pattern.kind]
    ops, steps, comms, dims = build(pattern)
    if pattern.allreduce_bytes > 0:
        steps.append(DoCall(len(ops)))
        ops.append(Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=pattern.allreduce_bytes))
    slots = 1 + max((op.slot for op in ops if op.nonblocking), default=-1)
    program = Program(
        steps=(Repeat(pattern.steps, (DoGap(0), *steps)),),
        ops=tuple(ops),
        comms=comms,
        gaps=(0,),
        slot_sets=(tuple(range(slots)),),
        dims=dims,
        periods=(int(pattern.periodic),) * len(dims),
        slots=slots,
    )
    median_ps = parse_duration_ns(pattern.compute) * PS_PER_NS * pattern.shrink
    factors = (1 - 1.5 * pattern.compute_spread, 1 - pattern.compute_spread, 1.0, 1 + pattern.compute_spread)
    values = [max(0, round(median_ps * factor)) for factor in factors]
    return Schedule(
        pattern.ranks, (program,), (Distribution((0.0, 0.01, 0.5, 0.99), tuple(values)),), name=pattern.kind
    )


def _halo(pattern: Pattern) -> _Parts:
    """Every face neighbour of a Cartesian grid: post all receives, send all, wait for all."""
    dims = pattern.dims or cubic_dims(pattern.ranks)
    faces = 2 * len(dims)
    # Strong scaling: the face of a block shrinks with its volume to the power (d - 1) / d.
    size = pattern.size(strong=(len(dims) - 1) / len(dims), weak=0)
    ops = [
        Op(OpKind.RECV, nonblocking=True, rule=Peer.CART, peer=face, tag=face ^ 1, message_bytes=size, slot=face)
        for face in range(faces)
    ]
    ops += [
        Op(OpKind.SEND, nonblocking=True, rule=Peer.CART, peer=face, tag=face, message_bytes=size, slot=faces + face)
        for face in range(faces)
    ]
    ops.append(Op(OpKind.WAIT, slots=0))
    return ops, [DoCall(i) for i in range(len(ops))], (Comm(0, size=pattern.ranks),), dims


def _cg(pattern: Pattern) -> _Parts:
    """One iteration of NPB CG: a reduction along each row, the transpose exchange, two dot products.

    The grid has 2^ceil(log2(p) / 2) columns. A row reduction exchanges the vector with the partners at distance 1, 2,
    4, ...; where rows and columns differ in number, the transpose goes to the neighbouring half of the row instead. A
    vector has a part for each column, and grows with the ranks under weak scaling.
    """
    power = pattern.ranks.bit_length() - 1
    columns = 1 << ((power + 1) // 2)
    rows = pattern.ranks // columns
    size = pattern.size(strong=0.5, weak=-0.5)
    comms = (Comm(0, size=pattern.ranks), Comm(1, stride=1, size=columns))
    partners = [1 << bit for bit in range(columns.bit_length() - 1)]
    rule, peer = (Peer.TRANSPOSE, columns) if rows == columns else (Peer.XOR, columns // 2)
    ops = [exchange(Peer.XOR, mask, size, tag=1, comm=1) for mask in partners]
    ops.append(exchange(rule, peer, size, tag=2))
    ops += [exchange(Peer.XOR, mask, 8, tag=3, comm=1) for mask in partners * 2]
    return ops, [DoCall(i) for i in range(len(ops))], comms, ()


def _alltoall(pattern: Pattern) -> _Parts:
    """One MPI_Alltoall over all ranks: a rank's data has a part for each, so that of a pair shrinks in any case."""
    size = pattern.size(strong=2, weak=1)
    ops = [Op(OpKind.COLLECTIVE, collective=Collective.ALLTOALL, message_bytes=size)]
    return ops, [DoCall(0)], (Comm(0, size=pattern.ranks),), ()
