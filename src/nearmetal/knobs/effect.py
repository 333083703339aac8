"""Does a moderation setting do what it says? Judged by the interrupt rate under load, because registers can lie.

A setting of u microseconds allows at most 1e6 / u interrupts a second and vector, whether the device throttles (a
minimum gap: igb, igbvf, ixgbevf, iavf) or delays (mlx4, mlx5, virtio-net), unless `frames` packets end the wait
earlier. More interrupts than that contradict the read-back; fewer may be pauses of the load. igbvf is known to fall
back to 122 us (`igbvf_set_itr`: register 488 in units of 1/4 us, Linux 6.12) while 0 or 50 reads back; that is looked
for where the setting allows many more interrupts.
"""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nearmetal.errors import TrialError
from nearmetal.hosts.host import Shell
from nearmetal.knobs import drivers
from nearmetal.knobs.access import read_all, run_c
from nearmetal.knobs.knob import Target
from nearmetal.knobs.nic import vectors
from nearmetal.knobs.plan import Plan
from nearmetal.knobs.table import find

_US_PER_S = 1_000_000
_TOLERANCE = 1.3
"""Timers start late and interrupts are counted at the edges of the interval."""
_SATURATED = 2.0
"""A load that offers this many times the allowed rate must reach it."""

_SENDS_ONLY = re.compile(r"(-tx-?\d*|-output\.\d+)$")
"""Interrupts that rx-usecs does not moderate, by the name that their driver gives them (igbvf: `eth0-tx-0`, virtio:
`virtio0-output.0`)."""

_PINGS_AHEAD = 64
_FLOOD_S = 2
_FEWER = 10
"""A vector with fewer interrupts than the busiest's by this factor did not carry the load."""

FALLBACK_USECS = {"igbvf": 122}
"""What a driver's device really does after it lost the value that still reads back."""


Agreement = Literal["agrees", "contradicts", "silent"]
"""What the interrupt rate says about a read-back."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What an interface has counted so far: received packets, and the interrupts of each vector that receives."""

    packets: int
    interrupts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a device did under load: received packets and interrupts over a time, on how many vectors."""

    packets: int
    interrupts: int
    elapsed_ns: int
    vectors: int


@dataclass(frozen=True, slots=True)
class Effect:
    """The judgement and the figures it rests on, in words."""

    agreement: Agreement
    reason: str


def judge(
    observed: Observed, *, driver: str, usecs: int, frames: int = 0, sending: tuple[int, int] | None = None
) -> Effect:
    """Judge fixed moderation of `usecs` and `frames` (0: no such limit) by what was observed.

    `sending` are usecs and frames of what is sent, where they are not those of what is received.
    A load with a start and pauses proves too many interrupts under a timer, or the fallback, and nothing else: it sends
    as well as receives, and sending interrupts, too.
    """
    counts = (observed.interrupts, observed.packets)
    rate, load = (count * 1e9 / observed.elapsed_ns / observed.vectors for count in counts)
    allowed = _allowed(usecs, frames, load)
    seen = f"{rate:.0f} interrupts/s and vector under {load:.0f} packets/s"
    # A vector serves both directions, and about as much is sent as received.
    both = _allowed(usecs, frames, load) + _allowed(*sending, load) if sending else _allowed(usecs, frames, 2.0 * load)
    most = both if usecs else math.inf
    if rate > _TOLERANCE * most:
        return Effect("contradicts", f"{seen}: more than the {most:.0f} that {usecs} us allows")
    fallback = FALLBACK_USECS.get(driver)
    if fallback and allowed > _TOLERANCE * _SATURATED * _US_PER_S / fallback:
        held_back = _US_PER_S / fallback
        if load > _SATURATED * held_back and rate < _TOLERANCE * held_back:
            return Effect("contradicts", f"{seen}: that is {fallback} us, its fallback, not {usecs} us")
    if usecs and load > _SATURATED * allowed and rate < allowed / _SATURATED:
        # Too near to the setting to tell the fallback from pauses of the load.
        near = fallback and 1 / _TOLERANCE < rate * fallback / _US_PER_S < _TOLERANCE
        lost = f"{fallback} us, its fallback, " if near else ""
        return Effect("silent", f"{seen}: fewer than the {allowed:.0f} that {usecs} us allows, {lost}or pauses")
    if usecs and rate > _TOLERANCE * allowed:
        return Effect("silent", f"{seen}: more than the {allowed:.0f} that {usecs} us allows, or sending caused them")
    if load < _SATURATED * allowed:
        return Effect("silent", f"{seen}: too little load to tell")
    return Effect("agrees", f"{seen}, {usecs} us allows {allowed:.0f}")


def _allowed(usecs: int, frames: int, load: float) -> float:
    """Return the most interrupts a second that a setting allows; without a timer, one a packet."""
    by_time = _US_PER_S / usecs if usecs else load
    return max(by_time, load / frames) if frames else by_time


@dataclass(frozen=True, slots=True)
class Moderated:
    """An interface whose moderation was set, and which has interrupts of its own."""

    target: Target
    driver: str
    usecs: int
    frames: int
    sending: tuple[int, int] | None = None

    def judge(self, observed: Observed) -> Effect:
        """Judge it by what was observed."""
        return judge(observed, driver=self.driver, usecs=self.usecs, frames=self.frames, sending=self.sending)


_MODERATED = "nic.rx-usecs"
_MODERATION = tuple(f"nic.{name}" for name in ("adaptive-rx", "adaptive-tx", "rx-frames", "tx-usecs", "tx-frames"))


def moderated(shell: Shell, plan: Plan) -> list[Moderated]:
    """Return the interfaces whose fixed moderation a plan has set and which have interrupts of their own.

    What the plan leaves alone holds as well: frames that end the wait, and what is sent.
    """
    driver = {device.target: device.driver for device in plan.devices}
    found = []
    for target, usecs in ((one.target, one.value) for one in plan.placed if one.knob.name == _MODERATED):
        if not vectors(shell, target):
            continue
        set_now = {one.knob.name: one.value for one in plan.placed if one.target == target}
        now = {**_present(shell, target, [name for name in _MODERATION if name not in set_now]), **set_now}
        name = driver.get(str(target), "")
        if now.get("nic.adaptive-rx", "off") == "off" and usecs not in drivers.MODES.get(name, ()):
            frames = int(now.get("nic.rx-frames", "0"))
            found.append(Moderated(target, name, int(usecs), frames, _sending(name, now)))
    return found


def _present(shell: Shell, target: Target, names: Sequence[str]) -> dict[str, str]:
    accesses = [access for name in names for access in find(name).accesses(shell, target)]
    readings = zip(names, read_all(shell, accesses), strict=True)
    return {name: reading.value for name, reading in readings if reading.value is not None}


def _sending(driver: str, now: Mapping[str, str]) -> tuple[int, int] | None:
    """Return usecs and frames of what is sent, without a limit where they adapt; None where they are the received's."""
    if "nic.tx-usecs" not in now or drivers.shares_interrupt(driver):
        return None
    if now.get("nic.adaptive-tx") == "on":
        return 0, 0
    return int(now["nic.tx-usecs"]), int(now.get("nic.tx-frames", "0"))


def judge_launch(one: Moderated, before: Tally, after: Tally, elapsed_ns: int) -> Effect:
    """Judge moderation by what its interface counted before and after a launch."""
    try:
        return one.judge(between(one.target, before, after, elapsed_ns))
    except TrialError as error:
        return Effect("silent", error.message)


def verified(shell: Shell, plan: Plan, address: str) -> dict[str, Effect]:
    """Judge moderation that a plan has set under its own load: a flood of pings to an address.

    Maps the names of knobs and targets to judgements; a device whose interrupts cannot be told apart is `silent`.
    """
    fixed = {one.target: one for one in moderated(shell, plan)}
    targets = [one.target for one in plan.placed if one.knob.name == _MODERATED]
    return {f"{_MODERATED} of {target}": _under_pings(shell, fixed.get(target), address) for target in targets}


def _under_pings(shell: Shell, one: Moderated | None, address: str) -> Effect:
    if one is None:
        return Effect("silent", "it adapts to the load, or the device has no interrupts of its own")
    try:
        return one.judge(observe(shell, one.target, lambda: flood(shell, one.target, address)))
    except TrialError as error:
        return Effect("silent", error.message)


def flood(shell: Shell, target: Target, address: str) -> None:
    """Keep some pings to an address in flight for a moment; raise TrialError when none is answered."""
    argv = ("ping", "-q", "-f", "-l", str(_PINGS_AHEAD), "-w", str(_FLOOD_S), "-I", target.interface, address)
    finished = run_c(shell, argv, target.node)
    if not finished.ok:
        raise TrialError(f"{address} does not answer through {target}: {finished.complaint()}")


def observe(shell: Shell, target: Target, load: Callable[[], None]) -> Observed:
    """Run a load and count what it caused, as `between`."""
    before = tally(shell, target)
    started_ns = time.monotonic_ns()
    load()
    elapsed_ns = time.monotonic_ns() - started_ns
    return between(target, before, tally(shell, target), elapsed_ns)


def between(target: Target, before: Tally, after: Tally, elapsed_ns: int) -> Observed:
    """Return what a load caused; raise TrialError for devices without interrupts of their own.

    Counted are the vectors that the load used: those that fired at least a tenth as often as the busiest.
    """
    if not any(after.interrupts.values()):
        raise TrialError(f"{target} has no interrupts of its own, so its moderation cannot be verified")
    fired = [count - before.interrupts.get(vector, 0) for vector, count in after.interrupts.items()]
    used = [count for count in fired if 0 < max(fired) <= _FEWER * count]
    if not used or not elapsed_ns:
        raise TrialError("none of its interrupts was counted")
    return Observed(after.packets - before.packets, sum(used), elapsed_ns, len(used))


def tally(shell: Shell, target: Target) -> Tally:
    """Return what an interface has counted, on its own node: machines alike number their interrupts alike."""
    packets = int(shell.read(f"/sys/class/net/{target.interface}/statistics/rx_packets", node=target.node))
    own = set(vectors(shell, target))
    totals: dict[str, int] = {}
    for line in shell.read("/proc/interrupts", node=target.node).decode().splitlines():
        number, _, rest = line.strip().partition(":")
        of_it = number in own or re.search(rf"\b{re.escape(target.interface)}\b", rest)
        if of_it and not _SENDS_ONLY.search(rest.rstrip()):
            totals[number] = sum(int(word) for word in rest.split() if word.isdecimal())
    return Tally(packets, totals)
