"""Queues and their interrupts: `ethtool -l`. A change resets the RSS table, affinity and per-queue values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.knobs.knob import Stage, Whole
from nearmetal.knobs.nic import ethtool, labelled, nic_knob

if TYPE_CHECKING:
    from nearmetal.knobs.knob import PlainKnob

_NOW = "Current hardware settings"
_DISTURBED = ("nic.rss-equal", "nic.irq-affinity", "nic.xps-cpus", "nic.rps-cpus")


def _channels(name: str, label: str, about: str) -> PlainKnob:
    locate = ethtool("-l", labelled(label, after=_NOW), ("-L", name), ceiling=labelled(label))
    return nic_knob(f"channels-{name}", about, Stage.SHAPE, Whole(0, 4096, "queues"), locate, disturbs=_DISTURBED)


KNOBS = (
    _channels("rx", "RX", "receive queues"),
    _channels("tx", "TX", "transmit queues"),
    _channels("combined", "Combined", "queues that receive and transmit"),
)
