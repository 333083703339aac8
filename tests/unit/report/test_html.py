from __future__ import annotations

import base64
import hashlib
import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nearmetal.errors import visible
from nearmetal.report import as_html, charts, overview, words
from nearmetal.report.axes import linear, logarithmic, ratios, spread_apart
from nearmetal.report.levels import levels
from nearmetal.report.markup import Markup, element
from nearmetal.report.tables import Table
from nearmetal.results.paths import build_view
from nearmetal.run.adopt import adopt
from nearmetal.stats.equivalence import Better
from nearmetal.stats.modes import Mode, Modes
from nearmetal.stats.summary import Metric
from nearmetal.store.rundir import RunDir
from tests.unit.report.synthetic_run import COST, ONE_SIZE, STUDY, Recipe, make_run

if TYPE_CHECKING:
    from nearmetal.results.records import Cell, View
    from nearmetal.study.order import Order

ATTACK = "</title><script>alert('x')</script>\\\"><img src=x onerror=alert(1)>&amp;"


class _Page(HTMLParser):
    """Collects elements and rejects tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "input", "br"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def values(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get(attribute)) is not None]


@pytest.fixture(scope="module")
def page(view: View) -> _Page:
    return _Page(as_html.render(view))


def test_a_five_path_study_stays_below_a_megabyte(view: View) -> None:
    assert len(as_html.render(view).encode()) < 1_000_000


def test_no_figure_is_minus_zero(view: View, page: _Page) -> None:
    """47 autocorrelations of a report were -0.00."""
    own = [trial.summary for cell in view.cells for one in cell.paths for trial in one.trials]
    assert any(-0.005 < (one.lag1_autocorrelation or 0.0) < 0.0 for one in own)
    assert not [text for text in page.text if re.fullmatch(r"-0(\.0+)?", text)]


def test_the_page_loads_nothing_and_runs_no_script(page: _Page) -> None:
    assert not {"script", "iframe", "object", "embed", "img"} & {tag for tag, _ in page.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert all(target == "data:," or target.startswith("#") for target in page.values("href"))
    assert not page.values("src")
    assert not page.values("style")


def test_links_labels_and_markers_have_existing_targets(page: _Page) -> None:
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {target.removeprefix("#") for target in page.values("href") if target.startswith("#")} <= set(ids)
    assert set(page.values("for")) <= set(ids)


@pytest.mark.parametrize("text", ["neither is faster", "neither is faster."])
def test_a_sentence_has_one_full_stop(text: str) -> None:
    """The page of a placement ended what it says of the break-even share with two."""
    assert words.as_sentence(text) == "Neither is faster."


def test_the_csp_allows_only_this_style_sheet(view: View) -> None:
    text = as_html.render(view)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in text
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_the_verdict_comes_first_right_after_the_host_label(view: View) -> None:
    text = as_html.render(view)
    assert re.search(r"Study paths, begun \d{4}-\d\d-\d\d \d\d:\d\d UTC\.", text)
    label, verdicts = text.index("no wire and no NIC hardware"), text.index('id="verdicts"')
    assert label < verdicts < text.index('id="group-0"') < text.index('id="evidence"') < text.index('id="repeat"')


def _charts(page: _Page) -> list[dict[str, str | None]]:
    return [
        attributes
        for tag, attributes in page.elements
        if tag == "svg" and attributes.get("class") in {"chart", "chart wide"}
    ]


def test_every_chart_has_a_text_for_screen_readers(page: _Page) -> None:
    charts = _charts(page)
    assert len(charts) == 1 + 2 + 3 * 3
    assert all(chart["role"] in {"img", "group"} and chart["aria-label"] for chart in charts)


def test_the_first_chart_shows_and_links_every_cell(view: View) -> None:
    text = as_html.render(view)
    first = text[text.index('class="chart wide"') :].partition("</svg>")[0]
    assert re.findall(r'href="#(cell-\d+-\d+)"', first) == ["cell-0-8", "cell-0-1024", "cell-0-65536"]
    assert all(f'id="{name}"' in text for name in ("cell-0-8", "cell-0-1024", "cell-0-65536"))
    compared = {one.path for _, one, _ in view.compared()}
    assert len(re.findall(r"\]: |, p99 [\d.]+: ", first)) == 3 * len(compared)
    assert first.count('class="noise"') == 3
    assert first.index('class="tip"') < text.index('id="group-0"')


def test_the_first_chart_draws_a_rate_as_a_cost(tmp_path: Path) -> None:
    study = STUDY.replace('name = "latency"', 'name = "bw"')
    view = build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=5)))
    cell = view.cells[0]
    tap = cell.of("tap")
    assert tap
    assert tap.comparison
    assert overview.cost(tap.comparison.headline.ratio, cell) == pytest.approx(2.4, rel=0.05)
    assert overview.cost(tap.comparison.headline.ratio, cell) == 1 / tap.comparison.headline.ratio
    # What pointing at the chart shows has the axis' scale: cost, and its interval in ascending order.
    drawn = overview.picture(view, "bw", view.cells, lambda _: "#")
    at, low, high = (float(one) for one in re.findall(r">tap ([\d.]+) \[([\d.]+)\.\.([\d.]+)\]", drawn)[0])
    assert 2.3 < low < at < high < 2.5


def test_distributions_of_a_stream_say_what_their_durations_are_of(tmp_path: Path) -> None:
    """A stream's rates are kept as the time of 1 GiB, and those of counted things as that of 10^12."""
    data = Path(__file__).parents[2] / "data" / "tools"
    for name, amount in (("iperf3-3.12-tcp.json", "1 GiB"), ("written-npb-3.4-cg-S.txt", "10^12 of what is counted")):
        adopt([("a", data / name)], tmp_path / name)
        assert f"duration of {amount}, us" in as_html.render(build_view(RunDir.open(tmp_path / name)))
    windows = make_run(tmp_path / "bw", Recipe(study=ONE_SIZE.replace('name = "latency"', 'name = "bw"'), blocks=2))
    assert "duration of an iteration, us" in as_html.render(build_view(windows))


def test_groups_of_one_size_share_a_chart(tmp_path: Path) -> None:
    lone = '[[workload]]\nname = "barrier"\n[[workload]]\nname = "allreduce"\nsizes = [8]\n[trials]'
    view = build_view(make_run(tmp_path / "run", Recipe(study=STUDY.replace("[trials]", lone), blocks=3)))
    titles = [(title, len(cells)) for title, cells in overview.panels(view)]
    assert titles == [("latency", 3), ("barrier, allreduce", 2)]


def test_operations_of_one_workload_are_told_apart_in_a_chart(view: View) -> None:
    def of(operation: str, workload: str = "lu") -> Cell:
        group = replace(view.cells[0].group, workload=workload, operation=operation)
        return replace(view.cells[0], group=group, message_bytes=0, sized=False)

    cells = (of("lu.W.total"), of("lu.W.communication"), of("rate [GB/s]", "x"), of("rate [GB/s]"), of("ft", "ft"))
    ((title, drawn),) = overview.panels(replace(view, cells=cells))
    assert title == "lu.W.total, lu.W.communication, x, lu (rate), ft"
    picture = overview.picture(view, title, drawn, None)
    assert re.findall(r"rotate[^>]*>([^<]+)<", picture) == ["lu.W.total", "lu.W.co…nication", "x", "lu (rate)", "ft"]
    many = [of(f"step-{number}") for number in range(9)]
    assert overview.panels(replace(view, cells=tuple(many)))[0][0].endswith(", step-5, 3 more")


def test_a_cost_of_many_thousands_is_drawn_where_it_lies(tmp_path: Path) -> None:
    """It stood at the end of an axis of what lay below 10,000: at 1.1."""
    recipe = Recipe(study=ONE_SIZE, blocks=3, cost={**COST, "shm": 1.0, "tap": 50_000.0})
    view = build_view(make_run(tmp_path / "run", recipe), distributions=False)
    scale = overview.scale_of(view, 288.0, 34.0)
    assert scale.high > 50_000.0
    assert [text for _, text in scale.ticks][-1] == "10,000"


def test_settings_with_few_sizes_are_drawn_side_by_side_on_one_scale(tmp_path: Path) -> None:
    two = '[[setting]]\nname = "plain"\n[[setting]]\nname = "tuned"\n[trials]'
    study = STUDY.replace("[trials]", two)
    view = build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=5, setting_cost={"tuned": 0.25})))
    ((title, cells),) = overview.panels(view)
    assert title == "latency, every setting"
    assert [cell.group.setting for cell in cells] == ["plain"] * 3 + ["tuned"] * 3
    drawn = overview.picture(view, title, cells, None)
    names = re.findall(r'x="([\d.]+)"[^>]*>message size, setting (\w+)<', drawn)
    assert [name for _, name in names] == ["plain", "tuned"]
    sizes = [float(x) for x in re.findall(r'x="([\d.]+)"[^>]*>(?:8 B|1 KiB|64 KiB)<', drawn)]
    assert sizes[1] < float(names[1][0]) - 100 < sizes[4] == float(names[1][0])
    page = as_html.render(view)
    assert '<th scope="row">tap<small>latency 1 KiB</small></th>' in page, "a row names its size"
    many = study.replace('sizes = [8, "1 KiB", "64 KiB"]', "sizes = [1, 2, 4, 8, 16, 32, 64, 128]")
    apart = overview.panels(build_view(make_run(tmp_path / "many", Recipe(study=many, blocks=3)), distributions=False))
    assert [title for title, _ in apart] == ["latency, setting plain", "latency, setting tuned"]


def test_two_modes_are_drawn_as_two(view: View) -> None:
    cell = view.cells[0]
    modes = Modes((Mode(0.7, 40_000.0, 39_000.0, 41_000.0), Mode(0.3, 90_000.0, 88_000.0, 92_000.0)), "by chance")
    tap = cell.of("tap")
    assert tap
    trials = tuple(replace(one, summary=replace(one.summary, modes=modes)) for one in tap.trials)
    two = replace(cell, paths=tuple(replace(p, trials=trials) if p is tap else p for p in cell.paths))
    group = cell.group
    drawn = [levels(replace(view, cells=cells), group, Metric.MEAN, lambda _: None) for cells in ((cell,), (two,))]
    assert drawn[0] is not None
    assert drawn[1] is not None
    assert drawn[1].count("mark hollow") == drawn[0].count("mark hollow") + 2
    assert "modes 20.00 (70 %) and 45.00 (30 %)" in drawn[1]


def test_a_column_without_a_title_has_no_empty_heading() -> None:
    """Screen readers announce it: the pages of traces had one."""
    html = str(as_html.table_region(Table("calls", ("", "count"), (("MPI_Send", "3"),))))
    assert not re.search(r"<th[^>]*></th>", html)
    assert re.findall(r"<th[^>]*>([^<]+)</th>", html) == ["count", "MPI_Send"]


def test_text_of_a_study_cannot_inject_markup(tmp_path: Path) -> None:
    study = STUDY.replace('"Software data paths of this machine"', f"'''{ATTACK}'''")
    recipe = Recipe(study=study, blocks=3, facts=lambda order: {f"x.{ATTACK}": f"{order.path.label}{ATTACK}"})
    text = as_html.render(build_view(make_run(tmp_path / "run", recipe)))
    page = _Page(text)
    assert "<script" not in text
    assert "<img" not in text
    assert not {"script", "img"} & {tag for tag, _ in page.elements}
    assert ATTACK in "".join(page.text)


def test_failed_trials_are_shown_with_reason_and_next_step(tmp_path: Path) -> None:
    def fails(order: Order, attempt: int) -> bool:
        return order.path.label == "tap" and attempt <= 2

    text = as_html.render(build_view(make_run(tmp_path / "run", Recipe(blocks=3, fails=fails))))
    assert "the launch did not end within 30 s" in text
    assert "raise `trials.timeout`" in text
    assert "Not compared in 3 of 3 cells" in text


def test_a_path_that_was_never_compared_has_no_range(tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", Recipe(blocks=3, fails=lambda order, attempt: order.path.label == "tap"))
    text = as_html.render(build_view(made))
    assert "- times" not in text
    assert "<p>Not compared in 3 of 3 cells.</p>" in text


def test_long_names_with_a_common_prefix_stay_distinct_beside_a_chart(tmp_path: Path) -> None:
    names = [f"guest-with-a-virtual-function-{number}" for number in range(3)]
    study = STUDY.replace(
        "[[workload]]", "".join(f'[[path]]\nname = "{one}"\nkind = "veth"\n' for one in names) + "[[workload]]"
    )
    cost = {**Recipe().cost, **dict.fromkeys(names, 1.5)}
    text = as_html.render(build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=3, cost=cost))))
    assert all(f">guest…tion-{number}</text>" in text for number in range(3))


def test_an_operation_without_sizes_and_a_rate_are_drawn(tmp_path: Path) -> None:
    study = STUDY.replace(
        "[trials]", '[[workload]]\nname = "barrier"\n[[workload]]\nname = "bw"\nsizes = [8]\n[trials]'
    )
    page = _Page(as_html.render(build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=3)))))
    assert "duration of an iteration, us (log scale)" in page.text
    assert "p99 of durations as bandwidth, MB/s (log scale)" in page.text


@pytest.mark.parametrize("mostly", [0.97, 1.0])
def test_iterations_that_take_no_time_are_still_drawn(tmp_path: Path, mostly: float) -> None:
    """As in a program that hardly communicates: all or nearly all iterations take 0 ns."""
    run = make_run(tmp_path / "run", Recipe(blocks=3, idle=mostly))
    page = _Page(as_html.render(build_view(run)))
    assert "share of iterations at or below" in page.text


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_very_short_trials_are_still_drawn(tmp_path: Path, iterations: int) -> None:
    study = STUDY.replace('name = "latency"', 'name = "step"\nkind = "application"')
    view = build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=3, iterations=iterations)))
    page = _Page(as_html.render(view))
    assert "refused" in page.text
    assert "nan" not in as_html.render(view)


@given(st.text(), st.text())
def test_element_text_round_trips(text: str, attribute: str) -> None:
    kept = [visible(one) for one in (text, attribute)]
    page = _Page(element("p", kept[0], title=kept[1]))
    assert "".join(page.text) == kept[0]
    assert page.elements == [("p", {"title": kept[1]})]


def test_markup_is_not_escaped_twice() -> None:
    assert element("p", Markup("<b>x</b>"), "&") == "<p><b>x</b>&amp;</p>"


POSITIVE = st.floats(min_value=1e-3, max_value=1e9)


@given(POSITIVE, POSITIVE, st.sampled_from([linear, logarithmic]))
@example(999999999.9999999, 1e9, linear)
@example(999999999.9999999, 1e9, logarithmic)
@example(1.0, 1.0 + 2e-9, logarithmic)
def test_scales_cover_both_ends_and_keep_ticks_inside(a: float, b: float, make: object) -> None:
    assert callable(make)
    low, high = sorted((a, b))
    scale = make(low, high, 0.0, 100.0, str)
    assert 0.0 <= scale(low) <= scale(high) <= 100.0
    assert all(0.0 <= scale(value) <= 100.0 for value, _ in scale.ticks)


@given(st.floats(0.001, 1.0), st.floats(1.0, 1000.0), st.floats(0.001, 0.5))
def test_the_ratio_scale_is_symmetric_and_shows_the_margin(low: float, high: float, margin: float) -> None:
    scale = ratios(low, high, margin, 0.0, 100.0)
    edge = 1 + margin
    assert scale(1) - scale(1 / edge) == pytest.approx(scale(edge) - scale(1), abs=1e-6)
    assert scale(low) <= scale(1 / edge) or low > 1 / edge
    assert scale(float("inf")) == 100.0
    assert "1" in [label for _, label in scale.ticks]


@given(POSITIVE, st.floats(1e-8, 200.0))
def test_a_log_axis_has_at_least_three_exact_ticks(low: float, decades: float) -> None:
    scale = logarithmic(low, low * 10.0**decades, 288.0, 34.0)
    at = [scale(value) for value, _ in scale.ticks]
    assert len(at) >= 3
    assert all(a - b >= 22.0 for a, b in itertools.pairwise(at))
    assert all(float(label.replace(",", "")) == pytest.approx(value, rel=1e-11) for value, label in scale.ticks)


@given(st.floats(1e-4, 1.0), st.floats(1.0, 1e4), st.floats(1e-3, 0.5))
def test_a_ratio_axis_has_at_least_three_exact_ticks(low: float, high: float, margin: float) -> None:
    ticks = ratios(low, high, margin, 288.0, 34.0).ticks
    assert len(ticks) >= 3
    assert all(float(label.replace(",", "")) == pytest.approx(value) for value, label in ticks)


def test_a_narrow_range_is_labelled_with_enough_digits() -> None:
    assert [label for _, label in logarithmic(35.0, 38.0, 288.0, 34.0).ticks] == ["35", "36", "37", "38"]
    assert [label for _, label in linear(0.0, 5e3, 288.0, 34.0).ticks][-1] == "5,000"


@given(st.lists(st.floats(0.0, 300.0), min_size=1, max_size=10))
def test_labels_never_overlap(wanted: list[float]) -> None:
    placed = sorted(spread_apart(wanted, 15.0, 0.0, 300.0))
    assert all(b - a >= 15.0 - 1e-6 for a, b in itertools.pairwise(placed))
    assert placed[-1] <= 300.0


def test_a_run_with_too_few_blocks_is_drawn_without_intervals(tmp_path: Path) -> None:
    text = as_html.render(build_view(make_run(tmp_path / "run", Recipe(blocks=1))))
    assert "Noise floor: unknown" in text
    assert "undecided" in text


def test_a_rate_as_uncertain_as_it_is_large_is_drawn(view: View) -> None:
    cell = view.cells[0]
    wild = tuple(
        replace(one, trials=tuple(replace(t, summary=replace(t.summary, sd_ns=1e15)) for t in one.trials))
        for one in cell.paths
    )
    rate = replace(cell.shown, better=Better.LARGER)
    drawn = charts.drift_chart(view, replace(cell, shown=rate, paths=wild))
    assert "nan" not in str(drawn)


def test_a_matrix_stacks_its_rows_and_names_them_where_names_fit() -> None:
    names = [f"node{number}" for number in range(32)]
    drawn = charts.heat_map("pairs", names, [(2, 7, 0.25, "node2 to node7")], "red")
    square = re.search(r'<rect x="([\d.]+)" y="([\d.]+)" width="17.5" height="17.5" fill="red"[^>]*="0.25">', drawn)
    assert square
    assert (float(square[1]), float(square[2])) == (90 + 7 * 17.5, 56 + 2 * 17.5)
    assert re.findall(r'text-anchor="end">(\w+)<', drawn) == names[::2]
    assert "<title>node2 to node7</title>" in drawn
