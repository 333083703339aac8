"""The Grafana dashboard: every panel's query runs on a real Prometheus that scraped the gate's output."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from nearmetal.cli.main import run as nearmetal
from tests.unit.report.synthetic_run import Recipe, make_run

if TYPE_CHECKING:
    from collections.abc import Iterator

DASHBOARD = Path(__file__).parents[2] / "packaging" / "monitoring" / "grafana.json"
CONFIG = """
global: {{ scrape_interval: 1s }}
scrape_configs:
  - job_name: gate
    static_configs: [{{ targets: ["127.0.0.1:{port}"] }}]
"""


@contextlib.contextmanager
def exposed(text: bytes) -> Iterator[int]:
    """Serve a text on the loopback; yield the port."""

    class Exposition(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Exposition) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@contextlib.contextmanager
def prometheus(folder: Path, scraped: int) -> Iterator[str]:
    """Run a Prometheus that scrapes a port of the loopback; yield its address."""
    (folder / "config.yml").write_text(CONFIG.format(port=scraped))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--config.file={folder}/config.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        argv = ["prometheus", *options, f"--web.listen-address={address}"]
        with subprocess.Popen(argv, stdout=log, stderr=log) as running:
            try:
                yield f"http://{address}"
            finally:
                running.terminate()


def answered(server: str, expression: str) -> list[dict[str, Any]]:
    """Query until there is a result: the server starts, and scrapes once a second."""
    while True:
        with contextlib.suppress(urllib.error.URLError):
            url = f"{server}/api/v1/query?{urlencode({'query': expression})}"
            with urllib.request.urlopen(url) as answer:
                if found := json.load(answer)["data"]["result"]:
                    return found  # type: ignore[no-any-return]


@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed")
def test_every_panel_gets_data_from_the_gate(tmp_path: Path) -> None:
    for name, stalls in (("old", frozenset[str]()), ("new", frozenset({"tap"}))):
        make_run(tmp_path / name, Recipe(stalls=stalls))
    runs = [str(tmp_path / "new"), "--against", str(tmp_path / "old"), "--no-remeasure"]
    assert nearmetal(["gate", *runs, "--openmetrics", str(tmp_path / "gate.prom")]) == 1
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"].replace("$study", ".*") for panel in panels for target in panel["targets"]]
    with exposed((tmp_path / "gate.prom").read_bytes()) as port, prometheus(tmp_path, port) as server:
        assert len([answered(server, one) for one in asked]) >= 8
        verdicts = {one["metric"]["verdict"]: one["value"][1] for one in answered(server, "nearmetal_gate_verdict")}
        assert verdicts == {"worse": "1", "within": "0", "undecided": "0"}
        worse = answered(server, 'nearmetal_gate_cells{stands="worse"}')
        assert {one["metric"]["metric"]: one["value"][1] for one in worse} == {"mean": "0", "median": "0", "p99": "3"}
