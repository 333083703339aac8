"""One figure a block of every path in every cell of a run: what runs are compared with each other by.

A `View` compares the paths of one run; this is the little that comparing or following whole runs needs. Both names of
the baseline are one path. What launches and blocks took is here, too.
"""

import datetime as dt
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import median

import numpy as np

from nearmetal.errors import BadInputError
from nearmetal.results.shown import DisplayScale, shown_for
from nearmetal.stats.interval import FloatArray
from nearmetal.stats.summary import HEADLINE, REFUSED_SHARE, Metric, Summary, by_occasion, over_names
from nearmetal.stats.widen import OCCASIONS, BlockContext
from nearmetal.store.query import disagreements, refuse_fabric, refuse_mixed, valid
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.store.samples import StoredCell
from nearmetal.study.facts import BETWEEN, CLOCK, KNOB_EFFECT, KNOB_RIVAL, SHARED, VARIANT, VIRTUAL_TIME
from nearmetal.study.order import labels_of, name_of
from nearmetal.study.plan import combinations, occasion_of
from nearmetal.study.spec import Study
from nearmetal.units import NS_PER_S, by_key, counted, format_size, format_wait
from nearmetal.workloads.figures import WITH_OPERATIONS

Combination = tuple[str, str, str]
"""Path label, workload label, setting: what one launch measures, with all its sizes."""


@dataclass(frozen=True, slots=True, order=True)
class CellId:
    """One path in one operation, at one size, under one setting."""

    workload: str
    operation: str
    setting: str
    message_bytes: int
    path: str

    @property
    def combination(self) -> Combination:
        """Return what a launch measures of which this is a part."""
        return (self.path, self.workload, self.setting)

    @property
    def what(self) -> tuple[str, str]:
        """Return its workload and operation."""
        return (self.workload, self.operation)

    def name(self, *, sized: bool) -> str:
        """Return how it is called; 0 B is a size where its operation is `sized`, and none elsewhere."""
        what = self.workload if self.workload == self.operation else f"{self.workload}/{self.operation}"
        size = f" {format_size(self.message_bytes)}" if self.message_bytes or sized else ""
        return f"{self.path} {what}{size} {self.setting}"


@dataclass(frozen=True, slots=True)
class CellSeries:
    """A cell's durations, block -> ns; `refused` says why a launch could not support the metric.

    Where a run has several occasions, each has one entry, the geometric mean of its blocks, under its first block;
    `blocks` counts those, `occasions` is 1 where each entry is a block's. `boots` gives the boot that a block ran in
    where there were several, and is empty over occasions.
    """

    cell: CellId
    shown: DisplayScale
    ns: Mapping[int, float]
    refused: str
    blocks: int
    occasions: int
    boots: Mapping[int, int]

    def values(self, shown: DisplayScale | None = None) -> FloatArray:
        """Return the figures as shown (in the unit of another run), in the order of the blocks, shape (n,)."""
        # In the same unit one of another window carries other bytes.
        scale = shown if shown and shown.unit != self.shown.unit else self.shown
        return np.array([scale.value(self.ns[block]) for block in sorted(self.ns)], dtype=np.float64)

    @property
    def context(self) -> BlockContext:
        """Return what is known of the blocks of `values` besides their figures."""
        if self.occasions > 1:
            return OCCASIONS
        return BlockContext(variants=tuple(self.boots[block] for block in sorted(self.boots)))


@dataclass(frozen=True, slots=True)
class RunSeries:
    """A run as far as other runs are concerned: its study, its records that count, and its cells in study order.

    `occasions` is at how many it was measured.
    """

    run: RunDir
    study: Study
    records: tuple[TrialRecord, ...]
    occasions: int
    cells: Mapping[CellId, CellSeries]


def are_fresh(study: Study, records: Iterable[TrialRecord]) -> bool:
    """Return whether all trials are fresh blocks of another run: none has a number of its first occasion."""
    return min((record.order.block for record in records), default=0) >= study.trials.max_blocks


def as_measured(study: Study, records: Sequence[TrialRecord]) -> Study:
    """Return a study that plans as many blocks as all its trials have where they are fresh blocks of another run.

    However many the gate asked for, it measured them all and looked once.
    """
    if not are_fresh(study, records):
        return study
    blocks = len({record.order.block for record in records})
    trials = study.trials.model_copy(update={"min_blocks": blocks, "max_blocks": blocks})
    return study.model_copy(update={"trials": trials})


def occasions_of(study: Study, records: Sequence[TrialRecord]) -> int:
    """Return at how many occasions the valid ones of all trials were measured: fresh blocks, however many, at one."""
    if are_fresh(study, records):
        return 1
    return len({occasion_of(study, record.order.block) for record in valid(records)})


def launches(run: RunDir, records: Iterable[TrialRecord]) -> dict[CellId, dict[int, Summary]]:
    """Return the summary of every launch of the valid trials: cell -> block -> summary.

    A second attempt stands for its block like a first.
    """
    found: dict[CellId, dict[int, Summary]] = {}
    for record in records:
        if record.valid:
            for cell in record.cells:
                found.setdefault(cell_id(record, cell), {})[record.order.block] = run.summary(record, cell)
    return found


def summary_of(run: RunDir, record: TrialRecord, cell: StoredCell) -> Summary | None:
    """Return a cell's summary, None where no sample is valid; raise ForeignFileError for samples that have changed."""
    try:
        return run.summary(record, cell)
    except BadInputError:
        return None


def typical_ns(run: RunDir, records: Iterable[TrialRecord]) -> dict[tuple[str, str], float]:
    """Return what the first launch of each workload's operation took: the unit of its times fits that everywhere.

    All paths, settings and sizes count alike, for they are compared with each other. A unit is no figure, so nothing is
    read to check a recorded summary.
    """
    found: dict[tuple[str, str], float] = {}
    for record in records:
        for cell in record.cells if record.valid else ():
            what = (record.order.workload.label, cell.operation)
            if what not in found and (summary := cell.summary or summary_of(run, record, cell)):
                found[what] = summary.trimmed_mean_ns
    return found


def variants(records: Iterable[TrialRecord]) -> dict[int, int]:
    """Return the boot that each block ran in, empty where there is one or where a valid trial does not say."""
    found = {record.order.block: record.outcome.facts.get(VARIANT) for record in records if record.valid}
    known = {block: boot for block, boot in found.items() if isinstance(boot, int)}
    return known if len(known) == len(found) and len(set(known.values())) > 1 else {}


def cell_id(record: TrialRecord, cell: StoredCell) -> CellId:
    """Return what a stored cell is of."""
    order = record.order
    return CellId(order.workload.label, cell.operation, order.setting, cell.message_bytes, order.path.label)


def sized(cells: Iterable[CellId]) -> frozenset[tuple[str, str]]:
    """Return the workloads and operations that have messages of some size: 0 B, if measured, is one of several."""
    return frozenset(one.what for one in cells if one.message_bytes)


def is_part(workload: str, operation: str, measured: Collection[tuple[str, str]]) -> bool:
    """Return whether a program's launches measure its total as well: `ft.W.communication` and `ft.W.total`.

    `measured` are workloads and operations.
    """
    stems = accumulate(operation.split("."), "{}.{}".format)
    return not operation.endswith(".total") and any((workload, f"{stem}.total") in measured for stem in stems)


def read_series(run: RunDir, metric: Metric = HEADLINE, *, allow_mixed: bool = False) -> RunSeries:
    """Read one figure a block of every cell.

    Raise BadInputError for trials of mixed provenance within the run, and for the run of a whole fabric.
    """
    refuse_fabric(run)
    study, trials = run.study(), run.trials()
    records = tuple(valid(trials))
    if not allow_mixed:
        refuse_mixed(disagreements(records))
    workloads = {one.order.workload.label: one.order.workload for one in reversed(records)}
    occasions = occasions_of(study, trials)
    boots = variants(records) if occasions == 1 else {}
    cells: dict[CellId, CellSeries] = {}
    typical = typical_ns(run, records)
    found = launches(run, records)
    for key in dict.fromkeys(replace(one, path=name_of(one.path)) for one in found):
        names = [found[one] for label in labels_of(key.path) if (one := replace(key, path=label)) in found]
        of_blocks, refused = over_names(names, metric, study.margin)
        ns = of_blocks
        if occasions > 1:
            ns = by_occasion(of_blocks, lambda block: occasion_of(study, block) * study.trials.max_blocks)
        cells[key] = CellSeries(
            key,
            shown_for(workloads[key.workload], key.operation, key.message_bytes, typical[key.workload, key.operation]),
            ns,
            refused,
            blocks=len(of_blocks),
            occasions=len(ns) if occasions > 1 else 1,
            boots={block: boots[block] for block in ns} if boots else {},
        )
    return RunSeries(run, study, records, occasions, _in_study_order(cells, study))


def _in_study_order(cells: Mapping[CellId, CellSeries], study: Study) -> dict[CellId, CellSeries]:
    rank = {(path.label, workload.name, setting): n for n, (path, workload, setting) in enumerate(combinations(study))}
    paths = {path.name: n for n, path in enumerate(study.path)}

    def key(cell: CellId) -> tuple[int, CellId, int]:
        first = rank.get((study.baseline, cell.workload, cell.setting), len(rank))
        without = CellId(cell.workload, cell.operation, cell.setting, cell.message_bytes, "")
        return (first, without, paths.get(cell.path, len(paths)))

    return {cell: cells[cell] for cell in sorted(cells, key=key)}


# ---- what launches lack


def missed_windows(records: Iterable[TrialRecord]) -> Iterator[str]:
    """Yield a sentence for each workload of whose iterations a launch has no value of more than a tenth.

    They began too late for their time window (`sync = "window"`); what is left of them is no longer all that happened.
    """
    found = by_key((record.order.workload.label, (record.order.path.name, worst)) for record, worst in _missed(records))
    for workload, late in found.items():
        lost, of = max((worst for _, worst in late), key=lambda worst: worst[0] / worst[1])
        yield (
            f"in {counted(len(late), 'trial')} of {workload} on {', '.join(dict.fromkeys(path for path, _ in late))} "
            f"iterations missed their time window and have no value, {lost} of {of} in the worst; "
            "a longer sync_window_us or sync = 'barrier' keeps them"
        )


def _missed(records: Iterable[TrialRecord]) -> Iterator[tuple[TrialRecord, tuple[int, int]]]:
    """Yield launches with how many iterations of their worst cell have no value, and of how many."""
    for record in records:
        planned = [(cell.iterations - cell.warmup, cell.summary.n) for cell in record.cells if cell.summary]
        worst = max(((of - n, of) for of, n in planned), key=lambda one: one[0] / one[1], default=(0, 1))
        if worst[0] > REFUSED_SHARE * worst[1]:
            yield record, worst


# ---- what launches and blocks took

_APART_NS = 1800 * NS_PER_S


_AGAINST = "contradicts: "


def doubted_settings(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return a sentence for each setting that interrupts contradict, and for each program that may have changed one."""
    facts = [(record, name, str(value)) for record in records for name, value in record.outcome.facts.items()]
    against = by_key(
        (record.order.setting, (record.order.trial, name.removeprefix(KNOB_EFFECT), value.removeprefix(_AGAINST)))
        for record, name, value in facts
        if name.startswith(KNOB_EFFECT) and value.startswith(_AGAINST)
    )
    rivals = by_key((name.removeprefix(KNOB_RIVAL), value) for _, name, value in facts if name.startswith(KNOB_RIVAL))
    under = {setting: sum(record.order.setting == setting for record in records) for setting in against}
    return (
        *(
            f"setting {setting} may not have been in effect: interrupts contradict it in "
            f"{len({one for one, *_ in found})} of {under[setting]} trials, such as {found[0][1]}: {found[0][2]}"
            for setting, found in against.items()
        ),
        *(
            f"{program} was running and may have changed {', '.join(dict.fromkeys(knobs))}"
            for program, knobs in rivals.items()
        ),
    )


def torn_blocks(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return a sentence on blocks whose launches are not of one time, as pairing takes for granted; none without.

    Launches with a clock of their own begin from the same state, whenever they do.
    """
    if any(record.outcome.facts.get(VIRTUAL_TIME) for record in records):
        return ()
    apart_ns = [_apart_ns(ones) for ones in by_key((one.order.block, one) for one in records).values()]
    torn = [span for span in apart_ns if span > max(_APART_NS, 10 * median(apart_ns))]
    if not torn:
        return ()
    which, apart = f"{len(torn)} of {counted(len(apart_ns), 'block')}", format_wait(max(torn))
    return (
        f"launches of {which} began up to {apart} apart, because the run was interrupted or the clock was set: "
        "what changed in between is in their ratios",
    )


_ASKED = re.compile(r"(hpet|acpi_pm|pit|(refined-)?jiffies)( \(.*\))?")
"""Clock sources that programs cannot read without the kernel, which asks a device (arch/x86/entry/vdso)."""


def slow_clocks(records: Sequence[TrialRecord]) -> Iterator[str]:
    """Yield a sentence for each slow clock source that times the ranks of a path: reading it is part of iterations."""
    found = by_key(
        (one, record.order.path.name)
        for record in records
        if record.order.workload.kind in WITH_OPERATIONS
        for one in str(record.outcome.facts.get(CLOCK, "")).split("; ")
        if _ASKED.fullmatch(one)
    )
    for clock, paths in found.items():
        yield (
            f"the kernel's clock is {clock} on {', '.join(dict.fromkeys(paths))}: the kernel asks a device at each "
            "reading, which every iteration includes; tsc and kvm-clock are read by the program itself"
        )


def _apart_ns(block: Sequence[TrialRecord]) -> float:
    """Return how far apart the first and the last launch of a block began."""
    starts = [dt.datetime.fromisoformat(one.started_utc) for one in block]
    return (max(starts) - min(starts)).total_seconds() * NS_PER_S


def own_ns(record: TrialRecord) -> float:
    """Return a trial's share of the time of its launch, which may have been for several."""
    return record.outcome.elapsed_ns / (1 + launched_of(record).count(BETWEEN))


def launched_of(record: TrialRecord) -> str:
    """Return what a trial's launch measured: its workload, or all that shared the launch."""
    return str(record.outcome.facts.get(SHARED, record.order.workload.label))


def _took_ns(block: Sequence[TrialRecord]) -> float:
    """Return what a block took, with all that is between its launches, which may be longer than they are."""
    launches_ns = list(map(own_ns, block))
    return max(sum(launches_ns), _apart_ns(block) + launches_ns[-1])


def block_ns(records: Sequence[TrialRecord]) -> float:
    """Return what a block takes who waits for it, in the median: a run may be interrupted within one.

    From the start of one block to that of the next where launches have their own clock, which does not show how long
    the user waits; 0 where nothing does.
    """
    blocks = by_key((one.order.block, one) for one in records).values()
    if not any(record.outcome.facts.get(VIRTUAL_TIME) for record in records):
        return median(map(_took_ns, blocks))
    starts = sorted(min(dt.datetime.fromisoformat(one.started_utc) for one in ones) for ones in blocks)
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(starts)]
    return median(waits) * NS_PER_S if waits else 0.0
