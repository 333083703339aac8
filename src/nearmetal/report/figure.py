"""One chart of a run as a file for a paper: SVG or pgfplots in a column's width, and its data as CSV."""

import re
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from importlib import resources
from shlex import join

from nearmetal.errors import BadInputError, UnavailableError, listed
from nearmetal.packages import PACKAGES
from nearmetal.report import charts, overview, words
from nearmetal.report.as_csv import table
from nearmetal.report.as_latex import escape
from nearmetal.report.levels import levels
from nearmetal.report.markup import Markup, element
from nearmetal.results.records import Cell, GroupId, PathCell, View
from nearmetal.results.series import CellId
from nearmetal.stats.summary import HEADLINE, Metric

COST = "cost"
KINDS = (COST, *(str(metric) for metric in Metric))
"""What can be drawn: costs against the baseline, or a figure of the launches."""
COLUMN_IN, PAGE_IN = 3.5, 7.0
"""A column and a page of a two-column paper (IEEE, ACM), in inches."""
_WIDER_LABELS = 24
"""Room at the left for labels in a font wider than the page's."""
_PNG_DPI, _CSS_DPI = 300, 96


@dataclass(frozen=True, slots=True)
class DataPoint(CellId):
    """One mark: a path at a size, with its 95 % interval where there is one; `unit` is `x` for costs.

    `figures_from` says what kind of machine measured it.
    """

    figure: str
    unit: str
    value: float
    low: float | None
    high: float | None
    figures_from: str


@dataclass(frozen=True, slots=True)
class ChartKind:
    """A kind of chart of one group of a run."""

    view: View
    group: GroupId
    kind: str

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Return the cells by size."""
        return self.view.cells_of(self.group)


def choose(view: View, kind: str, wanted: GroupId) -> ChartKind:
    """Return the figure that is meant, of which names may be empty; raise BadInputError where none or several fit."""
    named = {key: name for key, name in asdict(wanted).items() if name}
    fitting = [group for group in view.groups if named.items() <= asdict(group).items()]
    if len(fitting) == 1:
        return ChartKind(view, fitting[0], kind)
    meant = ", ".join(f"{key} {name!r}" for key, name in named.items())
    found = f"{len(fitting)} charts fit" if fitting else f"nothing was measured of {meant}"
    unknown = [key for key, name in named.items() if name not in _names(view.groups, key)]
    wrong = unknown[0] if unknown else ""
    options = _distinguishing_options(fitting or view.groups, wrong)
    raise BadInputError(found, hint=f"choose one of: {'; '.join(listed(options))}")


def _names(groups: Sequence[GroupId], key: str) -> set[str]:
    return {getattr(one, key) for one in groups}


def _distinguishing_options(groups: Sequence[GroupId], wrong: str) -> list[str]:
    """Return the options that name each group, as few as distinguish them; those of a `wrong` name alone."""
    keys = [key for key in ("workload", "setting", "operation") if len(_names(groups, key)) > 1]
    if len({tuple(getattr(one, key) for key in keys[:-1]) for one in groups}) == len(groups):
        keys = keys[:-1]
    keys = [wrong] if wrong else keys or ["workload"]
    return list(dict.fromkeys(join(word for key in keys for word in (f"--{key}", getattr(one, key))) for one in groups))


def data(of: ChartKind) -> list[DataPoint]:
    """Return every mark of the figure; raise BadInputError where it has none."""
    found = [
        datum
        for cell in of.cells
        for entry in of.view.shown_paths
        if (one := cell.of(entry.label)) and (datum := _data_point(of, cell, one))
    ]
    if not found:
        lone = of.kind == "cost" and len(of.view.shown_paths) == 1
        hint = "`nearmetal plot RUN mean -o FILE` draws what it has" if lone else ""
        raise BadInputError(f"the run has no {of.kind} of {of.group.workload}: {_why_nothing(of)}", hint=hint)
    return found


def left_out(of: ChartKind, rows: Sequence[DataPoint]) -> list[str]:
    """Return a sentence on the paths of which nothing is drawn, none where there is no such path."""
    drawn = {row.path for row in rows}
    wanted = [one.label for one in of.view.shown_paths if not (one.baseline and of.kind == COST)]
    missing = [label for label in wanted if label not in drawn]
    return [f"not drawn, for it has no {of.kind} here: {', '.join(missing)}"] if missing else []


def _why_nothing(of: ChartKind) -> str:
    """Return why no path has the figure, as its report says it."""
    paths = [one for cell in of.cells for one in cell.paths]
    if of.kind != COST:
        reasons = [one.levels[Metric(of.kind)].refused or "a launch is one sample" for one in paths]
    else:
        reasons = [one.uncompared for one in paths if one.uncompared]
    return "; ".join(dict.fromkeys(reasons)) or f"no path but {of.view.baseline} has a valid trial"


def _data_point(of: ChartKind, cell: Cell, one: PathCell) -> DataPoint | None:
    where = (of.group.workload, of.group.operation, of.group.setting, cell.message_bytes, one.path)
    if of.kind != COST:
        metric, shown = Metric(of.kind), cell.shown
        level = one.levels[metric]
        if level.value is None:
            return None
        low, high = (level.interval.low, level.interval.high) if level.interval else (None, None)
        what = f"{words.metric(metric, shown)}, {shown.name}"
        return DataPoint(*where, what, shown.unit, level.value, low, high, of.view.host_label)
    estimate = one.comparison.estimates.get(HEADLINE) if one.comparison else None
    if estimate is None:
        return None
    low, *_, high = sorted(overview.ends(cell, estimate)) if estimate.interval else (None, None)
    what, cost = f"cost against {of.view.baseline}", overview.cost(estimate.ratio, cell)
    return DataPoint(*where, what, "x", cost, low, high, of.view.host_label)


def as_csv(rows: Sequence[DataPoint]) -> str:
    """Return the data, a line a mark."""
    return table([field.name for field in fields(DataPoint)], map(astuple, rows))


# ---- SVG


def as_svg(of: ChartKind, width_in: float) -> str:
    """Return the chart as an SVG of so many inches, with its style in it: plain colours, for any program."""
    title = words.group_title(of.view, of.group)
    drawn = (
        overview.picture(of.view, title, of.cells, None)
        if of.kind == COST
        else levels(of.view, of.group, Metric(of.kind), None)
    )
    assert drawn is not None  # `data` refused a figure without marks
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    assert box
    width, height = float(box[1]) + _WIDER_LABELS, float(box[2])
    inner = element("desc", f"Figures from {of.view.host_label}") + element("style", Markup(_style())) + charts.shapes()
    opened, _, rest = drawn.replace(box[0], f'viewBox="-{_WIDER_LABELS} 0 {width:g} {height:g}"', 1).partition(">")
    size = f' xmlns="http://www.w3.org/2000/svg" width="{width_in:g}in" height="{width_in * height / width:.3f}in"'
    return f"{opened}{size}>{inner}{rest}\n"


def _style() -> str:
    """Return rules without variables, which converters do not know; the colours are those of the page."""
    page = (resources.files("nearmetal.report") / "static" / "page.css").read_text(encoding="utf-8")
    colour = dict(re.findall(r"--(\w+): (#\w+)", page.partition("@media")[0]))
    series = {
        "base": colour["ink"],
        "again": colour["soft"],
        **{f"c{n}": colour[f"c{n}"] for n in range(charts.COLOURS)},
    }
    rules = [
        "svg{font-family:Helvetica,Arial,sans-serif}text{font-size:16px;fill:#000}",
        f".grid{{stroke:{colour['line']}}}.one{{stroke:#000}}.margin{{fill:{colour['margin']}}}",
        f".noise{{fill:{colour['soft']};opacity:.3}}.leader{{stroke:{colour['line']};fill:none}}",
        ".series{fill:none;stroke-width:2}.thin{stroke-width:1}.loose{stroke-dasharray:2 3}",
        ".line.d1{stroke-dasharray:7 3}.line.d2{stroke-dasharray:3 2}",
    ]
    for name, value in series.items():
        rules.append(f".series.{name}{{stroke:{value}}}.series.mark.{name}{{fill:{value};stroke:#fff;stroke-width:1}}")
        rules.append(f".series.mark.hollow.{name}{{fill:#fff;stroke:{value};stroke-width:1.6}}")
    return "".join(rules)


def convert(svg: str, kind: str) -> bytes:
    """Return an SVG as a `.pdf` of its size or a `.png` of 300 dpi; raise UnavailableError without cairosvg."""
    try:
        import cairosvg  # noqa: PLC0415 (an extra)
    except (ImportError, OSError) as error:  # OSError: the package is there and the system's library is not
        raise UnavailableError(
            f"PDF and PNG are made by cairosvg, which is not installed: {error}",
            hint=f"pip install 'nearmetal[plot]', and libcairo of the system ({PACKAGES['cairo']}); "
            "or -o FILE.svg, which Inkscape and rsvg-convert turn into both",
        ) from error
    if kind == ".pdf":
        return bytes(cairosvg.svg2pdf(bytestring=svg.encode(), dpi=_CSS_DPI))
    return bytes(cairosvg.svg2png(bytestring=svg.encode(), dpi=_CSS_DPI, scale=_PNG_DPI / _CSS_DPI))


# ---- pgfplots


def as_tex(of: ChartKind, rows: Sequence[DataPoint], width_in: float) -> str:
    """Return the chart as a tikzpicture for pgfplots (1.16 or newer), its data in it."""
    sizes = {cell.message_bytes: words.size(cell) for cell in of.cells}
    label = f"{rows[0].figure}, {'times' if of.kind == COST else rows[0].unit}"
    options = [
        f"width={width_in:g}in",
        "ymode=log",
        "log ticks with fixed point",
        f"symbolic x coords={{{','.join(sizes.values())}}}",
        "xtick=data",
        "xlabel={message size}",
        f"ylabel={{{escape(label)}}}",
        "legend style={font=\\footnotesize}",
    ]
    source = escape(f"Figures from {of.view.host_label}")
    lines = [f"% {source}", "\\begin{tikzpicture}", f"\\begin{{axis}}[{', '.join(options)}]"]
    for path in dict.fromkeys(row.path for row in rows):
        points = [_tex_point(row, sizes[row.message_bytes]) for row in rows if row.path == path]
        bars = "error bars/.cd, y dir=both, y explicit"
        lines += [f"\\addplot+[{bars}] coordinates {{{' '.join(points)}}};", f"\\addlegendentry{{{escape(path)}}}"]
    return "\n".join([*lines, "\\end{axis}", "\\end{tikzpicture}", ""])


def _tex_point(row: DataPoint, size: str) -> str:
    if row.low is None or row.high is None:
        return f"({size},{row.value:.6g})"
    return f"({size},{row.value:.6g}) += (0,{row.high - row.value:.6g}) -= (0,{row.value - row.low:.6g})"
