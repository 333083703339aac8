"""Host `ssh`: machines that the study names, bare hosts and guests, or one hypervisor to build paths on."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from nearmetal.errors import BadInputError
from nearmetal.hosts.far import host as far
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.shell import MachinesShell, Memory
from nearmetal.hosts.host import seconds, whole_number
from nearmetal.hosts.ssh import OPTIONS, Login, machines_named, parse_login
from nearmetal.hosts.ssh.connect import Connector, SshAddress, SshReach
from nearmetal.study.order import Scalar
from nearmetal.study.spec import HostSpec, NodeSpec


class SshHost(far.FarHost):
    """Carries trials out on machines behind ssh; connections stay open between trials."""

    kind = "ssh"
    reaching = frozenset({"identity", "known_hosts", "config", "connect_timeout_s"})
    hint = "check the machine with ssh"

    def __init__(self, nodes: Sequence[NodeSpec], options: Mapping[str, Scalar]) -> None:
        far.check_options(self.kind, options, OPTIONS)
        if not nodes:
            raise BadInputError("the ssh host has no machines", hint="give [[host.node]] tables, or a `hosts_file`")
        far.check_names(self.kind, nodes)
        places = [_address(node) for node in nodes]
        self._connector = Connector(_access(options))
        shells = [partial(self._connector.open_shell, place) for place in places]
        super().__init__(nodes, shells, options, label=f"machines over ssh: {', '.join(node.name for node in nodes)}")

    def close(self) -> None:
        """Close every connection; calling twice does nothing more."""
        super().close()
        self._connector.close()


def open_ssh(spec: HostSpec) -> SshHost:
    """Return the host of a study's [host] table, connected; raise UnavailableError when a machine does not answer."""
    return SshHost(machines_named(spec), spec.options)


def _access(options: Mapping[str, Scalar]) -> SshReach:
    def file(name: str) -> str:
        given = str(options.get(name, ""))
        path = Path(given).expanduser()
        if given and not path.is_file():
            raise BadInputError(f"{name} = {given!r} is not a file")
        return str(path) if given else ""

    return SshReach(
        file("identity"),
        file("known_hosts"),
        file("config"),
        seconds(options, "connect_timeout_s", 20),
        whole_number(options, "parallel", 32),
    )


def _address(node: NodeSpec) -> SshAddress:
    login = Login(node.user, node.address or node.name, node.port)
    place = SshAddress(node.name, login, node.jump, node.connect_timeout_s)
    _ = place.hops  # refused before anything is connected
    return place


@contextmanager
def machine_shell(name: str, options: Mapping[str, Scalar] | None = None) -> Iterator[MachinesShell]:
    """Give a shell on a machine that no study names: `[USER@]HOST[:PORT]`, an alias of ~/.ssh/config or an address.

    `options` are those of the host. The machine itself is its only node, HYPERVISOR. Raises BadInputError for another
    name, UnavailableError when it does not answer.
    """
    far.check_options("ssh", options or {}, OPTIONS)
    connector = Connector(_access(options or {}))
    try:
        machine = FarMachine(name, partial(connector.open_shell, SshAddress(name, parse_login(name))))
        machine.connect()
        with MachinesShell([machine], [name], far.site_of(machine.home, {}), Memory()) as shell:
            yield shell
    finally:
        connector.close()
