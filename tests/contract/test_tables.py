"""What every row of the tables must do: paths, workloads, tools and hosts (knobs: test_knobs.py).

Each check takes one row, so that tests/contract/test_from_outside.py can apply it to rows outside the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import BadInputError, ForeignFileError, NearmetalError
from nearmetal.hosts.table import HOSTS, find_host
from nearmetal.paths.table import PATHS, find_path
from nearmetal.process import Finished
from nearmetal.study.order import Order, PathOrder, WorkloadOrder
from nearmetal.workloads.figures import UNITS
from nearmetal.workloads.table import WORKLOADS, find_workload
from nearmetal.workloads.tools.table import TOOLS
from tests.contract import test_host

if TYPE_CHECKING:
    from nearmetal import paths
    from nearmetal.workloads.tools.tool import Tool
    from nearmetal.workloads.workload import Workload

ROOT = Path(__file__).parents[2]
OPERATION = {"application": "cg", "command": ""}
"""What a workload is asked for where it has no operation `latency`."""


def check_path(path: paths.path.PathRecipe) -> None:
    assert find_path(path.kind) is path
    assert path.about
    assert "\n" not in path.about
    assert all(meaning and "\n" not in meaning for meaning in path.options.values())
    before = repr(getattr(path, "__dict__", {}))

    class Refusing:
        """No machine at all: the first thing that a recipe does fails."""

        def __getattr__(self, name: str) -> object:
            raise NearmetalError("there is no machine")

    for nodes in ([], ["n0", "n1"]):
        with pytest.raises(NearmetalError):
            path.up(Refusing(), PathOrder(path.kind, path.kind), nodes)  # type: ignore[arg-type]
    assert repr(getattr(path, "__dict__", {})) == before, "recipes hold no state"


def check_workload(workload: Workload) -> None:
    kind = workload.kind
    assert find_workload(kind) is workload
    options = {"operation": OPERATION.get(kind, "latency"), "sizes": [8], "iterations": 10, "warmup": 1}
    order = Order(0, 0, PathOrder("veth", "veth"), WorkloadOrder("w", kind, options))  # type: ignore[arg-type]
    assert workload.least_packets(order) >= 0
    for status in (1, -9):
        with pytest.raises(NearmetalError, match=r"failed|was not measured") as refused:
            workload.verify(order, Finished(("program",), status, b"", b"its last words", 1), {})
        assert "its last words" in refused.value.message
    with pytest.raises(BadInputError, match="no-such-option"):
        workload.check(WorkloadOrder("w", kind, {"no-such-option": 1, "sizes": [8]}))


RUBBISH = (b"", b"rubbish\n", b"\0\xff" * 50, b"{}", b"[" * 2000)


def check_tool(tool: Tool) -> None:
    assert tool.workload is None or tool.workload.kind == tool.kind
    assert (tool.workload is None) or tool.samples, "launched output is decoded"
    assert all(mark for one in tool.imports for mark in one.marks)
    for data in RUBBISH:
        for one in tool.imports:
            with pytest.raises(ForeignFileError):
                list(one.read(data))
        if tool.samples:
            with pytest.raises(ForeignFileError):
                tool.samples(data)
    for name, figure in tool.figures.items():
        assert figure.name, name
        assert figure.unit in UNITS.values(), name


@pytest.mark.parametrize("kind", PATHS)
def test_every_path(kind: str) -> None:
    assert PATHS[kind].kind == kind
    check_path(PATHS[kind])


@pytest.mark.parametrize("kind", WORKLOADS)
def test_every_workload(kind: str) -> None:
    assert WORKLOADS[kind].kind == kind
    check_workload(WORKLOADS[kind])


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.kind)
def test_every_tool(tool: Tool) -> None:
    check_tool(tool)


def test_tools_have_unique_names() -> None:
    kinds = [tool.kind for tool in TOOLS]
    assert len(set(kinds)) == len(kinds)
    marks = [mark for tool in TOOLS for one in tool.imports for mark in one.marks]
    assert len(set(marks)) == len(marks), "a file would belong to two programs"


def test_every_host_is_under_contract() -> None:
    held = {name.partition("-")[0] for name in test_host.HOSTS}
    assert held | {"import"} == set(HOSTS), "`import` measures nothing: it stands for imported files"


@pytest.mark.parametrize("find", [find_host, find_path, find_workload])
def test_an_unknown_name_is_refused_with_the_known_ones(find: object) -> None:
    with pytest.raises(BadInputError) as refused:
        find("waltz")  # type: ignore[operator]
    assert "waltz" in refused.value.message
    assert "known: " in refused.value.hint
