"""Interrupt moderation in plain Python: the twin of `native/sim/moderation.cpp`.

Integer arithmetic of Linux 6.12; each algorithm names its kernel function. Times are picoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearmetal.predict.moderation import PS_PER_US, Moderation, ModerationSetting

_MLX4_PERIOD_PS = 250_000 * PS_PER_US
_MLX4_RATE_THRESHOLD = 1_000_000 // 128
_MLX4_AVERAGE_SMALL = 256
_DIM_EVENTS = 64
_DIM_PROFILES = {
    "eqe": ((1, 256), (8, 256), (64, 256), (128, 256), (256, 256)),
    "cqe": ((2, 256), (8, 128), (16, 64), (32, 64), (64, 64)),
}
_ITR_START, _ITR_4K, _ITR_20K, _ITR_70K, _ITR_MIN = 648, 980, 196, 56, 4
_IGBVF_START = 488
_LOWEST, _LOW, _BULK = range(3)


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)


def _significant(current: int, previous: int) -> bool:
    return previous != 0 and 100 * abs(current - previous) // previous > 10


class Rule:
    """When the next interrupt may fire; the base rule interrupts at once."""

    def __init__(self, setting: ModerationSetting) -> None:
        self.setting = setting
        self.usecs, self.frames = 0, 1
        self.batch, self.batch_start_ps = 0, 0
        self.ring_packets, self.ring_bytes = 0, 0
        self.new_packets, self.new_bytes = 0, 0

    restarts = False

    @property
    def programmed(self) -> int:
        """What the driver has written: usecs for the delaying rules, quarter microseconds for the throttling ones."""
        return self.usecs

    def complete(self, now_ps: int, frames: int) -> int | None:
        """Return when the interrupt is due after `frames` more packets have arrived; None for not yet."""
        if self.batch == 0 or self.restarts:
            self.batch_start_ps = now_ps
        self.batch += frames
        if 0 < self.frames <= self.batch:
            return now_ps
        return self.batch_start_ps + self.usecs * PS_PER_US if self.usecs else None

    def fire(self, now_ps: int) -> None:
        """Note that the interrupt fires."""
        self.batch = 0

    def polled(self, now_ps: int, packets: int, size_bytes: int) -> None:
        """Count what NAPI took off the ring."""
        self.ring_packets += packets
        self.ring_bytes += size_bytes
        self.new_packets += packets
        self.new_bytes += size_bytes

    def rearm(self, now_ps: int) -> None:
        """Adapt; called when NAPI is done."""


class _Fixed(Rule):
    def __init__(self, setting: ModerationSetting) -> None:
        super().__init__(setting)
        self.usecs, self.frames = setting.usecs, setting.frames
        self.restarts = setting.kind is Moderation.FIXED_CQE


class _Mlx4(Rule):
    """mlx4_en_auto_moderation(), every 250 ms."""

    def __init__(self, setting: ModerationSetting) -> None:
        super().__init__(setting)
        self.usecs, self.frames = setting.usecs_low, setting.frames
        self.next_tick_ps = _MLX4_PERIOD_PS
        self.tick_packets, self.tick_bytes = 0, 0

    def complete(self, now_ps: int, frames: int) -> int | None:
        self._catch_up(now_ps)
        when = super().complete(now_ps, frames)
        return now_ps if when is None else when  # a queue with period 0 is not moderated, whatever its count

    def polled(self, now_ps: int, packets: int, size_bytes: int) -> None:
        self._catch_up(now_ps)
        super().polled(now_ps, packets, size_bytes)

    def rearm(self, now_ps: int) -> None:
        self._catch_up(now_ps)

    def _catch_up(self, now_ps: int) -> None:
        while self.next_tick_ps <= now_ps:
            self.usecs = self._period()
            self.tick_packets, self.tick_bytes = self.ring_packets, self.ring_bytes
            self.next_tick_ps += _MLX4_PERIOD_PS

    def _period(self) -> int:
        s = self.setting
        packets = self.ring_packets - self.tick_packets
        rate = packets * 4
        average = (self.ring_bytes - self.tick_bytes) // packets if packets else 0
        if rate <= _MLX4_RATE_THRESHOLD // s.rings or average <= _MLX4_AVERAGE_SMALL or rate <= s.rate_low:
            return s.usecs_low
        if rate >= s.rate_high:
            return s.usecs_high
        return (rate - s.rate_low) * (s.usecs_high - s.usecs_low) // (s.rate_high - s.rate_low) + s.usecs_low


@dataclass(slots=True)
class _Rates:
    packets: int = 0
    bytes: int = 0
    events: int = 0

    def compared_with(self, p: _Rates) -> str:
        """net_dim_stats_compare(): 'better', 'same' or 'worse' than the previous sample."""
        if p.bytes == 0:
            return "better" if self.bytes else "same"
        if _significant(self.bytes, p.bytes):
            return "better" if self.bytes > p.bytes else "worse"
        if p.packets == 0:
            return "better" if self.packets else "same"
        if _significant(self.packets, p.packets):
            return "better" if self.packets > p.packets else "worse"
        if not _significant(self.events, p.events):
            return "same"
        return "better" if self.events < p.events else "worse"


class _Dim(Rule):
    """net_dim(): looks for the profile with most bytes, then packets, then fewest events per ms."""

    def __init__(self, setting: ModerationSetting) -> None:
        super().__init__(setting)
        self.restarts = setting.kind is Moderation.DIM_CQE
        self.profiles = _DIM_PROFILES["cqe" if self.restarts else "eqe"]
        self.index = 1
        self.usecs, self.frames = self.profiles[self.index]
        self.state, self.right, self.left, self.tired = "top", 0, 0, 0
        self.events = 0
        self.start: tuple[int, int, int, int] | None = None
        self.previous = _Rates()

    def rearm(self, now_ps: int) -> None:
        self.events += 1
        end = (now_ps // PS_PER_US, self.ring_packets, self.ring_bytes, self.events)
        if self.start is not None:
            us, packets, size_bytes, events = (b - a for a, b in zip(self.start, end, strict=True))
            if events < _DIM_EVENTS or us == 0:
                return
            rates = [_divide_up(count * 1000, us) for count in (packets, size_bytes, _DIM_EVENTS)]
            if self._decide(_Rates(*rates)):
                self.usecs, self.frames = self.profiles[self.index]
                self.start = None
                return
        self.start = end

    def _decide(self, current: _Rates) -> bool:
        index, parked = self.index, self.state == "top"
        self._search(current.compared_with(self.previous))
        if not (parked and self.state == "top"):
            self.previous = current
        return self.index != index

    def _search(self, compared: str) -> None:
        if self.state == "top":
            if compared != "same":
                self._leave_parking()
        elif self.state == "tired":
            self.tired -= 1
            if self.tired == 0:
                self._leave_parking()
        else:
            if compared != "better":
                self._turn()
            self._walk()

    def _turn(self) -> None:
        if self.state == "right":
            self.state, self.left = "left", 0
        else:
            self.state, self.right = "right", 0

    def _walk(self) -> None:
        ahead, back = (self.right, self.left) if self.state == "right" else (self.left, self.right)
        stepped = "edge" if back > 1 and ahead == 1 else self._step()
        if stepped == "edge":
            self.state, self.right, self.left, self.tired = "top", 0, 0, 0
        elif stepped == "too tired":
            self.state, self.right, self.left = "tired", 0, 0

    def _step(self) -> str:
        if self.tired == 2 * len(self.profiles):
            return "too tired"
        if self.state == "right":
            if self.index == len(self.profiles) - 1:
                return "edge"
            self.index += 1
            self.right += 1
        else:
            if self.index == 0:
                return "edge"
            self.index -= 1
            self.left += 1
        self.tired += 1
        return "stepped"

    def _leave_parking(self) -> None:
        self.state = "left" if self.index else "right"
        self._step()


class _Throttle(Rule):
    """At least the ITR between two interrupts; a new value waits for the next interrupt."""

    def __init__(self, setting: ModerationSetting, dynamic_start: int) -> None:
        super().__init__(setting)
        usecs = setting.usecs
        self.itr = self.itr_next = _ITR_MIN if usecs == 0 else dynamic_start if usecs <= 3 else usecs << 2
        self.last_fire_ps: int | None = None
        self.timer_end_ps, self.timing = 0, False

    @property
    def programmed(self) -> int:
        return self.itr

    def complete(self, now_ps: int, frames: int) -> int | None:
        if self.timing and now_ps > self.timer_end_ps:
            self.timing = False
            self.itr = self.itr_next
        if self.setting.emulated:
            return max(now_ps, self.timer_end_ps)
        return now_ps if self.last_fire_ps is None else max(now_ps, self.last_fire_ps + self.itr * 250_000)

    def fire(self, now_ps: int) -> None:
        by_timer = self.timing and now_ps == self.timer_end_ps
        self.timing = self.setting.emulated and not by_timer
        if self.timing:
            self.timer_end_ps = now_ps + self.itr * 1_024_000
        self.last_fire_ps = now_ps
        self.itr = self.itr_next

    def clear(self) -> None:
        self.new_packets = self.new_bytes = 0


class _IgbQueue(_Throttle):
    """igb_update_ring_itr(): one vector per queue."""

    def __init__(self, setting: ModerationSetting) -> None:
        super().__init__(setting, _ITR_START)

    def rearm(self, now_ps: int) -> None:
        if self.setting.usecs not in {1, 3}:
            return
        itr = _ITR_4K
        if self.setting.link_mbps == 1000:
            average = self.new_bytes // self.new_packets if self.new_packets else 0
            if average == 0:
                self.clear()
                return
            average = min(average + 24, 3000)
            itr = (average // 3 if 300 < average < 1200 else average // 2) // 4 * 4
            if self.setting.usecs == 3:
                itr = max(itr, _ITR_20K)
        self.clear()
        self.itr_next = itr


def _classify_low(packets: int, size_bytes: int) -> int:
    average = size_bytes // packets
    if size_bytes > 10_000:
        if average > 1200 or packets < 10:
            return _BULK
        return _LOWEST if packets > 35 else _LOW
    if average > 2000:
        return _BULK
    return _LOWEST if packets <= 2 and size_bytes < 512 else _LOW


def _classify(latency_class: int, packets: int, size_bytes: int) -> int:
    """igb_update_itr(): the next latency class of a vector."""
    if latency_class == _LOWEST:
        if size_bytes // packets > 8000:
            return _BULK
        return _LOW if packets < 5 and size_bytes > 512 else _LOWEST
    if latency_class == _LOW:
        return _classify_low(packets, size_bytes)
    leaves = packets > 35 if size_bytes > 25_000 else size_bytes < 1500
    return _LOW if leaves else _BULK


class _IgbShared(_Throttle):
    """igb_set_itr(): one vector for all queues."""

    def __init__(self, setting: ModerationSetting) -> None:
        super().__init__(setting, _ITR_START)
        self.latency_class = _LOWEST

    def rearm(self, now_ps: int) -> None:
        if self.setting.usecs not in {1, 3}:
            return
        if self.setting.link_mbps != 1000:
            self.itr_next = _ITR_4K
            return
        if self.new_packets:
            self.latency_class = _classify(self.latency_class, self.new_packets, self.new_bytes)
            self.clear()
        shown = max(self.latency_class, _LOW) if self.setting.usecs == 3 else self.latency_class
        self.itr_next = (_ITR_70K, _ITR_20K, _ITR_4K)[shown]


class _Igbvf(_Throttle):
    """igbvf_set_itr(): the register value is passed where a class is expected, so each call asks for 488."""

    def __init__(self, setting: ModerationSetting) -> None:
        super().__init__(setting, _IGBVF_START)
        usecs = setting.usecs
        register = usecs << 2 if usecs else _ITR_MIN
        requested = usecs if usecs in {2, 3} else 1_000_000_000 // (register * 256)
        self.dynamic = bool(requested & 3)

    def rearm(self, now_ps: int) -> None:
        if not self.dynamic:
            return
        self.clear()
        climbing = min(self.itr_next + (_IGBVF_START >> 2), _IGBVF_START)
        self.itr_next = climbing if self.itr_next < _IGBVF_START else _IGBVF_START


class _Ixgbevf(_Throttle):
    """ixgbevf_update_itr() and ixgbevf_set_itr(); the register is written at once."""

    def __init__(self, setting: ModerationSetting) -> None:
        super().__init__(setting, 200)
        if setting.usecs != 1:
            self.itr = self.itr_next = setting.usecs << 2
        self.latency_class = _LOW

    def rearm(self, now_ps: int) -> None:
        if self.setting.usecs != 1:
            return
        us = self.itr >> 2
        if self.new_packets and us:
            rate = self.new_bytes // us
            self.latency_class = {
                _LOWEST: _LOW if rate > 10 else _LOWEST,
                _LOW: _BULK if rate > 20 else _LOW if rate > 10 else _LOWEST,
                _BULK: _BULK if rate > 20 else _LOW,
            }[self.latency_class]
            self.clear()
        wanted = (40, 200, 336)[self.latency_class]
        if wanted != self.itr:
            self.itr = self.itr_next = 10 * wanted * self.itr // (9 * wanted + self.itr)


_RULES: dict[Moderation, type[Rule]] = {
    Moderation.OFF: Rule,
    Moderation.FIXED_EQE: _Fixed,
    Moderation.FIXED_CQE: _Fixed,
    Moderation.MLX4: _Mlx4,
    Moderation.DIM_EQE: _Dim,
    Moderation.DIM_CQE: _Dim,
}
_THROTTLES = {
    Moderation.IGB_QUEUE: _IgbQueue,
    Moderation.IGB_SHARED: _IgbShared,
    Moderation.IGBVF: _Igbvf,
    Moderation.IXGBEVF: _Ixgbevf,
}


def make_rule(setting: ModerationSetting) -> Rule:
    """Return the rule of a setting in its first state."""
    if setting.kind.throttles:
        return _THROTTLES[setting.kind](setting)
    return _RULES[setting.kind](setting)
