"""A path, a tool, a knob, a host and an MPI added from outside: one table row each, its contract, one real trial."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import pytest

from knob_machine import KnobMachine
from nearmetal.errors import BadInputError, ForeignFileError, TrialError, UnavailableError
from nearmetal.hosts.kind import HostKind, Pace
from nearmetal.hosts.local import LocalHost
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.hosts.table import HOSTS, open_host
from nearmetal.knobs import table as knobs
from nearmetal.knobs.knob import Stage, Target, WholeNumber
from nearmetal.knobs.nic import interface_file, nic_knob
from nearmetal.paths.path import Endpoints, PathRecipe
from nearmetal.paths.table import PATHS
from nearmetal.paths.veth import VETH
from nearmetal.run.check import check_study
from nearmetal.run.estimate import estimate
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.study.spec import parse_study
from nearmetal.workloads import samples
from nearmetal.workloads.figures import UNITS, Figure
from nearmetal.workloads.mpi.openmpi import OPENMPI
from nearmetal.workloads.mpi.table import FLAVOURS
from nearmetal.workloads.samples import decode, read_foreign
from nearmetal.workloads.table import WORKLOADS
from nearmetal.workloads.tools.tool import Foreign, Import, Spans, Tool
from nearmetal.workloads.workload import Launch
from tests.contract import test_host, test_knobs
from tests.contract.test_tables import check_path, check_tool, check_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from nearmetal.hosts.host import Host, Shell
    from nearmetal.process import Finished
    from nearmetal.workloads.tools.tool import FileCell


def up(shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    ends = VETH.up(shell, order, nodes)
    for end in ends.ends:
        shell.run(["ip", "link", "set", "dev", end.interface, "mtu", "9000"], node=end.node)
    return ends


JUMBO = PathRecipe("jumbo", "a virtual cable for frames of 9,000 bytes", up)


class Pings:
    """A workload: `ping` from the first end to the second, with the study's number of iterations."""

    kind = "pings"

    def check(self, workload: WorkloadOrder) -> None:
        known = {"operation", "sizes", "iterations", "warmup"}
        if other := sorted(set(workload.options) - known):
            raise BadInputError(f"workload {workload.label!r}: pings has no option {other[0]!r}")

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        here, there = endpoints.ends
        place = f"{shell.scratch}/{here.node}/pings"
        argv = ("sh", "-c", 'exec ping -i 0.002 -c "$1" "$2" > "$3"', "sh")
        count = str(order.workload.number("iterations"))
        return Launch((*argv, count, there.address, place), here.node, files={"pings:ping:0:0:0": place})

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        if not finished.ok:
            raise TrialError(f"pings failed: {finished.complaint()}")

    def least_packets(self, order: Order) -> int:
        return order.workload.number("iterations")


def _samples(data: bytes) -> Spans:
    found = re.findall(rb" time=([0-9.]+) ms", data)
    if not found:
        raise ForeignFileError("ping printed no time")
    return Spans([UNITS["ms"].to_ns(float(one)) for one in found])


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    yield Foreign("ping", "", "pings", 2, (("ping", 0, _samples(data)),), ())


PINGS = Tool(
    "pings", (Import((b" bytes of data.",), _adopt),), Pings(), _samples, {"ping": Figure("ping", UNITS["us"])}
)
ALIAS = nic_knob(
    "group",
    "the group that an interface belongs to",
    Stage.VALUE,
    WholeNumber(0, 999, ""),
    interface_file("netdev_group"),
)


class Desk(LocalHost):
    """A host: this machine under another name."""

    kind = "desk"
    label = "a desk"


STUDY = parse_study(
    """
name = "outside"
baseline = "jumbo"
host = { kind = "desk" }
mpi = { flavour = "nextmpi" }
path = [{ name = "jumbo" }]
workload = [{ name = "latency", sizes = [8] }]
""",
    "a test",
)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the rows, and derive again everything that is derived from the table of tools at import."""
    monkeypatch.setitem(PATHS, JUMBO.kind, JUMBO)
    monkeypatch.setattr(samples, "TOOLS", (*samples.TOOLS, PINGS))
    monkeypatch.setitem(samples.DECODERS, PINGS.kind, _samples)
    monkeypatch.setitem(WORKLOADS, PINGS.kind, PINGS.workload)
    monkeypatch.setitem(knobs._BY_NAME, ALIAS.name, ALIAS)
    row = HostKind("A desk.", open=lambda _: Desk(), pace=lambda _: Pace(0.5))
    monkeypatch.setitem(HOSTS, Desk.kind, row)
    monkeypatch.setitem(FLAVOURS, "nextmpi", dataclasses.replace(OPENMPI, name="nextmpi"))


@pytest.fixture
def desk() -> Iterator[Host]:
    """Open the host as for a study that names it."""
    try:
        with NamespaceShell():
            pass
    except UnavailableError as error:
        pytest.skip(error.render())
    host = open_host(STUDY)
    yield host
    host.close()


def of_desk(**changes: object) -> Order:
    options = {"operation": "ping", "sizes": [], "iterations": 30, "warmup": 0}
    order = Order(7, 1, PathOrder("p", JUMBO.kind), WorkloadOrder("w", PINGS.kind, options), seed=11)  # type: ignore[arg-type]
    return dataclasses.replace(order, **changes)  # type: ignore[arg-type]


def test_a_study_that_names_a_new_host_and_mpi_is_checked_and_estimated() -> None:
    check_study(STUDY)
    assert estimate(STUDY)[0] > 0


def test_a_path_a_tool_and_its_workload_pass_the_contract() -> None:
    check_path(PATHS[JUMBO.kind])
    check_workload(WORKLOADS[PINGS.kind])
    check_tool(PINGS)


@pytest.mark.parametrize(
    "check", [value for name, value in vars(test_knobs.TestEveryKnob).items() if name.startswith("test_")]
)
def test_a_knob_passes_the_contract(check: Callable[..., None], tmp_path: Path) -> None:
    given = {"tmp_path": tmp_path} if "tmp_path" in check.__code__.co_varnames else {}
    check(test_knobs.TestEveryKnob(), ALIAS, **given)
    place = "/sys/class/net/eth1/netdev_group"
    machine = KnobMachine.make(tmp_path / "machine", {"eth1": {}}, {place: "0\n"})
    test_knobs.put(machine, ALIAS, Target("", "eth1"), "5")
    assert ALIAS.read(machine, Target("", "eth1")).value == "5"


@pytest.mark.netns
def test_a_host_passes_the_contract_with_a_trial_of_all_of_them(desk: Host) -> None:
    test_host.test_it_describes_itself(desk)
    test_host.test_a_shell_reads_many_files_at_once(desk, of_desk)
    test_host.test_a_trial_that_cannot_be_carried_out_is_an_outcome_not_an_error(desk, of_desk)
    outcome: Outcome = desk.carry_out(of_desk(knobs={ALIAS.name: 5}), carry_out)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts[f"knob.{ALIAS.name}"] == "5"
    (cell,) = decode(outcome)
    assert (cell.operation, cell.ns.shape) == ("ping", (1, 30))
    (adopted,) = read_foreign(outcome.files["pings:ping:0:0:0"])
    assert adopted.cells[0].ns.tolist() == cell.ns.tolist()
    test_host.test_closing_twice_has_no_effect(desk)
