"""The HTML report in a real browser: it renders with its styles, prints nothing on the console, and makes no network
request.
"""

from __future__ import annotations

import json
import re
from html import escape, unescape
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from nearmetal.report import as_html
from nearmetal.report.axes import logarithmic, y_axis
from nearmetal.report.charts import FRAME, chart
from nearmetal.results.paths import build_view
from tests.browser import DARK, PAPER, browse, first_pixel, needs_chromium
from tests.unit.report.synthetic_run import STUDY, Recipe, make_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    title = "'''</title><script>console.error(1)</script><img src=http://192.0.2.1/x.png>'''"
    study = STUDY.replace('"Software data paths of this machine"', title)
    run = make_run(folder / "run", Recipe(study=study, blocks=5))
    path = folder / "report.html"
    path.write_text(as_html.render(build_view(run)), encoding="utf-8")
    return path


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_follows_the_theme_without_console_messages(page: Path, tmp_path: Path, theme: str) -> None:
    shot = tmp_path / "shot.png"
    options = [DARK] if theme == "dark" else []
    finished = browse(page.as_uri(), tmp_path / "profile", f"--screenshot={shot}", "--window-size=1280,2000", *options)
    # The page's own colour proves that the policy let the style sheet in.
    assert first_pixel(shot.read_bytes()) == PAPER[theme]
    assert shot.stat().st_size > 100_000
    assert "CONSOLE" not in finished.stderr


def test_the_page_makes_no_network_request(page: Path, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    dom = browse(page.as_uri(), tmp_path / "profile", f"--log-net-log={log}", "--dump-dom").stdout
    assert "near-metal" in dom
    asked = set(re.findall(r'"url":"(https?://[^"]+)', log.read_text(encoding="utf-8")))
    assert not {url for url in asked if "192.0.2.1" in url}
    assert json.loads(log.read_text(encoding="utf-8"))["events"] is not None


def test_every_panel_can_be_reached(page: Path, tmp_path: Path) -> None:
    dom = browse(page.as_uri(), tmp_path / "profile", "--dump-dom").stdout
    assert len(re.findall(r'class="tab"', dom)) == 3
    assert dom.count('class="chart"') == 2 + 3 * 3
    assert dom.count('class="chart wide"') == 1
    assert "<script" not in dom


_MEASURE = """<script>
const edge = (all, side) => [...document.querySelectorAll(all)].map(one => one.getBoundingClientRect()[side]);
const found = {left: Math.min(...edge(".tick", "left")), right: Math.max(...edge("td", "right"))};
parent.document.title = JSON.stringify(found);
</script>"""


def test_a_narrow_page_cuts_neither_labels_nor_sentences(tmp_path: Path) -> None:
    style = resources.files("nearmetal.report").joinpath("static/page.css").read_text(encoding="utf-8")
    scale = logarithmic(1.0, 1e6, FRAME.bottom, FRAME.top)
    assert "1,000,000" in {label for _, label in scale.ticks}
    drawn = chart("a chart", y_axis(FRAME, scale, "us"))
    sentence = "the mean is undecided; next: measure on a quieter machine; else 204 more blocks, about 3 h"
    cells = f'<td class="words">latency, 8 B, 1 KiB and 64 KiB</td><td class="words">{sentence}</td>'
    table = f'<div class="scroll"><table><tbody><tr><th>macvlan</th>{cells}</tr></tbody></table></div>'
    inner = escape(f"<!doctype html><style>{style}</style><figure>{drawn}</figure>{table}{_MEASURE}")
    outer = tmp_path / "outer.html"  # Chromium's own windows are 500 px wide at least
    outer.write_text(
        f'<!doctype html><meta charset=utf-8><iframe width=400 srcdoc="{inner}"></iframe>', encoding="utf-8"
    )
    dom = browse(outer.as_uri(), tmp_path / "profile", "--dump-dom").stdout
    edges = json.loads(unescape(re.findall(r"<title>(.*?)</title>", dom)[0]))
    assert edges["left"] >= 0
    assert edges["right"] <= 400
