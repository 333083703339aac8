"""Work that the NIC or the kernel does on batches of frames: `ethtool -k`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.knobs.access import BLANKS, Pick
from nearmetal.knobs.knob import SWITCH, Stage
from nearmetal.knobs.nic import SWITCH_WORD, ethtool, nic_knob

if TYPE_CHECKING:
    from nearmetal.knobs.knob import PlainKnob

# "[requested on]" follows a feature that waits for another one; "[fixed]" must not match.
_NOT_FIXED = f"{SWITCH_WORD}( \\[requested o[nf]+\\])?{BLANKS}"


def _offload(name: str, printed: str, about: str, setter: str = "", disturbs: tuple[str, ...] = ()) -> PlainKnob:
    pick = Pick(f"{printed}: {_NOT_FIXED}", label=f"{printed}:")
    locate = ethtool("-k", pick, ("-K", setter or printed))
    return nic_knob(name, about, Stage.MODE, SWITCH, locate, disturbs=tuple(f"nic.{other}" for other in disturbs))


KNOBS = (
    _offload("rx-checksum", "rx-checksumming", "the NIC checks checksums", "rx", ("lro", "rx-gro-hw")),
    _offload("tx-checksum", "tx-checksumming", "the NIC fills checksums in; segmentation needs it", "tx", ("tso",)),
    _offload("sg", "scatter-gather", "frames from several buffers; segmentation needs it", "sg", ("tso", "gso")),
    _offload("tso", "tcp-segmentation-offload", "the NIC cuts segments: bandwidth for CPU", "tso"),
    _offload("gso", "generic-segmentation-offload", "the kernel cuts segments late", "gso"),
    _offload("gro", "generic-receive-offload", "received segments are joined before the stack", "gro", ("rx-gro-hw",)),
    _offload("lro", "large-receive-offload", "the NIC joins received segments; not for bridges", "lro"),
    _offload("rx-gro-hw", "rx-gro-hw", "the NIC joins received segments by the rules of GRO"),
    _offload("rx-gro-list", "rx-gro-list", "received segments are chained instead of joined"),
    _offload("rx-udp-gro-forwarding", "rx-udp-gro-forwarding", "GRO for UDP that is forwarded to guests"),
    _offload("tx-nocache-copy", "tx-nocache-copy", "copies of sent data go round the cache"),
)
