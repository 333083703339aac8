"""Files beside runs in a served directory: a trace, a prediction and a placement, made by their verbs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from fake_runs import edit_study, make_run
from nearmetal.cli.place import command as place
from nearmetal.cli.predict import command as predict
from nearmetal.cli.tune import command as tune
from nearmetal.predict.model_file import ModelFile, write_model
from nearmetal.predict.models import UNBOUNDED, Machine, NamedMachine, PathModel, Segment
from nearmetal.predict.trace import Trace
from nearmetal.store.bundle import read_bundle
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.study.order import PROFILE_FOLDER, Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.study.spec import digest
from nearmetal.workloads.samples import decode
from tests.trace_writer import write_trace
from tests.unit.test_trace_view import RANKS, ring_rank

if TYPE_CHECKING:
    from click import Command

PATTERN = """
[pattern]
kind = "halo"
ranks = 8
steps = 20
message_bytes = 4096
dims = [2, 2, 2]
periodic = false
compute = "60 us"
"""

SEARCH_STUDY = """
name = "s"
baseline = "veth"
path = [{ name = "veth" }, { name = "tap" }]
workload = [{ name = "latency", sizes = [8, 1024], iterations = 60, warmup = 10 }]
[host]
kind = "fake"
options = { "times.nic.mtu=9000" = 0.9, "times.nic.gro=off" = 1.1, "times.nic.rx-frames=16" = 0.97 }
[tune]
path = "tap"
max_trials = 60
interfaces = ["eth1"]
[tune.knobs]
"nic.mtu" = [9000]
"nic.gro" = ["off"]
"nic.rx-frames" = [4, 16]
[[tune.classes]]
name = "latency-bound"
"""
HISTORY_STUDY = """
format = 1
name = "made-up"
seed = {seed}
baseline = "veth"
host = {{ kind = "fake", options = {{ {options} }} }}
path = [{{ name = "veth" }}, {{ name = "tap" }}]
workload = [{{ name = "latency", sizes = [8], iterations = 40 }}]
trials = {{ min_blocks = 3, max_blocks = 3 }}
"""


def make_history(folder: Path) -> list[Path]:
    """Fourteen runs; from the ninth on `tap` is slower under a newer kernel; the fourth has a bad result on `veth`."""
    made = []
    for number in range(14):
        late = number >= 8
        options = f'"base_ns.tap" = {28000 if late else 24000}, "base_ns.veth" = {30000 if number == 3 else 10000}'
        facts = {"kernel.release": "6.8" if late else "6.1"}
        text = HISTORY_STUDY.format(seed=number, options=options)
        created = f"2026-03-{number + 1:02d}T08:00:00+00:00"
        made.append(make_run(folder / f"r{number:02d}", text, facts=facts, created=created))
    text = made[0].joinpath("study.toml").read_text()
    for root in made:  # the fake machine is part of the study's text
        edit_study(root, lambda _: text)
    return made


def make_beside(folder: Path, command: str = "ring") -> None:
    """Put a trace `ring`, a prediction and a placement `halo` into a folder."""
    (folder / "ring").mkdir()
    write_trace(Trace(tuple(ring_rank(rank, command=command) for rank in range(RANKS))), folder / "ring")
    (folder / "halo.toml").write_text(PATTERN)
    machines = tuple(
        NamedMachine(name, "as-found", "polling", Machine(_path(1), _path(latency_us)))
        for name, latency_us in (("native", 4), ("vf", 9), ("virtio", 40))
    )
    model = ModelFile("nearmetal-model", 1, "ladder", machines, figures_from="figures of a test")
    write_model(model, folder / "model.json")
    both = (str(folder / "halo.toml"), "--on", str(folder / "model.json"), "--replicas", "20")
    _run(predict, *both, "--per-node", "2", "--decide", "--sensitivity", "--save", f"{folder}/halo.prediction.json")
    even = ("--break-even", "native", "virtio", "--dims", "2x2x2", "--tries", "0")
    _run(place, *both, "--hosts", "n0:4,n1:4", *even, "--save", f"{folder}/halo.placement.json")


def _path(latency_us: int) -> PathModel:
    return PathModel((Segment(UNBOUNDED, latency_us * 1_000_000, 300_000, 300_000, 0, 100_000, 100_000),))


def _run(command: Command, *argv: str) -> None:
    CliRunner().invoke(command, list(argv), catch_exceptions=False, standalone_mode=False)


TRACED_STUDY = """
name = "traced"
baseline = "bridge"
path = [{ name = "bridge" }, { name = "vf" }]
[[workload]]
name = "latency"
sizes = [64]
options = { waterfall = true }
[[workload]]
name = "cg"
options = { trace = true }
"""


def make_traced(root: Path) -> Path:
    """A run with messages traced on two paths, as recorded in the lab, and with the MPI calls of an application."""
    info = RunInfo("traced", digest(TRACED_STUDY), "lab", "figures of a test", "0", "2026-01-01T00:00:00+00:00")
    calls = root.parent / "calls"
    calls.mkdir()
    write_trace(Trace(tuple(ring_rank(rank) for rank in range(RANKS))), calls)
    of_calls = {f"{PROFILE_FOLDER}{one.name}": one.read_bytes() for one in calls.iterdir()}
    shutil.rmtree(calls)
    golden = Path(__file__).parent / "golden"
    with RunDir.create(root, info, TRACED_STUDY) as run:
        for path, name in (("bridge", "waterfall-bridge-v1.zip"), ("vf", "waterfall-v1.zip")):
            files = read_bundle(golden / name)
            message = WorkloadOrder("latency", "engine", {"waterfall": True})
            app = WorkloadOrder("cg", "npb", {"trace": True})
            for workload, kept in ((message, files), (app, {**of_calls, "samples": files["samples"]})):
                order = Order(len(run.trials()), 0, PathOrder(path, path), workload, "default")
                outcome = Outcome(TrialStatus.VALID, files=kept)
                cells = decode(replace(outcome, files={"samples": files["samples"]})) if workload is message else []
                run.append(order, outcome, cells, attempt=1, started_utc="2026-01-01T00:00:00+00:00")
    return root


def make_search(folder: Path) -> Path:
    """Search settings of a made-up machine; the search directory is `search`."""
    (folder / "search.toml").write_text(SEARCH_STUDY)
    _run(tune, str(folder / "search.toml"), "--run", str(folder / "search"), "--out", str(folder))
    return folder / "search"
