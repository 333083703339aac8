"""A real browser for tests: headless Chromium without network requests of its own."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from typing import TYPE_CHECKING

import pytest

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


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")


def browse(url: str, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page; its console goes to stderr."""
    assert CHROMIUM is not None
    argv = [CHROMIUM, *QUIET, f"--user-data-dir={profile}", *options, url]
    finished = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished


def first_pixel(png: bytes) -> tuple[int, int, int]:
    """Return the colour at the top left: the first pixel of the first row is the same under every PNG filter."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, packed = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        packed += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    red, green, blue = zlib.decompressobj().decompress(packed, 64)[1:4]
    return red, green, blue
