"""Take from a release's root file system what the lab's image needs: rules on paths, and kernel modules by name."""

from __future__ import annotations

import fnmatch
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nearmetal.errors import BadInputError, NearmetalError
from nearmetal.hosts.lab.cpio import Node

_MODULE_ROOT = "usr/lib/modules"
_DEPMOD_FILES = re.compile(r"modules\.((dep|alias|symbols|builtin|builtin\.alias)\.bin|dep|softdep|order|builtin)")


def meaningful_lines(text: str) -> tuple[str, ...]:
    """Return the lines without comments and blanks."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line)


@dataclass(frozen=True, slots=True)
class TrimRules:
    """Which files stay: the first rule that matches decides, and a file that none matches stays."""

    rules: tuple[tuple[bool, re.Pattern[str]], ...]

    @staticmethod
    def parse(text: str) -> TrimRules:
        """Read `+ pattern` and `- pattern` lines; raise BadInputError for another line."""
        rules = []
        for line in meaningful_lines(text):
            sign, _, pattern = line.partition(" ")
            if sign not in {"+", "-"} or not pattern:
                raise BadInputError(f"{line!r} is not a trim rule", hint="write `+ pattern` or `- pattern`")
            rules.append((sign == "+", re.compile(fnmatch.translate(pattern.strip()))))
        return TrimRules(tuple(rules))

    def keeps(self, path: str) -> bool:
        """Return whether the file at `path` (no leading slash) stays."""
        return next((keep for keep, pattern in self.rules if pattern.match(path)), True)


def module_closure(names: Sequence[str], dependencies: str) -> frozenset[str]:
    """Return the files, relative to the modules' folder, of the named modules and all that they depend on.

    `dependencies` is the text of `modules.dep`. A name that it does not have is left out: the release builds it
    into its kernel.
    """
    needs = {}
    for line in dependencies.splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {module_name(path): path for path in needs}
    wanted: set[str] = set()
    queue = [by_name[name.replace("-", "_")] for name in names if name.replace("-", "_") in by_name]
    while queue:
        path = queue.pop()
        if path not in wanted:
            wanted.add(path)
            queue.extend(needs[path])
    return frozenset(wanted)


def module_name(path: str) -> str:
    """Return a module's name from its file: `kernel/net/8021q/8021q.ko.xz` -> `8021q`."""
    return PurePosixPath(path).name.partition(".ko")[0].replace("-", "_")


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What is left of a root file system, and the kernel that goes with it."""

    nodes: tuple[Node, ...]
    kernel: bytes
    kernel_release: str


def trim(archive: Path, rules: TrimRules, modules: Sequence[str]) -> Trimmed:
    """Read the root file system's tar archive and keep what the image needs.

    Raises NearmetalError when there is no kernel in it.
    """
    with tarfile.open(archive) as tar:
        members = {_clean(member.name): member for member in tar}
        release = _kernel_release(members)
        folder = f"{_MODULE_ROOT}/{release}"
        needs = _bytes(tar, members[f"{folder}/modules.dep"]).decode()
        kept_modules = {f"{folder}/{path}" for path in module_closure(modules, needs)}
        nodes: list[Node] = []
        for path, member in sorted(members.items()):
            about = path.removeprefix(folder + "/")
            wanted = path in kept_modules or (about != path and _DEPMOD_FILES.fullmatch(about)) or rules.keeps(path)
            if path and wanted:
                nodes.extend(_nodes(tar, path, member, members))
        kernel = _bytes(tar, members[f"boot/vmlinuz-{release}"])
    return Trimmed(tuple(nodes), kernel, release)


def _clean(name: str) -> str:
    return name.removeprefix("./").removeprefix("/").rstrip("/")


def _kernel_release(paths: Iterable[str]) -> str:
    releases = [path.removeprefix("boot/vmlinuz-") for path in paths if path.startswith("boot/vmlinuz-")]
    if len(releases) != 1:
        message = f"the root file system holds {len(releases)} kernels, not one"
        raise NearmetalError(message, hint="`nearmetal lab build --again`")
    return releases[0]


def _nodes(
    tar: tarfile.TarFile, path: str, member: tarfile.TarInfo, members: Mapping[str, tarfile.TarInfo]
) -> Iterator[Node]:
    if member.isdir():
        yield Node(path, stat.S_IFDIR | member.mode)
    elif member.issym():
        yield Node.link(path, member.linkname)
    elif member.islnk():
        yield from _nodes(tar, path, members[_clean(member.linkname)], members)
    elif member.isfile():
        yield Node(path, stat.S_IFREG | member.mode, _bytes(tar, member))
    # Device nodes, sockets and pipes are left out: the guest's kernel makes its own.


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    if stream is None:
        raise NearmetalError(f"{member.name!r} in the root file system is not a file")
    return stream.read()
