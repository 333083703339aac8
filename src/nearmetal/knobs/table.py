"""The table of knobs: every knob that nearmetal knows, in the order in which they are listed."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError
from nearmetal.knobs import (
    affinity,
    channels,
    coalesce,
    cpu,
    kvm,
    mpi,
    mtu,
    napi,
    netdev,
    offloads,
    pause,
    rings,
    rss,
    tcp,
)

if TYPE_CHECKING:
    from nearmetal.knobs.knob import Knob

FAMILIES: dict[str, tuple[Knob, ...]] = {
    "coalescing": coalesce.KNOBS,
    "rings": rings.KNOBS,
    "channels": channels.KNOBS,
    "RSS": rss.KNOBS,
    "offloads": offloads.KNOBS,
    "pause": pause.KNOBS,
    "link": mtu.KNOBS,
    "NAPI": napi.KNOBS,
    "interrupt affinity": affinity.KNOBS,
    "busy polling and budgets": netdev.KNOBS,
    "TCP": tcp.KNOBS,
    "processors and memory": cpu.KNOBS,
    "KVM": kvm.KNOBS,
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
        names = [*_BY_NAME, *(knob.name for knob in mpi.KNOBS)]
        near = difflib.get_close_matches(name, names, n=3) or ["nic.rx-usecs", "host.busy_read", "mpi.progress"]
        raise BadInputError(f"there is no knob {name!r}", hint=f"did you mean {', '.join(near)}?")
    return knob


def known(name: str) -> bool:
    """Return whether a name is that of a knob, of any kind."""
    return name in _BY_NAME or name in {knob.name for knob in mpi.KNOBS} or coalesce.queue_knob(name) is not None
