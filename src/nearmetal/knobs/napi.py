"""What follows the interrupt: deferral of interrupts, GRO flushing, threaded NAPI, receive and transmit steering.

`net/core/dev.c`, napi_complete_done: with napi_defer_hard_irqs > 0 the interrupt stays masked that many times for
gro_flush_timeout; a timeout of 0 disables the deferral whatever the count. The sysfs files set every NAPI of
the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearmetal.knobs.knob import FLAG, Stage, WholeNumber, parse_cpus
from nearmetal.knobs.nic import interface_file, nic_knob, queue_files

_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CpuMask:
    """Processors, written as the kernel's mask: words of 32 bits in hexadecimal, the highest first."""

    def canon(self, value: object) -> str:
        """Read a list such as `0-3` (or `none`) and return the mask."""
        text = str(value).strip()
        cpus = [] if text == "none" else parse_cpus(text)
        bits = sum(1 << cpu for cpu in cpus)
        words = [f"{bits & 0xFFFFFFFF:08x}"]
        while bits := bits >> 32:
            words.insert(0, f"{bits & 0xFFFFFFFF:08x}")
        return ",".join(words).lstrip("0") or "0"

    def about(self) -> str:
        """Return the form."""
        return "a list of processors such as 0-3,8, or none"


KNOBS = (
    nic_knob(
        "napi-defer-hard-irqs",
        "empty polls before the interrupt is armed again; works only with gro-flush-timeout-ns",
        Stage.VALUE,
        WholeNumber(0, _INT_MAX, "polls"),
        interface_file("napi_defer_hard_irqs"),
    ),
    nic_knob(
        "gro-flush-timeout-ns",
        "how long received segments wait to be merged, and how long the deferral lasts",
        Stage.VALUE,
        WholeNumber(0, 2**62, "ns"),
        interface_file("gro_flush_timeout"),
    ),
    nic_knob(
        "threaded-napi",
        "packets are processed by a kernel thread that can be placed and prioritised",
        Stage.MODE,
        FLAG,
        interface_file("threaded"),
    ),
    nic_knob(
        "rps-cpus",
        "processors that take over protocol work from each receive queue",
        Stage.STEERING,
        CpuMask(),
        queue_files("rx-", "rps_cpus"),
    ),
    nic_knob(
        "xps-cpus",
        "processors whose traffic uses each transmit queue",
        Stage.STEERING,
        CpuMask(),
        queue_files("tx-", "xps_cpus"),
    ),
)
