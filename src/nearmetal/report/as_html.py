"""The report as one HTML file: no script, no request, all of it in the file, the verdict first."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nearmetal.report import charts, overview, steps, tables, words
from nearmetal.report.levels import levels
from nearmetal.report.markup import Markup, PageFrame, element, fold, header, listed, page, scrolling, section, together
from nearmetal.report.tables import Table
from nearmetal.results.records import Cell, GroupId, PathVerdict, View
from nearmetal.stats.equivalence import Verdict
from nearmetal.stats.summary import Metric

if TYPE_CHECKING:
    from nearmetal.results.waterfalls import Waterfall

_GLYPHS = {
    Verdict.NEAR_METAL: "≈",
    Verdict.SLOWER: "▼",
    Verdict.FASTER: "▲",
    Verdict.UNDECIDED: "?",
    Verdict.DIFFERS: "≠",
    Verdict.SLOWER_TAIL: "◣",
}
MAX_PANELS = 32
"""How many cells show their distributions; with more, each table shows some of its sizes."""
MAX_TRIAL_ROWS = 1_500
"""Beyond this the trials of each cell are left to the JSON report, so that the file stays small."""
_MOST_IN_LEAD = 8
"""How many paths of one verdict the first sentence names; cards below have them all."""
_DRAWN = (Metric.MEAN, Metric.P99)
_TAIL_NOTE = (
    "Iterations of all trials together, for inspection only: no test uses them. "
    "Dashed: too few iterations for a 95 % interval of a percentile there."
)
_LONGEST_ENTRY = 60
"""Of the text of a figure or fact; an entry of words wraps."""


def render(view: View, traced: Sequence[Waterfall] = (), frame: PageFrame | None = None) -> str:
    """Return the page as text; write it as UTF-8.

    `traced` are the run's waterfalls, where trials were traced; `frame` is for a part of something larger.
    """
    main = element(
        "main",
        verdicts(view),
        *(group_section(view, group, number) for number, group in enumerate(view.groups)),
        section("Settings", table_region(tables.settings(view)), id="settings") if view.settings else together(),
        _waterfalls(view, traced),
        _evidence(view),
        _failures(view),
        _repeat(view),
    )
    made_by = f"nearmetal {view.nearmetal_version}. Figures from {view.host_label}."
    footer = element("footer", element("p", made_by, class_="note"))
    return page(view.title, charts.shapes(), _header(view), main, footer, version=view.nearmetal_version, frame=frame)


def _header(view: View) -> Markup:
    links = [("verdicts", "Verdicts")]
    links += [(f"group-{number}", words.group_title(view, group)) for number, group in enumerate(view.groups)]
    links += [("evidence", "What differs between paths")]
    links += [("failed", f"Failed trials ({len(view.failures)})")] if view.failures else []
    links += [("repeat", "How to repeat it")]
    unfinished = [
        element("p", element("strong", line) if number == 0 else line)
        for number, line in enumerate(words.unfinished(view.unfinished))
    ]
    mixed = [element("strong", "Mixed provenance, compared on request"), *(element("p", line) for line in view.mixed)]
    return header(
        "nearmetal report",
        view.title,
        *(
            [element("div", *unfinished, class_=f"honest{' warn' * view.unfinished.premature}")]
            if view.unfinished
            else []
        ),
        *([element("div", *mixed, class_="honest warn")] if view.mixed else []),
        element("nav", listed(element("a", text, href=f"#{target}") for target, text in links), aria_label="Sections"),
        meta=f"Study {view.name}, {words.when(view)}. {words.blocks_sentence(view)}",
        labels=[view.host_label],
    )


# ---- verdicts


def verdicts(view: View, *, distributions: bool = True) -> Markup:
    """Return the section with the answer: a sentence, a card a path, and every cell on one scale."""

    def href(cell: Cell) -> str | None:
        return f"#{_place(view, cell, distributions=distributions)}"

    return section(
        "Verdicts",
        element("p", _lead(view), class_="lead"),
        listed(steps.gains(view)),
        element(
            "div",
            element("ul", *(_card(view, one) for one in view.verdicts), class_="cards"),
            element("div", overview.sections(view, href)),
            class_="answer",
        ),
        table_region(steps.open_cells(view)),
        element("p", words.noise_sentence(view) + words.launches_sentence(view)),
        element("p", words.method_sentence(view), class_="note"),
        id="verdicts",
    )


def _place(view: View, cell: Cell, *, distributions: bool) -> str:
    """Return the id of the place that shows a cell's distributions, of its group where they are left out."""
    number = view.groups.index(cell.group)
    shown = _spread(view.cells_of(cell.group), _most_panels(view)) if distributions else []
    return f"cell-{number}-{cell.message_bytes}" if cell in shown else f"group-{number}"


def _lead(view: View) -> Markup:
    """Return the answer in one sentence."""
    parts: list[str] = []
    for verdict in Verdict:
        of_verdict = [one for one in view.verdicts if one.verdict is verdict]
        paths = [_with_reach(view, one) for one in words.costliest(of_verdict, _MOST_IN_LEAD)]
        if left_out := len(of_verdict) - len(paths):
            paths.append(f"{left_out} more")
        if paths:
            parts += ["; " if parts else "", element("span", str(verdict), class_=verdict_class(verdict))]
            parts.append(f": {', '.join(paths)}")
    if not parts:
        return together(f"The study has no path to compare with {view.baseline}.")
    margin = words.limit(view.criteria.margin)
    return together(f"Against {view.baseline}, where {margin} still counts as equal, ", *parts, ".")


def _with_reach(view: View, one: PathVerdict) -> str:
    return words.judged(view, one) + (f" ({found})" if (found := words.times(one)) else "")


def slug(verdict: Verdict) -> str:
    """Return a verdict as the name of a class."""
    return verdict.replace(" ", "-")


def verdict_class(verdict: Verdict) -> str:
    """Return the classes of a verdict's word."""
    return f"verdict {slug(verdict)}"


def _card(view: View, one: PathVerdict) -> Markup:
    entry = next(path for path in view.paths if path.label == one.path)
    worst = []
    if one.worst is not None:
        cell, comparison = one.worst
        worst.append(element("p", f"Worst: {words.cell_title(view, cell)}: {words.found(comparison)}", class_="note"))
    return element(
        "li",
        element("h3", charts.swatch(entry), words.judged(view, one)),
        element("p", f"{_GLYPHS[one.verdict]} {one.verdict}", class_=verdict_class(one.verdict)),
        element(
            "p", " ".join(words.as_sentence(text) for text in (words.times(one, view.baseline), one.reason) if text)
        ),
        *worst,
        class_=f"card is-{slug(one.verdict)}",
    )


# ---- one workload and operation


def group_section(view: View, group: GroupId, number: int, *, distributions: bool = True) -> Markup:
    """Return the section on one group, without its distributions where the view has none."""
    cells = view.cells_of(group)

    def href(cell: Cell) -> str | None:
        return f"#{_place(view, cell, distributions=True)}" if distributions else None

    better = "larger" if cells[0].shown.rate else "smaller"
    return section(
        words.group_title(view, group),
        element("p", f"{cells[0].shown.name}, in {cells[0].shown.unit}; {better} is better.", class_="note"),
        element("div", *(_level_figure(view, group, metric, href) for metric in _DRAWN), class_="pair"),
        fold("The figures as tables", *map(table_region, tables.of_group(view, group)), class_="prints"),
        fold("The tests behind the verdicts", table_region(tables.tests(view, group))),
        *([_distributions(view, cells, number)] if distributions else []),
        id=f"group-{number}",
    )


def _level_figure(view: View, group: GroupId, metric: Metric, href: Callable[[Cell], str | None]) -> Markup:
    drawn = levels(view, group, metric, href)
    return _figure(f"{metric.capitalize()} with 95 % intervals over blocks", drawn) if drawn else Markup("")


def _distributions(view: View, cells: Sequence[Cell], number: int) -> Markup:
    """Return a panel per size; each has its own address, and the first is shown until another is chosen."""
    parts: list[Markup] = []
    chosen = _spread(cells, _most_panels(view))
    for cell in chosen:
        name = _place(view, cell, distributions=True)
        parts.append(element("a", words.size(cell), id=name, href=f"#{name}", class_="tab"))
        parts.append(element("div", _panel(view, cell), class_="panel"))
    left_out = len(chosen) < len(cells)
    head = f"distributions-{number}"
    return together(
        element("h3", "Distributions and drift, by message size", id=head),
        element("div", *parts, class_="tabs", role="group", aria_labelledby=head),
        *([element("p", f"{len(chosen)} of {len(cells)} sizes, evenly chosen.", class_="note")] if left_out else []),
    )


def _most_panels(view: View) -> int:
    return max(4, MAX_PANELS // len(view.groups))


def _spread(cells: Sequence[Cell], most: int) -> list[Cell]:
    """Return at most so many cells, the first and the last among them, the others evenly between."""
    if len(cells) <= most:
        return list(cells)
    return [cells[round(number * (len(cells) - 1) / (most - 1))] for number in range(most)]


def _panel(view: View, cell: Cell) -> Markup:
    rows = sum(len(one.trials) for each in view.cells for one in each.paths)
    trials = tables.trials(view, cell) if rows <= MAX_TRIAL_ROWS else None
    every = fold("Each trial", table_region(trials)) if trials else together()
    return together(
        element(
            "div",
            _figure("Cumulative distribution", charts.ecdf_chart(view, cell)),
            _figure("Percentiles, out to the maximum", charts.tail_chart(view, cell), _TAIL_NOTE),
            _figure("Drift over blocks", charts.drift_chart(view, cell)),
            element("div", table_region(tables.within_trials(view, cell)), every),
            class_="pair",
        )
    )


def _figure(title: str, chart: Markup, note: str = "") -> Markup:
    below = element("p", note, class_="note") if note else together()
    return element("figure", element("figcaption", title), chart, below)


def _waterfalls(view: View, traced: Sequence[Waterfall]) -> Markup:
    if not traced:
        return together()
    from nearmetal.report import waterfall_html  # noqa: PLC0415 (few runs have any)

    return waterfall_html.section(traced, view.baseline, table_region)


# ---- tables


def table_region(table: Table) -> Markup:
    """Return a table, in a region that scrolls by keyboard where it is too wide; nothing when it has no rows."""
    if not table.rows:
        return together()
    head = element("tr", *(_heading(table, i, text) for i, text in enumerate(table.head)))
    body = [element("tr", *(_entry(table, i, text) for i, text in enumerate(row))) for row in table.rows]
    drawn = element("table", element("caption", table.title), element("thead", head), element("tbody", *body))
    notes = (element("p", line, class_="note") for line in table.note.splitlines())
    return together(scrolling(drawn, table.title), *notes)


def _heading(table: Table, column: int, text: str) -> Markup:
    if not text:  # screen readers announce an empty heading
        return element("td", class_=_words(table, column))
    return element("th", text, scope="col", class_=_words(table, column))


def _words(table: Table, column: int) -> str | None:
    return "words" if table.of_words(column) else None


def _entry(table: Table, column: int, text: str) -> Markup:
    figure, _, interval = text.partition("\n")
    small = [element("small", interval)] if interval else []
    if column == 0:
        return element("th", figure, *small, scope="row")
    if text in set(Verdict):
        verdict = Verdict(text)
        return element(
            "td", element("span", f"{_GLYPHS[verdict]} {text}", class_=verdict_class(verdict)), class_="words"
        )
    if len(text) > _LONGEST_ENTRY and not _words(table, column):
        return element("td", f"{text[:_LONGEST_ENTRY]}...", title=text)
    return element("td", figure, *small, class_=_words(table, column))


# ---- the rest


def _evidence(view: View) -> Markup:
    same = "All recorded facts are the same on every path."
    return section(
        "What differs between paths",
        table_region(tables.facts(view)) or element("p", same),
        table_region(tables.modes(view)),
        *(element("p", f"{cause}.", class_="note") for cause in view.causes),
        element(
            "div",
            element("div", table_region(tables.noise(view))),
            element("div", table_region(tables.counters(view))),
            class_="pair",
        ),
        id="evidence",
    )


def _failures(view: View) -> Markup:
    if not view.failures:
        return together()
    hints = dict.fromkeys(one.hint for one in view.failures if one.hint)
    return section(
        "Failed trials",
        element("p", "Failed trials stay on record and are left out of every comparison.", class_="note"),
        table_region(tables.failures(view)),
        *(element("p", f"Next step: {hint}.") for hint in hints),
        id="failed",
    )


def _repeat(view: View) -> Markup:
    facts = [together(element("dt", key), element("dd", str(value))) for key, value in view.provenance]
    lines = [f"{name}:\n  {shlex.join(argv)}" for name, argv in view.repeat.launches]
    how = [
        element("p", "Save the study below as study.toml; the same seed gives the same order of trials."),
        element("pre", element("code", "nearmetal plan study.toml\nnearmetal run study.toml"), tabindex=0),
    ]
    if view.host_kind == "import":
        how = [element("p", "These figures were read from files; nearmetal cannot measure them again.")]
    return section(
        "How to repeat it",
        *how,
        element("h3", "Measured with"),
        element(
            "dl",
            *facts,
            element("dt", "study sha256"),
            element("dd", view.repeat.study_sha256),
            element("dt", "seed"),
            element("dd", str(view.repeat.seed)),
            element("dt", "nearmetal"),
            element("dd", view.nearmetal_version),
        ),
        fold("The study", element("pre", view.repeat.study_text, tabindex=0)),
        *([fold("Its hosts file", element("pre", hosts, tabindex=0))] if (hosts := view.repeat.hosts_text) else []),
        fold("Launch lines", element("pre", "\n".join(lines), tabindex=0)),
        id="repeat",
    )
