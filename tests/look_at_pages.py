"""Every page in Chromium: axe-core finds no violation in light, dark and 400 px, and docs get their pictures anew.

`make pictures`. Pages are those of the shipped example, of made-up runs, and of what `serve` draws around them.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from axe_playwright_python.sync_playwright import Axe
from bench.support.made_up_fabric import Faults
from playwright.sync_api import sync_playwright

from nearmetal.serve.app import make_app
from nearmetal.serve.catalogue import Catalogue
from nearmetal.serve.server import Listening, listen
from nearmetal.store.archive import unarchive
from tests.browser import CHROMIUM
from tests.fake_fabric import MadeUpHost, make_fabric
from tests.unit.report.synthetic_run import STUDY, Recipe, make_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

PAGES = {
    "list": "/",
    "report": "/runs/example",
    "live": "/runs/paths/live",
    "compare": "/compare?base=paths&run=later",
    "many": "/compare?base=paths&run=later&run=example",
    "fabric": "/runs/fabric",
    "refusal": "/runs/none",
}
KEPT = ("report", "compare", "fabric")
"""Pages whose first screen is a picture of the docs."""
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 400, "height": 800}},
}


@contextmanager
def served(folder: Path) -> Iterator[Listening]:
    """Give a server of runs: the example, two made-up ones and a fabric."""
    with resources.as_file(resources.files("nearmetal.serve") / "example.zip") as archive:
        unarchive(archive, folder / "example")
    make_run(folder / "paths", Recipe(study=STUDY, blocks=6))
    make_run(folder / "later", Recipe(study=STUDY, blocks=6, seed=8))
    make_fabric(folder / "fabric", MadeUpHost(Faults(latency_nodes={2: 1.4}, bandwidth_links={(4, 6): 2.0})))
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(Catalogue(folder), listening.door), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening.socket]})
    thread.start()
    try:
        yield listening
    finally:
        server.should_exit = True
        thread.join()


def look(browser: Browser, listening: Listening, name: str, shown: str, out: Path) -> list[str]:
    """Open a page in one view, take its first screen's picture, and return what is wrong with it."""
    context = browser.new_context(bypass_csp=True, reduced_motion="reduce", **VIEWS[shown])
    page = context.new_page()
    page.goto(listening.at("/"))
    while page.get_by_text("being read").count():
        page.goto(listening.at("/"))
    page.goto(listening.at("").partition("?")[0] + PAGES[name])
    if shown == "light" and name in KEPT:
        page.screenshot(path=out / f"{name}.png")
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    found = [f"{one['id']}: {one['help']} ({one['nodes'][0]['html'][:90]})" for one in _violations(page)]
    context.close()
    return found + ([f"{wide} px wider than the window"] if wide > 0 else [])


def _violations(page: Any) -> list[dict[str, Any]]:
    found = Axe().run(page).response["violations"]
    assert isinstance(found, list)
    return found


def main(out: Path) -> int:
    """Look at every page in every view; return 1 where one has a violation."""
    bad = 0
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder) / "runs") as listening,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in PAGES:
            for shown in VIEWS:
                for line in look(browser, listening, name, shown, out):
                    sys.stdout.write(f"{name}, {shown}: {line}\n")
                    bad += 1
        browser.close()
    sys.stdout.write(f"{len(PAGES)} pages, {len(VIEWS)} views: {bad} violations\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
