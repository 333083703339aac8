import pytest

from nearmetal.errors import UnavailableError
from nearmetal.hosts.far.namespaces import FarNamespaceShell
from nearmetal.hosts.far.shell import MachinesShell
from nearmetal.hosts.host import is_far
from nearmetal.hosts.machine import MachineShell


def test_asking_what_a_shell_is_never_runs_its_properties() -> None:
    shell = MachineShell()
    with pytest.raises(UnavailableError):
        _ = shell.agent
    assert not is_far(shell)


@pytest.mark.parametrize("kind", [MachinesShell, FarNamespaceShell])
def test_a_far_shell_is_known_by_its_class(kind: type) -> None:
    assert is_far(object.__new__(kind))
