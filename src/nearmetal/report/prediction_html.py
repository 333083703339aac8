"""Kept predictions and placements as HTML pages: the answer, one chart, then the figures and what they rest on."""

from collections.abc import Sequence

from nearmetal.predict.calibration import LEVEL
from nearmetal.report import charts, words
from nearmetal.report.as_html import table_region
from nearmetal.report.axes import PlotArea, Scale, joined, linear, x_axis, y_axis
from nearmetal.report.bars import Bar, Part, stacked
from nearmetal.report.markup import Markup, PageFrame, element, header, listed, page, section
from nearmetal.report.prediction_json import BreakEvenJson, PlacementFile, PredictedJson, PredictionFile
from nearmetal.report.prediction_text import doubted, figures, parameter, placements, ratio_span
from nearmetal.report.tables import Table
from nearmetal.report.words import moment
from nearmetal.units import NS_PER_MS, NS_PER_S, NS_PER_US, as_percent, by_key, format_duration, format_size, ranges

MAX_BARS = 40
"""More than these are left to the table."""
_PARTS = {
    "compute": ("c0", "computing"),
    "communication": ("c1", "sending and receiving"),
    "waiting": ("c7 pale", "waiting"),
    "moderation": ("c4", "moderation"),
}
_EVEN = PlotArea(64.0, 34.0, 440.0, 288.0)


def predicted(of: PredictionFile, frame: PageFrame | None = None) -> str:
    """Return the page of a prediction as text; write it as UTF-8."""
    shown = [row for row in of.rows if row.median_ns > 0][:MAX_BARS]
    picture = element("figure", _run_times(of, shown)) if shown else element("p", "Nothing was predicted.")
    content = [
        element("p", _answer(of), class_="lead"),
        picture,
        *(element("p", line) for line in of.remarks),
        element("h2", "Run times"),
        table_region(figures("Every machine, fastest first", of.rows, whole=True)),
        element("h2", "Assumptions that were not measured"),
        listed(map(": ".join, doubted({row.name: row.doubts for row in of.rows})))
        or element("p", "None that are known."),
        *_depends(of.rows),
    ]
    return _page(f"{of.program} on {of.ranks} ranks", "prediction", of, content, frame)


def _meta(of: PredictionFile | PlacementFile) -> str:
    computed = f"computed {moment(of.created_utc)} by nearmetal {of.nearmetal_version}"
    return f"Paths of {of.model}; {computed}, not measured."


def _answer(of: PredictionFile) -> str:
    """Return the answer in one sentence: the decision that was asked for, else the fastest and the slowest."""
    if of.decision or not of.rows:
        return of.decision or "Nothing was predicted."
    first, last = of.rows[0], of.rows[-1]
    said = f"{_short(of, first)} is the fastest: {format_duration(first.median_ns)}"
    if first.launches_ns:
        said += f" [{' to '.join(map(format_duration, first.launches_ns))}]"
    if first is not last:
        said += f"; {_short(of, last)} the slowest: {words.figure(last.ratio.median)} times {last.ratio.to}"
        said += f" {span}" if (span := ratio_span(last)) else ""
    return f"{said}."


def _short(of: PredictionFile, row: PredictedJson) -> str:
    """Return a row's name without what all rows share."""
    parts = [row.path]
    parts += [row.setting] if len({one.setting for one in of.rows}) > 1 else []
    parts += [row.progress] if len({one.progress for one in of.rows}) > 1 else []
    return ", ".join(parts)


def _unit(longest_ns: float) -> tuple[str, int]:
    """Return the unit in which the longest duration has at least one digit, and its ns."""
    units = (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US))
    return next(((name, ns) for name, ns in units if longest_ns >= ns), ("ns", 1))


def _run_times(of: PredictionFile, rows: Sequence[PredictedJson]) -> Markup:
    """Return the stacked bars: what the median is made of, and where launches are expected."""
    unit, ns = _unit(max(max(row.median_ns, *(row.launches_ns or (0.0,))) for row in rows))
    bars = []
    for row in rows:
        parts = [
            Part(length / ns, _PARTS[name][0], f"{_PARTS[name][1]}: {format_duration(length)}")
            for name, length in row.parts_ns.items()
        ]
        span = (row.launches_ns[0] / ns, row.launches_ns[1] / ns) if row.launches_ns else None
        bars.append(Bar(_short(of, row), tuple(parts), format_duration(row.median_ns), span))
    used = {name for row in rows for name, length in row.parts_ns.items() if length}
    legend = [_PARTS[name] for name in _PARTS if name in used]
    axis = f"median run time, {unit}; lines: where {as_percent(LEVEL)} of launches are expected"
    return stacked(f"Predicted run time of {of.program}, one bar per path", axis, bars, legend)


def _depends(rows: Sequence[PredictedJson]) -> list[Markup]:
    """Return what the time depends on, where that was asked for."""
    known = [(row.name, row.sensitivity) for row in rows if row.sensitivity]
    if not known:
        return []
    names = list(dict.fromkeys(name for _, one in known for name in one))
    head = ("path / setting / progress", *map(parameter, names))
    body = tuple((where, *(f"{one.get(name, 0.0):+z.2f}" for name in names)) for where, one in known)
    note = "An elasticity of +0.30: 10 % more of it is 3 % more run time."
    return [element("h2", "What the time depends on"),
            table_region(Table("Elasticities", head, body, note))]  # fmt: skip


# ---- placements


def placed(of: PlacementFile, frame: PageFrame | None = None) -> str:
    """Return the page of a placement as text; write it as UTF-8."""
    content = [
        element("p", _best(of), class_="lead"),
        *([element("figure", _medians(of))] if of.candidates else []),
        element(
            "div",
            section("All placements, fastest first", table_region(placements(of.candidates))),
            element(
                "section",
                *_break_even_chart(of.break_even),
                element("h2", "Where ranks go"),
                table_region(_hosts(of)),
                element("h3", f"For {of.launcher}"),
                element("pre", of.launcher_file, tabindex=0),
            ),
            class_="pair",
        ),
        listed(of.doubts, element("h2", "Assumptions that were not measured")),
    ]
    title = f"{of.program} on {len(of.host_of)} ranks and {len(of.hosts)} hosts"
    return _page(title, "placement", of, content, frame)


def _best(of: PlacementFile) -> str:
    if not of.candidates:
        return "No placement was found."
    best = of.candidates[0]
    middle, low, high = best.gain
    if best.method == "in-order":
        known = f"{best.method} on {best.name} is the best one known: {format_duration(best.median_ns)}"
        return f"{known}. No other placement gains on host after host."
    start = f"{best.method} on {best.name} is the fastest: {format_duration(best.median_ns)}"
    surely = "" if low > 0 else ", but its replicas do not prove it"
    gain = f"{as_percent(middle, 1)} [{as_percent(low, 1)} to {as_percent(high, 1)}]"
    return f"{start}, {gain} less than host after host{surely}."


def _medians(of: PlacementFile) -> Markup:
    shown = of.candidates[:MAX_BARS]
    unit, ns = _unit(max(one.median_ns for one in shown))
    several = len({one.name for one in of.candidates}) > 1
    methods = list(dict.fromkeys(one.method for one in of.candidates))
    bars = [
        Bar(
            f"{one.name.partition(' / ')[0]}, {one.method}" if several else one.method,
            (Part(one.median_ns / ns, f"c{methods.index(one.method) % 8}", f"{one.name}, {one.method}"),),
            format_duration(one.median_ns),
        )
        for one in shown
    ]
    legend = [(f"c{number % 8}", method) for number, method in enumerate(methods)]
    return stacked(f"Median run time of {of.program} by placement", f"median run time, {unit}", bars, legend)


def _hosts(of: PlacementFile) -> Table:
    ranks = by_key((host, rank) for rank, host in enumerate(of.host_of))
    own = [ranks.get(number, []) for number in range(len(of.hosts))]
    rows = tuple((name, f"{len(on)}", ranges(on, ", ") or "none") for name, on in zip(of.hosts, own, strict=True))
    return Table("The recommended placement", ("host", "ranks", "which"), rows, left=1)


def _break_even_chart(of: BreakEvenJson | None) -> list[Markup]:
    """Return both paths over the share of messages between nodes, as a chart."""
    if of is None or not of.shares:
        return []
    unit, ns = _unit(max(*of.first_ns, *of.second_ns, 1.0))
    x = linear(0.0, 100.0, _EVEN.left, _EVEN.right)
    y = linear(0.0, max(*of.first_ns, *of.second_ns, 1.0) / ns, _EVEN.bottom, _EVEN.top)
    drawn = [x_axis(_EVEN, x, "messages between nodes, %"), y_axis(_EVEN, y, f"median run time, {unit}")]
    for name, values, look in ((of.first, of.first_ns, "c0"), (of.second, of.second_ns, "c1")):
        drawn += _curve(name, tuple(zip(of.shares, values, strict=False)), look, (x, y, ns))
    about = f"Messages of {format_size(of.message_bytes)}, {format_duration(of.compute_ns)} of compute per message."
    return [
        element("h2", f"{of.first} against {of.second}"),
        element("p", f"{words.as_sentence(of.said)} {about}"),
        element("figure", charts.chart(f"{of.first} and {of.second} over the share of messages between nodes", *drawn)),
    ]


def _curve(
    name: str, points: Sequence[tuple[float, float]], look: str, scales: tuple[Scale, Scale, int]
) -> list[Markup]:
    x, y, ns = scales
    at = [(x(100 * share), y(value / ns)) for share, value in points]
    drawn = [element("path", class_=f"series {look} line", d=joined(at))]
    for (one, two), (share, value) in zip(at, points, strict=True):
        tip = element("title", f"{name}, {as_percent(share)} between nodes: {format_duration(value)}")
        drawn.append(element("circle", tip, class_=f"series {look} mark", cx=one, cy=two, r=4.0))
    return [*drawn, element("text", name, class_="name", x=at[-1][0] + 8, y=at[-1][1] + 4)]


def _page(
    title: str, kind: str, of: PredictionFile | PlacementFile, content: Sequence[Markup], frame: PageFrame | None
) -> str:
    labels = [of.figures_from] if of.figures_from else []
    head = header(f"nearmetal {kind}", title, element("p", _meta(of), class_="honest"), labels=labels)
    main = element("main", *content, id="answer")
    return page(f"{kind.capitalize()}: {title}", charts.shapes(), head, main, frame=frame, skip="answer")
