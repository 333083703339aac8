"""A prediction for people: the table of paths with intervals and ratios, and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from statistics import median

from rich.table import Table

from nearmetal.predict.calibration import LEVEL
from nearmetal.predict.decide import SURE, AnswerRow, cheapest
from nearmetal.predict.models import NamedMachine
from nearmetal.predict.validate import PARTS, Validated, orders
from nearmetal.units import format_duration

ENOUGH_LAUNCHES = 20
_MEASURED_PART = {
    "computing": "traces of the measured launches themselves",
    "messages": "paths fitted from the run of the launches",
}


def label(named: NamedMachine) -> str:
    """Return how a machine is called in tables."""
    return f"{named.path} / {named.setting} / {named.progress}"


def table(title: str, rows: Sequence[AnswerRow], bare: NamedMachine, loss: float | None) -> Table:
    """Return one line a machine; with a loss also the probability of staying within it."""
    found = Table(title=title, title_justify="left")
    several = len({row.named.progress for row in rows}) > 1
    marked = all(row.p99_ns for row in rows)
    columns = [
        "path / setting / progress" if several else "path / setting",
        "median",
        f"{LEVEL:.0%} of launches",
        f"to {bare.path}",
        "p99 of iterations" if marked else "p95",
    ]
    for column in [*columns, *([f"within {loss:.0%}"] if loss is not None else [])]:
        found.add_column(column)
    for row in rows:
        low_high = row.interval_ns
        cells = [
            label(row.named) if several else f"{row.named.path} / {row.named.setting}",
            format_duration(row.median_ns),
            " to ".join(map(format_duration, low_high)) if low_high else "not known",
            f"{row.ratio:.2f}",
            _p99(row) or format_duration(row.found.quantile(0.95).value_ns),
        ]
        found.add_row(*cells, *([f"{row.chance:.0%}"] if loss is not None else []))
    return found


def _p99(row: AnswerRow) -> str:
    """Return where the 99th percentile of iterations is expected; '' for programs that do not mark them."""
    if row.p99_ns is None:
        return ""
    middle, span = row.p99_ns
    return " to ".join(map(format_duration, span)) if span else format_duration(middle)


_SIGNS = {"compute": "#", "communication": "+", "waiting": ".", "moderation": "~"}
_BAR = 50


def picture(rows: Sequence[AnswerRow]) -> list[str]:
    """Return a stacked bar for each machine, on one scale: where the time of a rank goes."""
    longest = max(1.0, *(row.median_ns for row in rows))
    several = len({row.named.progress for row in rows}) > 1
    names = [label(row.named) if several else f"{row.named.path} / {row.named.setting}" for row in rows]
    width = min(27, max(map(len, names)))
    told = "# computing, + sending and receiving, . waiting"
    told += ", ~ moderation" if any(row.parts_ns["moderation"] for row in rows) else ""
    lines = [f"Where time goes: {told}"]
    for name, row in zip(names, rows, strict=True):
        bar, reached = "", 0.0
        for part, ns in row.parts_ns.items():
            reached += ns
            bar += _SIGNS[part] * (round(_BAR * reached / longest) - len(bar))
        lines.append(f"{name[:width]:{width}} {bar}")
    return lines


def remarks(rows: Sequence[AnswerRow]) -> list[str]:
    """Return what the intervals are made of, and the largest doubt."""
    share = rows[0].found.inter_share
    said = [f"{share:.0%} of messages are between nodes."]
    as_measured = max(row.found.collectives_as_measured for row in rows)
    if as_measured:
        said.append(f"{as_measured} collectives take the time measured among ranks placed like these.")
    for errors in dict.fromkeys(row.errors for row in rows):
        span = errors.span()
        if span is None:
            said.append(f"Only {len(errors.logs)} validated cases ({errors.of}): not enough for an interval.")
            continue
        said.append(
            f"Intervals: replayed launches, times the errors of {len(errors.logs)} validated cases ({errors.of}): "
            f"{LEVEL:.0%} took {span[0]:.2f} to {span[1]:.2f} times as long as predicted."
        )
    for errors in dict.fromkeys(row.p99_errors for row in rows if row.p99_ns):
        span = errors.span()
        if span:
            said.append(
                f"p99 of iterations: {LEVEL:.0%} of {len(errors.logs)} validated cases ({errors.of}) took "
                f"{span[0]:.2f} to {span[1]:.2f} times as long as predicted."
            )
    doubts = sorted((doubt for row in rows for doubt in row.doubts), key=lambda doubt: -doubt.share)
    said += [f"Largest doubt, not in the intervals: {doubts[0].said}."] if doubts else []
    return said


def validation(cases: Sequence[Validated]) -> tuple[Table, list[str]]:
    """Return measured beside predicted, one line a case, and what they come to."""
    found = Table(title="Predicted against measured (medians)", title_justify="left")
    parts = [part for part in PARTS if any(part in case.parts_ns for case in cases)]
    columns = ("path / setting", "launches", "measured", "predicted", "error", *parts, "oracle", "inside")
    for column in columns:
        found.add_column(column)
    for case in cases:
        found.add_row(
            f"{case.launches.path} / {case.launches.setting}",
            str(case.launches.ns.size),
            format_duration(case.measured_ns),
            format_duration(case.predicted_ns),
            f"{case.error:+.1%}",
            *(f"{case.parts_ns[part] / case.measured_ns - 1:+.1%}" if part in case.parts_ns else "" for part in parts),
            _share(case.oracle),
            _share(case.inside, 0),
        )
    apart, wrong = orders(cases)
    errors = [abs(case.error) for case in cases]
    known = [case.oracle for case in cases if not isnan(case.oracle)]
    launches = min(case.launches.ns.size for case in cases)
    oracle = _share(median(known)) if known else "not known, for fewer than 4 launches"
    said = [
        f"Median absolute error {median(errors):.1%}, worst {max(errors):.1%}, of {len(cases)} cases.",
        f"Median error of an oracle that saw half of the launches: {oracle}.",
        *(f"{part}: the error with {_MEASURED_PART[part]}." for part in parts),
        f"Order of paths: {wrong} wrong of {apart} pairs that measurement tells apart.",
        f"Inside: the share of launches in the {LEVEL:.0%} interval that was predicted.",
    ]
    if launches < ENOUGH_LAUNCHES:
        said.append(f"A case has {launches} launches; below {ENOUGH_LAUNCHES} oracle and order are mostly noise.")
    return found, said


def _share(value: float, digits: int = 1) -> str:
    return "-" if isnan(value) else f"{value:.{digits}%}"


def decision(
    rows: Sequence[AnswerRow], bare: NamedMachine, loss: float, order: Sequence[str], settings: Sequence[str] = ()
) -> str:
    """Return the sentence that answers `--decide`."""
    chosen = cheapest(rows, order, settings)
    asked = f"within {loss:.0%} of {label(bare)}"
    if chosen is None:
        likely = max(rows, key=lambda row: row.chance)
        return (
            f"No path stays {asked} with {SURE:.0%} probability; the most likely is {label(likely.named)} with "
            f"{likely.chance:.0%}."
        )
    if chosen.named == bare:
        return f"Nothing cheaper than {label(bare)} itself stays {asked} with {SURE:.0%} probability."
    return f"{label(chosen.named)} is the cheapest that stays {asked}, with {chosen.chance:.0%} probability."
