"""Build every native program that a trial may need into one directory: run inside the lab's image while it is made.

`python3 -m nearmetal.run.prebuild DIRECTORY`; afterwards `NEARMETAL_PREBUILT=DIRECTORY` serves a machine without
a compiler. Standard library only.
"""

import shutil
import sys
from pathlib import Path

from nearmetal import native
from nearmetal.paths.tap import RELAY
from nearmetal.workloads.apps import PROGRAM, build_apps
from nearmetal.workloads.build import PROFILER, build_engine, build_profiler
from nearmetal.workloads.fabric import PROGRAM as FABRIC_PROGRAM
from nearmetal.workloads.fabric import build_fabric
from nearmetal.workloads.mpi.table import FLAVOURS, find_mpi


def prebuild(target: Path) -> None:
    """Build engines, applications and profiler for every MPI here, and the relay; raise NearmetalError if one fails."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy2(native.build(RELAY), target / RELAY.name)
    for flavour in FLAVOURS:
        mpi = find_mpi(flavour)
        shutil.copy2(build_engine(mpi), target / f"nmbench-{mpi.label}")
        shutil.copy2(build_apps(mpi), target / f"{PROGRAM}-{mpi.label}")
        shutil.copy2(build_fabric(mpi), target / f"{FABRIC_PROGRAM}-{mpi.label}")
        shutil.copy2(build_profiler(mpi), target / f"{PROFILER}-{mpi.label}")


if __name__ == "__main__":
    prebuild(Path(sys.argv[1]))
