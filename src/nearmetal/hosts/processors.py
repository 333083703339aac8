"""How many processors this process may use, with the quotas of processor time that containers have.

Standard library only: it also runs in the lab's guest.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import PurePosixPath

from nearmetal.hosts import plain_files

GROUPS = "/proc/self/cgroup"
_GROUP_TOP = "/sys/fs/cgroup"
_GROUP = re.compile(r"^\d+:(?:|(?:\S+,)?cpu(?:,\S+)?):(/.+)$", re.MULTILINE)

_ReadAll = Callable[[Sequence[str]], Mapping[str, bytes]]


def own_processors() -> int:
    """Return how many processors this process may use."""
    return min([len(os.sched_getaffinity(0)), *quotas(plain_files.read_all)])


def quotas(read_all: _ReadAll, files: Mapping[str, bytes] | None = None) -> list[int]:
    """Return the whole processors in each quota of processor time that programs have, at least 1 in each.

    A container sees its own group as the top one, whatever its name outside is; other programs have the quotas of all
    groups above theirs, too. `files` are those of the top group, where they have been read.
    """
    told = dict(read_all([GROUPS, *quota_files("")]) if files is None else files)
    named = _GROUP.findall(told.get(GROUPS, b"").decode(errors="replace"))
    parents = (PurePosixPath(group).parents for group in named)
    groups = list(dict.fromkeys(map(str, chain(map(PurePosixPath, named), *parents))))
    inner = [group for group in groups if group != "/"]
    if inner:
        told |= read_all(list(chain(*map(quota_files, inner))))
    found = (b" ".join(told.get(path, b"") for path in quota_files(group)).split() for group in ("", *inner))
    return [max(1, int(one[0]) // int(one[1])) for one in found if len(one) == 2 and all(map(_positive, one))]


def quota_files(group: str) -> tuple[str, str, str]:
    """Return the files with the quota of a control group: of version 2, and quota and period of version 1."""
    v1 = f"{_GROUP_TOP}/cpu{group}/cpu.cfs"
    return f"{_GROUP_TOP}{group}/cpu.max", f"{v1}_quota_us", f"{v1}_period_us"


def _positive(text: bytes) -> bool:
    return text.isdigit() and int(text) > 0
