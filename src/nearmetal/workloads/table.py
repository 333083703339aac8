"""Every kind of workload: a new one is one file and one row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError
from nearmetal.workloads.apps import ApplicationWorkload
from nearmetal.workloads.engine import Engine

if TYPE_CHECKING:
    from nearmetal.workloads.workload import Workload

WORKLOADS: dict[str, Workload] = {workload.kind: workload for workload in (Engine(), ApplicationWorkload())}


def find_workload(kind: str) -> Workload:
    """Return the workload of that kind; raise BadInputError with the known kinds otherwise."""
    try:
        return WORKLOADS[kind]
    except KeyError:
        raise BadInputError(f"there is no workload {kind!r}", hint=f"one of: {', '.join(WORKLOADS)}") from None
