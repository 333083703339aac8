"""The report's tables as LaTeX for papers: floats with booktabs rules, sizes down and paths across."""

from nearmetal.errors import visible
from nearmetal.report import tables
from nearmetal.report.tables import Table
from nearmetal.results.records import View

_SPECIAL = str.maketrans(
    {c: f"\\{c}" for c in "#$%&_{}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$"}
)
_PREAMBLE = "% \\usepackage{booktabs}\n"


def render(view: View) -> str:
    """Return verdicts, figures and ratios as tables, each with what its figures are in its caption."""
    found = [tables.verdicts(view)]
    for group in view.groups:
        found += tables.of_group(view, group)
    drawn = [table(one, f"Figures from {view.host_label}") for one in (*found, tables.settings(view))]
    return _PREAMBLE + "\n\n".join(filter(None, drawn)) + "\n"


def table(one: Table, source: str = "") -> str:
    """Return one table with its title, note and source as its caption; nothing when it has no rows."""
    if not one.rows:
        return ""
    columns = "".join("l" if one.of_words(column) else "r" for column in range(len(one.head)))
    caption = " ".join(f"{text.rstrip('.')}." for text in (one.title, one.note, source) if text)
    return "\n".join(
        (
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{escape(caption)}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            _row(one.head),
            "\\midrule",
            *map(_row, one.rows),
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
        )
    )


def escape(text: str) -> str:
    """Return text in which nothing commands TeX or a terminal."""
    return visible(text).translate(_SPECIAL)


def _row(entries: tuple[str, ...]) -> str:
    """Return a row; an interval on a second line goes into its own braces, smaller, after its figure."""
    cells = []
    for entry in entries:
        first, rest = map(escape, tables.parted(entry))
        cells.append(f"{first} {{\\footnotesize [{rest.replace('..', ', ')}]}}" if rest else first)
    return " & ".join(cells) + " \\\\"
