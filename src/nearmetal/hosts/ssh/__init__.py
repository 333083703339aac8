"""Machines reached over ssh."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from nearmetal.errors import BadInputError
from nearmetal.hosts.far import host as far
from nearmetal.study.shipped import read_nodes
from nearmetal.study.spec import HostSpec, NodeSpec

OPTIONS = {
    "identity": "file of the private key (ssh's own and the agent's)",
    "known_hosts": "file of known host keys (ssh's own)",
    "config": "ssh_config file to read",
    "connect_timeout_s": "timeout for one connection (20)",
    **far.OPTIONS,
}
"""What a study may say of it, known where asyncssh is not installed, too."""

_NAMED = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_.][A-Za-z0-9_.@+\\$-]{0,63})@)?"
    r"(?:\[(?P<closed>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<bare>[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?)"
    r"|(?P<host>\w[\w.-]{0,254}))(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Login:
    """A machine as named to ssh; empty parts and port 0 are left to ssh's own configuration."""

    user: str
    address: str
    port: int

    @property
    def short(self) -> str:
        """Return a name for it: the first word of a host name, an address whole and without colons."""
        if ":" in self.address:
            return re.sub(r"[:%]+", "-", self.address).strip("-")
        return self.address if re.fullmatch(r"[\d.]+", self.address) else self.address.partition(".")[0]


def parse_login(word: str) -> Login:
    """Read `[USER@]HOST[:PORT]`; an IPv6 address stands in brackets, or alone. Raise BadInputError for anything else.

    >>> parse_login("me@[2001:db8::1]:2201")
    Login(user='me', address='2001:db8::1', port=2201)
    """
    found = _NAMED.fullmatch(word)
    address = found and (found["closed"] or found["bare"])
    port = int(found["port"] or 0) if found else 0
    if found is None or port > _MOST_PORT or (address and not _is_address(address)):
        raise BadInputError(
            f"{word!r} does not name a machine",
            hint="write [USER@]HOST[:PORT], as for ssh; an IPv6 address with a port as [ADDRESS]:PORT",
        )
    return Login(found["user"] or "", address or found["host"], port)


def machines_named(spec: HostSpec) -> list[NodeSpec]:
    """Return the machines of a study's [host] table and of its `hosts_file`; raise BadInputError for a bad file."""
    return [*spec.node, *(read_nodes(Path(spec.hosts_file).expanduser()) if spec.hosts_file else [])]


_MOST_PORT = 65535


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
