"""The view of a trace as one HTML page: no script, no request, the matrix as an SVG picture."""

from nearmetal.predict.trace_view import TraceView, matrix
from nearmetal.report import trace_text, words
from nearmetal.report.as_html import table_region
from nearmetal.report.bars import Bar, Part, stacked
from nearmetal.report.charts import heat_map
from nearmetal.report.markup import Markup, PageFrame, element, fold, header, page, section
from nearmetal.report.tables import Table
from nearmetal.units import NS_PER_MS, as_percent, format_duration, format_size

MATRIX_CELLS = 192
_SHADES = 32
_COLOUR = "var(--accent)"
_LOOKS = (("c0", "computing"), ("c1", "in MPI"), ("c7 pale", "the profiler and the rest"))


def as_html(view: TraceView, frame: PageFrame | None = None) -> str:
    """Return the page as text; write it as UTF-8."""
    head = header(
        "nearmetal trace",
        view.command or view.source,
        *(element("p", words.as_sentence(one), class_="honest") for one in trace_text.warnings(view)),
        meta=f"{trace_text.sums_sentence(view)}. {view.mpi}.",
    )
    collectives, others = (
        trace_text.calls(title, view, collective=which)
        for title, which in (("Collectives", True), ("Other calls", False))
    )
    ranks = fold("The figures as a table", table_region(trace_text.times(view)), class_="prints")
    main = element(
        "main",
        element(
            "section",
            element("p", f"{trace_text.time_sentence(view)}. {_most(view)}", class_="lead"),
            element(
                "div",
                element("div", element("h2", "Where ranks spend their time"), element("figure", _times(view)), ranks),
                element("div", element("h2", "Who sends to whom"), _matrix(view)),
                class_="pair",
            ),
            id="verdicts",
        ),
        element(
            "div",
            section("Message sizes", _table(trace_text.sizes(view, "█"), "No message was sent.")),
            section("Messages that cross nodes", table_region(trace_text.crossings(view))),
            section("Collectives by time", _table(collectives, "No collective was called.")),
            section("Other calls by time", _table(others, "No other call was made.")),
            class_="pair",
        ),
    )
    return page(f"Trace of {view.command or view.source}", head, main, frame=frame)


def _most(view: TraceView) -> str:
    """Return the call that takes most of the time in MPI, in a sentence."""
    inside = max(1, sum(rank.mpi_ns for rank in view.ranks))
    if not view.calls:
        return "No call was recorded."
    first = view.calls[0]
    return f"{as_percent(first.total_ns / inside, 1)} of the time in MPI is {first.name}."


def _times(view: TraceView) -> Markup:
    """Return where the time of ranks went, a bar a rank; of many ranks those of least and most MPI."""
    bars = []
    for rank in trace_text.shown_ranks(view):
        rest = max(0, rank.elapsed_ns - rank.compute_ns - rank.mpi_ns)
        lengths = zip(_LOOKS, (rank.compute_ns, rank.mpi_ns, rest), strict=True)
        parts = [
            Part(ns / NS_PER_MS, look, f"{name}: {format_duration(ns)}, {as_percent(ns / max(1, rank.elapsed_ns), 1)}")
            for (look, name), ns in lengths
        ]
        share = as_percent(rank.mpi_ns / max(1, rank.elapsed_ns), 1)
        bars.append(Bar(f"rank {rank.rank}, {rank.node}", tuple(parts), f"{share} MPI"))
    return stacked("Time of each rank", "time between MPI_Init and MPI_Finalize, ms", bars, _LOOKS, width=620.0)


def _table(table: Table, none: str) -> Markup:
    return table_region(table) if table.rows else element("p", none)


def _matrix(view: TraceView) -> Markup:
    """Return the matrix as squares whose opacity is the logarithm of the bytes; empty pairs are not drawn."""
    if not view.pairs:
        return element("p", "No point-to-point messages.")
    cells = matrix(view, MATRIX_CELLS)
    most, side, ranks = int(cells.max()), cells.shape[0], len(view.ranks)
    squares = []
    for row, column in zip(*(axis.tolist() for axis in cells.nonzero()), strict=True):
        value = int(cells[row, column])
        opacity = trace_text.shade(value, most, _SHADES) / (_SHADES - 1)
        tip = f"{_group(row, side, ranks)} to {_group(column, side, ranks)}: {format_size(value)}"
        squares.append((row, column, opacity, tip))
    names = [str(-(-position * ranks // side)) for position in range(side)]
    picture = heat_map(f"Bytes from each of {ranks} ranks to each other", names, squares, _COLOUR)
    caption = (
        f"Rows send to columns. The darkest square is {trace_text.rounded_size(most)}; four decades below it are "
        "nearly white, and nothing is drawn where nothing was sent."
    )
    return element("figure", picture, element("p", caption, class_="note"))


def _group(position: int, side: int, ranks: int) -> str:
    first, last = -(-position * ranks // side), -(-(position + 1) * ranks // side) - 1
    return f"rank {first}" if first == last else f"ranks {first} to {last}"
