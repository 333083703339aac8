"""The tables of a report, as text in rows: terminal, Markdown and HTML only differ in how they draw them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

from nearmetal.report import words
from nearmetal.results.records import Cell, FactRow, Failure, GroupId, PathCell, SettingContrast, View
from nearmetal.stats.compare import CellComparison
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.units import as_percent, format_size

_INTERVALS = "Each ratio comes with its 95 % interval; p is that of the difference of means, Holm-corrected."
_LONGEST_REASON = 160


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; a line break in an entry parts a figure from its interval.

    `left` columns hold words, and so does the last where there are several such, unless `ends_in_figures`.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    left: int = 1
    ends_in_figures: bool = False

    def of_words(self, column: int) -> bool:
        """Return whether a column holds words, which begin flush left; figures end flush right."""
        ends_in_words = self.left > 1 and not self.ends_in_figures
        return column < self.left or (ends_in_words and column == len(self.head) - 1)


def parted(entry: str) -> tuple[str, str]:
    """Return an entry's figure and its interval, which is empty where further lines are words or further figures."""
    figure, _, rest = entry.partition("\n")
    if ".." in rest or rest in {words.NOTHING, words.UNBOUNDED}:
        return figure, rest
    return entry.replace("\n", ", " if figure[-1:] == ")" else " "), ""


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return rows as lines of text: so many columns of words, the others of figures."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<" if column < left else ">" for column in range(len(widths))]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]


def verdicts(view: View) -> Table:
    """Return the verdict on each path: what a reader came for."""
    rows = [(words.judged(view, one), str(one.verdict), words.reach(one), one.reason) for one in view.verdicts]
    return Table(
        "Verdicts",
        ("path", "verdict", f"ratio to {view.baseline}", "over sizes and operations"),
        tuple(rows),
        words.noise_sentence(view) + words.launches_sentence(view),
        left=2,
    )


def of_group(view: View, group: GroupId) -> list[Table]:
    """Return the figures of a group, and each path against the baseline by them."""
    return [*(levels(view, group, metric) for metric in Metric), comparisons(view, group)]


def levels(view: View, group: GroupId, metric: Metric = HEADLINE) -> Table:
    """Return one figure of the launches in the manner of published tables: sizes down, paths across, with intervals."""
    cells = view.cells_of(group)
    shown = cells[0].shown
    paths = [path.label for path in view.shown_paths]
    known = [one.levels[metric] for cell in cells for one in cell.paths]
    rows = [(words.size(cell), *(_level(cell.of(path), metric) for path in paths)) for cell in cells]
    refused = _refused(cells, paths, metric)
    note = f"{metric} refused: {refused}" if refused else ""
    return Table(
        f"{words.group_title(view, group)}: {words.metric(metric, shown)}, {shown.name}, {shown.unit}",
        ("size", *paths),
        tuple(rows) if any(level.value or level.refused for level in known) else (),
        note,
    )


def _refused(cells: Sequence[Cell], paths: Sequence[str], metric: Metric) -> str:
    """Return each reason for which a figure is not shown, with where that is; without, where it is nowhere shown."""
    where: dict[str, list[str]] = {}
    shown = [(cell, path, one.levels[metric]) for cell in cells for path in paths if (one := cell.of(path))]
    for cell, path, level in shown:
        if level.refused:
            where.setdefault(level.refused, []).append(f"{words.size(cell)} {path}" if cell.sized else path)
    return "; ".join(
        reason if len(places) == len(shown) else f"{', '.join(places)}: {reason}" for reason, places in where.items()
    )


def _level(one: PathCell | None, metric: Metric) -> str:
    if one is None:
        return words.NOTHING
    level = one.levels[metric]
    return "\n".join(filter(None, (words.level(level), words.level_span(level))))


def comparisons(view: View, group: GroupId) -> Table:
    """Return every path against the baseline, size by size, with the verdict that survives the correction."""
    cells = view.cells_of(group)
    rows = [_comparison(cell, one) for cell in cells for one in cell.paths if one.comparison or one.uncompared]
    better = "smaller" if not cells[0].shown.rate else "larger"
    return Table(
        f"{words.group_title(view, group)}: ratio to {view.baseline} ({better} is better)",
        ("size", "path", *Metric, "p", "verdict"),
        tuple(rows),
        " ".join([_INTERVALS, *_of_one_side(view, cells)]),
        left=2,
    )


def _of_one_side(view: View, cells: Sequence[Cell]) -> list[str]:
    """Return why ratios are refused of which no level is: the launches of one side have a distribution, others none."""
    where: dict[tuple[Metric, str], list[str]] = {}
    for cell in cells:
        sides = cell.named(view.baseline)
        for one in cell.paths:
            told = {side.levels[metric].refused for side in (one, *sides) for metric in Metric}
            for metric, why in one.comparison.refused.items() if one.comparison else ():
                if why not in told:
                    place = f"{words.size(cell)} {one.path}" if cell.sized else one.path
                    where.setdefault((metric, why), []).append(place)
    return [f"{metric} ratio refused, {', '.join(places)}: {why}." for (metric, why), places in where.items()]


def _comparison(cell: Cell, one: PathCell) -> tuple[str, ...]:
    start = (words.size(cell), one.path)
    if one.comparison is None:
        return (*start, *(words.NOTHING,) * 4, one.uncompared)
    found = one.comparison
    p_value = words.p_value(found.headline.judgement.p_difference)
    return (*start, *(_ratio(found, metric) for metric in Metric), p_value, str(found.verdict))


def _ratio(comparison: CellComparison, metric: Metric) -> str:
    found = comparison.estimates.get(metric)
    if found is None:
        return words.REFUSED if metric in comparison.refused else words.NOTHING
    return f"{words.ratio(found.ratio)}\n{words.ratio_span(found.interval)}"


def shortest(view: View, most: int) -> tuple[Table, int]:
    """Return a line for each comparison, in the order of the study, and how many were left out to have at most `most`.

    The smallest costs are left out first.
    """
    found = [(cell, one, one.comparison) for cell in view.cells for one in cell.paths if one.comparison]
    by_cost = sorted(range(len(found)), key=lambda at: -found[at][2].cost(HEADLINE))
    several = len(view.groups) > 1
    rows = []
    for cell, one, _ in (found[at] for at in sorted(by_cost[:most])):
        size, path, mean_ratio, median_ratio, p99_ratio, _, verdict = (
            entry.partition("\n")[0] for entry in _comparison(cell, one)
        )
        place = words.cell_title(view, cell) if several else size
        rows.append((place, path, mean_ratio, median_ratio, p99_ratio, verdict))
    title = f"Ratio to {view.baseline}, with the verdict of each cell"
    head = ("cell" if several else "size", "path", *Metric, "verdict")
    return Table(title, head, tuple(rows), left=2), len(found) - len(rows)


def tests(view: View, group: GroupId) -> Table:
    """Return the tests behind the verdicts, for readers who compare with published p-values."""
    rows = []
    for cell in view.cells_of(group):
        for one in cell.paths:
            if one.comparison is None:
                continue
            mean = one.comparison.headline
            rows.append(
                (
                    words.size(cell),
                    one.path,
                    str(mean.n),
                    words.p_value(mean.t_test.p if mean.t_test else None),
                    words.p_value(mean.wilcoxon.p if mean.wilcoxon else None),
                    words.p_value(mean.judgement.p_difference),
                    words.p_value(mean.judgement.p_equivalence),
                    words.NOTHING if mean.hedges_gz is None else f"{mean.hedges_gz:+z.2f}",
                    mean.judgement.reason,
                )
            )
    return Table(
        f"{words.group_title(view, group)}: tests on the means",
        ("size", "path", "n", "paired t", "Wilcoxon", "difference", "TOST", "Hedges' g", "why"),
        tuple(rows),
        "p-values of the paired t-test and of Wilcoxon's test are uncorrected, as papers print them; those of "
        "difference and equivalence (TOST) are Holm-corrected and decide.",
        left=2,
    )


def settings(view: View) -> Table:
    """Return each further setting against the study's first; no rows where the study has one setting."""
    return Table(
        "Each setting against the study's first one, by path",
        ("cell", "setting", *Metric, "verdict"),
        tuple(_setting(one) for one in view.settings),
        left=2,
    )


def _setting(one: SettingContrast) -> tuple[str, ...]:
    size = f" {format_size(one.message_bytes)}" if one.sized else ""
    figures = (*(_ratio(one.comparison, metric) for metric in Metric), str(one.comparison.verdict))
    measured = words.measured(one.workload, one.operation, "")
    return (f"{one.path}\n{measured}{size}", f"{one.setting}\n/ {one.reference}", *figures)


def noise(view: View) -> Table:
    """Return the A/A comparison of every cell."""
    rows = [
        (
            words.cell_title(view, cell),
            words.ratio(cell.noise.estimate.ratio),
            words.ratio_span(cell.noise.estimate.interval),
            words.NOTHING if cell.noise.floor is None else words.percent(cell.noise.floor),
            words.NOTHING if cell.noise.block_spread is None else words.percent(cell.noise.block_spread),
        )
        for cell in view.cells
        if cell.noise is not None
    ]
    return Table(
        f"Noise floor: {view.baseline} against itself",
        ("cell", "ratio", "95 % interval", "noise floor", "spread of a block"),
        tuple(rows),
        "The floor is the end of the interval farther from 1. It is no threshold: each comparison has its own.",
    )


def facts(view: View) -> Table:
    """Return the facts that differ between paths."""
    return _by_path(view, "Facts that differ between paths", "fact", view.facts, "")


def counters(view: View) -> Table:
    """Return what happened during the trials, by path."""
    note = (
        "Medians over trials, counted around the whole launch, including start and end of the MPI job. Interrupts, "
        "softirqs, context switches and CPU time are of whole machines, other programs' too."
    )
    return _by_path(view, "Counters during the trials", "counter", view.counters, note)


def _by_path(view: View, title: str, what: str, rows: Sequence[FactRow], note: str) -> Table:
    return Table(
        title,
        (what, *(path.label for path in view.shown_paths)),
        tuple((f"{row.name}, {row.unit}" if row.unit else row.name, *map(words.counter, row.values)) for row in rows),
        note,
    )


def failures(view: View) -> Table:
    """Return failed attempts with the first line of their reasons; those of one kind share a row."""
    alike: dict[tuple[str, str, bool, str], list[Failure]] = {}
    for one in view.failures:
        alike.setdefault((one.path, one.workload, one.mended, one.kind), []).append(one)
    rows = [
        (
            ", ".join(f"{one.trial}" if one.attempt == 1 else f"{one.trial} (again)" for one in ones),
            path,
            workload,
            "a second attempt succeeded" if mended else "lost",
            _first_line(ones[0].reason),
        )
        for (path, workload, mended, _), ones in alike.items()
    ]
    return Table(
        "Failed trials",
        ("trial", "path", "workload", "then", "reason"),
        tuple(rows),
        left=5,
        note="Full reasons, launch lines and output: nearmetal show RUN --trial N.",
    )


def _first_line(reason: str) -> str:
    line = reason.partition("\n")[0].rstrip(": ")
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."


def modes(view: View) -> Table:
    """Return where launches fall into modes, the typical launch of each path and cell; no rows where none does."""
    rows = []
    for cell in view.cells:
        for one in cell.paths:
            found = one.multimodal
            if not found:
                continue
            typical = found[len(found) // 2]
            ends = (cell.shown.value(mode.centre_ns) for mode in typical.modes)
            centres = "\n".join(
                f"{words.figure(at)} ({as_percent(mode.share)})" for at, mode in zip(ends, typical.modes, strict=True)
            )
            where = f"{len(found)} of {len(one.trials)}"
            rows.append(
                (words.cell_title(view, cell), one.path, where, f"{typical.distance:.2f}", centres, typical.order)
            )
    return Table(
        "Modes: launches whose iterations fall into several groups",
        ("cell", "path", "launches", "apart", "centres (share)", "order"),
        tuple(rows),
        "The launch with the middle distance, in the unit of the cell. Alternating modes are lockstep: the program "
        "meets the same phase of a timer each time.",
        left=2,
    )


def within_trials(view: View, cell: Cell) -> Table:
    """Return what the trials of each path say by themselves: how they spread, and how dependent iterations are."""
    rows = []
    for one in cell.paths:
        if not (own := [trial.summary for trial in one.trials]):
            continue
        means = [cell.shown.value(summary.trimmed_mean_ns) for summary in own if summary.trimmed_mean_ns]
        spread = stdev(means) / mean(means) if len(means) > 1 else None
        ends = [cell.shown.value(ns) for s in own for ns in (s.min_ns, s.max_ns) if ns]
        rows.append(
            (
                one.path,
                str(len(own)),
                f"{median(s.n for s in own):.0f}",
                words.NOTHING if spread is None else words.percent(spread),
                _middle([s.lag1_autocorrelation for s in own], "{:z.2f}"),
                _middle([s.effective_n for s in own], "{:.0f}"),
                words.figure(min(ends)) if ends else words.NOTHING,
                words.figure(max(ends)) if ends else words.NOTHING,
            )
        )
    return Table(
        f"Within trials: {words.cell_title(view, cell)}, {cell.shown.unit}",
        ("path", "trials", "n", "spread", "lag-1", "effective n", "least", "most"),
        tuple(rows),
        "Spread: sd of trial means. Medians over trials of n, of the lag-1 autocorrelation of iterations and of how "
        "many independent iterations would be worth as much.",
    )


def _middle(values: Iterable[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(median(known)) if known else words.NOTHING


def trials(view: View, cell: Cell) -> Table:
    """Return every trial of a cell: what it says by itself, in the shown unit."""
    rows = []
    launches = [(one.path, trial) for one in cell.paths for trial in one.trials]
    for path, trial in launches:
        own = trial.summary
        middle = (own.figure(metric, view.criteria.margin) for metric in (HEADLINE, Metric.MEDIAN))
        taken = [*middle, *((q.value_ns, q.reason) for q in own.percentiles)]
        ends = sorted((own.min_ns, own.max_ns), reverse=cell.shown.rate)
        lag1 = words.NOTHING if own.lag1_autocorrelation is None else f"{own.lag1_autocorrelation:z.2f}"
        figures = (_of_trial(cell, ns, why) for ns, why in (*taken, *((ns, "") for ns in ends)))
        rows.append((path, str(trial.block + 1), str(own.n), *figures, lag1))
    names = tuple(words.percentile_name(q.probability) for q in launches[0][1].summary.percentiles)
    return Table(
        f"Trials: {words.cell_title(view, cell)}, {cell.shown.name}, {cell.shown.unit}",
        ("path", "block", "n", "mean", "median", *names, "least", "most", "lag-1"),
        tuple(rows),
        "lag-1: autocorrelation of neighbouring iterations; percentiles are of the durations, refused where n cannot "
        "support them, and a median where the launch cannot hold it.",
    )


def _of_trial(cell: Cell, ns: float | None, why: str) -> str:
    """Return a launch's figure of a duration, why it has none in a word; there is no rate of no time at all."""
    if ns is None or (ns == 0 and cell.shown.rate):
        return words.REFUSED if why else words.NOTHING
    return words.figure(cell.shown.value(ns))
