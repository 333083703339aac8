"""How many processors the programs of a node may use, and so how many ranks these hold at once.

Standard library only: it also runs in the lab's guest.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import PurePosixPath

from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.hosts import plain_files
from nearmetal.hosts.host import HYPERVISOR, FarShell, Shell, is_far, machines_of
from nearmetal.knobs.knob import allowed_in, parse_cpus

_STATUS, _ONLINE = "/proc/self/status", "/sys/devices/system/cpu/online"
_GROUPS, _GROUP_TOP = "/proc/self/cgroup", "/sys/fs/cgroup"
_GROUP = re.compile(r"^\d+:(?:|(?:\S+,)?cpu(?:,\S+)?):(/.+)$", re.MULTILINE)

_ReadAll = Callable[[Sequence[str]], Mapping[str, bytes]]


def processors(shell: Shell, nodes: Sequence[str]) -> int:
    """Return how many processors the ranks on these nodes have; 0 where each machine has one for each of its ranks.

    Namespaces of one machine share its processors.
    """
    if machines_of(shell) == (HYPERVISOR,):
        return cores(shell, HYPERVISOR)
    crowded = {node: cores(shell, node) for node, ranks in Counter(nodes).items() if ranks > cores(shell, node)}
    return min(crowded.values(), default=0)


def own_processors() -> int:
    """Return how many processors this process may use."""
    return min([len(os.sched_getaffinity(0)), *_quotas(plain_files.read_all)])


def cores(shell: Shell, node: str) -> int:
    """Return how many processors a node's programs may use; machines of a cluster of the lab are all like this one."""
    if not is_far(shell):
        return own_processors()
    # By machine: the nodes of another path may be the same machines in another order.
    return shell.once(f"cores {shell.machine_name(node)}", lambda: _cores_there(shell, node))


def _cores_there(shell: FarShell, node: str) -> int:
    found = usable_processors(shell, node)
    if not found:
        text = f"/proc/self/status on {shell.machine_name(node)} does not say which processors are allowed"
        raise UnavailableError(text)
    return found


def usable_processors(shell: Shell, node: str) -> int:
    """Return how many processors a node's programs may use at once; 0 where it does not say.

    A container, a batch system's step or `taskset` may have taken some of the machine's away. A quota of processor
    time, as containers have, counts as the whole processors in it.
    """

    def read_all(paths: Sequence[str]) -> Mapping[str, bytes]:
        return shell.read_all(paths, node=node)

    files = read_all([_STATUS, _ONLINE, _GROUPS, *_quota_files("")])
    allowed = allowed_in(files.get(_STATUS, b"").decode(errors="replace"))
    listed = allowed or files.get(_ONLINE, b"").decode(errors="replace").strip()
    return min([count_processors(listed), *_quotas(read_all, files)]) if listed else 0


def count_processors(listed: str) -> int:
    """Return how many processors a list such as `0-3,8` names; raise NearmetalError for anything else."""
    try:
        return len(parse_cpus(listed))
    except ValueError as error:
        raise NearmetalError(f"cannot read a list of processors: {error}") from error


def _quotas(read_all: _ReadAll, files: Mapping[str, bytes] | None = None) -> list[int]:
    """Return the whole processors in each quota of processor time that programs have, at least 1 in each.

    A container sees its own group as the top one, whatever its name outside is; other programs have the quotas of all
    groups above theirs, too. `files` are those of the top group, where they have been read.
    """
    told = dict(read_all([_GROUPS, *_quota_files("")]) if files is None else files)
    named = _GROUP.findall(told.get(_GROUPS, b"").decode(errors="replace"))
    parents = (PurePosixPath(group).parents for group in named)
    groups = list(dict.fromkeys(map(str, chain(map(PurePosixPath, named), *parents))))
    inner = [group for group in groups if group != "/"]
    if inner:
        told |= read_all(list(chain(*map(_quota_files, inner))))
    found = (b" ".join(told.get(path, b"") for path in _quota_files(group)).split() for group in ("", *inner))
    return [max(1, int(one[0]) // int(one[1])) for one in found if len(one) == 2 and all(map(_positive, one))]


def _quota_files(group: str) -> tuple[str, str, str]:
    """Return the files with the quota of a control group: of version 2, and quota and period of version 1."""
    v1 = f"{_GROUP_TOP}/cpu{group}/cpu.cfs"
    return f"{_GROUP_TOP}{group}/cpu.max", f"{v1}_quota_us", f"{v1}_period_us"


def _positive(text: bytes) -> bool:
    return text.isdigit() and int(text) > 0
