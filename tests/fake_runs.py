"""Runs on the fake host, made without the command line: quick enough to make dozens of."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import nearmetal
from nearmetal.hosts.fake import FakeHost
from nearmetal.run.schedule import run_study
from nearmetal.store.listing import LIST, whole_list
from nearmetal.store.record import read_record
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.sums import sealed
from nearmetal.study.spec import digest, parse_study

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from nearmetal.hosts.host import Shell
    from nearmetal.study.order import Order, Outcome, Scalar


SEARCH = """
name = "tuned"
baseline = "native"
host = { kind = "fake" }
path = [{ name = "native", kind = "shm" }, { name = "vf", kind = "shm" }]
workload = [{ name = "latency", sizes = [8] }]
[tune]
max_trials = 20
[tune.knobs]
"nic.rx-usecs" = [0, 10]
"""
"""A search on the fake host."""

STUDY = """
format = 1
name = "small"
seed = 3
baseline = "veth"
margin = "5 %"
[host]
kind = "fake"
[[path]]
name = "veth"
[[path]]
name = "tap"
[[workload]]
name = "latency"
sizes = [8, "1 KiB"]
iterations = 50
warmup = 5
[trials]
min_blocks = 3
max_blocks = 3
"""
"""A small study: nine trials, and so twenty files."""


class Silent:
    """A watcher that draws nothing."""

    def block_started(self, number: int, trials: int, open_paths: object) -> None: ...

    def trial_ended(self, record: object) -> None: ...


class HostWithFacts(FakeHost):
    """A fake host whose trials carry further facts."""

    def __init__(self, options: Mapping[str, Scalar], facts: Mapping[str, Scalar]) -> None:
        super().__init__(options)
        self._facts = facts

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        outcome = super().carry_out(order, body)
        outcome.facts.update(self._facts)
        return outcome


def make_run(
    root: Path, text: str, *, facts: Mapping[str, Scalar] | None = None, created: str = "2026-01-01T00:00:00+00:00"
) -> Path:
    """Carry out the study `text` on a fake host; return the run directory."""
    study = parse_study(text, root.name)
    info = RunInfo(study.name, digest(text), "fake", "made up", nearmetal.__version__, created)
    with RunDir.create(root, info, text) as run:
        run_study(study, HostWithFacts(study.host.options, facts or {}), run, Silent())
    return root


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a sealed document of a run, seal it again, and list a record as it is then."""
    raw = json.loads(path.read_bytes())
    del raw["sha256"]
    change(raw)
    path.write_bytes(sealed(raw))
    if path.parent.name == "trials":
        list_anew(path.parents[1])


def list_anew(root: Path) -> None:
    """Rewrite the list of a run from its records."""
    records = [read_record(path) for path in sorted((root / "trials").glob("*.json"))]
    (root / LIST).write_bytes(whole_list(records))


def edit_study(root: Path, change: Callable[[str], str]) -> None:
    """Change the study of a run."""
    text = change((root / "study.toml").read_text())
    (root / "study.toml").write_text(text)
    marker = "search.json" if (root / "search.json").exists() else "run.json"
    rewrite(root / marker, lambda raw: raw.update(study=text, study_sha256=digest(text)))


class RunCache:
    """Runs that are made once and copied for each test: a fake host always gives the same bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Path] = {}

    def copy(self, root: Path, text: str) -> Path:
        """Return a copy of a study's run under a new name."""
        if text not in self._made:
            self._made[text] = make_run(self._folder / str(len(self._made)), text)
        shutil.copytree(self._made[text], root)
        return root
