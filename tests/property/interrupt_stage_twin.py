"""The interrupt stage in plain Python: the twin of `native/sim/interrupt_stage.cpp`. Times are picoseconds."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from nearmetal.predict.moderation import PS_PER_US, StageSetting

from .moderation_twin import make_rule

_SOFTIRQ_RESTARTS, _SOFTIRQ_TIME_PS = 10, 2000 * PS_PER_US


@dataclass(slots=True)
class _Item:
    ident: int
    times_ps: list[int]
    """When its packets come that were not taken yet."""
    size_bytes: int

    def there(self, now_ps: int) -> int:
        whole = not self.times_ps or self.times_ps[-1] <= now_ps
        return len(self.times_ps) if whole else bisect_right(self.times_ps, now_ps)


class InterruptStage:
    """Ring, interrupt and NAPI of one virtual function, one step at a time.

    `steps` collects (what, time, value): 'interrupt' and 'rearm' with what is programmed, 'poll' with the packets
    taken. `visible` collects (message, time at which the process can see it).
    """

    def __init__(self, setting: StageSetting) -> None:
        self.setting = setting
        self.rule = make_rule(setting.moderation)
        self.pending: deque[_Item] = deque()
        self.fire_at_ps: int | None = None
        self.state, self.exhausted = "armed", False
        self.due_ps: int | None = None
        self.busy_until_ps = 0
        self.round_packets, self.rounds, self.round_start_ps, self.softirq_start_ps = 0, 0, 0, 0
        self.defer_left = 0
        self.steps: list[tuple[str, int, int]] = []
        self.visible: list[tuple[int, int]] = []

    def arrive(self, now_ps: int, ident: int, frames: int, size_bytes: int) -> None:
        """Accept a message of `frames` packets, the first of which is in the ring."""
        if self.state == "polled" and not self.exhausted and not self.pending and now_ps >= self.busy_until_ps:
            self._finish(self.busy_until_ps)
        item = _Item(ident, [now_ps + packet * self.setting.packet_gap_ps for packet in range(frames)], size_bytes)
        self.pending.append(item)
        if self.state == "armed":
            self._plan(now_ps, item.there(now_ps))
        elif self.state == "polled" and not self.exhausted:
            self.due_ps = self.busy_until_ps

    def handle(self) -> None:
        """Do what is due."""
        assert self.due_ps is not None
        now_ps, self.due_ps = self.due_ps, None
        if self.state == "armed" and now_ps == self.fire_at_ps:
            self._fire(now_ps)
        elif self.state == "armed":
            self._plan(now_ps, sum(item.times_ps.count(now_ps) for item in self.pending))
        elif self.state in {"fired", "deferred"} or self.exhausted:
            self._poll(now_ps)
        else:
            self._finish(now_ps)

    def _plan(self, now_ps: int, frames: int) -> None:
        self.fire_at_ps = self.rule.complete(now_ps, frames)
        if self.fire_at_ps is not None and self.fire_at_ps <= now_ps:
            self._fire(now_ps)
        elif self.setting.moderation.kind.throttles:
            self.due_ps = self.fire_at_ps
        else:
            self.due_ps = min(
                (one for one in (self.fire_at_ps, self._next_packet(now_ps)) if one is not None), default=None
            )

    def _next_packet(self, now_ps: int) -> int | None:
        following = [(item.times_ps, item.there(now_ps)) for item in self.pending]
        return min((times[come] for times, come in following if come < len(times)), default=None)

    def _fire(self, now_ps: int) -> None:
        self.rule.fire(now_ps)
        self.steps.append(("interrupt", now_ps, self.rule.programmed))
        self.state = "fired"
        self.due_ps = now_ps + self.setting.delivery_ps
        self.round_packets = self.rounds = 0
        self.round_start_ps = self.softirq_start_ps = self.due_ps

    def _poll(self, now_ps: int) -> None:
        """napi_poll(): at most `weight` packets, each visible when its turn is over."""
        work, taken_bytes, time_ps = 0, 0, now_ps + self.setting.poll_ps
        for item in self.pending:
            if work == self.setting.weight:
                break
            take = min(item.there(now_ps), self.setting.weight - work)
            if take == 0:
                continue
            left = len(item.times_ps)
            share = item.size_bytes if take == left else item.size_bytes // left * take
            work += take
            taken_bytes += share
            time_ps += take * self.setting.packet_ps
            del item.times_ps[:take]
            item.size_bytes -= share
            if not item.times_ps:
                self.visible.append((item.ident, time_ps))
        while self.pending and not self.pending[0].times_ps:
            self.pending.popleft()
        self.steps.append(("poll", now_ps, work))
        self.rule.polled(now_ps, work, taken_bytes)
        self.state, self.exhausted, self.busy_until_ps = "polled", work == self.setting.weight, time_ps
        if work:
            self.defer_left = self.setting.defer_count
        if self.exhausted:
            self._softirq_limits(time_ps, work)
        if self.exhausted or self.pending or self.setting.defer_count:
            self.due_ps = self.busy_until_ps

    def _softirq_limits(self, end_ps: int, work: int) -> None:
        """net_rx_action() and __do_softirq(): a long poll ends in ksoftirqd."""
        s = self.setting
        self.round_packets += work
        if self.round_packets < s.budget and end_ps - self.round_start_ps < s.budget_ps:
            return
        self.round_packets, self.round_start_ps = 0, end_ps
        self.rounds += 1
        if self.rounds < _SOFTIRQ_RESTARTS and end_ps - self.softirq_start_ps < _SOFTIRQ_TIME_PS:
            return
        self.rounds = 0
        self.busy_until_ps = end_ps + s.ksoftirqd_ps
        self.round_start_ps = self.softirq_start_ps = self.busy_until_ps

    def _finish(self, now_ps: int) -> None:
        """napi_complete_done(): enable the interrupt, or come back by timer."""
        self.due_ps = None
        if self.defer_left > 0 and self.setting.defer_ps > 0:
            self.defer_left -= 1
            self.state = "deferred"
            self.due_ps = now_ps + self.setting.defer_ps
            return
        self.rule.rearm(now_ps)
        self.steps.append(("rearm", now_ps, self.rule.programmed))
        self.state = "armed"
        frames = sum(item.there(now_ps) for item in self.pending)
        if frames:
            self._plan(now_ps, frames)
        else:
            self.due_ps = self._next_packet(now_ps)


def run_stage(setting: StageSetting, arrivals: list[tuple[int, int, int]]) -> InterruptStage:
    """Feed a stage alone with (time_ps, frames, bytes) in ascending order and return it when nothing is left to do."""
    stage = InterruptStage(setting)
    for ident, (time_ps, frames, size_bytes) in enumerate(arrivals):
        while stage.due_ps is not None and stage.due_ps < time_ps:
            stage.handle()
        stage.arrive(time_ps, ident, frames, size_bytes)
    while stage.due_ps is not None:
        stage.handle()
    return stage
