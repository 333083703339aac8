"""How many processors the programs of a node may use, and so how many ranks these hold at once.

Standard library only: it also runs in the lab's guest.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.hosts.host import HYPERVISOR, FarShell, Shell, is_far, machines_of
from nearmetal.hosts.processors import GROUPS, own_processors, quota_files, quotas
from nearmetal.knobs.knob import allowed_in, parse_cpus

_STATUS, _ONLINE = "/proc/self/status", "/sys/devices/system/cpu/online"


def processors(shell: Shell, nodes: Sequence[str]) -> int:
    """Return how many processors the ranks on these nodes have; 0 where each machine has one for each of its ranks.

    Namespaces of one machine share its processors.
    """
    if machines_of(shell) == (HYPERVISOR,):
        return cores(shell, HYPERVISOR)
    crowded = {node: cores(shell, node) for node, ranks in Counter(nodes).items() if ranks > cores(shell, node)}
    return min(crowded.values(), default=0)


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

    files = read_all([_STATUS, _ONLINE, GROUPS, *quota_files("")])
    allowed = allowed_in(files.get(_STATUS, b"").decode(errors="replace"))
    listed = allowed or files.get(_ONLINE, b"").decode(errors="replace").strip()
    return min([count_processors(listed), *quotas(read_all, files)]) if listed else 0


def count_processors(listed: str) -> int:
    """Return how many processors a list such as `0-3,8` names; raise NearmetalError for anything else."""
    try:
        return len(parse_cpus(listed))
    except ValueError as error:
        raise NearmetalError(f"cannot read a list of processors: {error}") from error
