"""A prediction for people: the table of paths with intervals and ratios, and what it is worth."""

from collections.abc import Iterable, Mapping, Sequence
from math import floor, isnan
from statistics import median
from typing import TypeVar

from nearmetal.predict.calibration import LEAST_CASES, LEVEL
from nearmetal.predict.decide import SURE, AnswerRow
from nearmetal.predict.doubt import Doubt
from nearmetal.predict.model_file import ModelFile
from nearmetal.predict.models import NamedMachine
from nearmetal.predict.validate import PARTS, Validated, orders
from nearmetal.report import words
from nearmetal.report.prediction_json import DoubtJson, PlacedJson, PredictedJson
from nearmetal.report.tables import Table
from nearmetal.units import as_percent, by_key, counted, format_duration

_T = TypeVar("_T")

ENOUGH_LAUNCHES = 20
_MEASURED_PART = {
    "computing": "traces of the measured launches themselves",
    "messages": "paths fitted from the run of the launches",
}
_QUANTILES = "Quantiles are those of replayed launches; the interval also has the errors of validated cases."
_WHERE = {"intra": "within nodes", "inter": "between nodes"}
_MATTERS = 0.01
_SIGNS = {"compute": "#", "communication": "+", "waiting": ".", "moderation": "~"}
_BAR = 50


def short_names(keys: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return what distinguishes machines, after a heading: their path, and setting and progress where those differ."""
    shown = [at for at in range(3) if at == 0 or len({key[at] for key in keys}) > 1]
    return [" / ".join(key[at] for at in shown) for key in (("path", "setting", "progress"), *keys)]


def figures(title: str, rows: Sequence[PredictedJson], *, whole: bool) -> Table:
    """Return one line a machine; the whole adds high quantiles and what the intervals rest on."""
    head, *names = short_names([row.key for row in rows])
    columns = {head: names, "median": [format_duration(row.median_ns) for row in rows]}
    for at, name in enumerate(("95th percentile", "99th percentile"), 1) if whole else ():
        columns[name] = [format_duration(row.quantiles[at].ns) if at < len(row.quantiles) else "-" for row in rows]
    columns[f"{as_percent(LEVEL)} of launches"] = [span(row.launches_ns) or "not known" for row in rows]
    bare = rows[0].ratio.to if rows else ""
    short = dict(zip((row.name for row in rows), names, strict=True)).get(bare, bare)
    columns[f"to {bare if whole else short}"] = [_ratio(row) for row in rows]
    if any(row.p99_iteration for row in rows):
        columns["p99 of iterations"] = [_p99(row) for row in rows]
    asked = next((row.loss.at_most for row in rows if row.loss), None)
    if asked is not None:
        sure = [_chance(row.loss.probability) if row.loss else "-" for row in rows]
        columns[f"within {words.limit(asked)}"] = sure
    if whole:
        columns["validated cases"] = [f"{row.validated['cases']} ({row.validated['class']})" for row in rows]
    return Table(title, tuple(columns), tuple(zip(*columns.values(), strict=True)), _QUANTILES if whole else "")


def _ratio(row: PredictedJson) -> str:
    return "\n".join(filter(None, (words.figure(row.ratio.median), ratio_span(row))))


def ratio_span(row: PredictedJson) -> str:
    """Return the interval of a ratio to the native path, '' for none."""
    ends = row.ratio.interval
    return f"[{words.span(*ends)}]".replace("..", " to ") if ends else ""


def _p99(row: PredictedJson) -> str:
    found = row.p99_iteration
    return span(found.interval_ns) or format_duration(found.ns) if found else "-"


def placements(rows: Sequence[PlacedJson]) -> Table:
    """Return one line a placement and machine."""
    parts = ((*row.name.split(" / ", 2), "", "") for row in rows)  # --as and files of others may name anything
    head, *names = short_names([(path, setting, progress) for path, setting, progress, *_ in parts])
    body = (
        (
            name,
            row.method,
            format_duration(row.median_ns),
            gained(row.gain).replace(" [", "\n[", 1),
            as_percent(row.inter_share),
        )
        for name, row in zip(names, rows, strict=True)
    )
    return Table(
        "Placements, fastest first",
        (head, "placement", "median", "gain on in-order", "messages between nodes"),
        tuple(body),
        "Gain: middle and 95 % of replicas, against host after host.",
        left=2,
        ends_in_figures=True,
    )


def gained(gain: tuple[float, float, float]) -> str:
    """Return by how much a placement is faster than host after host: the middle, and the ends of its interval."""
    middle, low, high = gain
    return f"{as_percent(middle, 1, '+')} [{as_percent(low, 1, '+')}, {as_percent(high, 1, '+')}]"


_PARAMETERS = {
    "compute": "computing",
    "port": "time per byte at the ports",
    "latency": "latency",
    "overhead": "processor time per message",
    "gap": "gap between messages",
    "bandwidth": "time per byte",
    "residual": "spread of message times",
}


def parameter(name: str) -> str:
    """Return what a parameter of `predict.simulate.sensitivity` is, in the words of reports."""
    where, _, part = name.rpartition(".")
    return f"{_PARAMETERS[part]} {_WHERE[where]}" if where else _PARAMETERS[part]


def dependence(elasticities: Mapping[str, float]) -> str:
    """Return how much the run time changes with each parameter that matters, the most important first."""
    known = [f"{parameter(name)} {10 * one:+.1f} %" for name, one in elasticities.items() if abs(one) >= _MATTERS]
    return f"10 % more of each changes the run time by: {', '.join(known) or 'nothing, whatever was varied'}"


def span(low_high: tuple[float, float] | None) -> str:
    """Return two durations, with a unit that they share once; '' for None."""
    if low_high is None:
        return ""
    low, high = map(format_duration, low_high)
    same = low.rpartition(" ")[2] == high.rpartition(" ")[2]
    return f"{low.rpartition(' ')[0] if same else low} to {high}"


def picture(rows: Sequence[AnswerRow]) -> list[str]:
    """Return a stacked bar for each machine, on one scale: where the time of a rank goes."""
    longest = max(1.0, *(row.median_ns for row in rows))
    _, *names = short_names([row.named.key for row in rows])
    width = min(27, max(map(len, names)))
    legend = "# computing, + sending and receiving, . waiting"
    legend += ", ~ moderation" if any(row.parts_ns["moderation"] for row in rows) else ""
    lines = [f"Where time goes: {legend}"]
    for name, row in zip(names, rows, strict=True):
        bar, reached = "", 0.0
        for part, ns in row.parts_ns.items():
            reached += ns
            bar += _SIGNS[part] * (round(_BAR * reached / longest) - len(bar))
        lines.append(f"{name[:width]:{width}} {bar}")
    return lines


def measured_on(model: ModelFile) -> list[str]:
    """Return a sentence on what the paths were measured on; none where the model does not say."""
    return [f"Paths measured on {model.figures_from}."] if model.figures_from else []


def remarks(rows: Sequence[AnswerRow]) -> list[str]:
    """Return what the intervals are made of, and the largest doubt."""
    as_measured = _as_measured(rows)
    sentences = [*_between_nodes(rows), *as_measured]
    if not sentences:
        sentences.append("No messages are replayed: the program is taken to run as long on every path.")
    for errors, whose in _paths_of((row.errors, row) for row in rows):
        span = errors.span()
        if span is None:
            cases = counted(len(errors.logs), "validated case")
            sentences.append(f"Only {cases} ({errors.of}): an interval needs {LEAST_CASES}; those that ship make one.")
            continue
        sentences.append(
            f"Intervals{whose}: replayed launches, times the errors of {len(errors.logs)} validated cases "
            f"({errors.of}): {as_percent(LEVEL)} took {span[0]:.2f} to {span[1]:.2f} times as long as predicted."
        )
    ratios = (
        (f"({row.ratio_errors.of}) were {span[0]:.2f} to {span[1]:.2f} times", row)
        for row in rows
        if row.ratio_span and (span := row.ratio_errors.span())
    )
    sentences += [
        f"Ratios{whose}: {as_percent(LEVEL)} of validated pairs of paths {were} the predicted ratio; intervals "
        "add how launches of the run differ."
        for were, whose in _paths_of(ratios)
    ]
    for errors in dict.fromkeys(row.p99_errors for row in rows if row.p99_ns):
        span = errors.span()
        if span is None:
            sentences.append(
                f"p99 of iterations: too few were validated for an interval, {len(errors.logs)} ({errors.of})."
            )
        else:
            sentences.append(
                f"p99 of iterations: {as_percent(LEVEL)} of {len(errors.logs)} that were validated ({errors.of}) took "
                f"{span[0]:.2f} to {span[1]:.2f} times as long as predicted."
            )
    if doubts := [doubt for row in rows for doubt in row.doubts]:
        largest = max(doubts, key=lambda doubt: doubt.share)
        ((said, _),) = doubted({row.named.name: [one for one in row.doubts if one == largest] for row in rows})
        sentences.append(f"Largest doubt, not in the intervals: {said}.")
    return sentences


def doubted(doubts: Mapping[str, Sequence[Doubt | DoubtJson]]) -> list[tuple[str, str]]:
    """Return what is doubtful and its remedy, each once, with the machines that it concerns where not all share it."""
    found = by_key(((one.said, one.hint), where) for where, several in doubts.items() for one in several)
    return [
        (said if len(set(where)) == len(doubts) else f"{', '.join(dict.fromkeys(where))}: {said}", hint)
        for (said, hint), where in found.items()
    ]


def _paths_of(of_rows: Iterable[tuple[_T, AnswerRow]]) -> list[tuple[_T, str]]:
    """Return each thing that is said of rows once, and of which paths where not all rows share it: ` of tap, veth`."""
    found = by_key((thing, row.named.path) for thing, row in of_rows)
    return [
        (thing, f" of {', '.join(dict.fromkeys(paths))}" if len(found) > 1 else "") for thing, paths in found.items()
    ]


def _as_measured(rows: Sequence[AnswerRow]) -> list[str]:
    """Return how many collectives were not replayed as messages, of each path where they differ."""
    found = dict.fromkeys((row.found.collectives_as_measured, row.named.path) for row in rows)
    counts = {count for count, _ in found}
    most = max(counts)
    if not most:
        return []
    takes = "1 collective takes" if most == 1 else f"{most} collectives take"
    if len(counts) > 1:
        takes = f"{', '.join(f'{count} ({path})' for count, path in found)} collectives take"
    rest = "" if len(counts) == 1 else "; where fewer do, the others are replayed as messages"
    return [f"{takes} the time measured among ranks placed like these{rest}."]


def _between_nodes(rows: Sequence[AnswerRow]) -> list[str]:
    """Return the share of messages between nodes, of each path where they differ: as bare metal from its guests."""
    shares = dict.fromkeys((as_percent(row.found.inter_share), row.named.path) for row in rows if row.found.messages)
    if len({share for share, _ in shares}) > 1:
        return [f"{', '.join(f'{share} ({path})' for share, path in shares)} of messages are between nodes."]
    return [f"{share} of messages are between nodes." for share, _ in shares][:1]


def validation(cases: Sequence[Validated]) -> tuple[Table, list[str]]:
    """Return measured and predicted, one line per case, and their summary."""
    parts = [part for part in PARTS if any(part in case.parts_ns for case in cases)]
    head, *names = short_names([case.launches.key for case in cases])
    rows = (
        (
            name,
            str(case.launches.ns.size),
            format_duration(case.measured_ns),
            format_duration(case.predicted_ns),
            as_percent(case.error, 1, "+"),
            *(
                as_percent(case.parts_ns[part] / case.measured_ns - 1, 1, "+") if part in case.parts_ns else ""
                for part in parts
            ),
            _share(case.oracle),
            _share(case.inside, 0),
        )
        for name, case in zip(names, cases, strict=True)
    )
    columns = (head, "n", "measured", "predicted", "error", *parts, "oracle", "inside")
    found = Table("Predicted against measured (medians)", columns, tuple(rows))
    apart, wrong = orders(cases)
    errors = [abs(case.error) for case in cases]
    known = [case.oracle for case in cases if not isnan(case.oracle)]
    launches = min(case.launches.ns.size for case in cases)
    oracle = _share(median(known)) if known else "not known, for fewer than 4 launches"
    sentences = [
        "n: measured launches.",
        f"Median absolute error {as_percent(median(errors), 1)}, worst {as_percent(max(errors), 1)}, "
        f"of {counted(len(cases), 'case')}.",
        f"Median error of an oracle that saw half of the launches: {oracle}.",
        *(f"{part}: the error with {_MEASURED_PART[part]}." for part in parts),
        f"Order of paths: {wrong} of {counted(apart, 'pair')} with a measurable difference wrong.",
        f"Inside: the share of launches in the {as_percent(LEVEL)} interval that was predicted.",
    ]
    if launches < ENOUGH_LAUNCHES:
        had = "1 launch" if launches == 1 else f"{launches} launches"
        sentences.append(f"A case has {had}; below {ENOUGH_LAUNCHES} oracle and order are mostly noise.")
    return found, sentences


def _chance(probability: float) -> str:
    """Return a probability in whole percent, rounded down: 89.7 % does not decide, and is not shown as 90 %."""
    return as_percent(floor(100 * probability + 1e-9) / 100)


def _share(value: float, digits: int = 1) -> str:
    return "-" if isnan(value) else as_percent(value, digits)


def decision(chosen: AnswerRow, bare: NamedMachine, loss: float, by_kind: AnswerRow | None) -> str:
    """Return the sentence that answers `--decide`; `by_kind` is what is chosen without an order, if it is known."""
    asked = f"within {words.limit(loss)} of {bare.name}"
    said = f"{chosen.named.name} is the cheapest that stays {asked}, with {_chance(chosen.chance)} probability."
    if chosen.named == bare:
        said = f"Nothing cheaper than {bare.name} itself stays {asked} with {as_percent(SURE)} probability."
    if by_kind is None or by_kind.named == chosen.named:
        return said
    return f"{said} So it is in the order of --path, cheapest first; by their kinds {by_kind.named.name} is cheaper."
