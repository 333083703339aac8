"""Frame size and the length of the transmit queue: `ip link`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.knobs.access import Access, Pick
from nearmetal.knobs.knob import Stage, Whole
from nearmetal.knobs.nic import nic_knob

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.knobs.knob import Locate, Target


def _word(name: str) -> Pick:
    return Pick(f".* {name} ([0-9]+).*", label=".*: ")


def _link(printed: str, setter: str, *, limited: bool = False) -> Locate:
    def locate(_shell: Shell, target: Target) -> tuple[Access, ...]:
        show = ("ip", "-d", "-o", "link", "show", "dev", target.interface)
        change = ("ip", "link", "set", "dev", target.interface, setter, "{}")
        limits = (_word("maxmtu"), _word("minmtu")) if limited else (None, None)
        return (Access(target.node, show, _word(printed), change=change, ceiling=limits[0], floor=limits[1]),)

    return locate


KNOBS = (
    nic_knob(
        "mtu",
        "largest frame: fewer frames a message; every port on the way must agree",
        Stage.SHAPE,
        Whole(68, 65535, "bytes"),
        _link("mtu", "mtu", limited=True),
    ),
    nic_knob(
        "txqueuelen",
        "frames that wait for the NIC before some are dropped",
        Stage.VALUE,
        Whole(0, 1_000_000, "frames"),
        _link("qlen", "txqueuelen"),
    ),
)
