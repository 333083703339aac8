"""How figures are written: the same digits and the same words in every report."""

import math
from collections.abc import Sequence

from nearmetal.errors import command_line
from nearmetal.results.records import Cell, Failure, GroupId, Level, PathVerdict, View
from nearmetal.results.shown import DisplayScale
from nearmetal.results.stopping import Unfinished
from nearmetal.stats.bootstrap import IntervalMethod
from nearmetal.stats.compare import CellComparison
from nearmetal.stats.conclude import rarest_excluded
from nearmetal.stats.equivalence import ALPHA, Verdict
from nearmetal.stats.interval import Interval
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.study.order import Scalar
from nearmetal.units import by_key, counted, format_size

NOTHING = "-"
REFUSED = "refused"
UNBOUNDED = "unbounded"
SIGNIFICANT_DIGITS = 4
_LEAST_RATIO, _MOST_RATIO = 0.001, 1000
_WIDE = 1.5
_MOST_NAMED = 4


def decimals(value: float, digits: int = SIGNIFICANT_DIGITS) -> int:
    """Return how many decimals give a value its significant digits, as it is when rounded: 9.9999 has those of 10."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}")))))


def figure(value: float) -> str:
    """Return a figure with four significant digits and no exponent."""
    return f"{value:.{decimals(value)}f}"


def span(low: float, high: float) -> str:
    """Return an interval: both ends with as many decimals as its middle deserves, a wide one with three digits each.

    Ends over a million times apart bound nothing, such as those of two occasions that differ by far.
    """
    if not math.isfinite(high):
        return f"{figure(low)}..unbounded"
    if 0 < low < high / _MOST_RATIO**2:
        return UNBOUNDED
    if low <= 0 or high / low > _WIDE:
        return f"{low:.{decimals(low, 3)}f}..{high:.{decimals(high, 3)}f}"
    places = decimals((low + high) / 2)
    return f"{low:.{places}f}..{high:.{places}f}"


def metric(one: Metric, shown: DisplayScale) -> str:
    """Return the name of a figure; a rate's p99 is that of the durations, and so the rate of the slowest hundredth."""
    return "p99 of the durations" if one is Metric.P99 and shown.rate else str(one)


def level(one: Level) -> str:
    """Return a level without its interval; a percentile that n cannot support is `refused`, one that is none a dash."""
    if one.value is not None:
        return figure(one.value)
    return REFUSED if one.refused else NOTHING


def level_span(one: Level) -> str:
    """Return a level's interval, empty where there is none."""
    return span(one.interval.low, one.interval.high) if one.interval else ""


def ratio(value: float) -> str:
    """Return a ratio with three decimals, fewer when large, more when small; beyond 1000 times only that it is."""
    if not _LEAST_RATIO <= value <= _MOST_RATIO:
        return f"<{_LEAST_RATIO}" if value < _LEAST_RATIO else f">{_MOST_RATIO}"
    return f"{value:.{max(decimals(value, 3), 3 if round(value, 3) < 10 else 0)}f}"


def ratio_span(interval: Interval | None) -> str:
    """Return the interval of a ratio, or a dash where there are too few blocks."""
    return NOTHING if interval is None else ratio_ends(interval.low, interval.high)


def ratio_ends(low: float, high: float) -> str:
    """Return two ends of a ratio."""
    return f"{ratio(low)}..{ratio(high) if math.isfinite(high) else 'unbounded'}"


def p_value(p: float | None) -> str:
    """Return a p-value as the papers print it."""
    if p is None:
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def percent(share: float) -> str:
    """Return a share as a percentage with at most two significant digits; beyond 1000 times only that it is."""
    if share > _MOST_RATIO:
        return f"over {100 * _MOST_RATIO:,} %"
    text = f"{share * 100:,.{decimals(share * 100, 2)}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def limit(share: float) -> str:
    """Return what was asked for, such as a margin, as a percentage: never rounded."""
    return f"{100 * share:.10g} %"


def moment(utc: str, *, seconds: bool = False) -> str:
    """Return a recorded time, to the minute or to the second, as people write it."""
    return f"{utc[: 19 if seconds else 16].replace('T', ' ')} UTC"


def percentile_name(probability: float) -> str:
    """Return `p99.9` for 0.999."""
    return f"p{probability * 100:.10g}"


def size(cell: Cell) -> str:
    """Return a cell's message size, a dash for operations without one."""
    return size_of(cell.message_bytes, sized=cell.sized)


def size_of(message_bytes: int, *, sized: bool = False) -> str:
    """Return a message size, a dash for none: for 0, unless the operation is `sized`."""
    return format_size(message_bytes) if message_bytes or sized else NOTHING


def group_title(view: View, group: GroupId) -> str:
    """Return what a group measures, with the setting where the study has several."""
    several = len({one.setting for one in view.groups}) > 1
    return measured(group.workload, group.operation, group.setting if several else "")


def measured(workload: str, operation: str, setting: str) -> str:
    """Return what a workload measures; `setting` is empty where there is one alone."""
    name = workload if workload == operation else f"{workload} ({operation})"
    return f"{name}, setting {setting}" if setting else name


def cell_title(view: View, *cells: Cell) -> str:
    """Return each group's title with its sizes, which are counted where there are many."""
    grouped = by_key((cell.group, cell) for cell in cells)
    titles = [", ".join((group_title(view, group), *_sizes_of(own))) for group, own in grouped.items()]
    left_out = len(titles) - _MOST_NAMED
    more = [f"{left_out} more"] if left_out > 0 else []
    return "; ".join(titles[:_MOST_NAMED] + more)


def _sizes_of(cells: Sequence[Cell]) -> list[str]:
    """Return the sizes of cells as one phrase, none where they have none."""
    sizes = [size(cell) for cell in cells if cell.sized]
    if len(sizes) > _MOST_NAMED:
        return [f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"]
    return [" and ".join(filter(None, (", ".join(sizes[:-1]), sizes[-1])))] if sizes else []


def counter(value: Scalar | None) -> str:
    """Return a fact or a counter as text."""
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:.{decimals(value, 3)}f}" if value else "0"
    return str(value)


def found(comparison: CellComparison) -> str:
    """Return one comparison in words: the ratio with its interval, and n."""
    estimate = comparison.headline
    n = counts(estimate.blocks, estimate.occasions)
    return f"{ratio(estimate.ratio)} [{ratio_span(estimate.interval)}] by the mean, n = {n}"


def counts(blocks: int, occasions: int) -> str:
    """Return what a figure is of: of blocks, or of occasions where there are several."""
    return counted(occasions, "occasion") if occasions > 1 else counted(blocks, "block")


def judged(view: View, verdict: PathVerdict) -> str:
    """Return what a verdict is on: the path, with the setting where the study has several."""
    several = len({one.setting for one in view.verdicts}) > 1
    return f"{verdict.path}, {verdict.setting}" if several else verdict.path


def reach(verdict: PathVerdict) -> str:
    """Return the range of ratios over a path's cells, from its best to its worst, and what it is of."""
    if not verdict.ends:
        return NOTHING
    return _range(verdict) + (" (cost)" if verdict.both_kinds else "") + _which(verdict)


def _range(verdict: PathVerdict) -> str:
    return " to ".join(dict.fromkeys(map(ratio, verdict.ends)))


def _which(verdict: PathVerdict) -> str:
    """Return that a range leaves out the cells that are not decided, where it does."""
    return " where decided" if Verdict.UNDECIDED in (told := dict(verdict.counts)) and len(told) > 1 else ""


def costliest(verdicts: Sequence[PathVerdict], most: int) -> list[PathVerdict]:
    """Return at most so many verdicts, in their order: those without figures, and of the others the largest costs."""
    costs = [one.worst[1].cost(HEADLINE) if one.worst else math.inf for one in verdicts]
    kept = sorted(range(len(verdicts)), key=lambda at: -costs[at])[:most]
    return [verdicts[at] for at in sorted(kept)]


def times(verdict: PathVerdict, baseline: str = "") -> str:
    """Return the range of a path's ratios as part of a sentence, empty where nothing was compared."""
    if not verdict.ends:
        return ""
    of = f" {baseline}" if baseline else ""
    return f"{_range(verdict)} times{of}{' in cost' * verdict.both_kinds}{_which(verdict)}"


def reached(view: View, verdict: PathVerdict) -> str:
    """Return the rest of the sentence that begins with a path and its verdict: the range of its ratios, and why."""
    found = times(verdict, view.baseline)
    return f"{found and f', {found}'} ({verdict.reason})."


def failure_sentences(failures: Sequence[Failure], run: str) -> list[str]:
    """Return a sentence for each path and workload with failed trials: how many, the first reason, where to look."""
    alike = by_key(((one.path, one.workload), one) for one in failures)
    return [_failed(path, workload, ones, run) for (path, workload), ones in alike.items()]


def _failed(path: str, workload: str, ones: list[Failure], run: str) -> str:
    count = f"{len(ones)} launch{'' if len(ones) == 1 else 'es'} of {workload} over {path} failed"
    lost = len({one.trial for one in ones if not one.mended})
    what = f"{counted(lost, 'trial')} lost" if lost else "all succeeded when repeated"
    told = next((one for one in ones if not one.mended), ones[0])
    why = told.reason.partition("\n")[0].rstrip(": ").partition(";")[0]
    others = len({one.kind for one in ones}) - 1
    more = f", and {counted(others, 'other reason')}" if others else ""
    return f"{count}, {what}: {why}{more} ({command_line('show', run, '--trial', told.trial)})"


def noise_sentence(view: View) -> str:
    """Return what the A/A comparison says about this study."""
    stated = [cell.noise for cell in view.wholes if cell.noise is not None]
    floor = view.noise_floor
    if floor is None:
        return f"Noise floor: unknown, {_why_no_floor(view)}."
    worst = counted(len(stated), "cell")
    text = f"Noise floor: {percent(floor)} ({view.baseline} measured against itself, worst of {worst})."
    alarms = [abs(math.log(noise.estimate.ratio)) for noise in stated if noise.false_alarm]
    if alarms:
        text += (
            f" In {len(alarms)} of them the two differ by up to {percent(math.expm1(max(alarms)))}, more than the "
            f"spread over {'occasions' if view.occasions > 1 else 'blocks'} explains (expected by chance in "
            f"{percent(ALPHA)} of cells): drift, or an effect of the order."
        )
        # Intervals for another occasion are not widened beside (`stats.widen`).
        text += "" if view.occasions > 1 else " The intervals there are widened by as much."
    if (parts := view.noise_of_parts) is not None:
        text += f" Of parts, such as a program's communication: {percent(parts)}."
    return text


def _why_no_floor(view: View) -> str:
    """Return why no cell has a noise floor: a mean is refused, no block has both names, or blocks are too few."""
    levels = [one.levels[HEADLINE] for cell in view.wholes for one in cell.named(view.baseline)]
    if refused := next((level.refused for level in levels if level.refused), ""):
        return f"no mean of {view.baseline}: {refused}"
    if view.host_kind == "import":
        return f"imported files hold {view.baseline} under one name only"
    if all(cell.noise is None for cell in view.wholes):
        return f"no block in which {view.baseline} has a valid trial under both its names"
    return f"too few blocks of {view.baseline} under its two names"


def launches_sentence(view: View) -> str:
    """Return which rare modes the launches behind the verdicts cannot exclude, empty where nothing is decided."""
    decided = [found for _, _, found in view.compared() if found.verdict is not Verdict.UNDECIDED]
    near = [found for found in decided if found.verdict is Verdict.NEAR_METAL]
    if near:
        rare, least, slow = max((rarest_excluded(one.launches, one.slow), one.launches, one.slow) for one in near)
        apart = f", {slow} of them slower than the rest," if slow else ""
        where = "near-metal" if len({(one.launches, one.slow) for one in near}) == 1 else "The weakest near-metal cell"
        return (
            f" {where} rests on {least} launches{apart}, which cannot rule out a slow mode rarer than "
            f"{percent(round(rare, 2))}."
        )
    if not decided:
        return ""
    least = min(one.launches for one in decided)
    unseen = percent(round(rarest_excluded(least), 2))
    fewest = f"{least}" if all(one.launches == least for one in decided) else f"at least {least}"
    which = "Ratios" if len(decided) == len([*view.compared()]) else "Decided ratios"
    return f" {which} rest on {fewest} launches of each path: a mode in fewer than {unseen} of launches may be unseen."


def when(view: View) -> str:
    """Return when a run began; of figures that were read from files only when that was is known."""
    return f"{'imported' if view.host_kind == 'import' else 'begun'} {moment(view.created_utc)}"


def blocks_sentence(view: View) -> str:
    """Return how much was measured, and what was planned; nothing is where figures were read from files."""
    least, most = view.planned_blocks
    planned = (f"{least}" if least == most else f"{least} to {most}") + " planned"
    cautions = "".join(f" CAUTION: {one}." for one in view.cautions)
    if view.occasions == 1:
        occasion = "one occasion: the intervals say nothing about another hour or boot"
    else:
        occasion = f"{view.occasions} occasions; the intervals are for another one, at another hour or boot"
        planned += " at each"
    blocks, trials = counted(view.blocks, "block"), counted(view.valid_trials, "valid trial")
    plan = "" if view.host_kind == "import" else f" ({planned})"
    return f"{trials} in {blocks}{plan}, {occasion}.{cautions}"


def unfinished(lacks: Unfinished | None) -> list[str]:
    """Return what a run lacks and the command that measures the rest, nothing of a finished one."""
    if lacks is None:
        return []
    if lacks.running:
        return ["This run is being measured: its figures will change."]
    headline = f"NOT FINISHED: {lacks.says}." if lacks.short else f"More to measure: {lacks.says}."
    return [headline, f"To measure the rest: {lacks.resume}"]


def lost(failures: Sequence[Failure], run: str) -> list[str]:
    """Return what failed and did not succeed when it was repeated, for outputs that have no line for it."""
    return [f"FAILED: {one}." for one in failure_sentences([one for one in failures if not one.mended], run)]


def mixed(view: View) -> list[str]:
    """Return what differs between trials that are compared nevertheless, as was asked for."""
    return [f"MIXED PROVENANCE, compared on request: {one}" for one in view.mixed]


def warnings(view: View) -> list[str]:
    """Return why figures are not to be relied on, for outputs that have no place for it."""
    return [*unfinished(view.unfinished), *mixed(view), *(f"CAUTION: {one}" for one in view.cautions)]


def method_sentence(view: View) -> str:
    """Return how ratios and verdicts were made."""
    trimmed = "1 % trimmed at each end" + (" where the files hold samples" if view.host_kind == "import" else "")
    if len(view.shown_paths) == 1 and not view.settings:
        return (
            f"Figures are geometric means over blocks of each launch's mean ({trimmed}), median and p99; there is no "
            f"path but {view.baseline} to compare them with."
        )
    asked = view.criteria
    over = f"geometric means over blocks, {_intervals(view)}"
    if view.occasions > 1:
        over = over.replace("blocks", "occasions")
    both = f" (both launches of {view.baseline} in a block count, in its own figures, too)"
    twice = both if any(one.again for one in view.paths) else ""
    return (
        f"Ratios are path / {view.baseline}{twice}, of each launch's mean ({trimmed}), median and p99: "
        f"{over}. "
        f"near-metal: mean and median within {limit(asked.margin)} and p99 within {limit(asked.tail_margin)}, each "
        f"shown (TOST), over at least {asked.least_launches} launches. slower, faster: the mean beyond the margin. "
        "differs: not equal, but not shown to be beyond the margin. Holm-corrected over all sizes, operations and "
        "settings of a path."
    )


def _intervals(view: View) -> str:
    """Return how the intervals of a run's comparisons were made, and that some have none."""
    found = {one.headline.method for _, _, one in view.compared()}
    by = " and ".join(sorted(str(one) for one in found - {IntervalMethod.NONE}))
    if not found:
        return "no intervals: nothing could be compared"
    if not by:
        return "no intervals: too few blocks"
    return f"95 % intervals by {by}" + (", none where there are too few blocks" if IntervalMethod.NONE in found else "")


def alone(view: View) -> list[str]:
    """Return a sentence for each operation of a study with one path: what its messages take, or how fast they go.

    It has the mean, as the tables, and the median beside it; only the median where there is no mean.
    """
    return [f"{group_title(view, group)}, {_sizes(view.cells_of(group))}" for group in view.groups]


def _sizes(cells: Sequence[Cell]) -> str:
    told = ((cell, cell.paths[0].levels[HEADLINE], cell.paths[0].levels[Metric.MEDIAN]) for cell in cells)
    sentences = [
        (f"{size(cell)}: " if cell.sized else "") + _mean_and_median(level(mean), level(median), cell.shown.unit)
        for cell, mean, median in told
        if mean.value is not None or median.value is not None
    ]
    return f"{cells[0].shown.name}, mean: {'; '.join(sentences) or 'no valid trial'}"


def _mean_and_median(mean: str, median: str, unit: str) -> str:
    if mean in {REFUSED, NOTHING}:
        return f"{mean} (median {median} {unit})"
    return f"{mean} {unit}" + ("" if median == NOTHING else f" (median {median})")


def as_sentence(text: str) -> str:
    """Return text as a sentence: with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def short(name: str, most: int = 12) -> str:
    """Return a name that fits next to a chart: names that begin alike often differ at their end."""
    kept = most - 1
    return name if len(name) <= most else f"{name[: kept // 2]}…{name[-(kept - kept // 2) :]}"
