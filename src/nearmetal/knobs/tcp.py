"""TCP settings of a node's network namespace: `/proc/sys/net/ipv4/tcp_*`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.knobs.access import Access, file_access
from nearmetal.knobs.knob import FLAG, Numbers, PlainKnob, Scope, Stage, Whole, Word
from nearmetal.knobs.netdev import sysctl_knob

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.knobs.knob import Kind, Target

_BYTES = Whole(0, 2**31 - 1, "bytes")
_IPV4 = "/proc/sys/net/ipv4"


def _tcp(name: str, kind: Kind, about: str) -> PlainKnob:
    return sysctl_knob(f"tcp_{name}", f"net/ipv4/tcp_{name}", kind, about, Scope.NODE)


def _congestion(_shell: Shell, target: Target) -> tuple[Access, ...]:
    offered = f"{_IPV4}/tcp_available_congestion_control"
    return (file_access(target.node, f"{_IPV4}/tcp_congestion_control", choices_path=offered),)


KNOBS = (
    PlainKnob(
        "host.tcp_congestion_control",
        "how TCP finds its rate",
        Scope.NODE,
        Stage.HOST,
        Word(),
        _congestion,
    ),
    _tcp("rmem", Numbers(3, "bytes"), "least, first and largest receive buffer"),
    _tcp("wmem", Numbers(3, "bytes"), "least, first and largest send buffer"),
    _tcp("limit_output_bytes", _BYTES, "bytes of one socket in the queues below TCP: batching against delay"),
    _tcp("notsent_lowat", Whole(0, 2**32 - 1, "bytes"), "unsent bytes below which a socket takes more"),
    _tcp("autocorking", FLAG, "small writes wait for the completion of earlier ones"),
    _tcp("slow_start_after_idle", FLAG, "the window shrinks when a connection was idle"),
    _tcp("no_metrics_save", FLAG, "connections do not inherit what earlier ones learnt"),
    _tcp("timestamps", Whole(0, 2), "twelve bytes a segment for a better round-trip estimate"),
    _tcp("sack", FLAG, "selective acknowledgement"),
    _tcp("min_tso_segs", Whole(1, 65535, "segments"), "least segments of a paced burst"),
)
