"""From traced trials to waterfalls: where the time of a message went, on every path and setting of a run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from nearmetal.errors import ForeignFileError
from nearmetal.facts.ftrace import read_trace
from nearmetal.facts.waterfall import PARTS, RoundTrip, Window, Wire, mean_ns, nearest_rank, round_trips
from nearmetal.paths.ports import WIRE_OPTIONS
from nearmetal.results.series import CellId, occasions_of, variants
from nearmetal.stats.compare import difference_interval
from nearmetal.stats.interval import Interval
from nearmetal.stats.summary import HEADLINE, TRIM, Summary, by_occasion, over_names
from nearmetal.stats.widen import OCCASIONS, BlockContext
from nearmetal.store.query import refuse_fabric
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.facts import wire_of
from nearmetal.study.order import TRACE_OPTION
from nearmetal.study.plan import occasion_of
from nearmetal.units import NS_PER_US, by_key
from nearmetal.workloads.engine import SAMPLES
from nearmetal.workloads.sample_file import SampleCell, SampleFile, read_sample_file

TRACE_CLOCK = "CLOCK_MONOTONIC_RAW"
WORST_RESIDUE = 0.05
"""How far the parts of a message may be from its measured latency, as a share."""
_MeasuredCell = tuple[str, str]
"""An operation, and everything else of its workload that a trace beside it leaves as it is."""
_Untraced = tuple[str, str, _MeasuredCell, int]
_OTHERWISE_ALIKE = frozenset({TRACE_OPTION, "operation", "sizes", "iterations", "warmup"})
"""Options that a workload may have of its own and still be the traced one without its trace."""


@dataclass(frozen=True)
class Waterfall(CellId):
    """The round trips of one cell, cut into parts; latencies are of one message: half a round trip.

    The baseline's are of its launches under both names, as its levels.
    `blocks` has the round trips without the 1 % slowest and fastest of each launch, of which all means are made: the
    figure that comparisons call the mean. Of several `occasions` each has one entry; `boots` are of blocks, empty where
    there was one. `untraced_ns` is that mean of the same operation without tracing in the same run, where there is one.
    Means, because under adaptive moderation latencies have two peaks and a median jumps between them.
    """

    trials: int
    trips: tuple[RoundTrip, ...]
    blocks: Mapping[int, tuple[RoundTrip, ...]]
    boots: Mapping[int, int]
    occasions: int
    p99: RoundTrip
    untraced_ns: float | None

    @property
    def median_ns(self) -> float:
        """The median latency, with tracing."""
        return float(np.median([trip.measured_ns for trip in self.trips])) / 2

    @property
    def mean_ns(self) -> float:
        """The mean latency, with tracing."""
        return _mean_ns(self._kept)

    @cached_property
    def parts_ns(self) -> dict[str, float]:
        """The mean of every part that took time, in the order of a message's way."""
        means = {part: mean_ns(self._kept, part) for part in PARTS}
        return {part: ns for part, ns in means.items() if ns > 0}

    @property
    def _kept(self) -> tuple[RoundTrip, ...]:
        return tuple(chain(*self.blocks.values()))

    def more_ns(self, base: "Waterfall", part: str = "") -> Interval | None:
        """Return the interval of what a message, or a part of it, takes more than on another path.

        It is over the blocks, or occasions, in which both were traced; None for fewer than two.
        """
        both = sorted(self.blocks.keys() & base.blocks.keys())
        context = BlockContext(variants=tuple(self.boots[at] for at in both if self.boots))
        sides = [[_mean_ns(one.blocks[at], part) for at in both] for one in (self, base)]
        more = [ours - theirs for ours, theirs in zip(*sides, strict=True)]
        return difference_interval(more, context=OCCASIONS if self.occasions > 1 else context)

    @property
    def residue(self) -> float:
        """The largest distance of a round trip's named parts from its measured time, as a share of it."""
        return max(trip.residue for trip in self.trips)


def waterfalls(run: RunDir) -> list[Waterfall]:
    """Return a waterfall of every cell that was traced, in the order of the plan.

    Raises BadInputError for a whole fabric's run, ForeignFileError for a trace that is damaged, TrialError for one that
    shows no messages.
    """
    refuse_fabric(run)
    records = [record for record in run.trials() if record.valid]
    study, occasions = run.study(), occasions_of(run.study(), records)
    traced: dict[CellId, list[tuple[int, list[RoundTrip]]]] = {}
    alike: dict[CellId, _Untraced] = {}
    for record in records:
        order = record.order
        if not order.workload.options.get(TRACE_OPTION):
            continue
        for operation, message_bytes, found in _of_trial(record, run.files("traces", record)):
            key = CellId(order.workload.label, operation, order.setting, message_bytes, order.path.name)
            block = order.block if occasions == 1 else occasion_of(study, order.block)
            traced.setdefault(key, []).extend([(block, found)] if found else [])
            alike[key] = (key.path, key.setting, _measured(record, operation), message_bytes)
    untraced = _untraced_means(run, records, set(alike.values()))
    return [
        Waterfall(
            **asdict(key),
            trials=len(launches),
            trips=tuple(trips),
            blocks={block: tuple(chain(*map(trimmed, ones))) for block, ones in by_key(launches).items()},
            boots=variants(records) if occasions == 1 else {},
            occasions=occasions,
            p99=nearest_rank(trips, 0.99),
            untraced_ns=untraced.get(alike[key]),
        )
        for key, launches in traced.items()
        if (trips := list(chain(*(found for _, found in launches))))
    ]


def _mean_ns(trips: Sequence[RoundTrip], part: str = "") -> float:
    return mean_ns(trips, part) if part else float(np.mean([trip.measured_ns for trip in trips])) / 2


def _of_trial(record: TrialRecord, files: Mapping[str, bytes]) -> Iterable[tuple[str, int, list[RoundTrip]]]:
    if SAMPLES not in files:
        raise ForeignFileError(f"trial {record.order.trial} was traced, but its trace is not in the run")
    events = read_trace(files)
    samples = read_sample_file(files[SAMPLES])
    _check(samples, record)
    shaped = bool(WIRE_OPTIONS & record.order.path.options.keys())
    known = wire_of(record.outcome.facts)
    wire = Wire(round(known[0] * NS_PER_US), round(known[1])) if known else None
    for cell in samples.cells:
        size, shaped_wire = cell.size_bytes, shaped and wire is None
        found = round_trips(events, windows_of(cell), message_bytes=size, shaped_wire=shaped_wire, wire=wire)
        yield samples.header.operation, size, found


def windows_of(cell: SampleCell) -> list[Window]:
    """Return the iterations after the warm-up as the first rank stamped them."""
    begin, end = cell.begin_ns[0].tolist(), cell.end_ns[0].tolist()
    return [Window(number, begin[number], end[number]) for number in range(cell.warmup, len(begin))]


def trimmed(trips: list[RoundTrip]) -> list[RoundTrip]:
    """Return a launch's round trips without as many at each end as `trimmed_mean` leaves out."""
    cut = int(len(trips) * TRIM)
    return sorted(trips, key=lambda trip: trip.measured_ns)[cut : len(trips) - cut]


def _check(samples: SampleFile, record: TrialRecord) -> None:
    header = samples.header
    if header.kind != "round_trip" or header.ranks != 2 or header.clock != TRACE_CLOCK:
        raise ForeignFileError(
            f"trial {record.order.trial} cannot be cut into messages: {header.operation} ({header.kind}) of "
            f"{header.ranks} ranks, stamped with {header.clock}",
            hint="a waterfall needs a ping-pong such as `latency` between two ranks",
        )


def _measured(record: TrialRecord, operation: str) -> _MeasuredCell:
    workload = record.order.workload
    options = {key: value for key, value in workload.options.items() if key not in _OTHERWISE_ALIKE}
    return operation, json.dumps([workload.kind, options, workload.placement, workload.progress], sort_keys=True)


def _untraced_means(run: RunDir, records: Sequence[TrialRecord], wanted: set[_Untraced]) -> dict[_Untraced, float]:
    """Return the mean latency (ns) of what is wanted over all launches without trace.

    It is that of the report: the geometric mean over blocks, or occasions, of the baseline's launches under both names.
    Only their samples are read: a run without traces, however large, costs nothing here.
    """
    if not wanted:
        return {}
    study = run.study()
    found: dict[_Untraced, dict[tuple[str, str], dict[int, Summary]]] = {}
    for record in records:
        if record.order.workload.options.get(TRACE_OPTION):
            continue
        path = record.order.path
        for cell in record.cells:
            what = _measured(record, cell.operation)
            key = (path.name, record.order.setting, what, cell.message_bytes)
            if key in wanted:
                launches = found.setdefault(key, {}).setdefault((path.label, record.order.workload.label), {})
                launches[record.order.block] = run.summary(record, cell)
    means: dict[_Untraced, float] = {}
    for key, names in found.items():
        of_blocks, _ = over_names([*names.values()], HEADLINE)
        of_occasions = by_occasion(of_blocks, lambda block: occasion_of(study, block))
        if of_occasions:
            means[key] = by_occasion(of_occasions, lambda _: 0)[0] / 2
    return means
