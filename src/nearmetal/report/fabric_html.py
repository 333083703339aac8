"""A fabric as one HTML page: no script, no request, heat maps as SVG."""

from collections.abc import Sequence

import numpy as np

from nearmetal.fabric.against import Against
from nearmetal.fabric.detect import RetestedSuspect
from nearmetal.fabric.survey import METRICS, FabricMetric, Survey, aggregated, sentence, slowness, table_of
from nearmetal.fabric.unseen import unseen
from nearmetal.report import fabric_text
from nearmetal.report.as_html import table_region
from nearmetal.report.charts import MAP, heat_map
from nearmetal.report.markup import Markup, PageFrame, element, fold, header, page, section, together
from nearmetal.report.tables import Table
from nearmetal.report.words import moment
from nearmetal.stats.interval import FloatArray
from nearmetal.units import rounded

MOST_CELLS = 96
_OPACITY = (0.06, 0.25, 0.5, 0.75, 1.0)
_COLOUR = "var(--bad)"
_MOST_READ = 32
"""Rows up to which every square can be read, not only the slow ones: a page of some 100 KB."""
_MOST_ORDERED = 1024
_FASTEST = 0.05
_SHOWN = 50
"""Suspects that the page lists; the JSON has all."""


def as_html(of: Survey, frame: PageFrame | None = None) -> str:
    """Return the page as text; write it as UTF-8."""
    head = header(
        "nearmetal fabric",
        f"{len(of.names)} nodes on path {of.path}",
        meta=f"{moment(of.info.created_utc)}. {fabric_text.rounds_sentence(of)}.",
        labels=[of.info.host_label],
    )
    order = node_order(slowness(of, METRICS[0]))
    maps = [_map(of, metric, table, order) for metric in METRICS if (table := table_of(of, metric)) is not None]
    lead = element("p", fabric_text.verdict_sentence(of), class_="lead")
    main = element(
        "main",
        section("What stands out", lead, _findings(of), id="verdicts"),
        element("div", *maps, class_="pair"),
        element("p", fabric_text.method_sentence(), class_="note"),
        _bisection(of),
    )
    return page(f"Fabric on {of.path}", head, main, version=of.info.nearmetal_version, frame=frame)


def _findings(of: Survey) -> Markup:
    """Return what is named as a table, and what is merely suspected as one to open."""
    others = [one for one in of.findings if not one.named]
    parts = [_table(of, of.named)] if of.named else []
    if others:
        shown = f"{len(others)} suspected by the first pass, not named"
        parts.append(fold(shown, _table(of, others[:_SHOWN])))
    return together(*parts, *(element("p", line, class_="note") for line in unseen(of)))


def _table(of: Survey, findings: Sequence[RetestedSuspect]) -> Markup:
    rows = [
        (
            sentence(of, one),
            f"{one.beyond} of {one.retests}",
            f"{rounded(one.low)} to {rounded(one.high)}" if one.retests else "",
            f"{one.p_value:.1g}",
        )
        for one in findings
    ]
    head = ("what", "re-tests beyond the limit", "range, times", "p, corrected")
    return table_region(Table("Findings", head, tuple(rows)))


def _map(of: Survey, metric: FabricMetric, table: FloatArray, order: Sequence[int]) -> Markup:
    times, figures = (one[np.ix_(order, order)] for one in (slowness(of, metric), table))
    names = [of.names[node] for node in order]
    side = min(MOST_CELLS, len(names))
    shown = [fabric_text.group_name(names, position, side) for position in range(side)]
    worst = aggregated(times, side)
    read = worst > 0 if side <= _MOST_READ else worst >= fabric_text.STEPS[0]

    def tip(row: int, column: int) -> str:
        figure = f"{figures[row, column]:,.4g} {metric.unit}, " if side == len(names) else ""
        return f"{shown[row]} to {shown[column]}: {figure}{rounded(float(worst[row, column]))} times the median"

    squares = [
        (row, column, _opacity(float(worst[row, column])), tip(row, column))
        for row, column in np.argwhere(read).tolist()
    ]
    label = f"Heat map of {metric.name} between {len(names)} nodes"
    picture = heat_map(label, shown, squares, _COLOUR, *_scale())
    each = "" if side == len(names) else f" Each square is the worst of about {len(names) / side:.3g} squared pairs."
    ordered = "" if names == list(of.names) else " Nodes that are close to each other stand together."
    caption = (
        "Rows and columns are nodes; shades are times the median pair, darker is slower."
        f"{ordered}{each} Point at a square to read it."
    )
    return section(
        metric.name.capitalize(),
        element("p", fabric_text.levels(table, metric)),
        element("figure", picture, element("p", caption, class_="note")),
    )


def node_order(times: FloatArray) -> list[int]:
    """Return the nodes by cluster, a cluster where its first node stands, and within it in their own order.

    Clusters are those of average linkage over the pairs' log times beyond the fastest twentieth, cut at the map's first
    shade: racks that a message crosses more slowly, or a node that is slow to all others.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # noqa: PLC0415 (no other page needs it)
    from scipy.spatial.distance import squareform  # noqa: PLC0415

    nodes = len(times)
    if not 2 < nodes <= _MOST_ORDERED or np.isnan(times).all():
        return list(range(nodes))
    apart = np.log(np.fmax(times, times.T) / np.nanquantile(times, _FASTEST))
    apart = np.clip(np.nan_to_num(apart), 0.0, None)
    np.fill_diagonal(apart, 0.0)
    cluster = fcluster(linkage(squareform(apart), "average"), np.log(fabric_text.STEPS[0]), "distance").tolist()
    return sorted(range(nodes), key=lambda node: (cluster.index(cluster[node]), node))


def _opacity(times: float) -> float:
    return 0.0 if times < fabric_text.STEPS[0] else _OPACITY[fabric_text.shade(times)]


def _scale() -> list[Markup]:
    """Return what the shades mean, below the map."""
    words = (f"below {fabric_text.STEPS[0]:g}", *(f"from {times:g}" for times in fabric_text.STEPS))
    drawn, x, y = [], MAP.left, MAP.bottom + 16
    for word, opacity in zip(words, (0.0, *_OPACITY[1:]), strict=True):
        look = {"fill": _COLOUR, "fill_opacity": f"{opacity:.2f}", "stroke": "var(--line)"}
        drawn.append(element("rect", x=x, y=y, width=16, height=16, **look))
        drawn.append(element("text", word, class_="tick", x=x + 22, y=y + 12))
        x += 44 + 7 * len(word)
    return drawn


def _bisection(of: Survey) -> Markup:
    lines = fabric_text.bisection_sentences(of)
    if not lines:
        return together()
    return section("Bisection", *(element("p", line.strip()) for line in lines))


# ---- two fabrics


def against_section(one: Against, name: str, base_name: str) -> Markup:
    """Return two fabrics of the same nodes side by side in one metric, the worst node first."""
    unit = one.metric.unit
    shown = sorted(one.nodes, key=lambda node: node.ratio, reverse=not one.metric.larger_is_better)
    rows = tuple(
        (fabric_text.pair_name(node), *(f"{value:,.4g}" for value in (node.figure, node.base_figure, node.ratio)))
        for node in shown[:_SHOWN]
    )
    more = f"and {len(shown) - _SHOWN} more nodes" if len(shown) > _SHOWN else ""
    head = ("node", f"{name} ({unit})", f"{base_name} ({unit})", "ratio")
    return section(
        one.metric.name.capitalize(),
        element("p", fabric_text.ratio_sentence(one), class_="lead"),
        table_region(Table("Node by node", head, rows, more)),
    )
