"""What a path is fitted from: the samples of a run's trials on it, and the processors of its ends."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError
from nearmetal.predict.calibration import GUEST_KINDS, RELAY_KINDS
from nearmetal.predict.conditions import conditions_of
from nearmetal.predict.fit import Exchanges, Interruption, Windows
from nearmetal.predict.models import INTRA_KIND, Cores, MeasuredName
from nearmetal.predict.native import renumbered
from nearmetal.predict.wire import KnownWire
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.store.samples import StoredCell
from nearmetal.study.facts import COMPUTERS, PROCESSORS, TIMER
from nearmetal.study.order import PACE, TRACE_OPTION, Order, WorkloadOrder
from nearmetal.units import format_size
from nearmetal.workloads.engine import AFTER_EXCHANGE, ONE_WAY, WORKING_SET_BYTES
from nearmetal.workloads.figures import COMMAND, IMPORTED, SUITES

PAIRED, STREAMING, BOTH_WAYS, EXCHANGED = "latency", ("bw", "message_rate"), "bibw", "exchange"
BESIDE = (AFTER_EXCHANGE, ONE_WAY)
OVER_THE_PATH = frozenset({PAIRED, *STREAMING, BOTH_WAYS, EXCHANGED, *BESIDE})
COLLECTIVES = frozenset(get_args(MeasuredName))
"""Those that no rank leaves before the last has come; of others one number a size would not tell who waits for whom."""
WAKEUP_GRANULARITY_PS = 1_000_000_000
"""CFS passes over a process that yields unless the next is so far ahead of it (1 ms on one processor)."""
_CARRIED_BY_KERNEL = frozenset({"bridge", "macvlan", "shm", "veth"})
"""Paths on which no port and no other process has a part: a message's way is work of the processors of its ends."""
_LOOK_PS = 12_000_000
"""This constant is fitted: predictions of LU, MG, SP and CG on 4 ranks and 2 processors are nearest with it. Open MPI
itself looks at its sockets each time that it yields, two polling ranks every 3 us."""
_SWITCH_PS = 1_300_000
"""Of Open MPI's ranks in shared memory, on one processor instead of two: a ping-pong takes so much longer each way."""
_UNEVEN_SHARE = 0.39
"""Of 428 launches of 4 ranks on 2 nodes and 2 processors, traced by the scheduler's events (Linux 6.18, a session for
each namespace): so many began with three ranks on one processor; of 238 on 4 nodes 0.27. A busy processor is balanced
seldom (`busy_factor` in kernel/sched/topology.c), and then by load averages of tens of ms."""
_ON_ONE_COMPUTER = ("local", "lab")
_AUTOGROUP = "kernel.autogroup"
_HELD = ".TCPAutoCorking"
LEAST_ALONE = 10
"""Iterations that tell how long computing takes without a message."""


@dataclass(slots=True)
class PathSamples:
    """All that a path is fitted from, of all launches or of one."""

    kind: str
    mpi: str
    mpi_label: str
    virtual: bool
    cores: Cores | None
    wire: KnownWire | None
    conditions: dict[tuple[str, str], None] = field(default_factory=dict)
    """Those of all trials that it is fitted from, in order; the same words begin several where the trials differ."""
    round_trips: dict[int, list[NDArray[np.int64]]] = field(default_factory=dict)
    windows: list[Windows] = field(default_factory=list)
    both_ways: list[Windows] = field(default_factory=list)
    exchanges: list[Exchanges] = field(default_factory=list)
    interruptions: dict[str, list[Interruption]] = field(default_factory=lambda: {name: [] for name in BESIDE})
    trials: dict[int, TrialRecord] = field(default_factory=dict)
    """Those that it is fitted from, by number."""
    timers: dict[int, str] = field(default_factory=dict)
    """Timers of the kernel that the ping-pong of a size shows, in any trial."""
    collectives: dict[tuple[MeasuredName, tuple[int, ...], int], list[NDArray[np.int64]]] = field(default_factory=dict)
    """By name, the node of each rank, and bytes: the slowest rank's ns, an array a launch."""
    streamed: int = 0
    """Messages in streams, each way; `held` of them TCP held back until the port had reported earlier ones as sent."""
    held: int = 0

    @property
    def one_processor(self) -> bool:
        """Return whether both ends ran on the same single processor: it, not a wire, limits what is streamed."""
        return self.cores is not None and self.cores.count == 1 and (self.cores.one_computer or self.kind == INTRA_KIND)

    @property
    def wire_of_single_processors(self) -> KnownWire | None:
        """Return the known wire between nodes of one processor each: nothing else works on a message, or waits."""
        apart = self.cores is not None and self.cores.count == 1 and not self.cores.one_computer
        return self.wire if apart and self.kind != INTRA_KIND else None

    @property
    def cells(self) -> set[tuple[str, int, int]]:
        """What was measured: a launch with less than all launches together is not a separate model."""
        streams = [("bw", one) for one in self.windows] + [("bibw", one) for one in self.both_ways]
        return {
            *(("latency", size, 2) for size in self.round_trips),
            *((name, one.message_bytes, one.pairs) for name, one in streams),
            *((EXCHANGED, one.message_bytes, one.computed_ns) for one in self.exchanges),
            *((name, one.message_bytes, 2) for name, found in self.interruptions.items() for one in found),
            *((name, size, len(nodes)) for name, nodes, size in self.collectives),
        }


def cores_of(run: RunDir, record: TrialRecord) -> Cores | None:
    """Return the cores that ranks share, from what the trial found (`facts.inventory.sharing_facts`).

    Trials of older versions did not look: the nodes of this machine and of the lab are always on one computer. A
    guest, and with autogroups a namespace, is one session to the kernel that shares the processors out.
    """
    facts = record.outcome.facts
    known = COMPUTERS in facts
    count = facts.get(PROCESSORS if known else "cpu.count")
    one = facts[COMPUTERS] == 1 if known else run.info.host_kind in _ON_ONE_COMPUTER
    if not isinstance(count, int) or count < 1:
        return None
    kind = record.order.path.kind
    by_node = one and (kind in GUEST_KINDS or str(facts.get(_AUTOGROUP)) == "1")
    if not by_node:
        return Cores(count, one, lead_ps=_lead_ps(count, str(facts.get("kernel.release", ""))))
    if kind in GUEST_KINDS:
        return Cores(count, one, by_node)
    lead_ps = _lead_ps(count, str(facts.get("kernel.release", ""))) or 0
    if count == 1:
        return Cores(count, one, by_node, lead_ps=lead_ps)
    cores = Cores(count, one, by_node, switch_ps=_SWITCH_PS, lead_ps=lead_ps, uneven_share=_UNEVEN_SHARE)
    if kind in RELAY_KINDS:
        return cores
    look_ps = _LOOK_PS if record.order.mpi == "openmpi" else 0
    return replace(cores, look_ps=look_ps, way_is_work=kind in _CARRIED_BY_KERNEL)


def _lead_ps(count: int, kernel: str) -> int | None:
    """Return `Cores.lead_ps` of one processor under a kernel whose fair scheduler was CFS, as up to Linux 6.5."""
    release = re.match(r"(\d+)\.(\d+)", kernel)
    known = count == 1 and release is not None and (int(release[1]), int(release[2])) < (6, 6)
    return WAKEUP_GRANULARITY_PS if known else None


def is_back_to_back(order: Order) -> bool:
    """Return whether a trial holds samples of messages that follow each other at once.

    A suite's mean, imported or not, is no sample of what its launch spread over, and a command's figure is of whatever
    it printed; after a pause a message is a cold one, and meets other interrupts; the kernel's tracepoints delay it.
    """
    traced = order.workload.options.get(TRACE_OPTION)
    return order.workload.kind not in (*SUITES, IMPORTED, COMMAND) and not (traced or order.workload.number(PACE))


def collect(run: RunDir, record: TrialRecord, samples: PathSamples) -> None:
    """Add what a trial measured of a path to its samples."""
    workload = record.order.workload
    if not is_back_to_back(record.order):
        return
    if any(cell.operation in {BOTH_WAYS, *STREAMING} for cell in record.cells):
        samples.held += sum(n for name, n in record.outcome.counters.items() if name.endswith(_HELD))
    for cell in record.cells:
        if _is_of_the_path(workload, cell.operation, inside=samples.kind == INTRA_KIND):
            how = _how_measured(workload, cell.operation)
            samples.conditions |= dict.fromkeys([*conditions_of(run, record).items(), *how])
            samples.trials[record.order.trial] = record
            _add(run, record, cell, samples)


def _is_of_the_path(workload: WorkloadOrder, name: str, *, inside: bool) -> bool:
    """Return whether the samples of an operation say something of a path; those after computing only of some."""
    if workload.number("compute_us") and name not in (EXCHANGED, *BESIDE):
        return False
    return name in COLLECTIVES or (name in OVER_THE_PATH and (inside or _pairs_are_apart(workload.placement)))


def _add(run: RunDir, record: TrialRecord, cell: StoredCell, samples: PathSamples) -> None:
    workload, name, size = record.order.workload, cell.operation, cell.message_bytes
    if name == EXCHANGED:
        samples.exchanges.append(_exchange(run, record, cell))
        return
    if name in BESIDE:
        samples.interruptions[name].append(_interruption(run, record, cell))
        return
    ns = run.values(record, cell)
    if ns.size == 0:
        return
    if name in COLLECTIVES:
        nodes = renumbered([0] * len(workload.placement) if samples.kind == INTRA_KIND else workload.placement)
        samples.collectives.setdefault((name, nodes, size), []).append(ns)  # type: ignore[arg-type]  # one of them
    elif name == PAIRED:
        samples.round_trips.setdefault(size, []).append(ns)
        if timer := record.outcome.facts.get(f"{TIMER}{PAIRED}.{size}"):
            samples.timers[size] = str(timer)
    else:
        windows = Windows(size, workload.number("window", 64), max(1, cell.ranks // 2), ns)
        samples.streamed += ns.size * windows.window_messages * windows.pairs * (1 + (name == BOTH_WAYS))
        (samples.both_ways if name == BOTH_WAYS else samples.windows).append(windows)


def _how_measured(workload: WorkloadOrder, name: str) -> Iterator[tuple[str, str]]:
    """Return conditions that options of an operation make, beside those of the trial."""
    how = ", ".join(f"{one} = {workload.options[one]}" for one in ("buffers", "sync") if one in workload.options)
    yield f"with {name} under", how or "the defaults"
    if workload.number("compute_us"):
        yield f"{name} after computing on", format_size(workload.number("working_set", WORKING_SET_BYTES))


def _pairs_are_apart(placement: Sequence[int]) -> bool:
    """Return whether the messages of every pair went between nodes: rank i of the first half and i of the second."""
    half = len(placement) // 2
    return all(first != second for first, second in zip(placement[:half], placement[half:], strict=True))


def _by_rank(run: RunDir, record: TrialRecord, cell: StoredCell, *, warmup: bool = False) -> list[NDArray[np.int64]]:
    rows = run.rows(record, cell)
    rank, warm, ns = (rows[name].to_numpy() for name in ("rank", "warmup", "ns"))
    return [ns[(rank == one) & (warm == warmup)] for one in range(cell.ranks)]


def _interruption(run: RunDir, record: TrialRecord, cell: StoredCell) -> Interruption:
    """Return how much longer computing took beside messages than in the warm-up, which has none."""
    beside, alone = (_by_rank(run, record, cell, warmup=warmup) for warmup in (False, True))
    if alone[0].size < LEAST_ALONE:
        text = f"{cell.operation} of trial {record.order.trial} has a warm-up of {alone[0].size}, which computes alone"
        raise BadInputError(text, hint=f"measure it with warmup = {LEAST_ALONE} or more")
    longer = [_middle_mean(with_message) - _middle_mean(ns) for with_message, ns in zip(beside, alone, strict=True)]
    half = cell.ranks // 2
    computed_ns = record.order.workload.number("compute_us") * 1000
    return Interruption(cell.message_bytes, float(np.mean(longer[:half])), float(np.mean(longer[half:])), computed_ns)


def _middle_mean(ns: NDArray[np.int64]) -> float:
    """Return the mean of all but a tenth at each end: some samples meet an interrupt, others do not."""
    cut = ns.size // 10
    return float(np.sort(ns)[cut : ns.size - cut].mean())


def _exchange(run: RunDir, record: TrialRecord, cell: StoredCell) -> Exchanges:
    """Return the exchanges of a cell: an end that begins earlier waits as much longer as the other waits shorter."""
    ends = _by_rank(run, record, cell)
    computed_us = record.order.workload.number("compute_us", 0)
    return Exchanges(cell.message_bytes, computed_us * 1000, np.mean(ends, axis=0))
