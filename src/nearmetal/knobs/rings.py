"""Ring sizes: `ethtool -g`. Most drivers take the link down for a moment; several round up to a power of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.knobs.knob import Stage, Whole
from nearmetal.knobs.nic import ethtool, labelled, nic_knob

if TYPE_CHECKING:
    from nearmetal.knobs.knob import PlainKnob

_NOW = "Current hardware settings"


def _ring(name: str, label: str, about: str) -> PlainKnob:
    locate = ethtool("-g", labelled(label, after=_NOW), ("-G", name), ceiling=labelled(label))
    return nic_knob(f"ring-{name}", about, Stage.SHAPE, Whole(1, 65536, "descriptors"), locate)


KNOBS = (
    _ring("rx", "RX", "receive descriptors: long rings ride out bursts, short ones stay in cache"),
    _ring("tx", "TX", "transmit descriptors"),
)
