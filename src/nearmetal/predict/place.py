"""Where ranks should go: geometric blocks, partitions of the traffic graph, and improvement on the simulated time.

A candidate is a full assignment of ranks to hosts that respects the slots of each host exactly. Candidates are
judged by the simulator, not by the size of their cut, because a cut does not know about ports, tails or moderation.
"""

import importlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.predict.models import Distribution, Machine
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Comm, Peer, Program, Schedule, exchange
from nearmetal.predict.simulate import simulate, simulate_launches
from nearmetal.predict.trace import DoCall, DoGap, Repeat
from nearmetal.predict.traffic import inter_share, messages_of_all, traffic
from nearmetal.units import as_percent, counted

Hosts = NDArray[np.uint32]
IN_ORDER = "in-order"
"""The placement that launchers choose without being told."""

SEARCH_REPLICAS = 20
"""Replicas that judge a swap."""
_SWAP_ROUNDS, _MOST_SWAPPED = 4, 20_000
"""How often all ranks are looked at for a better cut, and how many at most."""
_HEAVIEST = 10_000
"""The largest weight of an edge for METIS, which takes whole numbers."""
EXCHANGES = 100
"""Messages that each rank of `share_schedule` exchanges."""
SIDE = 0.75
"""A machine counts as faster at a share where it is in so many replicas; less may be the luck of their draws."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The machine's hosts and how many ranks each takes."""

    names: tuple[str, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.counts) or not self.names or min(self.counts) < 1:
            text = f"{len(self.names)} hosts with slots {list(self.counts)[:8]}"
            raise BadInputError(text, hint="each needs at least one: n0:2,n1:2")
        if len(set(self.names)) != len(self.names):
            raise BadInputError("a host is named twice", hint="name each host once, with all its slots")

    def check(self, ranks: int) -> None:
        """Raise BadInputError when the ranks do not fit."""
        if sum(self.counts) < ranks:
            slots = f"{counted(sum(self.counts), 'slot')} of {counted(len(self.names), 'host')}"
            raise BadInputError(f"{counted(ranks, 'rank')} on {slots}", hint="give more hosts, or more slots on each")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement, how it was made, its share of all launches' messages between hosts, and simulated run times (ns)."""

    method: str
    host_of: Hosts
    inter_share: float
    makespan_ns: NDArray[np.int64]

    @property
    def median_ns(self) -> float:
        """Return the median run time."""
        return float(np.median(self.makespan_ns))


def in_order(ranks: int, slots: Slots) -> Hosts:
    """Fill host after host: what a launcher does by default."""
    slots.check(ranks)
    return np.repeat(np.arange(len(slots.counts), dtype=np.uint32), slots.counts)[:ranks]


def round_robin(ranks: int, slots: Slots) -> Hosts:
    """Deal ranks out, one to each host in turn, skipping full hosts."""
    slots.check(ranks)
    deals = [host for turn in range(max(slots.counts)) for host, count in enumerate(slots.counts) if turn < count]
    return np.array(deals[:ranks], dtype=np.uint32)


def block_shape(dims: Sequence[int], block_ranks: int) -> tuple[int, ...] | None:
    """Return the block of `block_ranks` grid points with the least surface that tiles the grid; None if none does."""
    divisors = [[d for d in range(1, extent + 1) if extent % d == 0] for extent in dims]
    shapes = [shape for shape in itertools.product(*divisors) if math.prod(shape) == block_ranks]

    def surface(shape: tuple[int, ...]) -> float:
        # A block that spans a periodic dimension has no surface across it.
        faces = (block_ranks / side for side, extent in zip(shape, dims, strict=True) if side < extent)
        return sum(faces)

    return min(shapes, key=lambda shape: (surface(shape), shape), default=None)


def geometric(dims: Sequence[int], slots: Slots) -> Hosts | None:
    """Cut a Cartesian grid (row-major ranks) into equal blocks, one a host; None when no block shape fits."""
    ranks = math.prod(dims)
    slots.check(ranks)
    if len(set(slots.counts)) != 1:
        return None
    shape = block_shape(dims, min(slots.counts[0], ranks))
    if shape is None:
        return None
    coordinates = np.unravel_index(np.arange(ranks), tuple(dims))
    blocks = [at // side for at, side in zip(coordinates, shape, strict=True)]
    counts = [extent // side for extent, side in zip(dims, shape, strict=True)]
    return np.ravel_multi_index(tuple(blocks), tuple(counts)).astype(np.uint32)


def partition(graph: sparse.csr_array, slots: Slots, seed: int) -> Hosts:
    """Cut the traffic graph into parts of exactly the slots' sizes.

    METIS (Karypis and Kumar, SIAM J. Sci. Comput. 20(1), 1998) when the extra `place` is installed, else greedy graph
    growing; both are then brought to exact sizes and improved by the best swaps (Kernighan and Lin, BSTJ 49(2), 1970).
    """
    sizes = np.bincount(in_order(graph.shape[0], slots))  # of hosts that get ranks: METIS takes no empty parts
    both = (graph + graph.T).tocsr()
    try:
        start = _metis(both, sizes)
    except UnavailableError:
        start = _grow(both, sizes)
    return _swap_pass(both, _exact(both, start, sizes), np.random.default_rng(seed))


def _metis(graph: sparse.csr_array, sizes: NDArray[np.int64]) -> Hosts:
    try:
        pymetis = importlib.import_module("pymetis")
    except ImportError as error:
        raise UnavailableError("pymetis is not installed", hint="install nearmetal with its extra `place`") from error
    weights = np.maximum(1, graph.data * (_HEAVIEST / graph.data.max())).astype(int)
    shares = (sizes / sizes.sum()).tolist()
    adjacency = pymetis.CSRAdjacency(graph.indptr.tolist(), graph.indices.tolist())
    _, parts = pymetis.part_graph(len(sizes), adjacency, eweights=weights.tolist(), tpwgts=shares)
    return np.array(parts, dtype=np.uint32)


def _grow(graph: sparse.csr_array, sizes: NDArray[np.int64]) -> Hosts:
    """Fill each part with the unplaced rank that is tied to it most; begin with the lowest unplaced rank."""
    ranks = graph.shape[0]
    host_of = np.full(ranks, len(sizes), dtype=np.uint32)
    free = np.ones(ranks, dtype=bool)
    for host, size in enumerate(sizes):
        pull = np.zeros(ranks)
        for _ in range(int(size)):
            reached = np.where(free, pull, -np.inf)
            rank = int(np.argmax(reached))
            host_of[rank], free[rank] = host, False
            row = slice(graph.indptr[rank], graph.indptr[rank + 1])
            pull[graph.indices[row]] += graph.data[row]
    return host_of


def _weights_to_hosts(graph: sparse.csr_array, rank: int, host_of: Hosts, hosts: int) -> NDArray[np.float64]:
    """Weight between a rank and each host."""
    row = slice(graph.indptr[rank], graph.indptr[rank + 1])
    return np.bincount(host_of[graph.indices[row]], weights=graph.data[row], minlength=hosts).astype(np.float64)


def _exact(graph: sparse.csr_array, host_of: Hosts, sizes: NDArray[np.int64]) -> Hosts:
    """Move ranks off hosts that got too many, each time the one whose move costs least."""
    host_of = host_of.copy()
    counts = np.bincount(host_of, minlength=len(sizes))
    while (counts > sizes).any():
        host = int(np.argmax(counts - sizes))
        room = np.flatnonzero(counts < sizes)
        best = (-math.inf, -1, -1)
        for rank in np.flatnonzero(host_of == host):
            pulls = _weights_to_hosts(graph, int(rank), host_of, len(sizes))
            to = int(room[np.argmax(pulls[room])])
            best = max(best, (float(pulls[to] - pulls[host]), -int(rank), to))
        _, negative, to = best
        host_of[-negative] = to
        counts[host] -= 1
        counts[to] += 1
    return host_of


def _swap_pass(graph: sparse.csr_array, host_of: Hosts, rng: np.random.Generator) -> Hosts:
    """Swap pairs that lessen the cut: each rank looks at the hosts of its neighbours."""
    host_of = host_of.copy()
    hosts = int(host_of.max()) + 1
    for _ in range(_SWAP_ROUNDS):
        swapped = 0
        for rank in rng.permutation(graph.shape[0])[:_MOST_SWAPPED]:
            swapped += _best_swap(graph, host_of, int(rank), hosts)
        if swapped == 0:
            break
    return host_of


def _best_swap(graph: sparse.csr_array, host_of: Hosts, rank: int, hosts: int) -> bool:
    here = int(host_of[rank])
    pulls = _weights_to_hosts(graph, rank, host_of, hosts)
    there = int(np.argmax(pulls))
    if there == here:
        return False
    best, partner = 0.0, None
    for other in np.flatnonzero(host_of == there):
        others = _weights_to_hosts(graph, int(other), host_of, hosts)
        tie = float(graph[rank, int(other)])
        gain = float(pulls[there] - pulls[here] + others[here] - others[there]) - 2 * tie
        if gain > best + 1e-9:
            best, partner = gain, int(other)
    if partner is None:
        return False
    host_of[rank], host_of[partner] = there, here
    return True


# ---------------------------------------------------------------- choosing on the simulated time


@dataclass(frozen=True, slots=True)
class Judge:
    """Simulated time as `nearmetal predict` gives it: launches of a program on machines of single launches in turn."""

    schedules: tuple[Schedule, ...]
    machines: tuple[Machine, ...]
    seed: int = 0
    replicas: int = 5

    def makespan_ns(self, host_of: Hosts) -> NDArray[np.int64]:
        """Return the run times of a placement, one a replica."""
        placement = Placement.of_hosts(host_of)
        return simulate_launches(
            self.schedules, self.machines, placement, seed=self.seed, replicas=self.replicas
        ).makespan_ns


def recommend(judge: Judge, slots: Slots, *, dims: Sequence[int] = (), tries: int = 50) -> list[Candidate]:
    """Return different placements, fastest first; the launcher's default (`in-order`) is always among them.

    `dims` is the process grid of a Cartesian program, if it has not told that itself. The fastest is improved by
    `tries` swaps of communicating ranks that are kept when the simulated median falls; they are judged by at most
    SEARCH_REPLICAS replicas, everything that is returned by all.
    """
    schedule, machine = judge.schedules[0], judge.machines[0]
    grid = tuple(dims) or _own_grid(schedule)
    sent = messages_of_all(judge.schedules, machine)
    graph = traffic(sent, schedule.ranks)
    made = {IN_ORDER: in_order(schedule.ranks, slots), "round-robin": round_robin(schedule.ranks, slots)}
    if grid and math.prod(grid) == schedule.ranks and (blocks := geometric(grid, slots)) is not None:
        made["geometric"] = blocks
    if graph.nnz:
        made["partition"] = partition(graph, slots, judge.seed)
    own: dict[str, Hosts] = {}
    for method, host_of in made.items():
        if not any(np.array_equal(host_of, other) for other in own.values()):
            own[method] = host_of

    def candidate(method: str, host_of: Hosts) -> Candidate:
        there = messages_of_all(judge.schedules, machine, host_of) if machine.by_nodes else sent
        return Candidate(method, host_of, inter_share(there, host_of), judge.makespan_ns(host_of))

    judged = sorted((candidate(*one) for one in own.items()), key=lambda one: one.median_ns)
    improved = _improve(judge, graph, judged[0].host_of, tries)
    if improved is None:
        return judged
    return sorted([candidate("improved", improved), *judged], key=lambda one: one.median_ns)


def _own_grid(schedule: Schedule) -> tuple[int, ...]:
    """Return the grid of a pattern, or one that a traced program made of all ranks in their order; () for none."""
    program = schedule.programs[0]
    made = (one.dims for one in program.comms if one.dims and not one.members and one.size == schedule.ranks)
    return program.dims or max(made, key=len, default=())


def _improve(judge: Judge, graph: sparse.csr_array, start: Hosts, tries: int) -> Hosts | None:
    """Return a placement that is faster than `start` by the search's replicas; None when no swap was."""
    quick = replace(judge, replicas=min(judge.replicas, SEARCH_REPLICAS))
    rng = np.random.default_rng(judge.seed)
    best, best_ns, found = start, float(np.median(quick.makespan_ns(start))) if tries else 0.0, None
    for _ in range(tries):
        pair = _crossing_pair(graph, best, rng)
        if pair is None:
            break
        swapped = best.copy()
        swapped[list(pair)] = swapped[list(pair[::-1])]
        swapped_ns = float(np.median(quick.makespan_ns(swapped)))
        if swapped_ns < best_ns:
            best, best_ns, found = swapped, swapped_ns, swapped
    return found


def _crossing_pair(graph: sparse.csr_array, host_of: Hosts, rng: np.random.Generator) -> tuple[int, int] | None:
    """Return a rank with traffic to a rank of another host, and one beside that to swap it with; None without any."""
    sources, targets = graph.tocoo().coords
    shares = np.bincount(host_of)[host_of[targets]] > 1
    crossing = np.flatnonzero((host_of[sources] != host_of[targets]) & shares)
    if crossing.size == 0:
        return None
    edge = int(rng.choice(crossing))
    rank, peer = int(sources[edge]), int(targets[edge])
    others = np.flatnonzero(host_of == host_of[peer])
    return rank, int(rng.choice(others[others != peer]))


# ---------------------------------------------------------------- break-even


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Run time (median, ns) on two machines against the share of messages between nodes; `share` where they meet.

    `share` is None when one machine is faster at every share that shows a difference, or none does (`differ`);
    `first_faster_below` says which side is which. There is an answer by sides only where the curves cross once.
    """

    shares: tuple[float, ...]
    first_ns: tuple[float, ...]
    second_ns: tuple[float, ...]
    share: float | None
    first_faster_below: bool
    crossings: int
    differ: bool


def share_schedule(inter_share: float, *, message_bytes: int = 8192, compute: Distribution | None = None) -> Schedule:
    """Return four ranks that compute once and exchange `EXCHANGES` messages, that share of them with the other node.

    Ranks 0 and 1 are meant for one node, 2 and 3 for the other (`Placement.block(4, 2)`).
    """
    if not 0 <= inter_share <= 1:
        raise BadInputError(f"a share of {inter_share} of all messages")
    far = round(inter_share * EXCHANGES)
    counts = ((0, EXCHANGES - far), (1, far))
    steps = tuple(Repeat(count, (DoCall(op),)) for op, count in counts if count)
    program = Program(
        steps=((DoGap(0),) if compute else ()) + steps,
        ops=(exchange(Peer.XOR, 1, message_bytes), exchange(Peer.XOR, 2, message_bytes)),
        comms=(Comm(0, size=4),),
        gaps=(0,) if compute else (),
    )
    return Schedule(4, (program,), (compute,) if compute else (), name=f"{as_percent(inter_share)} between nodes")


def break_even(
    first: Machine,
    second: Machine,
    *,
    message_bytes: int = 8192,
    compute: Distribution | None = None,
    points: int = 21,
    replicas: int = 5,
    seed: int = 0,
    errors: tuple[float, float] = (1.0, 1.0),
) -> BreakEven:
    """Return how two machines compare over all shares of inter-node messages, and where they break even.

    `errors` are the least and the greatest factor by which the ratio of the second's time to the first's may be off.
    """
    shares = tuple(float(share) for share in np.linspace(0, 1, points))

    def replayed(machine: Machine) -> NDArray[np.float64]:
        placement = Placement.block(4, 2)
        schedules = (share_schedule(s, message_bytes=message_bytes, compute=compute) for s in shares)
        found = (simulate(one, machine, placement, seed=seed, replicas=replicas) for one in schedules)
        return np.array([one.makespan_ns for one in found], dtype=np.float64)

    times = replayed(first), replayed(second)
    first_ns, second_ns = (tuple(np.median(one, axis=1).tolist()) for one in times)
    difference = np.median(times[0] - times[1], axis=1)  # the same random numbers
    second_at_least, second_at_most = times[1] * min(1.0, errors[0]), times[1] * max(1.0, errors[1])
    sides = (times[0] > second_at_most).mean(axis=1) - (times[0] < second_at_least).mean(axis=1)
    apart = np.flatnonzero(np.abs(sides) >= 2 * SIDE - 1)  # machines may be equal, as while nothing goes between nodes
    first_is_faster = sides < 0
    turns = [(at, to) for at, to in itertools.pairwise(apart) if first_is_faster[at] != first_is_faster[to]]
    share = None
    if turns:
        below = difference < 0
        at = next(at for at in range(*turns[0]) if below[at] != below[at + 1])
        share = shares[at] + (shares[at + 1] - shares[at]) * float(
            difference[at] / (difference[at] - difference[at + 1])
        )
    first_below = bool(apart.size and first_is_faster[apart[0]])
    return BreakEven(shares, first_ns, second_ns, share, first_below, len(turns), bool(apart.size))
