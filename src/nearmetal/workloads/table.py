"""Every kind of workload: a new one is one file and one row, here or in `tools/table.py`."""

from nearmetal.errors import named
from nearmetal.workloads.apps import ApplicationWorkload
from nearmetal.workloads.command import CommandWorkload
from nearmetal.workloads.engine import Engine
from nearmetal.workloads.fabric import Fabric
from nearmetal.workloads.tools.table import TOOLS
from nearmetal.workloads.workload import Workload

_ROWS: tuple[Workload, ...] = (
    Engine(),
    ApplicationWorkload(),
    Fabric(),
    *(tool.workload for tool in TOOLS if tool.workload is not None),
    CommandWorkload(),
)
WORKLOADS: dict[str, Workload] = {workload.kind: workload for workload in _ROWS}


def find_workload(kind: str) -> Workload:
    """Return the workload of that kind; raise BadInputError with the known kinds otherwise."""
    return named(WORKLOADS, kind, f"there is no workload {kind!r}")
