"""The names of facts, and what a name says: the one place that reads them. Standard library only.

A trial's facts are flat names with values, so that any host can add one. What begins or ends alike belongs together:
`guest` must agree over all trials of a run, `machine` too, but over those of one path where paths have machines of
their own; `interface` over the trials of one path, `code` over those of one workload.
"""

import re
from collections.abc import Mapping
from typing import Literal

CLOCK = "kernel.clocksource"
TICK = "kernel.tick_ns"
"""The period of the scheduler's tick, where this process's kernel is that of the trial."""
TIMER = "timer."
"""What facts begin with that name a figure as a timer's; `run.timers` makes them."""
OCCASION = "run.occasion"
"""The occasion of a trial, from 1: the hour, boot or allocation that it shares with others."""
VARIANT = "lab.variant"
"""The boot of the lab's machine that a trial ran in, from 0."""
SHARED = "launch.workloads"
"""The workloads that a launch measured one after another, with `BETWEEN`; its time and its counters are of all of them.
Trials that had their launch to themselves do not have it."""
BETWEEN = ", "
COMPUTERS, PROCESSORS = "nodes.computers", "nodes.processors"
"""How many computers the nodes are, and the least number of processors of one."""

VIRTUAL_TIME = "lab.virtual_time"
"""True of a trial whose durations are of the lab's own clock."""

IMPORTED_NOTES = "import.lacks"
"""What the figures of the file that was imported cannot support, and what else is to be known of it, joined by `; `."""
IMPORTED_WINDOW = "import.window"
"""The messages of a window, as the file that was imported says; its figures are stored as those of another window."""

KNOB_EFFECT = "knob.effect."
"""Begins what interrupts of a launch say of a knob on an interface: `agrees`, `contradicts` or `silent`, and why."""
KNOB_RIVAL = "knob.rival."
"""Begins the name of a program that ran and may have changed knobs of the setting: the value names these."""

OTHERS = "others."
"""Begins the counter of each of the busiest other programs of a launch, in ticks, of all machines together."""

_WIRE_DELAY_US, _WIRE_RATE_MBIT = "lab.wire_delay_us", "lab.wire_rate_mbit"

_MACHINE = ("cpu.model", "kernel.release", "kernel.version")
_GUEST = "guest."
_CODE = (".version", ".build", ".flavour")
_INTERFACE = ("kind", "driver", "device", "firmware", "speed_mbit")
_OF_AN_INTERFACE = re.compile(r"n\d+\..+\.(?P<fact>[^.]+)")  # a VLAN's name has a dot of its own: eth0.100


FactScope = Literal["machine", "guest", "interface", "code", "free"]
"""Over which trials a fact must be the same; `free` ones may differ."""


def scope_of(name: str) -> FactScope:
    """Return over which trials a fact must agree."""
    if name in _MACHINE:
        return "machine"
    if name.startswith(_GUEST):
        return "guest"
    if name.endswith(_CODE):
        return "code"
    if name.count(".") >= 2 and name.rsplit(".", 1)[1] in _INTERFACE:
        return "interface"
    return "free"


def describes_machine(name: str) -> bool:
    """Return whether a fact is of the machine that measured: its processors, its kernel."""
    return name.startswith(("cpu.", "kernel."))


def wire_of(facts: Mapping[str, object]) -> tuple[float, float] | None:
    """Return delay (us) and rate (Mbit/s) of the wires between a cluster's machines; None where one holds all nodes."""
    delay_us, rate_mbit = facts.get(_WIRE_DELAY_US), facts.get(_WIRE_RATE_MBIT)
    if not isinstance(delay_us, int | float) or not isinstance(rate_mbit, int | float):
        return None
    return delay_us, rate_mbit


def of_any_interface(name: str) -> str:
    """Return `interface.<fact>` for a fact of one node's interface, any other name unchanged."""
    match = _OF_AN_INTERFACE.fullmatch(name)
    return f"interface.{match['fact']}" if match else name
