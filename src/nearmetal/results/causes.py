"""Why launches fall into modes, as far as the run itself shows it: a sentence with its evidence, or none.

Launches that keep to a mode each are compared by the interrupt lines that they used: a card's receive-side scaling
spreads flows over queues by a hash whose key is new with each boot, and each queue has an interrupt of its own, which
may go to another processor (Documentation/networking/scaling.rst of Linux).
Launches that alternate are synchronized with a timer. It is interrupt moderation's where the card interrupted and the
modes are gone in another cell of the run, under another value of `nic.rx-usecs` or with random pauses (`pace`), or
where their distance is that value. Other modes have a cause where the launches' means follow a counter: Spearman's rank
correlation (1904, "The proof and measurement of association between two things", Am. J. Psychol. 15), by Student's t.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy import special

from nearmetal.results.evidence import per_iteration
from nearmetal.results.records import Cell, PathCell
from nearmetal.results.shown import DisplayScale
from nearmetal.stats.interval import FloatArray
from nearmetal.stats.modes import LEAST_DISTANCE, apart
from nearmetal.stats.paired import doubled_midranks
from nearmetal.store.rundir import TrialRecord
from nearmetal.study.facts import SHARED
from nearmetal.study.order import PACE, is_again, labels_of, name_of
from nearmetal.units import NS_PER_US, format_size, rounded

_Known: TypeAlias = "Mapping[tuple[int, int], TrialRecord]"

_USECS = "nic.rx-usecs"
_INTERRUPTS = r"irq\.\d+.*"
_LINE = re.compile(r"irq\.\d+\..+")
_MANY_TIMES = 10
_LOCKSTEP = -0.5
"""The lag-1 autocorrelation of a launch in step with a timer lies below it."""
_SAME = 0.1
_FEWEST_LAUNCHES = 6
_FEWEST_APART = 2
_SURE = 0.01
_FOLLOWED = {
    "context switches": (r"sched\.context_switches", "ranks that sleep and are woken"),
    "rescheduling interrupts": (r"irq\.RES", "ranks woken on another processor"),
    "moves of ranks between processors": (r"sched\.migrations", "the scheduler moves ranks; pin them"),
    "ticks of stolen processor time": (r"cpu\.steal", "the hypervisor's other guests"),
    "segments that TCP held back": (
        r"tcp\..*\.TCPAutoCorking",
        "it waits until the port has reported what was sent before; try host.tcp_autocorking = 0",
    ),
}
_Lines: TypeAlias = "list[Counter[str]]"


def causes(cells: Sequence[Cell], records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return a sentence for each path and cell whose launches fall into modes that the run's own data explain."""
    known = {(record.order.trial, record.attempt): record for record in records}
    found = (_cause(cell, one, cells, known) for cell in cells for one in cell.paths if not is_again(one.path))
    return tuple(filter(None, found))


@dataclass(frozen=True, slots=True)
class LaunchModes:
    """Launches of one path by their means: some stand apart from the others. `apart` and `others` are means, ns.

    `trials_apart` and `other_trials` are the same launches by trial and attempt.
    """

    apart: FloatArray
    others: FloatArray
    trials_apart: tuple[tuple[int, int], ...] = ()
    other_trials: tuple[tuple[int, int], ...] = ()

    def told(self, shown: DisplayScale) -> str:
        """Return how many there are, and what they take."""
        near, far = (
            " to ".join(dict.fromkeys(rounded(shown.value(end)) for end in (of.min(), of.max())))
            for of in (self.others, self.apart)
        )
        launches = self.apart.size + self.others.size
        return f"{self.apart.size} of {launches} launches have means of {far} {shown.unit}, the others of {near}"


def launch_modes(cell: Cell, path: str) -> LaunchModes | None:
    """Return a path's launches, of the baseline under both its names, where at least two stand apart by their means."""
    names = labels_of(name_of(path))
    trials = [trial for one in cell.paths if one.path in names for trial in one.trials]
    means = np.array([trial.summary.trimmed_mean_ns for trial in trials], dtype=np.float64)
    if means.size < _FEWEST_LAUNCHES or means.min() <= 0:
        return None
    far = apart(np.log(means), math.log(LEAST_DISTANCE))
    if np.count_nonzero(far) < _FEWEST_APART:
        return None
    keys = [(trial.trial, trial.attempt) for trial in trials]
    groups = (tuple(key for key, is_far in zip(keys, far, strict=True) if is_far == side) for side in (True, False))
    return LaunchModes(means[far], means[~far], *groups)


def _cause(cell: Cell, one: PathCell, cells: Sequence[Cell], known: _Known) -> str:
    kept = launch_modes(cell, one.path)
    if not one.multimodal and kept is None:
        return ""
    size = f" {format_size(cell.message_bytes)}" if cell.sized else ""
    where = f"{cell.group.workload}{size} over {one.path}, setting {cell.group.setting}"
    mine = _records(one, known)
    if not one.multimodal:
        assert kept is not None
        why = _followed(one, mine) or f"each launch stays in one mode; {_other_lines(kept, known)}"
        return f"{where}: {kept.told(cell.shown)}; {why}"
    lags = [trial.summary.lag1_autocorrelation or 0.0 for trial in one.trials]
    if float(np.median(lags)) > _LOCKSTEP:
        why = _followed(one, mine)
        return f"{where}: {why}" if why else ""
    typical = one.multimodal[len(one.multimodal) // 2].modes
    ends = " and ".join(rounded(cell.shown.value(typical[at].centre_ns)) for at in (0, -1))
    evidence = _moderation(cell, one, cells, known)
    why = f"interrupt moderation sets the pace: {'; '.join(evidence)}" if evidence else "no counter shows whose"
    return (
        f"{where}: launches alternate between {ends} {cell.shown.unit} (lag-1 {np.median(lags):.2f}), in step with a "
        f"timer; {why}"
    )


def _other_lines(kept: LaunchModes, known: _Known) -> str:
    """Return on which lines only the launches apart interrupted, and only the others, where that divides them."""
    of_apart, of_others = (_lines([known[key] for key in keys]) for keys in (kept.trials_apart, kept.other_trials))
    only_apart, only_others = _used_only(of_apart, of_others), _used_only(of_others, of_apart)
    if not only_apart or not only_others:
        return "no counter shows why"
    return (
        f"their packets interrupt through {only_apart}, those of the others through {only_others}: another queue, "
        "whose interrupts may go to another processor; try nic.channels-combined = 1"
    )


def _lines(records: Sequence[TrialRecord]) -> _Lines:
    """Return the interrupts of each launch by the name of their line, whose number may change with the boot."""
    found = []
    for record in records:
        lines: Counter[str] = Counter()
        for key, count in record.outcome.counters.items():
            if _LINE.fullmatch(key):
                lines[key.split(".", 2)[2]] += count
        found.append(lines)
    return found


def _used_only(by: _Lines, not_by: _Lines) -> str:
    """Return a line by which each of some launches was interrupted most, or half as often, and the others hardly."""
    least = {line: min(one[line] for one in by) for line in by[0]}
    half = max(max(one.values(), default=0) for one in by) / 2
    only = [
        line for line, count in least.items() if count >= max(1, half, _MANY_TIMES * max(one[line] for one in not_by))
    ]
    return max(only, key=lambda line: (least[line], line), default="")


def _records(one: PathCell, known: _Known) -> list[TrialRecord]:
    return [known[trial.trial, trial.attempt] for trial in one.trials]


def _moderation(cell: Cell, one: PathCell, cells: Sequence[Cell], known: _Known) -> list[str]:
    """Return what shows that interrupt moderation is the timer, nothing where the run does not show it."""
    mine = _records(one, known)
    interrupts = _interrupts(mine)
    if not interrupts:
        return []
    usecs, typical = _usecs(mine), one.multimodal[0]
    distance_ns = typical.modes[-1].centre_ns - typical.modes[0].centre_ns
    shown = [f"with {what} no such modes{_counted(theirs, mine)}" for what, theirs in _without(cell, one, cells, known)]
    if usecs and abs(distance_ns / (usecs * NS_PER_US) - 1.0) <= _SAME:
        shown.append(f"the modes are {rounded(distance_ns / NS_PER_US)} us apart, the value of {_USECS}")
    of = f" at {_requested(mine)}" if usecs is not None else ""
    return [f"{interrupts:.1f} device interrupts per iteration{of}", *shown] if shown else []


def _without(
    cell: Cell, one: PathCell, cells: Sequence[Cell], known: _Known
) -> Iterable[tuple[str, list[TrialRecord]]]:
    """Yield cells of the same path, operation, size and ranks that differ in moderation or pace and lack the modes."""
    mine = _records(one, known)
    for other in cells:
        theirs = other.of(one.path)
        alike = (other.group.operation, other.message_bytes) == (cell.group.operation, cell.message_bytes)
        if not alike or theirs is None or theirs is one or not theirs.trials:
            continue
        if max((m.distance for m in theirs.multimodal), default=1.0) > math.sqrt(one.multimodal[0].distance):
            continue
        records = _records(theirs, known)
        if _ran(records) != _ran(mine):
            continue
        paced = _paced(records) and not _paced(mine)
        value = _usecs(records)
        if paced and other.group.setting == cell.group.setting:
            yield f"random pauses ({other.group.workload})", records
        elif value not in {None, _usecs(mine)} and _paced(records) == _paced(mine):
            yield _requested(records, other.group.setting), records


def _paced(records: Sequence[TrialRecord]) -> bool:
    return PACE in records[0].order.workload.options


def _ran(records: Sequence[TrialRecord]) -> tuple[object, ...]:
    """Return what ran, and where; a suite's means have no modes, so their absence is no evidence."""
    workload = records[0].order.workload
    return workload.kind, workload.placement, workload.progress


def _usecs(records: Sequence[TrialRecord]) -> int | None:
    value = str(records[0].outcome.facts.get(f"knob.{_USECS}", ""))
    return int(value) if value.isdecimal() else None


def _requested(records: Sequence[TrialRecord], *notes: str) -> str:
    """Return the knob as the setting requests it, with notes; the driver's value is one where it differs."""
    read = _usecs(records)
    asked = records[0].order.knobs.get(_USECS, read)
    notes += (f"reads back as {read}",) if str(asked) != str(read) else ()
    return f"{_USECS} = {asked}" + (f" ({', '.join(notes)})" if notes else "")


def _counted(theirs: Sequence[TrialRecord], mine: Sequence[TrialRecord]) -> str:
    """Return their interrupts; nothing where both were measured in the same launches, which were counted as one."""
    of_launch = [one[0].outcome.facts.get(SHARED) for one in (theirs, mine)]
    same = of_launch[0] == of_launch[1] is not None and theirs[0].order.setting == mine[0].order.setting
    return "" if same else f" and {_interrupts(theirs):.1f} interrupts"


def _interrupts(records: Sequence[TrialRecord]) -> float:
    return float(np.median([per_iteration(record, _INTERRUPTS) for record in records]))


def _followed(one: PathCell, records: Sequence[TrialRecord]) -> str:
    """Return the counter that the launches' means follow, empty where none does, or where launches are too few."""
    means = np.array([trial.summary.trimmed_mean_ns for trial in one.trials])
    if means.size < _FEWEST_LAUNCHES:
        return ""
    found = []
    for name, (pattern, cause) in _FOLLOWED.items():
        counts = np.array([per_iteration(record, pattern) for record in records])
        ends = f"{rounded(counts.min(), 2)} to {rounded(counts.max(), 2)}"
        rho, p = rank_correlation(means, counts)
        if rho > 0.0 and p <= _SURE / len(_FOLLOWED):
            found.append(
                (
                    p,
                    f"launches fall into modes with the {name}, {ends} per iteration (rank correlation {rho:.2f} over "
                    f"{len(means)} launches): {cause}",
                )
            )
    return min(found, default=(0.0, ""))[1]


def rank_correlation(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return Spearman's coefficient and its two-sided p; 0 and 1 where launches are too few or nothing varies."""
    n = first.size
    if n < _FEWEST_LAUNCHES or np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return 0.0, 1.0
    rho = float(np.corrcoef(doubled_midranks(first), doubled_midranks(second))[0, 1])
    if abs(rho) >= 1.0 - 1e-12:
        return rho, 2.0 / math.factorial(n)
    return rho, 2.0 * float(special.stdtr(n - 2, -abs(rho) * math.sqrt((n - 2) / (1.0 - rho * rho))))
