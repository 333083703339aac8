"""What would decide an undecided cell, the cheapest step first: more blocks or occasions, iterations, another pace."""

import math
from collections.abc import Sequence
from itertools import chain

from scipy import special

from nearmetal.report.tables import Table
from nearmetal.report.words import cell_title, decimals, limit, percent
from nearmetal.results.causes import launch_modes
from nearmetal.results.comparisons import slower_beside
from nearmetal.results.records import Cell, PathCell, View, wholes_and_parts
from nearmetal.stats.compare import CellComparison, RatioEstimate
from nearmetal.stats.equivalence import Evidence, Finding, Verdict
from nearmetal.stats.order import support
from nearmetal.stats.summary import HEADLINE, P99, Metric
from nearmetal.stats.widen import BOOTS_DIFFER
from nearmetal.units import NS_PER_S, by_key, counted, format_wait

_MOST_BLOCKS = 1000
_MOST_OCCASIONS = 30
_WIDEST_MARGIN = 0.5
_CHANGING = f"find out what changes between occasions: not even {_MOST_OCCASIONS} of them would decide it"
_BOOTS = "a new run over more boots (`variants` in host.options): more blocks of the same hardly narrow the interval"
_QUIETER = "measure on a quieter machine"
_ONE_MODE = 'pin ranks and interrupts, or set pace = "random": each launch keeps to one of several modes'
_RANDOM = 'set pace = "random"'
_MODERATION = "change interrupt moderation (nic.rx-usecs)"
_PINNED = "pin ranks and interrupts: the launches fall into several modes"
_OPEN = {Verdict.UNDECIDED, Verdict.DIFFERS}


def blocks_to_settle(one: RatioEstimate) -> int | None:
    """Return how many more blocks a figure needs to be shown within or beyond its margin; None beyond 1,000.

    A half-width shrinks with the square root of the blocks and with Student's t, which is six times as large for two
    blocks as for many. It must become less than the estimate's distance from the margin's end; what the baseline
    differs from itself does not shrink. An estimate on the margin is settled by no number of blocks.
    """
    if one.evidence is None:
        return None
    interval, offset = one.evidence.difference, one.evidence.offset
    half = (interval.high - interval.low) / 2.0 - offset
    distance = abs(one.evidence.margin_log - abs(math.log(one.ratio))) - offset
    spread = half / _student(one.n)
    known = range(one.n + 1, _MOST_BLOCKS + 1)
    return next((n - one.n for n in known if spread * _student(n) < distance), None)


def _student(blocks: int) -> float:
    """Return the half-width of Student's interval of a mean, in standard deviations of a block."""
    return float(special.stdtrit(blocks - 1, 0.975)) / math.sqrt(blocks)


def occasions_to_settle(one: RatioEstimate) -> int | None:
    """Return the same in occasions, None beyond 30: what another one may give has a spread that no number shrinks."""
    assert one.evidence is not None
    half = (one.evidence.difference.high - one.evidence.difference.low) / 2.0
    distance = abs(one.evidence.margin_log - abs(math.log(one.ratio)))
    spread = half / _reach(one.n)
    return next((k - one.n for k in range(one.n + 1, _MOST_OCCASIONS + 1) if spread * _reach(k) < distance), None)


def _reach(occasions: int) -> float:
    """Return the half-width of a prediction interval (`stats.widen`), in standard deviations between occasions."""
    return float(special.stdtrit(occasions - 1, 0.975)) * math.sqrt(1.0 + 1.0 / occasions)


def next_step(view: View, cell: Cell, one: PathCell) -> str:
    """Return the cheapest step that may settle a cell, empty where it is settled."""
    found = one.comparison
    if found is None or found.verdict not in _OPEN:
        return ""
    if Metric.MEDIAN in found.refused and found.headline.finding is Finding.WITHIN:
        return _for_median(cell)
    if _only_tail_missing(found):
        return f"at least {support(P99)} iterations per launch"
    if found.conclusion.needs:
        return _launches(found.conclusion.needs, found.headline, view)
    more, first = _for_width(found, view), ""
    if view.busy:
        first = _QUIETER
    elif launch_modes(cell, one.path) or launch_modes(cell, view.baseline):
        first = _ONE_MODE if cell.may_pause else _PINNED
    return f"{first}; else {more}" if first and not more.startswith(first) else more


def _for_width(found: CellComparison, view: View) -> str:
    """Return how many more blocks make the first unsettled figure's interval narrow enough."""
    decisive = next((e for e in found.estimates.values() if e.finding in {Finding.UNDECIDED, Finding.DIFFERS}), None)
    if decisive is None:
        return "none: mean, median and p99 disagree"
    if decisive.evidence is None:
        missing = max(1, view.planned_blocks[0] - decisive.blocks)
        return f"{_launches(missing, decisive, view)}, for a first interval"
    if decisive.launches:
        more = occasions_to_settle(decisive)
        return counted(more, "more occasion") if more else _CHANGING
    return _for_blocks(decisive, decisive.evidence, view)


def _for_blocks(decisive: RatioEstimate, evidence: Evidence, view: View) -> str:
    """Return how many more blocks settle a figure of a run of one occasion, or what does where blocks do not."""
    if BOOTS_DIFFER in evidence.wider:
        return _BOOTS
    if more := blocks_to_settle(decisive):
        return _blocks(more, view)
    wide = math.expm1(max(abs(evidence.difference.low), abs(evidence.difference.high)))
    calmer = f"{_QUIETER if view.busy else 'reduce noise'}: not even 1,000 blocks would decide it"
    if evidence.offset and not view.busy:
        calmer = "pin ranks and interrupts"
    if wide <= _WIDEST_MARGIN:
        return f"{calmer}; or set a margin of {percent(wide)}, if you can accept it"
    return f"{calmer} (the interval reaches {percent(wide)} from 1)"


def _only_tail_missing(found: CellComparison) -> bool:
    body = [found.estimates[metric] for metric in (HEADLINE, Metric.MEDIAN) if metric in found.estimates]
    return Metric.P99 in found.refused and all(one.finding is Finding.WITHIN for one in body)


def _for_median(cell: Cell) -> str:
    modes = [trial.summary.modes for one in cell.paths for trial in one.trials if trial.summary.modes]
    if any(found.order == "alternating" for found in modes):
        return f"{_RANDOM if cell.may_pause else _MODERATION}: the launches are in step with a timer"
    return _PINNED if modes else "more iterations per launch"


def _launches(more: int, one: RatioEstimate, view: View) -> str:
    """Return what brings so many more launches: blocks, or occasions where the run has several."""
    if not one.launches:
        return _blocks(more, view)
    return counted(math.ceil(more * one.n / one.launches), "more occasion")


def _blocks(more: int, view: View) -> str:
    """Return that so many more blocks are needed; of a run that measures no more, the new run that they take."""
    blocks, took = counted(more, "more block"), more * view.block_ns
    total, most = view.blocks + more, view.planned_blocks[1]
    if view.host_kind != "import" and (total > most or view.unfinished is None):
        key = "max_blocks" if total > most else "min_blocks"
        blocks, took = f"a new run with {key} = {total}", total * view.block_ns
    return f"{blocks}, about {format_wait(took)}" if took >= NS_PER_S else blocks


def next_steps(view: View) -> list[str]:
    """Return what would settle each path, as sentences: a step for all cells that it settles."""
    grouped = by_key(
        ((one.path, step), cell)
        for cell in chain(*wholes_and_parts(view.cells))
        for one in cell.paths
        if (step := next_step(view, cell, one))
    )
    return [f"next for {path}, {cell_title(view, *cells)}: {step}" for (path, step), cells in grouped.items()]


def open_cells(view: View) -> Table:
    """Return every path with undecided cells: how many, why, and what would decide them."""
    grouped = by_key(
        ((one.path, comparison.conclusion.reason, step), cell)
        for cell, one, comparison in view.compared()
        if (step := next_step(view, cell, one))
    )
    rows = [(path, cell_title(view, *cells), f"{why}; next: {step}") for (path, why, step), cells in grouped.items()]
    return Table(
        "Undecided cells, and the cheapest next step", ("path", "cell", "why, and next step"), tuple(rows), left=3
    )


def gains(view: View) -> list[str]:
    """Return what each further setting gains on each path, as sentences, by the mean and against the first setting."""
    grouped = by_key(((one.setting, one.path, one.workload, one.reference), one.comparison) for one in view.gains)
    return [_gain(*key, found) for key, found in grouped.items()]


def _gain(setting: str, path: str, workload: str, reference: str, found: list[CellComparison]) -> str:
    """Return what a setting gains; what is not shown may be anything, so its estimates are no part of the range."""
    start, but = f"{setting} against {reference}, {workload} over {path}:", but_slower(found)
    if all(one.headline.finding is Finding.WITHIN for one in found):
        return f"{start} shown to differ by less than {limit(found[0].criteria.margin)}{but}."
    speeds = sorted(
        1.0 / one.cost(HEADLINE) for one in found if one.headline.finding not in {Finding.UNDECIDED, Finding.WITHIN}
    )
    if not speeds:
        undecided = sum(one.headline.finding is Finding.UNDECIDED for one in found)
        if undecided < len(found):
            rest = f"shown to differ by less than {limit(found[0].criteria.margin)} in the rest"
            return f"{start} undecided in {undecided} of {len(found)} cells, {rest}{but}."
        return f"{start} undecided in {counted(len(found), 'cell')}{but}."
    ends = " to ".join(dict.fromkeys(f"{speed:.{decimals(speed, 3)}f}" for speed in (speeds[0], speeds[-1])))
    proven = "" if len(speeds) == len(found) else f" in the {len(speeds)} of {len(found)} cells that show a difference"
    return f"{start} {ends} times as fast{proven}{but}."


def but_slower(found: Sequence[CellComparison]) -> str:
    """Return in words in how many cells a median or p99 is slower though the mean is not, empty where none is."""
    slow = slower_beside(found).items()
    told = [f"by the {metric} slower in {count} of {counted(len(found), 'cell')}" for metric, count in slow]
    return f", but {' and '.join(told)}" if told else ""
