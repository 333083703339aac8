"""The wording of a gate's finding: the same sentences on a terminal, in JUnit and in JSON."""

from collections import Counter

from nearmetal.report import words
from nearmetal.results.gated import Gate, GateCell
from nearmetal.results.series import CellId
from nearmetal.stats.between import Standing
from nearmetal.stats.summary import Metric
from nearmetal.units import counted

WORST_FIRST = (Standing.WORSE, Standing.UNDECIDED, Standing.BETTER, Standing.WITHIN)


def verdict(gate: Gate) -> str:
    """Return the finding in one line."""
    return (
        f"{gate.verdict} ({tally(gate)}; "
        f"margin {words.limit(gate.margin)}, {gate.metric} of each launch, exit code {int(gate.exit_code)})"
    )


def tally(gate: Gate) -> str:
    """Return what the verdict rests on: how many cells stand how, by which figures, and whether a run was cut short."""
    further = Counter(one.metric for one in gate.against)
    return (
        f"{_counts(gate, gate.metric) or 'nothing to judge'}"
        f"{''.join(f'; {count} worse by {metric}' for metric, count in further.items())}"
        f"{_of_parts(gate)}{'; not finished' if gate.cut_short else ''}"
    )


def unfinished(gate: Gate) -> list[str]:
    """Return which of the runs is not finished, and how to measure the rest."""
    found = []
    for side in (gate.run, gate.base):
        if (lacks := side.unfinished) is not None and lacks.running:
            found.append(f"{side.root} is being measured: its figures will change.")
        elif lacks is not None:
            state = "is NOT FINISHED" if lacks.short else "has more to measure"
            found.append(f"{side.root} {state}: {lacks.says}. To measure the rest: {lacks.resume}")
    return found


def mixed(gate: Gate) -> list[str]:
    """Return what differs between trials of one run, which are compared nevertheless, as was asked for."""
    return [f"MIXED PROVENANCE, compared on request: {one}" for one in gate.mixed]


def cautions(gate: Gate) -> list[str]:
    """Return what readers must know before they believe the figures of either run, or of the fresh blocks."""
    fresh = gate.remeasured.cautions if gate.remeasured else ()
    named = (("base", gate.base.cautions), ("run", gate.run.cautions), ("fresh blocks", fresh))
    return [f"CAUTION: in the {of}, {one}." for of, found in named for one in found]


def _of_parts(gate: Gate) -> str:
    """Return how parts of programs and sums stand, by any figure, empty where there are none."""
    found: dict[CellId, Standing] = {}
    parts = [*gate.parts, *(one for one in gate.others if one.part)]
    for one in sorted(parts, key=lambda one: -WORST_FIRST.index(one.standing)):
        if one.metric is gate.metric or one.standing is Standing.WORSE:
            found[one.cell] = one.standing
    counts = Counter(found.values())
    return f"; of parts: {', '.join(f'{counts[one]} {one}' for one in WORST_FIRST if counts[one])}" if counts else ""


def _counts(gate: Gate, metric: Metric) -> str:
    return ", ".join(f"{gate.count(one, metric)} {one}" for one in WORST_FIRST if gate.count(one, metric))


def others(gate: Gate) -> str:
    """Return how cells stand by the figures that are not the headline, empty where it is judged alone.

    Where some have none, or all that have a median have no p99, or the reverse, it says so.
    """
    sentences = []
    found = Counter(one.metric for one in gate.others if not one.part)
    for metric, count in found.items():
        margin = gate.tail_margin if metric is Metric.P99 else gate.margin
        of = f", of {counted(len(gate.judged), 'cell')}" if count < len(gate.judged) else ""
        sentences.append(f"By {metric}, margin {words.limit(margin)}: {_counts(gate, metric)}{of}.")
    if found and Metric.MEDIAN not in found:
        sentences.append("By median: no cell has one in both runs.")
    if found and Metric.P99 not in found:
        sentences.append("By p99: no cell has launches of enough samples.")
    return " ".join(sentences)


def figures_from(gate: Gate) -> str:
    """Return what kind of machine measured the runs."""
    return f"Figures from {' and '.join(dict.fromkeys((gate.run.host_label, gate.base.host_label)))}."


def not_in_base(gate: Gate) -> str:
    """Return of which paths the run has figures that the base lacks, empty where there is none."""
    by_path = Counter(one.path for one in gate.not_in_base)
    named = ", ".join(f"{path} ({counted(count, 'cell')})" for path, count in by_path.items())
    return named and f"Not compared, for the base has no valid trial of it: {named}."


def noise(gate: Gate) -> str:
    """Return what the runs can resolve, and what is known about the difference between runs of one state."""
    resolutions = sorted(one.found.resolution for one in gate.judged if one.found)
    if not resolutions:
        return "Nothing could be compared."
    text = (
        f"Within the runs: they can resolve differences of {words.percent(resolutions[0])} in the quietest cell, "
        f"{words.percent(resolutions[-1])} in the noisiest."
    )
    if alike := resolutions.count(0.0):
        text += f" In {counted(alike, 'cell')} each run's launches are all alike: what was rounded off is in no "
        text += "interval."
    if gate.floor is None:
        return (
            f"{text} Between runs: one run of each state was measured, so the difference between two runs of the "
            "same state is not known."
        )
    return f"{text} Between runs: up to {words.percent(gate.floor)} was seen between measurements of the same state."


def remeasured(gate: Gate) -> str:
    """Return what was measured again, or why not; empty when nothing looked worse."""
    done = gate.remeasured
    if done is None:
        return ""
    cells = counted(len(done.cells), "cell")
    if done.why_not:
        return f"{cells} looked worse and could not be measured again: {done.why_not}"
    return f"{cells} looked worse; {done.blocks} fresh blocks in {done.root} decided."


def cell(one: GateCell) -> str:
    """Return one cell's finding: ratio, interval, n of both sides, and why it stands as it does."""
    if one.found is None:
        return f"{one.standing}: {one.reason}"
    found = one.found
    seen = f"{words.ratio(one.first.ratio)} [{words.ratio_span(one.first.interval)}]" if one.first else ""
    first = f"; the run's own blocks gave {seen}" if seen else ""
    return (
        f"{one.standing}: {words.ratio(found.ratio)} times the base [{words.ratio_span(found.interval)}], "
        f"{found.run} against {found.base}{first}; {one.reason}"
    )
