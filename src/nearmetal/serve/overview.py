"""The list of runs: filters, what each run found at a glance, and a form that chooses which to compare."""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from nearmetal.report import overview, words
from nearmetal.report.as_html import verdict_class
from nearmetal.report.axes import joined
from nearmetal.report.charts import path_class
from nearmetal.report.markup import Markup, PageFrame, element, listed, page, scrolling, together
from nearmetal.results.records import View
from nearmetal.serve.catalogue import Entry, SavedResult
from nearmetal.serve.pages import PLAIN, beside_path, readable, run_path
from nearmetal.stats.equivalence import Verdict

COLUMNS: dict[str, Callable[[Entry], str | int]] = {
    "name": lambda one: one.name,
    "study": lambda one: one.info.study_name if one.info else "",
    "host": lambda one: one.info.host_kind if one.info else "",
    "created": lambda one: one.info.created_utc if one.info else "",
    "trials": lambda one: one.trials,
    "changed": lambda one: one.changed_ns,
}
"""What the list can be sorted by."""
_SPARK = (150.0, 30.0)


@dataclass(frozen=True, slots=True)
class Filter:
    """What the list is narrowed to; empty means everything. `since` and `until` are dates, both of them included."""

    study: str = ""
    host: str = ""
    path: str = ""
    since: str = ""
    until: str = ""

    def holds(self, one: Entry) -> bool:
        """Return whether a run belongs to the list; one that cannot be read does only while nothing is asked for."""
        if one.info is None:
            return self == Filter()
        day = one.info.created_utc[:10]
        return (
            self.study in {"", one.info.study_name}
            and self.host in {"", one.info.host_kind}
            and (not self.path or self.path in one.paths)
            and (not self.since or day >= self.since)
            and (not self.until or day <= self.until)
        )


def sorted_runs(entries: Sequence[Entry], by: str, *, descending: bool) -> list[Entry]:
    """Return the runs by a column, and by name where that is the same."""
    by_name = sorted(entries, key=lambda one: one.name)
    return sorted(by_name, key=COLUMNS[by], reverse=descending)


@dataclass(frozen=True, slots=True)
class RunList:
    """What the list shows: all runs, those that are asked for in their order, and what they found as far as known."""

    root: str
    everything: Sequence[Entry]
    rows: Sequence[Entry]
    glances: Mapping[str, Markup | None]
    wanted: Filter
    by: str
    descending: bool
    beside: Sequence[SavedResult] = ()


def run_list(of: RunList) -> str:
    """Return the page that lists the runs."""
    good = [one for one in of.rows if one.info]
    head = [element("th", text, scope="col") for text in ("base", "run")] if len(good) > 1 else []
    head += [_heading(column, of) for column in COLUMNS]
    head += [element("th", text, scope="col", class_="words") for text in ("found", "cost by cell", "state")]
    table = element(
        "table",
        element("caption", f"{len(of.rows)} of {len(of.everything)} runs. Open one, or choose some to compare"),
        element("thead", element("tr", *head)),
        element("tbody", *(_row(one, good, of.glances) for one in of.rows)),
    )
    choose = [element("p", element("button", "Compare runs with base", type="submit"))] if len(good) > 1 else []
    content = element("form", scrolling(table, "Runs"), *choose, method="get", action="/compare")
    empty = element("p", "There is no run here yet: `nearmetal run` makes one, and this page will show it.")
    body = element(
        "main",
        element("p", "nearmetal serve", class_="eyebrow"),
        element("h1", "Runs"),
        element("p", of.root, class_="meta"),
        *([_filters(of), _over_time(of)] if of.everything else []),
        *_pending(of),
        content if of.everything else empty,
        *_beside(of.beside),
        id="runs",
    )
    return page("Runs", body, frame=PageFrame(may=PLAIN), skip="runs")


def _over_time(of: RunList) -> Markup:
    """Return the way from the runs that are shown to their history."""
    asked = urlencode({name: value for name, value in asdict(of.wanted).items() if value})
    return element("p", element("a", "These runs over time", href=f"/history?{asked}" if asked else "/history"))


def _beside(found: Sequence[SavedResult]) -> list[Markup]:
    """Return the files next to the runs, one list per kind, the newest first."""
    lists = []
    for kind in dict.fromkeys(one.kind for one in found):
        items = (
            together(element("a", one.name, href=beside_path(one)), f", {_utc(one.changed_ns)} UTC")
            for one in found
            if one.kind is kind
        )
        lists.append(element("div", listed(items, element("h3", kind.capitalize()))))
    return [element("h2", "Beside the runs"), element("div", *lists, class_="pair")] if lists else []


def _pending(of: RunList) -> list[Markup]:
    """Return how many runs are still being read, and the way to ask again."""
    unknown = sum(of.glances[one.name] is None for one in of.rows if one.name in of.glances)
    if not unknown:
        return []
    again = element("a", "show what is known so far", href=f"/?{_asked(of)}")
    return [element("p", f"{unknown} runs are being read: ", again, ".", class_="note", role="status")]


def _asked(of: RunList, **changed: str) -> str:
    """Return the query of the list, with changes."""
    filters = {name: value for name, value in asdict(of.wanted).items() if value}
    return urlencode({**filters, "sort": of.by, "order": "desc" if of.descending else "asc"} | changed)


def _filters(of: RunList) -> Markup:
    infos = [one.info for one in of.everything if one.info]
    choices = {
        "study": {info.study_name for info in infos},
        "host": {info.host_kind for info in infos},
        "path": {path for one in of.everything for path in one.paths},
    }
    asked = asdict(of.wanted)
    fields = []
    for name, values in choices.items():
        options = [element("option", "any", value="")]
        options += [element("option", one, value=one, selected=one == asked[name]) for one in sorted(values)]
        fields.append(element("label", f"{name} ", element("select", *options, name=name)))
    fields += [
        element("label", f"{name} ", element("input", type="date", name=name, value=asked[name]))
        for name in ("since", "until")
    ]
    order = {"sort": of.by, "order": "desc" if of.descending else "asc"}
    hidden = [element("input", type="hidden", name=name, value=value) for name, value in order.items()]
    shown = [*fields, *hidden, element("button", "Filter", type="submit"), element("a", "all", href="/")]
    return element("form", *shown, method="get", action="/", class_="filters")


def _heading(column: str, of: RunList) -> Markup:
    chosen = column == of.by
    order = "asc" if chosen and of.descending else "desc" if chosen else "asc"
    state = ("descending" if of.descending else "ascending") if chosen else None
    arrow = (" ▼" if of.descending else " ▲") if chosen else ""
    unit = " (UTC)" if column in {"created", "changed"} else ""
    link = element("a", column + unit + arrow, href=f"/?{_asked(of, sort=column, order=order)}")
    return element("th", link, scope="col", aria_sort=state, class_=None if column == "trials" else "words")


def _row(one: Entry, good: Sequence[Entry], glances: Mapping[str, Markup | None]) -> Markup:
    cells = [_choice(kind, one, good) for kind in ("base", "run")] if len(good) > 1 else []
    link = element("a", one.name, href=run_path(one.name)) if one.info else Markup(element("span", one.name))
    cells.append(element("th", link, scope="row"))
    if one.info is None:
        return element("tr", *cells, element("td", f"cannot be read: {one.problem}", colspan=8, class_="words"))
    unknown = element("td", "being read", colspan=2, class_="words note")
    fabric = element("td", "a whole fabric", colspan=2, class_="words")
    follow = element("a", "running: follow it", href=run_path(one.name, "/live"))
    running = follow if one.running and not one.of_fabric else "running" if one.running else "ended"
    return element(
        "tr",
        *cells,
        element("td", one.info.study_name, class_="words"),
        element("td", one.info.host_kind, class_="words"),
        element("td", readable(one.info.created_utc), class_="words"),
        element("td", str(one.trials)),
        element("td", _utc(one.changed_ns), class_="words"),
        fabric if one.of_fabric else glances.get(one.name) or unknown,
        element("td", running, class_="words"),
    )


def _choice(kind: str, one: Entry, good: Sequence[Entry]) -> Markup:
    if one.info is None:
        return element("td", words.NOTHING)
    checked = one is good[1 if kind == "base" else 0]  # the list begins with the newest
    label = f"{one.name} as {kind}"
    box = "radio" if kind == "base" else "checkbox"
    return element("td", element("input", type=box, name=kind, value=one.name, checked=checked, aria_label=label))


def _utc(ns: int) -> str:
    return readable(dt.datetime.fromtimestamp(ns // 10**9, dt.UTC).isoformat())


# ---- what a run found


def glance(view: View) -> Markup:
    """Return two columns of the list: the verdicts, and the cost of every cell as a line a path."""
    found: list[str] = []
    for verdict in Verdict:
        paths = [words.judged(view, one) for one in view.verdicts if one.verdict is verdict]
        if paths:
            found.append(together(element("span", str(verdict), class_=verdict_class(verdict)), f" {'; '.join(paths)}"))
    if view.unfinished and view.unfinished.short:
        found.append(element("span", f"not finished: {view.unfinished.says}", class_="note"))
    found += [element("span", f"mixed provenance: {one}", class_="note") for one in view.mixed[:1]]
    lines: list[str] = [part for one in found for part in (element("br"), one)][1:]
    return together(element("td", *(lines or [words.NOTHING]), class_="words"), element("td", _spark(view)))


def no_glance(why: str) -> Markup:
    """Return the same two columns where there is nothing to compare."""
    return element("td", why, colspan=2, class_="words note")


def _spark(view: View) -> Markup:
    """Return every path's cost over all cells, on the report's scale, without its axes."""
    width, height = _SPARK
    y = overview.scale_of(view, height, 0.0)
    edge = 1.0 + view.criteria.margin
    step = width / max(1, len(view.cells))
    band = element("rect", class_="margin", x=0, width=width, y=y(edge), height=y(1 / edge) - y(edge))
    drawn = [band]
    for entry in view.shown_paths:
        points = [
            (step * (number + 0.5), y(overview.cost(one.comparison.headline.ratio, cell)))
            for number, cell in enumerate(view.cells)
            if (one := cell.of(entry.label)) and one.comparison
        ]
        if not points:
            continue
        ends = points if len(points) > 1 else [(points[0][0] - 4, points[0][1]), (points[0][0] + 4, points[0][1])]
        tip = element("title", entry.label)
        drawn.append(element("path", tip, class_=f"{path_class(entry)} line", d=joined(ends)))
    text = "; ".join(
        f"{words.judged(view, one)} {words.times(one, view.baseline) or one.reason}" for one in view.verdicts
    )
    return element(
        "svg", element("title", text), *drawn, class_="spark", viewbox=f"0 0 {width:.0f} {height:.0f}", role="img"
    )
