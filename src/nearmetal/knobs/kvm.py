"""Halt polling of KVM, on hosts of guests: `/sys/module/kvm/parameters`.

See `Documentation/virt/kvm/halt-polling.rst` of the kernel.
"""

from __future__ import annotations

from nearmetal.knobs.knob import PlainKnob, Scope, Stage, Whole
from nearmetal.knobs.netdev import machine_file

_FOLDER = "/sys/module/kvm/parameters"


def _parameter(name: str, kind: Whole, about: str) -> PlainKnob:
    return PlainKnob(f"host.kvm-{name}", about, Scope.MACHINE, Stage.HOST, kind, machine_file(f"{_FOLDER}/{name}"))


KNOBS = (
    _parameter("halt_poll_ns", Whole(0, 10**9, "ns"), "how long the host polls for a halted guest: wake-up for CPU"),
    _parameter("halt_poll_ns_grow", Whole(0, 1000), "factor by which polling grows when it was too short"),
    _parameter("halt_poll_ns_grow_start", Whole(0, 10**9, "ns"), "first value of polling that grows from 0"),
    _parameter("halt_poll_ns_shrink", Whole(0, 1000), "divisor by which polling shrinks when it was too long"),
)
