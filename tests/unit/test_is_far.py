import pytest

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.hosts.far.namespaces import FarNamespaceShell
from nearmetal.hosts.far.shell import MachinesShell
from nearmetal.hosts.host import is_far
from nearmetal.hosts.machine import MachineShell
from nearmetal.workloads.mpi.table import job_nodes


def test_checking_the_kind_of_a_shell_never_evaluates_its_properties() -> None:
    shell = MachineShell()
    with pytest.raises(UnavailableError):
        _ = shell.agent
    assert not is_far(shell)


@pytest.mark.parametrize("kind", [MachinesShell, FarNamespaceShell])
def test_a_far_shell_is_known_by_its_class(kind: type) -> None:
    assert is_far(object.__new__(kind))


def test_an_ipv6_address_is_not_given_to_a_launcher_that_would_parse_it_as_host_and_slots() -> None:
    shell = object.__new__(MachinesShell)
    shell._nodes = {"n0": (object(), "vm1"), "n1": (object(), "2001:db8::1")}  # type: ignore[dict-item]
    assert job_nodes(shell, ["n0"]) == ("vm1",)
    with pytest.raises(BadInputError, match="no IPv6 address for a host's name: 2001:db8::1"):
        job_nodes(shell, ["n0", "n1"])
