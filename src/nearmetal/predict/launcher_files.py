"""A placement in the words of each launcher."""

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError
from nearmetal.predict.place import Slots, in_order

_COMMENT = 1000
"""Longest line of a comment: hydra reads a line of more than 1023 characters as two."""


def _names(host_of: NDArray[np.uint32], slots: Slots) -> list[str]:
    used = np.bincount(host_of, minlength=len(slots.names))
    if used.size > len(slots.names) or (used > np.array(slots.counts)).any():
        text = f"the placement needs {used.tolist()[:8]} slots, the hosts have {list(slots.counts)[:8]}"
        raise BadInputError(text, hint="give the hosts that the placement was made for")
    return [slots.names[host] for host in host_of]


def openmpi_rankfile(host_of: NDArray[np.uint32], slots: Slots) -> str:
    """Return a rankfile: `mpirun --rankfile FILE` (Open MPI 4), `mpirun --map-by rankfile:file=FILE` (5)."""
    next_slot = dict.fromkeys(slots.names, 0)
    lines = []
    for rank, name in enumerate(_names(host_of, slots)):
        lines.append(f"rank {rank}={name} slot={next_slot[name]}")
        next_slot[name] += 1
    return "\n".join(lines) + "\n"


def mpich_hosts(host_of: NDArray[np.uint32], slots: Slots) -> str:
    """Return a host file for `mpiexec -f FILE`: ranks are dealt out line by line, `host:ranks`."""
    runs = [(name, sum(1 for _ in group)) for name, group in groupby(_names(host_of, slots))]
    return "".join(f"{name}:{count}\n" for name, count in runs)


def cautions_of(launcher: str, host_of: NDArray[np.uint32], slots: Slots) -> list[str]:
    """Return sentences on what a launcher's file does not achieve by itself: to hydra, each line is a node."""
    names = _names(host_of, slots)
    counts = Counter(names)
    if launcher != "mpich" or sum(1 for _ in groupby(names)) == len(counts):
        return []
    hosts = ",".join(f"{name}:{count}" for name, count in counts.items())
    at = {name: str(index) for index, name in enumerate(counts)}
    return [
        "MPICH takes each line for a node, so ranks of a host that has several do not share memory as was predicted: "
        f"start it with MPICH 5 by -hosts {hosts} -rankmap {','.join(at[name] for name in names)} instead of -f"
    ]


def slurm_hostfile(host_of: NDArray[np.uint32], slots: Slots) -> str:
    """Return a file for `SLURM_HOSTFILE=FILE srun --distribution=arbitrary`: one host a line, in rank order."""
    return "".join(f"{name}\n" for name in _names(host_of, slots))


def reorder(host_of: NDArray[np.uint32], slots: Slots) -> str:
    """Return keys for `MPI_Comm_split(MPI_COMM_WORLD, 0, key)` under a launcher that fills host after host.

    Line i is the key of the process that the launcher starts as rank i: the rank that it should play. Raise
    BadInputError where hosts have more slots than ranks, for the launcher then starts other numbers of processes there.
    """
    names = _names(host_of, slots)
    started, wanted = (np.bincount(one, minlength=len(slots.names)) for one in (in_order(len(names), slots), host_of))
    if (started != wanted).any():
        fitting = ",".join(f"{name}:{count}" for name, count in zip(slots.names, wanted, strict=True) if count)
        raise BadInputError(
            f"a launcher that fills host after host starts {started.tolist()[:8]} ranks on them, the placement has "
            f"{wanted.tolist()[:8]}: keys cannot move ranks to another host",
            hint=f"give each host the slots that are used, --hosts {fitting}, there and to the launcher",
        )
    roles = np.argsort(host_of, kind="stable")
    return "".join(f"{role}\n" for role in roles)


def commented(launcher: str, lines: Sequence[str], text: str) -> str:
    """Return a launcher's file with comments before it; as it is where whoever reads it knows none (`reorder`)."""
    if launcher == "reorder":
        return text
    return "".join(f"# {part}\n" for line in lines for part in textwrap.wrap(" ".join(line.split()), _COMMENT)) + text


WRITERS: dict[str, Callable[[NDArray[np.uint32], Slots], str]] = {
    "openmpi": openmpi_rankfile,
    "mpich": mpich_hosts,
    "slurm": slurm_hostfile,
    "reorder": reorder,
}
"""Launcher -> writer."""
