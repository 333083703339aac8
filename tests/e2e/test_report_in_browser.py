"""The HTML report in a real browser: it renders as styled, prints nothing on the console, asks nothing of a network."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import zlib
from typing import TYPE_CHECKING

import pytest

from nearmetal.report import as_html
from nearmetal.report.view import build_view
from tests.unit.report.synthetic_run import STUDY, Recipe, make_run

if TYPE_CHECKING:
    from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
)
DARK = "--blink-settings=preferredColorScheme=0"
PAPER = {"light": (0xFB, 0xFA, 0xF7), "dark": (0x14, 0x17, 0x1B)}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    title = "'''</title><script>console.error(1)</script><img src=http://192.0.2.1/x.png>'''"
    study = STUDY.replace('"Software data paths of this machine"', title)
    run = make_run(folder / "run", Recipe(study=study, blocks=5))
    path = folder / "report.html"
    path.write_text(as_html.render(build_view(run)), encoding="utf-8")
    return path


def _browse(page: Path, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    argv = [CHROMIUM, *QUIET, f"--user-data-dir={profile}", *options, page.as_uri()]
    finished = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished


def _first_pixel(png: bytes) -> tuple[int, int, int]:
    """Return the colour at the top left: the first pixel of the first row is the same under every PNG filter."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, packed = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        packed += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    red, green, blue = zlib.decompressobj().decompress(packed, 64)[1:4]
    return red, green, blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_follows_the_theme_and_is_quiet(page: Path, tmp_path: Path, theme: str) -> None:
    shot = tmp_path / "shot.png"
    options = [DARK] if theme == "dark" else []
    finished = _browse(page, tmp_path / "profile", f"--screenshot={shot}", "--window-size=1280,2000", *options)
    # The page's own colour proves that the policy let the style sheet in.
    assert _first_pixel(shot.read_bytes()) == PAPER[theme]
    assert shot.stat().st_size > 100_000
    assert "CONSOLE" not in finished.stderr


def test_the_page_asks_the_network_for_nothing(page: Path, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    dom = _browse(page, tmp_path / "profile", f"--log-net-log={log}", "--dump-dom").stdout
    assert "near-metal" in dom
    asked = set(re.findall(r'"url":"(https?://[^"]+)', log.read_text(encoding="utf-8")))
    assert not {url for url in asked if "192.0.2.1" in url}
    assert json.loads(log.read_text(encoding="utf-8"))["events"] is not None


def test_every_panel_can_be_reached(page: Path, tmp_path: Path) -> None:
    dom = _browse(page, tmp_path / "profile", "--dump-dom").stdout
    assert len(re.findall(r'<input type="radio"', dom)) == 3
    assert dom.count('class="chart"') == 2 + 3 * 3
    assert "<script" not in dom
