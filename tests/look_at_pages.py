"""Check every page in Chromium: axe-core finds no violation in light, dark and 400 px, and the docs get new pictures.

The size and first paint of a report of 5 paths x 10 sizes are measured as well: their goals are 1 MB and 1 s.

`make pictures`. Pages are those of the shipped example, of made-up runs, and of what `serve` draws around them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from contextlib import chdir, contextmanager
from importlib import resources
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import uvicorn
from axe_playwright_python.sync_playwright import Axe
from bench.support.made_up_fabric import Faults
from playwright.sync_api import sync_playwright

from nearmetal.report import as_html
from nearmetal.results.paths import build_view
from nearmetal.serve.app import make_app
from nearmetal.serve.catalogue import Catalogue
from nearmetal.serve.server import Listening, listen
from nearmetal.store.archive import unarchive
from tests.beside_runs import make_beside, make_history, make_search, make_traced
from tests.browser import CHROMIUM
from tests.fake_fabric import MadeUpHost, make_fabric
from tests.unit.report.synthetic_run import COST, STUDY, Recipe, make_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from playwright.sync_api import Browser

GOAL_BYTES, GOAL_MS = 1_000_000, 1_000.0
SIZES = 'sizes = [1, 8, 64, 512, "1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB"]'
PAGES = {
    "list": "/",
    "report": "/runs/example",
    "live": "/runs/paths/live",
    "compare": "/compare?base=paths&run=later",
    "many": "/compare?base=r00&" + "&".join(f"run=r{number:02d}" for number in range(1, 14)),
    "few": "/compare?base=paths&run=later&run=slower",
    "waterfall": "/runs/traced/waterfall",
    "calls": "/runs/traced/traces/1",
    "large": "/runs/large",
    "fabric": "/runs/fabric",
    "history": "/history?study=made-up&host=fake",
    "tune": "/searches/search",
    "trace": "/traces/ring",
    "prediction": "/predictions/halo",
    "placement": "/placements/halo",
    "refusal": "/runs/none",
}
UNSHOWN = {"few", "large", "calls", "live", "refusal"}
"""Pages that are looked at, and not shown in the docs."""
EVERY = os.environ.get("NEARMETAL_PICTURES", "")
"""A folder for every page whole, in every view and as PDF: to look at them by eye."""
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 400, "height": 800}},
}


@contextmanager
def served(folder: Path) -> Iterator[Listening]:
    """Yield a server of runs: the example, two made-up ones and a fabric."""
    with resources.as_file(resources.files("nearmetal.serve") / "example.zip") as archive:
        unarchive(archive, folder / "example")
    make_run(folder / "paths", Recipe(study=STUDY, blocks=6))
    make_run(folder / "later", Recipe(study=STUDY, blocks=6, seed=8))
    make_run(folder / "slower", Recipe(study=STUDY, blocks=6, seed=9, cost={**COST, "tap": 2.9}))
    make_run(folder / "large", Recipe(study=STUDY.replace('sizes = [8, "1 KiB", "64 KiB"]', SIZES), blocks=6))
    make_fabric(folder / "fabric", MadeUpHost(Faults(latency_nodes={2: 1.4}, bandwidth_links={(4, 6): 2.0})))
    make_beside(folder)
    make_history(folder)
    make_search(folder)
    make_traced(folder / "traced")
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(Catalogue(folder), listening.access), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening.socket]})
    thread.start()
    try:
        yield listening
    finally:
        server.should_exit = True
        thread.join()


def look(browser: Browser, listening: Listening, name: str, shown: str, out: Path) -> list[str]:
    """Open a page in one view, take a picture of its first screen, and return its violations."""
    context = browser.new_context(bypass_csp=True, reduced_motion="reduce", **VIEWS[shown])
    page = context.new_page()
    page.goto(listening.at("/"))
    while page.get_by_text("being read").count():
        page.goto(listening.at("/"))
    page.goto(listening.at("").partition("?")[0] + PAGES[name])
    if shown == "light" and name not in UNSHOWN:
        if name == "list":  # where the runs are is the machine's own
            page.locator("p.meta").first.evaluate("one => one.textContent = 'runs'")
        page.screenshot(path=out / f"{name}.png")
    if EVERY:
        page.screenshot(path=Path(EVERY) / f"{name}-{shown}.png", full_page=True)
        if shown == "light":
            page.pdf(path=Path(EVERY) / f"{name}.pdf")
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    found = [f"{one['id']}: {one['help']} ({one['nodes'][0]['html'][:90]})" for one in _violations(page)]
    context.close()
    return found + ([f"{wide} px wider than the window"] if wide > 0 else [])


def _violations(page: Any) -> list[dict[str, Any]]:
    found = Axe().run(page).response["violations"]
    assert isinstance(found, list)
    return found


def measure_size(browser: Browser, folder: Path) -> tuple[int, float]:
    """Return the bytes of a report of 5 paths x 10 sizes, and the ms until its first paint, median of 5."""
    study = STUDY.replace('sizes = [8, "1 KiB", "64 KiB"]', SIZES)
    report = folder / "report.html"
    report.write_text(as_html.render(build_view(make_run(folder / "large", Recipe(study=study, blocks=6)))))
    times = []
    for _ in range(5):
        with browser.new_context(bypass_csp=True, viewport={"width": 1280, "height": 800}) as context:
            page = context.new_page()
            page.goto(report.as_uri())
            page.wait_for_function("performance.getEntriesByType('paint').length > 1")
            times.append(float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")))
    return report.stat().st_size, median(times)


def main(out: Path, names: Sequence[str] = ()) -> int:
    """Check every page in every view, or those named; measure a large one; return 1 if anything is wrong."""
    bad, out = 0, out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        chdir(folder),
        served(Path("runs")) as listening,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in names or PAGES:
            for shown in VIEWS:
                for line in look(browser, listening, name, shown, out):
                    sys.stdout.write(f"{name}, {shown}: {line}\n")
                    bad += 1
        size, paint_ms = measure_size(browser, Path(folder)) if not names else (0, 0.0)
        browser.close()
    load = f"load {os.getloadavg()[0]:.1f}"
    sys.stdout.write(f"report of 5 paths x 10 sizes: {size:,} bytes, first paint after {paint_ms:.0f} ms, {load}\n")
    bad += (size >= GOAL_BYTES) + (paint_ms >= GOAL_MS)
    sys.stdout.write(f"{len(PAGES)} pages, {len(VIEWS)} views: {bad} faults\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
