"""A fabric in words and characters, at most 80 columns wide."""

from collections.abc import Sequence

import numpy as np

from nearmetal.fabric.against import Against, NodeRatio, paired_by
from nearmetal.fabric.detect import ALPHA, RetestedSuspect
from nearmetal.fabric.survey import METRICS, FabricMetric, Survey, aggregated, sentence, slowness, table_of
from nearmetal.fabric.unseen import beyond_the_margin, unseen
from nearmetal.report.words import limit
from nearmetal.stats.interval import FloatArray
from nearmetal.units import as_percent, counted, rounded, wrapped

STEPS = (1.1, 1.25, 1.5, 2.0)
"""Shades of the heat map change at these multiples of the median pair's time."""
SHADES = "·░▒▓█"
_WIDTH = 80
_SIDE = 64
_LABEL = 12
_SHOWN = 8
AGAINST_NOTE = (
    "The intervals are over nodes, with one launch each: differences between launches are part of the ratio. "
    "Blocks of launches: `nearmetal run` with this workload."
)


def shade(times: float) -> int:
    """Return the shade, 0 to 4, of a pair that is that many times slower than the median pair."""
    return int(np.searchsorted(STEPS, times, side="right"))


def legend() -> str:
    """Return what the shades mean."""
    marks = [f"{mark} {times:g}x" for mark, times in zip(SHADES[1:], STEPS, strict=True)]
    return f"{SHADES[0]} within {STEPS[0]:g} times the median pair's time; from: {'  '.join(marks)}"


def as_text(of: Survey) -> str:
    """Return the whole survey, findings first."""
    lines = [f"{len(of.names)} nodes on path {of.path}: {rounds_sentence(of)}.", f"{of.info.host_label}."]
    lines += ["", *_findings(of)]
    for metric in METRICS:
        table = table_of(of, metric)
        if table is not None:
            lines += ["", f"{metric.name}: {levels(table, metric)}", *heat_map(of, metric)]
    lines += ["", f"  {legend()}"]
    if of.bisection:
        lines += ["", *bisection_sentences(of)]
    return _wrapped(lines)


def _wrapped(lines: Sequence[str]) -> str:
    """Return lines as text; one that is too long continues on the next, indented further."""
    short = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        short += wrapped(line, _WIDTH, subsequent_indent=f"{indent}  ") if len(line) > _WIDTH else [line]
    return "\n".join(short) + "\n"


def rounds_sentence(of: Survey) -> str:
    """Return how many rounds were measured."""
    pairs = len(of.names) * (len(of.names) - 1) // 2
    first, again = of.passes
    text = f"{counted(pairs, 'pair')} in {counted(first, 'round')}"
    return f"{text}, {counted(again, 'round')} of re-tests" if again else text


def _findings(of: Survey) -> list[str]:
    lines = [f"{verdict_sentence(of)}"]
    lines += [f"  {line}" for one in of.named for line in (sentence(of, one), f"    {evidence(one)}")]
    others = [one for one in of.findings if not one.named]
    if others:
        lines += [f"{open_sentence(of)}"]
        lines += [f"  {line}" for one in others[:_SHOWN] for line in (sentence(of, one), f"    {evidence(one)}")]
        lines += [f"  and {len(others) - _SHOWN} more; --format json lists all"] * (len(others) > _SHOWN)
    return [*lines, *unseen(of)]


def verdict_sentence(of: Survey) -> str:
    """Return the answer in one sentence."""
    if of.named:
        count = "1 thing stands" if len(of.named) == 1 else f"{len(of.named)} things stand"
        return f"{count} out by more than {limit(of.margin)}, confirmed by re-tests:"
    if not of.complete:
        return "Nothing can be named: the suspects were not measured again."
    if not of.screened.fits and of.rate is None:
        return f"No bandwidth was measured, so no direction of a pair can be named; {few_sentence(of)}."
    if not of.screened.fits:
        return f"No direction of a pair is slower by more than {limit(of.margin)}; {few_sentence(of)}."
    # Limits beyond the margin are told apart: a sentence of `unseen` has them.
    return "No node or link stands out" + ("." if beyond_the_margin(of) else f" by more than {limit(of.margin)}.")


def few_sentence(of: Survey) -> str:
    """Return why a very small fabric is judged by directions only."""
    return f"with {len(of.names)} nodes it is impossible to say which node or link is slow"


def open_sentence(of: Survey) -> str:
    """Return what the list of mere suspicions is."""
    if of.retested:
        return "Suspected by the first pass, not confirmed by re-tests:"
    return "Suspected, not measured again:"


def evidence(finding: RetestedSuspect) -> str:
    """Return what a finding rests on."""
    if not finding.retests:
        return "no re-tests"
    return (
        f"{finding.beyond} of {finding.retests} re-tests beyond the limit, from {rounded(finding.low)} to "
        f"{rounded(finding.high)} times; p = {finding.p_value:.1g}"
    )


def levels(table: FloatArray, metric: FabricMetric) -> str:
    """Return the median pair's figure and the range."""
    low, middle, high = (float(value) for value in np.nanquantile(table, (0.0, 0.5, 1.0)))
    return f"median {_amount(middle)} {metric.unit}, pairs from {_amount(low)} to {_amount(high)}"


def heat_map(of: Survey, metric: FabricMetric) -> list[str]:
    """Return the matrix as characters, a row a node; with more than 64 nodes a character is the worst of a block."""
    side = min(_SIDE, len(of.names))
    worst = aggregated(slowness(of, metric), side)
    wide = 2 if side <= _SIDE // 2 else 1
    lines = []
    for position in range(side):
        row = "".join(" " * wide if np.isnan(v) else SHADES[shade(float(v))] * wide for v in worst[position])
        lines.append(f"  {group_name(of.names, position, side)[:_LABEL]:>{_LABEL}} {row}")
    if side < len(of.names):
        lines.append(f"  each character is the worst of {len(of.names) / side:.3g} x {len(of.names) / side:.3g} pairs")
    return lines


def group_name(names: Sequence[str], position: int, side: int) -> str:
    """Return the first node of a row or column of the map; `names` are in its order."""
    return names[position * len(names) // side]


def bisection_sentences(of: Survey) -> list[str]:
    """Return the bisection test in words, a line a direction."""
    cut = of.bisection
    if cut is None:
        return []
    half = len(of.names) // 2
    first, second = f"{of.names[0]}..{of.names[half - 1]}", f"{of.names[half]}..{of.names[2 * half - 1]}"
    lines = [f"bisection, {first} against {second}: {counted(cut.pairs, 'pair')} together, and each alone"]
    for way, together, alone in (
        ("first half to second", cut.there_together, cut.there_alone),
        ("second half to first", cut.back_together, cut.back_alone),
    ):
        lines.append(f"  {way}: {_amount(together)} MB/s of {_amount(alone)} alone ({as_percent(together / alone)})")
    return lines


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def against_text(compared: Sequence[Against], ours: Survey, base: Survey) -> str:
    """Return the comparison of two fabrics, node by node."""
    pairing = f"{len(ours.names)} nodes paired by {paired_by(ours, base)}"
    lines = [f"path {ours.path} against path {base.path}, {pairing}"]
    lines += [f"  {label}" for label in dict.fromkeys((ours.info.host_label, base.info.host_label))]
    for one in compared:
        lines += ["", f"{one.metric.name}: {ratio_sentence(one)}"]
        shown = sorted(one.nodes, key=lambda node: node.ratio, reverse=not one.metric.larger_is_better)
        for node in shown[: 2 * _SHOWN]:
            figures = f"{_amount(node.figure)} against {_amount(node.base_figure)} {one.metric.unit}"
            lines.append(f"  {pair_name(node):<24} {figures}, ratio {rounded(node.ratio)}")
        lines += [f"  and {len(shown) - 2 * _SHOWN} more"] * (len(shown) > 2 * _SHOWN)
    lines += ["", f"Named in {ours.path}: {len(ours.named)}; in {base.path}: {len(base.named)}.", AGAINST_NOTE]
    lines += [*ours.disturbed, *(f"Of the base: {said}" for said in base.disturbed)]
    return _wrapped(lines)


def ratio_sentence(one: Against) -> str:
    """Return one metric's ratio over nodes with its interval and verdict."""
    estimate = one.estimate
    reach = f" [{rounded(estimate.interval.low)}, {rounded(estimate.interval.high)}]" if estimate.interval else ""
    method = str(estimate.method).replace("blocks", "nodes")  # the pairs are nodes here
    return f"ratio {rounded(estimate.ratio)}{reach}, {estimate.finding} ({method})"


def pair_name(node: NodeRatio) -> str:
    """Return what a node is called in both fabrics."""
    return node.name if node.name == node.base_name else f"{node.name} / {node.base_name}"


def method_sentence() -> str:
    """Return how it was decided, for the page."""
    return (
        "Log times of all pairs are split by a robust fit into a part for each node and a residual for each link. What "
        "stands out is measured again, ten times, while all other nodes are busy; a node or link is named when its "
        "re-tests exceed the limit more often than those of healthy pairs would, corrected for all suspects (at most "
        f"{as_percent(ALPHA)} chance of naming anything healthy, unless launches keep pairs in modes of their own: all "
        "re-tests are of one launch), and their median is beyond it. Only bandwidth shows a slow direction; half a "
        "round trip cannot."
    )
