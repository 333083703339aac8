"""Who else uses a machine's processors during a launch: processes that were there before its trial and are there after.

Ticks of CPU time (USER_HZ) from `/proc/PID/stat`, fields 1, 2, 9, 14, 15 and 22 of proc(5). Servers, relays and ranks
begin after a trial's first look, so what is left is other people's, but for this process itself. Threads of the kernel
are left out: they work for the measured traffic. A container sees its own processes alone.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from nearmetal.hosts.host import Shell, is_disposable, is_far, machines_of
from nearmetal.process import of_each_process
from nearmetal.study.facts import OTHERS

_SHOW = ("sh", "-c", "cat /proc/[0-9]*/stat 2> /dev/null; true")
_STAT = re.compile(r"(\d+) \((.*)\) (.+)")
_FLAGS, _USER, _SYSTEM, _BEGAN = 6, 11, 12, 19
"""Places of the fields behind the name, from 0."""
_KERNEL_THREAD = 0x00200000
_NAMED = 3


def look_for_tenants(shell: Shell) -> dict[str, int]:
    """Return the ticks that each process of the machines has used so far, by a key; nothing where nobody else can be.

    Local namespaces hide other processes, so those of this machine are read from where nearmetal runs.
    """
    if is_disposable(shell):
        return {}
    if not is_far(shell):
        here = (line.decode(errors="replace") for _, line in of_each_process("stat"))
        return parse_processes("", here, mine=os.getpid())
    found: dict[str, int] = {}
    for machine in machines_of(shell):
        text = shell.run(_SHOW, node=machine, check=False).stdout.decode(errors="replace")
        found |= parse_processes(machine, text.splitlines(), mine=0)
    return found


def parse_processes(machine: str, lines: Iterable[str], *, mine: int) -> dict[str, int]:
    """Read lines of `/proc/PID/stat`; the key holds machine, number, start and name, and no name is taken on trust."""
    found = {}
    for line in lines:
        match = _STAT.fullmatch(line.strip())
        fields = match[3].split() if match else []
        if match is None or len(fields) <= _BEGAN or int(match[1]) == mine or int(fields[_FLAGS]) & _KERNEL_THREAD:
            continue
        name = re.sub(r"[^\w.+:-]", "_", match[2], flags=re.ASCII) or "_"
        found[f"{machine} {match[1]} {fields[_BEGAN]} {name}"] = int(fields[_USER]) + int(fields[_SYSTEM])
    return found


def used_between(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return `others.NAME` -> ticks of the programs that used most between two looks; only those seen in both count."""
    used: Counter[str] = Counter()
    for key, ticks in after.items():
        if (more := ticks - before.get(key, ticks)) > 0:
            used[key.rpartition(" ")[2]] += more
    return {f"{OTHERS}{name}": ticks for name, ticks in used.most_common(_NAMED)}
