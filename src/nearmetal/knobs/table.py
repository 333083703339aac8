"""The table of knobs: every knob that nearmetal knows, in the order in which they are listed."""

import difflib
import re

from nearmetal.errors import BadInputError
from nearmetal.knobs import affinity, coalesce, cpu, kernel, mpi, napi, nic
from nearmetal.knobs.knob import Knob
from nearmetal.knobs.nic import known_as

FAMILIES: dict[str, tuple[Knob, ...]] = {
    "coalescing": coalesce.KNOBS,
    "rings": nic.RINGS,
    "channels": nic.CHANNELS,
    "RSS": nic.RSS,
    "offloads": nic.OFFLOADS,
    "pause": nic.PAUSE,
    "link": nic.LINK,
    "NAPI": napi.KNOBS,
    "interrupt affinity": affinity.KNOBS,
    "busy polling and budgets": kernel.POLLING,
    "TCP": kernel.TCP,
    "processors and memory": cpu.KNOBS,
    "KVM": kernel.KVM,
}

_BY_NAME: dict[str, Knob] = {knob.name: knob for family in FAMILIES.values() for knob in family}


def find(name: str) -> Knob:
    """Return the knob of that name; raise BadInputError with the nearest names when there is none."""
    knob = _BY_NAME.get(name) or coalesce.queue_knob(name)
    if knob is None and re.search(r"vfs\b", name):
        raise BadInputError(
            f"{name!r} is not a knob: VFs are never created or removed while settings are tried",
            hint="write to sriov_numvfs of the PF before the search; a change takes every VF away from its guest",
        )
    if knob is None:
        names = [*(name for name in _BY_NAME if name == known_as(name)), *(knob.name for knob in mpi.KNOBS)]
        near = difflib.get_close_matches(name, names, n=3) or ["nic.rx-usecs", "host.busy_read", "mpi.progress"]
        raise BadInputError(f"there is no knob {name!r}", hint=f"did you mean {', '.join(near)}?")
    return knob
