"""Ethernet pause frames: `ethtool -a`. A change takes the link down for a moment on most NICs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.knobs.knob import SWITCH, Stage
from nearmetal.knobs.nic import SWITCH_WORD, ethtool, labelled, nic_knob

if TYPE_CHECKING:
    from nearmetal.knobs.knob import PlainKnob


def _pause(name: str, label: str, stage: Stage, about: str, disturbs: tuple[str, ...] = ()) -> PlainKnob:
    locate = ethtool("-a", labelled(label, SWITCH_WORD), ("-A", name))
    return nic_knob(f"pause-{name}", about, stage, SWITCH, locate, disturbs=disturbs)


KNOBS = (
    _pause(
        "autoneg", "Autonegotiate", Stage.MODE, "the link partners agree on pause", ("nic.pause-rx", "nic.pause-tx")
    ),
    _pause("rx", "RX", Stage.SHAPE, "the NIC stops sending when the switch asks: no loss, but other flows wait too"),
    _pause("tx", "TX", Stage.SHAPE, "the NIC asks the switch to stop when its ring is full"),
)
