"""Charts for papers: SVG that other programs can read, pgfplots, and the data behind both."""

from __future__ import annotations

import csv
import re
import shlex
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from nearmetal.cli.main import run as nearmetal
from nearmetal.cli.plot import command
from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.results.paths import build_view
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.store.rundir import RunDir
from tests.unit.report.synthetic_run import ONE_SIZE, STUDY, Recipe, make_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("plot") / "run", Recipe(blocks=6)).root


def _plot(*argv: object) -> Result:
    return CliRunner().invoke(command, list(map(str, argv)), catch_exceptions=False)


@pytest.mark.parametrize(("argv", "width"), [([], "3.5in"), (["--wide"], "7in")])
@pytest.mark.parametrize("what", ["cost", "p99"])
def test_a_chart_is_an_svg_as_wide_as_a_papers_column(
    root: Path, tmp_path: Path, what: str, argv: list[str], width: str
) -> None:
    assert _plot(root, what, "-o", tmp_path / "fig.svg", *argv).exit_code == 0
    drawn = ET.parse(tmp_path / "fig.svg").getroot()
    assert (drawn.tag, drawn.get("width")) == (f"{SVG}svg", width)
    text = (tmp_path / "fig.svg").read_text()
    assert "var(" not in text
    assert 'class="tip"' not in text
    used = set(re.findall(r"c[0-7]\b", " ".join(one.get("class", "") for one in drawn.iter())))
    assert len(used) == 4
    assert all(f".series.{name}{{stroke:#" in text for name in used)
    assert {use.get("href", "")[1:] for use in drawn.iter(f"{SVG}use")} <= {one.get("id") for one in drawn.iter()}


def test_a_charts_data_file_has_the_reports_figures(root: Path, tmp_path: Path) -> None:

    view = build_view(RunDir.open(root))
    for what in ("cost", "median"):
        _plot(root, what, "-o", tmp_path / "fig.svg")
        rows = list(csv.DictReader((tmp_path / "fig.csv").read_text().splitlines()))
        (row,) = [one for one in rows if one["path"] == "tap" and one["message_bytes"] == "1024"]
        tap = view.cells[1].of("tap")
        assert tap
        assert tap.comparison
        level = tap.levels[Metric.MEDIAN]
        assert level.value is not None
        wanted = tap.comparison.estimates[HEADLINE].ratio if what == "cost" else level.value
        assert float(row["value"]) == wanted
        assert float(row["low"]) < wanted < float(row["high"])
        assert len(rows) == 3 * (4 if what == "cost" else 5)
        assert {one["figures_from"] for one in rows} == {view.host_label}
        assert f"Figures from {view.host_label}" in (tmp_path / "fig.svg").read_text()


def test_pgfplots_output_has_every_point_with_its_interval(root: Path, tmp_path: Path) -> None:
    _plot(root, "mean", "-o", tmp_path / "fig.tex")
    text = (tmp_path / "fig.tex").read_text()
    rows = list(csv.DictReader((tmp_path / "fig.csv").read_text().splitlines()))
    assert text.startswith("% Figures from network namespaces of one machine")
    assert text.count("\\addplot+") == 5
    assert text.count(" += (0,") == text.count(" -= (0,") == len(rows) == 15
    assert "symbolic x coords={8 B,1 KiB,64 KiB}" in text
    assert all(f"{float(row['value']):.6g}" in text for row in rows)


def test_a_chart_for_pgfplots_says_which_figure_it_shows(tmp_path: Path) -> None:
    """A p99 is no bandwidth without more ado, and the one of a rate is that of the slowest hundredth."""
    study = ONE_SIZE.replace('name = "latency"', 'name = "bw"')
    made = make_run(tmp_path / "run", Recipe(study=study, blocks=2))
    for what, name in (("mean", "mean"), ("p99", "p99 of the durations")):
        _plot(made.root, what, "-o", tmp_path / "fig.tex")
        assert f"ylabel={{{name}, bandwidth, MB/s}}" in (tmp_path / "fig.tex").read_text()
        rows = csv.DictReader((tmp_path / "fig.csv").read_text().splitlines())
        assert {row["figure"] for row in rows} == {f"{name}, bandwidth"}


def test_names_cannot_inject_tex(tmp_path: Path) -> None:
    study = STUDY.replace('"tap"', '"a_b"\nkind = "tap"')
    made = make_run(tmp_path / "run", Recipe(study=study, blocks=3, cost={**Recipe().cost, "a_b": 2.0}))
    _plot(made.root, "mean", "-o", tmp_path / "fig.tex")
    assert "\\addlegendentry{a\\_b}" in (tmp_path / "fig.tex").read_text()


def test_an_ambiguous_request_lists_the_matching_charts(tmp_path: Path) -> None:
    study = STUDY.replace("[trials]", '[[workload]]\nname = "bw"\nsizes = [8]\n[trials]')
    made = make_run(tmp_path / "run", Recipe(study=study, blocks=3))
    with pytest.raises(BadInputError, match="2 charts fit") as refused:
        _plot(made.root, "cost", "-o", tmp_path / "fig.svg")
    assert refused.value.hint == "choose one of: --workload latency; --workload bw"
    for option, hint in (("workload", "--workload latency; --workload bw"), ("setting", "--setting as-found")):
        with pytest.raises(BadInputError, match=f"nothing was measured of {option} 'x'") as refused:
            _plot(made.root, "cost", "-o", tmp_path / "fig.svg", f"--{option}", "x")
        assert refused.value.hint == f"choose one of: {hint}"
    assert _plot(made.root, "cost", "-o", tmp_path / "fig.svg", "--workload", "bw").exit_code == 0


def test_one_operation_of_a_workload_can_be_drawn(tmp_path: Path) -> None:
    figures = Path(__file__).parents[2] / "data" / "tools" / "hpcc-1.5.0-hpccoutf.txt"
    assert nearmetal(["import", f"native={figures}", "--out", str(tmp_path / "run")]) == 0
    with pytest.raises(BadInputError, match="charts fit") as refused:
        _plot(tmp_path / "run", "mean", "-o", tmp_path / "fig.svg")
    one = shlex.split(refused.value.hint.removeprefix("choose one of: ").partition("; ")[0])
    assert one[0] == "--operation"
    assert _plot(tmp_path / "run", "mean", "-o", tmp_path / "fig.svg", *one).exit_code == 0


def test_a_chart_without_data_is_refused_with_the_reason(tmp_path: Path) -> None:
    few = make_run(tmp_path / "few", Recipe(blocks=3, iterations=100))
    with pytest.raises(BadInputError, match=r"no p99 of latency: n = 100 cannot support it; .* needs n >= 368"):
        _plot(few.root, "p99", "-o", tmp_path / "fig.svg")
    lost = make_run(tmp_path / "lost", Recipe(blocks=3, fails=lambda order, attempt: order.path.label != "veth"))
    with pytest.raises(BadInputError, match="no cost of latency: no path but veth has a valid trial"):
        _plot(lost.root, "cost", "-o", tmp_path / "fig.svg")


def test_paths_that_are_not_drawn_and_cautions_are_named_beside_the_chart(tmp_path: Path) -> None:
    recipe = Recipe(study=ONE_SIZE, blocks=5, busy=5, fails=lambda order, _: order.path.label in {"tap", "shm"})
    run = make_run(tmp_path / "run", recipe).root
    for what in ("cost", "mean"):
        said = _plot(run, what, "-o", tmp_path / "fig.svg").stderr
        assert f"not drawn, for it has no {what} here: tap, shm\n" in said
        assert "CAUTION: " in said


def test_cautions_are_of_what_is_drawn(tmp_path: Path) -> None:
    """Those of another workload were printed with a chart that they say nothing about."""
    two = ONE_SIZE.replace("[trials]", '[[workload]]\nname = "bw"\nsizes = [8]\niterations = 40\nwarmup = 4\n[trials]')
    timer = {"timer.latency.8": "delayed acknowledgement"}
    recipe = Recipe(study=two, blocks=2, facts=lambda order: timer if order.workload.label == "latency" else {})
    run = make_run(tmp_path / "run", recipe).root
    for workload, told in (("latency", True), ("bw", False)):
        said = _plot(run, "mean", "--workload", workload, "-o", tmp_path / "fig.svg").stderr
        assert ("CAUTION: latency of 8 B takes delayed acknowledgement" in said) is told


def test_an_unsupported_format_is_refused_with_the_supported_ones(root: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none of \.svg, \.pdf, \.png, \.tex"):
        _plot(root, "cost", "-o", tmp_path / "fig.eps")
    assert not list(tmp_path.iterdir())


def test_pdf_and_png_have_the_size_of_the_column(root: Path, tmp_path: Path) -> None:
    try:
        import cairosvg  # noqa: F401
    except (ImportError, OSError) as error:
        pytest.skip(f"cairosvg does not work here: {error}")
    _plot(root, "cost", "-o", tmp_path / "fig.pdf")
    pdf = (tmp_path / "fig.pdf").read_bytes()
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", pdf)
    assert box
    assert float(box[1]) == pytest.approx(3.5 * 72, abs=0.5)
    _plot(root, "p99", "-o", tmp_path / "fig.png")
    png = (tmp_path / "fig.png").read_bytes()
    assert int.from_bytes(png[16:20]) == pytest.approx(3.5 * 300, abs=2)
    assert (tmp_path / "fig.csv").exists()


def test_without_cairosvg_pdf_is_refused_with_what_to_install(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(UnavailableError) as refused:
        _plot(root, "cost", "-o", tmp_path / "fig.pdf")
    assert "nearmetal[plot]" in refused.value.hint
    assert not list(tmp_path.iterdir())
