"""Processors: frequency governor and idle states, and memory settings that move pages under a running rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.knobs.access import Access, Pick, Reading, file_access, read_all
from nearmetal.knobs.knob import FLAG, PlainKnob, Scope, Stage, Step, Whole, Word
from nearmetal.knobs.netdev import sysctl_knob
from nearmetal.knobs.nic import listing

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.knobs.knob import Target

_CPU = "/sys/devices/system/cpu"
_LATENCY_US = Whole(0, 1_000_000, "us")
_BRACKETED = Pick(".*\\[([a-z]+)\\].*")


def _governors(shell: Shell, target: Target) -> tuple[Access, ...]:
    policies = [name for name in listing(shell, target.node, f"{_CPU}/cpufreq") if name.startswith("policy")]
    folders = [f"{_CPU}/cpufreq/{policy}" for policy in policies]
    return tuple(
        file_access(target.node, f"{folder}/scaling_governor", choices_path=f"{folder}/scaling_available_governors")
        for folder in folders
    )


def _huge_pages(_shell: Shell, target: Target) -> tuple[Access, ...]:
    return (file_access(target.node, "/sys/kernel/mm/transparent_hugepage/enabled", pick=_BRACKETED),)


@dataclass(frozen=True, slots=True)
class IdleLatency:
    """The idle states that processors may enter, by the latency of leaving them.

    Sets `disable` of every state. (An open `/dev/cpu_dma_latency` does the same until its holder dies; files can be
    journalled.) `Documentation/admin-guide/pm/cpuidle.rst`.
    """

    name: str = "host.idle-latency-us"
    about: str = "longest wake-up from an idle state that is allowed; 0 keeps processors polling and warm"
    scope: Scope = Scope.MACHINE
    stage: Stage = Stage.HOST
    kind: Whole = _LATENCY_US
    disturbs: tuple[str, ...] = ()

    def accesses(self, shell: Shell, target: Target) -> tuple[Access, ...]:
        """Return the `disable` file of every idle state of every processor."""
        return tuple(file_access(target.node, f"{state}/disable") for state in self._states(shell, target))

    def steps(self, shell: Shell, target: Target, value: str) -> tuple[Step, ...]:
        """Return one write a state."""
        states = self._states(shell, target)
        latencies_us = self._latencies_us(shell, target, states)
        return tuple(
            Step(file_access(target.node, f"{state}/disable"), str(int(latency_us > int(value))))
            for state, latency_us in zip(states, latencies_us, strict=True)
        )

    def read(self, shell: Shell, target: Target) -> Reading:
        """Return the longest latency among the states that are allowed."""
        states = self._states(shell, target)
        readings = read_all(shell, self.accesses(shell, target))
        allowed = [
            latency_us
            for latency_us, reading in zip(self._latencies_us(shell, target, states), readings, strict=True)
            if reading.value == "0"
        ]
        if not states:
            return Reading(None, "the machine offers no idle states")
        return Reading(str(max(allowed, default=0)))

    def _states(self, shell: Shell, target: Target) -> list[str]:
        cpus = [name for name in listing(shell, target.node, _CPU) if name[3:].isdecimal() and name.startswith("cpu")]
        return [
            f"{_CPU}/{cpu}/cpuidle/{state}"
            for cpu in cpus
            for state in listing(shell, target.node, f"{_CPU}/{cpu}/cpuidle")
            if state.startswith("state")
        ]

    def _latencies_us(self, shell: Shell, target: Target, states: list[str]) -> list[int]:
        readings = read_all(shell, (file_access(target.node, f"{state}/latency") for state in states))
        return [int(reading.value or 0) for reading in readings]


KNOBS = (
    PlainKnob("host.cpu-governor", "how the clock follows the load", Scope.MACHINE, Stage.HOST, Word(), _governors),
    IdleLatency(),
    PlainKnob(
        "host.transparent-hugepages",
        "large pages behind the back of programs: fewer TLB misses, pauses when they are made",
        Scope.MACHINE,
        Stage.HOST,
        Word(("always", "madvise", "never")),
        _huge_pages,
    ),
    sysctl_knob("numa_balancing", "kernel/numa_balancing", Whole(0, 3), "pages follow the processes that use them"),
    sysctl_knob("timer_migration", "kernel/timer_migration", FLAG, "timers move away from idle processors"),
)
