"""The report as Markdown: the tables of the terminal, for a paper's appendix or a merge request."""

from nearmetal.report import steps, tables, words
from nearmetal.report.tables import Table
from nearmetal.results.records import View

_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]#|~"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def render(view: View) -> str:
    """Return the whole report; text that the study supplied cannot become markup."""
    parts = [f"# {_escape(view.title)}", f"Figures from {_escape(view.host_label)}.", words.blocks_sentence(view)]
    if view.unfinished:
        parts.append(f"**{_escape(' '.join(words.unfinished(view.unfinished)))}**")
    parts += [f"**Mixed provenance, compared on request:** {_escape(line)}" for line in view.mixed]
    parts += [table(tables.verdicts(view)), table(steps.open_cells(view)), *map(_escape, steps.gains(view))]
    for group in view.groups:
        parts += map(table, (*tables.of_group(view, group), tables.tests(view, group)))
    parts += [table(tables.settings(view)), table(tables.modes(view)), *(_escape(f"{one}.") for one in view.causes)]
    parts += [table(make(view)) for make in (tables.noise, tables.counters, tables.facts, tables.failures)]
    parts.append(_escape(words.method_sentence(view)))
    parts.append("\n".join(f"- {_escape(key)}: {_escape(str(value))}" for key, value in view.provenance))
    return "\n\n".join(part for part in parts if part) + "\n"


def table(table: Table) -> str:
    """Return one table with its title and note; nothing when it has no rows."""
    if not table.rows:
        return ""
    sides = [":--" if table.of_words(column) else "--:" for column in range(len(table.head))]
    lines = [table.head, tuple(sides), *table.rows]
    escaped = ["| " + " | ".join(map(_entry, line)) + " |" for line in lines]
    note = f"\n\n{_escape(table.note)}" if table.note else ""
    return f"## {_escape(table.title)}\n\n" + "\n".join(escaped) + note


def _entry(text: str) -> str:
    """Return one table entry; an interval on a second line goes into brackets behind its figure."""
    if set(text) <= {":", "-"} and len(text) > 1:
        return text
    first, rest = tables.parted(text)
    return _escape(f"{first} [{rest}]" if rest else first)


def _escape(text: str) -> str:
    return " ".join(text.translate(_SPECIAL).split())
