"""Domains of a libvirt, through the program `virsh`: lighter than its Python binding, which has to be built."""

from __future__ import annotations

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.hosts.host import Shell

_TIMEOUT_S = 30.0


def domain_xml(shell: Shell, uri: str, *, running: bool = False) -> list[str]:
    """Return the XML of every domain, or of the `running` ones alone, as they run.

    Raise UnavailableError when libvirt does not answer.
    """
    if not uri or uri.startswith("-"):
        raise BadInputError(f"{uri!r} is not a libvirt URI", hint="such as qemu:///system or qemu+ssh://host/system")
    names = _virsh(shell, uri, "list", *([] if running else ["--all"]), "--name").splitlines()
    return [_virsh(shell, uri, "dumpxml", "--domain", name) for name in filter(None, map(str.strip, names))]


def _virsh(shell: Shell, uri: str, *arguments: str) -> str:
    finished = shell.run(["virsh", "--quiet", "--connect", uri, *arguments], timeout_s=_TIMEOUT_S, check=False)
    if not finished.ok:
        raise UnavailableError(
            f"libvirt at {uri} does not answer: {finished.complaint()}",
            hint="`virsh --connect URI list` must work first (Debian: apt install libvirt-clients)",
        )
    return finished.text


def machine_of(uri: str) -> str | None:
    """Return whose libvirt a URI means: '' for this machine's, `[USER@]NAME[:PORT]` behind ssh, None for other ways."""
    scheme, _, rest = uri.partition("://")
    where = rest.partition("/")[0]
    if not where:
        return ""
    return where if scheme.endswith("+ssh") else None
