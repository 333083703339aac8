"""The view of a trace as one HTML page: no script, no request, the matrix as an SVG picture."""

from __future__ import annotations

from collections.abc import Sequence

from nearmetal.predict.trace_view import TraceView, matrix
from nearmetal.report import trace_text
from nearmetal.report.charts import Bar, Part, stacked
from nearmetal.report.markup import ALONE, Markup, element, header, listed, page, section, together
from nearmetal.units import NS_PER_MS, format_duration, format_size

MATRIX_CELLS = 192
_PICTURE = 560.0
_SHADES = 32
_COLOUR = "var(--accent)"


def as_html(view: TraceView, *, above: Markup | None = None, may: str = ALONE) -> str:
    """Return the page as text; write it as UTF-8. `above` and `may` as of a report."""
    return page(f"Trace of {view.command or view.source}", together(above or Markup(""), _body(view)), may=may)


def _body(view: TraceView) -> Markup:
    others = [row for row in view.calls if not row.is_collective]
    head = header(
        "nearmetal trace",
        view.command or view.source,
        element(
            "p",
            f"{len(view.ranks)} ranks, {view.recorded_calls} calls, {view.messages} messages of "
            f"{trace_text.rounded_size(view.message_bytes)} in all. {view.mpi}.",
            class_="meta",
        ),
        *(
            element("p", f"{warning[:1].upper()}{warning[1:]}.", class_="honest")
            for warning in trace_text.warnings(view)
        ),
    )
    times = _table("Time of ranks", trace_text.TIME_COLUMNS, trace_text.time_rows(view))
    ranks = element("details", element("summary", "The figures as a table"), times, class_="prints")
    return together(
        head,
        element(
            "main",
            element(
                "section",
                element("p", f"{trace_text.time_sentence(view)}. {_most(view)}", class_="lead"),
                element(
                    "div",
                    element(
                        "div", element("h2", "Where ranks spend their time"), element("figure", _times(view)), ranks
                    ),
                    element("div", element("h2", "Who sends to whom"), _matrix(view)),
                    class_="pair",
                ),
                id="verdicts",
            ),
            element(
                "div",
                section("Message sizes", _sizes(view)),
                section(
                    "Messages that cross nodes",
                    _table("Messages that cross nodes", trace_text.CROSSING_COLUMNS, trace_text.crossing_rows(view)),
                ),
                section(
                    "Collectives by time",
                    _table("Collectives", trace_text.CALL_COLUMNS, trace_text.call_rows(view.collectives, view)),
                ),
                section(
                    "Other calls by time",
                    _table("Other calls", trace_text.CALL_COLUMNS, trace_text.call_rows(others, view)),
                ),
                class_="pair",
            ),
        ),
    )


def _most(view: TraceView) -> str:
    """Return the call that takes most of the time in MPI, in a sentence."""
    inside = max(1, sum(rank.mpi_ns for rank in view.ranks))
    if not view.calls:
        return "No call was recorded."
    first = view.calls[0]
    return f"{trace_text.percent(first.total_ns / inside)} of the time in MPI is {first.name}."


_LOOKS = (("c0", "computing"), ("c1", "in MPI"), ("c7 pale", "the profiler and the rest"))


def _times(view: TraceView) -> Markup:
    """Return where the time of ranks went, a bar a rank; of many ranks those of least and most MPI."""
    bars = []
    for rank in trace_text.shown_ranks(view):
        rest = max(0, rank.elapsed_ns - rank.compute_ns - rank.mpi_ns)
        lengths = zip(_LOOKS, (rank.compute_ns, rank.mpi_ns, rest), strict=True)
        parts = [
            Part(ns / NS_PER_MS, look, f"{name}: {format_duration(ns)}, {ns / max(1, rank.elapsed_ns):.1%}")
            for (look, name), ns in lengths
        ]
        share = trace_text.percent(rank.mpi_ns / max(1, rank.elapsed_ns))
        bars.append(Bar(f"rank {rank.rank}, {rank.node}", tuple(parts), f"{share} MPI"))
    return stacked("Time of each rank", "time between MPI_Init and MPI_Finalize, ms", bars, _LOOKS, width=620.0)


def _table(label: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    if not rows:
        return element("p", "None.")
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    return listed(label, [(title, "" if number else "words") for number, title in enumerate(columns)], body)


def _matrix(view: TraceView) -> Markup:
    """Return the matrix as squares whose opacity is the logarithm of the bytes; empty pairs are not drawn."""
    if not view.pairs:
        return element("p", "No point-to-point messages.")
    cells = matrix(view, MATRIX_CELLS)
    most, side, ranks = int(cells.max()), cells.shape[0], len(view.ranks)
    step = _PICTURE / side
    squares = []
    for row, column in zip(*(axis.tolist() for axis in cells.nonzero()), strict=True):
        value = int(cells[row, column])
        opacity = trace_text.shade(value, most, _SHADES) / (_SHADES - 1)
        tip = element("title", f"{_group(row, side, ranks)} to {_group(column, side, ranks)}: {format_size(value)}")
        squares.append(
            element(
                "rect", tip, x=40 + column * step, y=20 + row * step, width=step, height=step, fill=_COLOUR,
                fill_opacity=f"{opacity:.2f}",
            )
        )  # fmt: skip
    frame = element("rect", x=40, y=20, width=_PICTURE, height=_PICTURE, fill="none", stroke="var(--line)")
    size = f"0 0 {_PICTURE + 50:.0f} {_PICTURE + 30:.0f}"
    picture = element(
        "svg", *squares, frame, *_labels(side, ranks, step), viewbox=size, class_="chart square", role="img",
        aria_label=f"Bytes from each of {ranks} ranks to each other",
    )  # fmt: skip
    caption = (
        f"Rows send to columns. The darkest square is {trace_text.rounded_size(most)}; four decades below it are "
        "nearly white, and nothing is drawn where nothing was sent."
    )
    return element("figure", picture, element("p", caption, class_="note"))


def _group(position: int, side: int, ranks: int) -> str:
    first, last = -(-position * ranks // side), -(-(position + 1) * ranks // side) - 1
    return f"rank {first}" if first == last else f"ranks {first} to {last}"


def _labels(side: int, ranks: int, step: float) -> list[Markup]:
    """Return rank numbers along both sides, at most eight each."""
    every = -(-side // 8)
    labels = []
    for position in range(0, side, every):
        text = f"{-(-position * ranks // side)}"
        middle = position * step + step / 2
        labels.append(
            element("text", text, x=34.0, y=24 + middle, text_anchor="end", fill="currentColor", font_size=12)
        )
        labels.append(
            element("text", text, x=40 + middle, y=14.0, text_anchor="middle", fill="currentColor", font_size=12)
        )
    return labels


def _sizes(view: TraceView) -> Markup:
    most = max((one.messages for one in view.sizes), default=1)
    rows = [
        element(
            "tr",
            element("th", f"at most {format_size(one.up_to_bytes)}", scope="row"),
            element("td", f"{one.messages}"),
            element("td", trace_text.rounded_size(one.total_bytes)),
            element("td", _bar(one.messages / most), class_="words"),
        )
        for one in view.sizes
    ]
    if not rows:
        return element("p", "No point-to-point messages.")
    titles = (("size", "words"), ("messages", ""), ("volume", ""), ("share of the most", "words"))
    return listed("Messages by size", titles, rows)


def _bar(share: float) -> Markup:
    bar = element("rect", x=0, y=2, width=300 * share, height=10, fill=_COLOUR)
    return element("svg", bar, viewbox="0 0 300 14", width=300, height=14, aria_hidden="true")
