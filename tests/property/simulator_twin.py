"""A slow, plain Python twin of the simulator's core, written from docs/explanation/prediction.md.

Point-to-point messages (matching, eager and rendezvous, ports, order within a pair, residuals, wake-ups) and measured
collectives. Times in ps.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nearmetal.predict import _sim
from nearmetal.predict.models import Recorded
from nearmetal.predict.native import Placement, native_table
from nearmetal.predict.schedule import Collective, Op, OpKind, Schedule
from nearmetal.predict.trace import DoCall, DoGap, Repeat, Step

if TYPE_CHECKING:
    from nearmetal.predict.models import Distribution, Machine, PathModel

RANK, ARRIVE, READY, CONTROL, SENT = 0, 1, 2, 5, 8


def work_for(path: PathModel, size: int, single: tuple[tuple[int, int], ...]) -> int:
    """The processor time that a message takes from a computing process."""
    points = single or path.works()
    if not points:
        return 0
    at = bisect_right([one for one, _ in points], size)
    if at == len(points):
        end, ps = points[-1]
        return ps * size // end if end else ps
    (low, below), (high, above) = points[at - 1] if at else (0, 0), points[at]
    return below + (above - below) * (size - low) // (high - low)


def crossing_for(points: tuple[tuple[int, int], ...], size: int) -> int:
    """The extra time that a message takes from its receiver when it crosses another, or what it leaves to do."""
    below = (0, points[0][1]) if points else (0, 0)
    for point in points:
        if size <= point[0]:
            risen = abs(point[1] - below[1]) * (size - below[0]) // (point[0] - below[0])
            return below[1] + (risen if point[1] >= below[1] else -risen)
        below = point
    return below[1]


def copy_ps(path: PathModel, size: int) -> int:
    """The time in which a process copies a message."""
    first = min(size, path.single_copy[0])
    return first * path.single_copy[1] // 1000 + (size - first) * path.copy_fs_per_byte // 1000


@dataclass
class Message:
    src: int
    dst: int
    tag: int
    context: int
    size: int
    kind: str
    send_slot: int
    recv_slot: int = -1
    time: int = 0
    interrupts: bool = False
    crosses: bool = False

    @property
    def sender(self) -> int:
        return self.dst if self.kind == "grant" else self.src

    @property
    def target(self) -> int:
        return self.src if self.kind == "grant" else self.dst

    @property
    def wire(self) -> int:
        return self.size if self.kind in {"eager", "data"} else 0


@dataclass
class Slot:
    state: str = "free"
    time: int = 0
    overhead: int = 0
    waited: bool = False


@dataclass
class Rank:
    steps: list[Op | int]
    clock: int = 0
    tx_free: int = 0
    rx_free: int = -1
    copy_free: int = 0
    at: int = 0
    draws: int = 0
    computed: int = 0
    computes_until: int = 0
    owed: int = 0
    cold_since: dict[str, int] = field(default_factory=dict)
    state: str = "computing"
    slots: dict[int, Slot] = field(default_factory=dict)
    wait_for: list[int] = field(default_factory=list)
    posted: list[tuple[int, int, int, int]] = field(default_factory=list)
    unexpected: list[int] = field(default_factory=list)
    deferred: list[int] = field(default_factory=list)
    flows: dict[int, int] = field(default_factory=dict)
    visits: dict[int, int] = field(default_factory=dict)
    collectives: dict[int, int] = field(default_factory=dict)

    def slot(self, index: int) -> Slot:
        return self.slots.setdefault(index, Slot())


def unroll(steps: tuple[Step, ...], ops: tuple[Op, ...], gaps: tuple[int, ...]) -> list[Op | int]:
    flat: list[Op | int] = []
    for step in steps:
        if isinstance(step, Repeat):
            flat += unroll(step.body, ops, gaps) * step.count
        elif isinstance(step, DoGap):
            flat.append(gaps[step.index])
        else:
            assert isinstance(step, DoCall)
            flat.append(ops[step.index])
    return flat


class Twin:
    def __init__(self, schedule: Schedule, machine: Machine, placement: Placement, seed: int, replica: int = 0) -> None:
        self.machine, self.placement, self.seed, self.replica = machine, placement, seed, replica
        self.schedule = schedule
        self.ranks = [
            Rank(unroll(p.steps, p.ops, p.gaps)) for p in (schedule.program(r) for r in range(schedule.ranks))
        ]
        self.events: list[tuple[int, int, int]] = []
        self.now = 0
        self.messages: list[Message | None] = []
        self.free: list[int] = []
        hosts = int(placement.host_of.max()) + 1
        self.tx_free, self.rx_free = [0] * hosts, [-(1 << 60)] * hosts
        self.meetings: dict[tuple[int, int, Collective], list[int]] = {}
        self.tables: dict[Distribution, tuple[list[int], list[int]]] = {}

    def run(self) -> tuple[str, int]:
        for rank in range(len(self.ranks)):
            self.push(0, RANK, rank)
        while self.events:
            self.now, kind, index = heapq.heappop(self.events)
            self.runnable: list[int] = []
            handlers = {
                RANK: self.go_on,
                ARRIVE: self.arrive,
                READY: self.deliver_now,
                CONTROL: self.answer,
                SENT: self.sent,
            }
            handlers[kind](index)
            for rank in self.runnable:
                self.go_on(rank)
        end = max(rank.clock for rank in self.ranks)
        if any(rank.state != "done" for rank in self.ranks):
            return "deadlock", end
        if any(rank.unexpected or rank.posted for rank in self.ranks):
            return "unmatched", end
        return "finished", end

    # -- helpers

    def push(self, time: int, kind: int, index: int) -> None:
        heapq.heappush(self.events, (time, kind, index))

    def draw(self, rank: int, table: Distribution | None) -> int:
        if table is None:
            return 0
        return self.quantile(table, self.uniform(rank))

    def uniform(self, rank: int) -> int:
        self.ranks[rank].draws += 1
        return _sim.philox([rank, self.ranks[rank].draws - 1, self.replica, 0], self.seed)[0]

    def quantile(self, table: Distribution, u: int) -> int:
        points, values = self.tables.setdefault(table, native_table(table))
        at = bisect_right(points, u) - 1
        if at + 1 == len(points):
            return values[at]
        slope = float(values[at + 1] - values[at]) / float(points[at + 1] - points[at])
        return values[at] + int(float(u - points[at]) * slope)

    def gap(self, rank: int, position: int) -> int:
        gap = self.schedule.gaps[position]
        if not isinstance(gap, Recorded):
            return self.draw(rank, gap)
        visits, order = self.ranks[rank].visits, gap.values_ps()
        visits[position] = visits.get(position, 0) + 1
        return int(order[(visits[position] - 1) % order.size])

    def path(self, a: int, b: int) -> PathModel:
        if self.placement.domain_of[a] == self.placement.domain_of[b]:
            assert self.machine.intra is not None
            return self.machine.intra
        return self.machine.inter

    def fetched(self, m: Message) -> bool:
        return self.path(m.src, m.dst).fetched and not self.crosses(m.src, m.dst)

    def crosses(self, a: int, b: int) -> bool:
        return bool(self.placement.domain_of[a] != self.placement.domain_of[b])

    def message(self, index: int) -> Message:
        found = self.messages[index]
        assert found is not None
        return found

    def keep(self, message: Message) -> int:
        if self.free:  # the record freed last
            index = self.free.pop()
            self.messages[index] = message
            return index
        self.messages.append(message)
        return len(self.messages) - 1

    def drop(self, index: int) -> None:
        self.messages[index] = None
        self.free.append(index)

    def awake(self, rank: Rank, time: int) -> int:
        progress = self.machine.progress
        if rank.clock >= time:
            return rank.clock
        return time + progress.wakeup_ps if progress.blocking and time - rank.clock > progress.spin_ps else time

    # -- programs

    def go_on(self, index: int) -> None:
        rank = self.ranks[index]
        rank.state = "computing"
        while rank.at < len(rank.steps):
            step = rank.steps[rank.at]
            if isinstance(step, int):
                gap = self.gap(index, step)
                owed = min(rank.owed, max(gap, 0))
                rank.owed -= owed
                rank.clock += gap + owed
                rank.computed += gap
                rank.at += 1
                continue
            if step.kind is not OpKind.WAIT and rank.clock > self.now:
                self.push(rank.clock, RANK, index)
                return
            rank.at += 1
            rank.state = "in call"
            self.enter(rank)
            if not self.do(index, step):
                return
            rank.state = "computing"
        rank.state = "done"

    def enter(self, rank: Rank) -> None:
        for index in rank.deferred:
            m = self.message(index)
            rank.clock = max(rank.clock, m.time) + self.answer_overhead(m)
            self.push(rank.clock, CONTROL, index)
        rank.deferred = []

    def do(self, index: int, op: Op) -> bool:
        """Returns whether the rank goes on at once."""
        if op.kind is OpKind.WAIT:
            return self.wait(index, list(self.schedule.program(index).slot_sets[op.slots]))
        if op.kind is OpKind.CANCEL:
            rank = self.ranks[index]
            for slot in self.schedule.program(index).slot_sets[op.slots]:
                met = [one for one in rank.posted if one[3] != slot]
                if len(met) < len(rank.posted):
                    rank.posted, rank.slots[slot] = met, Slot("done", rank.clock)
            return True
        if op.kind is OpKind.COLLECTIVE:
            self.meet(index, op)
            return False
        internal_send, internal_recv = -2, -3
        if op.kind in {OpKind.RECV, OpKind.SENDRECV}:
            both = op.kind is OpKind.SENDRECV
            peer, tag = (op.recv_peer, op.recv_tag) if both else (op.peer, op.tag)
            self.post_recv(index, peer, tag, op.comm, op.slot if op.nonblocking else internal_recv)
        if op.kind in {OpKind.SEND, OpKind.SENDRECV}:
            self.post_send(index, op, op.slot if op.nonblocking else internal_send)
        return op.nonblocking or self.wait(index, [internal_send, internal_recv])

    def wait(self, index: int, slots: list[int]) -> bool:
        rank = self.ranks[index]
        left = 0
        for slot in (rank.slot(one) for one in slots):
            if slot.state == "ready":
                rank.clock = self.awake(rank, slot.time) + slot.overhead
                slot.state, slot.time = "done", rank.clock
            elif slot.state == "pending":
                slot.waited = True
                left += 1
        rank.wait_for = slots
        if left:
            rank.state, rank.computes_until = "waiting", rank.clock
            return False
        self.finish_wait(rank)
        return True

    def finish_wait(self, rank: Rank) -> None:
        for slot in rank.wait_for:
            if rank.slot(slot).state == "done":
                rank.clock = max(rank.clock, rank.slot(slot).time)
            rank.slots[slot] = Slot()

    def complete(self, index: int, slot_index: int, time: int) -> None:
        rank = self.ranks[index]
        slot = rank.slot(slot_index)
        slot.state, slot.time = "done", time
        waits = rank.state == "waiting" and slot.waited
        if waits and all(rank.slot(s).state != "pending" for s in rank.wait_for):
            rank.state, rank.owed = "in call", 0
            self.finish_wait(rank)
            self.runnable.append(index)

    def meet(self, index: int, op: Op) -> None:
        """Wait for all ranks; the last one lets all continue after the measured time."""
        rank, path, slot = self.ranks[index], self.path(index, 0 if index else 1), -4
        rank.clock += self.cold(rank, path, "send")
        rank.slots[slot] = Slot("pending", overhead=self.cold(rank, path, "receive"), waited=True)
        rank.wait_for, rank.state, rank.computes_until = [slot], "waiting", rank.clock
        number = rank.collectives[op.comm] = rank.collectives.get(op.comm, 0) + 1
        came = self.meetings.setdefault((op.comm, number, op.collective), [])
        came.append(rank.clock)
        if len(came) < len(self.ranks):
            return
        end = max(came) + self.measured_time(op, self.uniform(index))
        for other, waiting in enumerate(self.ranks):
            self.complete(other, slot, end + waiting.slot(slot).overhead)

    def measured_time(self, op: Op, u: int) -> int:
        times = next(one.times_ps for one in self.machine.measured if one.collective == op.collective.name.lower())
        at = next(i for i, (size, _) in enumerate(times) if size >= op.message_bytes)
        (size, above), (small, below) = times[at], times[max(at - 1, 0)]
        high, low = self.quantile(above, u), self.quantile(below, u)
        if size == op.message_bytes:
            return max(high, 0)
        risen = abs(high - low) * (op.message_bytes - small) // (size - small)
        return max(low + risen if high >= low else low - risen, 0)

    # -- messages

    def post_send(self, index: int, op: Op, slot: int) -> None:
        rank, path = self.ranks[index], self.path(index, op.peer)
        eager = op.message_bytes <= path.eager_up_to_bytes and not op.synchronous
        m = Message(index, op.peer, op.tag, op.comm, op.message_bytes, "eager" if eager else "request", slot)
        segment = path.segment(m.wire)
        overhead = segment.send_overhead_ps + m.wire * segment.overhead_fs_per_byte // 1000
        overhead += self.cold(rank, path, "send")
        if eager:
            rank.owed += max(work_for(path, m.size, path.send_work_ps) - overhead, 0)
        rank.clock += overhead
        rank.slots[slot] = Slot("done", rank.clock) if eager else Slot("pending")
        self.inject(self.keep(m), rank.clock)

    def post_recv(self, index: int, peer: int, tag: int, context: int, slot: int) -> None:
        rank = self.ranks[index]
        rank.slots[slot] = Slot("pending")
        for m_index in rank.unexpected:
            m = self.message(m_index)
            if m.context == context and peer in {-1, m.src} and tag in {-1, m.tag}:
                rank.unexpected.remove(m_index)
                m.recv_slot = slot
                self.matched(m_index)
                return
        rank.posted.append((peer, tag, context, slot))

    def matched(self, m_index: int) -> None:
        m = self.message(m_index)
        if m.kind == "request":
            self.control(m_index)
            return
        self.complete_recv(m)
        self.drop(m_index)

    def complete_recv(self, m: Message) -> None:
        rank = self.ranks[m.dst]
        segment = self.path(m.src, m.dst).segment(m.size)
        overhead = segment.recv_overhead_ps + m.size * segment.overhead_fs_per_byte // 1000
        if m.interrupts:
            way = self.path(m.src, m.dst)
            overhead = max(overhead, work_for(way, m.size, way.receive_work_ps))
        if m.kind == "data" and self.fetched(m):
            overhead += segment.send_overhead_ps + m.size * segment.overhead_fs_per_byte // 1000
        overhead += self.cold(rank, self.path(m.src, m.dst), "receive")
        path = self.path(m.src, m.dst)
        overhead += crossing_for(path.crossing_ps, m.size) if m.crosses else 0
        if m.kind == "data" and self.fetched(m):
            small = self.path(m.src, m.dst).segment(0)
            self.push(self.now + overhead + small.latency_ps + small.recv_overhead_ps, SENT, self.keep(replace(m)))
        if rank.state == "waiting":
            rank.clock = self.awake(rank, m.time) + overhead
            self.complete(m.dst, m.recv_slot, rank.clock)
        else:
            slot = rank.slot(m.recv_slot)
            slot.state, slot.time, slot.overhead = "ready", m.time, overhead
        if m.crosses and not m.interrupts and m.kind == "eager":
            rank.owed += crossing_for(path.trailing_ps, m.size)

    @staticmethod
    def cold(rank: Rank, path: PathModel, what: str) -> int:
        computed = rank.computed - rank.cold_since.get(what, 0)
        rank.cold_since[what] = rank.computed
        below = (0, 0)
        for point in path.cold:
            if computed < point[0]:
                return below[1] + (point[1] - below[1]) * max(computed - below[0], 0) // (point[0] - below[0])
            below = point
        return below[1]

    def inject(self, m_index: int, time: int) -> int:
        m = self.message(m_index)
        a, b = m.sender, m.target
        segment, rank = self.path(a, b).segment(m.wire), self.ranks[a]
        own = segment.send_overhead_ps + m.wire * segment.overhead_fs_per_byte // 1000
        wire, start = m.wire * segment.fs_per_byte // 1000, time
        latency = segment.latency_ps + self.draw(a, segment.residual)
        if m.kind not in {"request", "grant"}:
            pipe, copies = segment.gap_ps + wire, copy_ps(self.path(a, b), m.wire)
            host = int(self.placement.host_of[a]) if self.crosses(a, b) else -1
            busy = self.machine.port_gap_ps + m.wire * self.machine.port_fs_per_byte // 1000
            start = max(start, rank.tx_free + min(own, pipe), rank.copy_free + min(own, copies))
            if host >= 0:
                start = max(start, self.tx_free[host] + min(own, busy))
                self.tx_free[host] = start + max(0, busy - own)
            rank.tx_free, rank.copy_free = start + max(0, pipe - own), start + max(0, copies - own)
        arrival = max(start + latency + m.wire * segment.latency_fs_per_byte // 1000, self.now)
        m.time = start
        arrival = max(arrival, rank.flows.get(b, -1) + 1)
        rank.flows = {to: time for to, time in rank.flows.items() if to == b or time > self.now} | {b: arrival}
        self.push(arrival, ARRIVE, m_index)
        flight = max(0, latency + m.wire * segment.latency_fs_per_byte // 1000)
        return start + min(max(0, wire - own), flight)

    def arrive(self, m_index: int) -> None:
        m = self.message(m_index)
        through = self.now
        if self.crosses(m.src, m.dst):
            host = int(self.placement.host_of[m.target])
            busy = max(m.wire * self.machine.port_fs_per_byte // 1000, int(self.machine.port_fs_per_byte > 0))
            through = max(self.now, self.rx_free[host] + busy)
            if m.wire or through > self.now:
                self.rx_free[host] = through
        path = self.path(m.sender, m.target)
        if path.copy_fs_per_byte:
            rank, copying = self.ranks[m.target], copy_ps(path, m.wire)
            through = max(through, rank.rx_free + 1)
            if copying:
                through = rank.copy_free = max(through, rank.copy_free + copying)
            rank.rx_free = through
        if through > self.now:
            self.push(through, READY, m_index)
        else:
            self.deliver_now(m_index)

    def deliver_now(self, m_index: int) -> None:
        m = self.message(m_index)
        receiver = self.ranks[m.dst]
        m.crosses = m.kind != "grant" and receiver.flows.get(m.src, m.time) > m.time
        m.time = self.now
        m.interrupts = receiver.state != "waiting" or self.now < receiver.computes_until
        if m.kind == "grant":
            self.control(m_index)
        elif m.kind == "data":
            self.matched(m_index)
        else:
            rank = self.ranks[m.dst]
            for posted in rank.posted:
                peer, tag, context, slot = posted
                if m.context == context and peer in {-1, m.src} and tag in {-1, m.tag}:
                    rank.posted.remove(posted)
                    m.recv_slot = slot
                    self.matched(m_index)
                    return
            rank.unexpected.append(m_index)

    def answer_overhead(self, m: Message) -> int:
        path = self.path(m.src, m.dst)
        data = path.segment(m.size)
        copying = data.send_overhead_ps + m.size * data.overhead_fs_per_byte // 1000 if m.kind == "grant" else 0
        return path.segment(0).recv_overhead_ps + copying

    def control(self, m_index: int) -> None:
        m = self.message(m_index)
        rank = self.ranks[m.target]
        cost = self.answer_overhead(m)
        if rank.state == "waiting":
            rank.clock = self.awake(rank, m.time) + cost
            self.push(rank.clock, CONTROL, m_index)
        elif rank.state == "in call":
            rank.clock += cost
            self.push(max(rank.clock, m.time), CONTROL, m_index)
        elif rank.state == "done":
            self.push(max(self.now, m.time) + cost, CONTROL, m_index)
        else:
            rank.deferred.append(m_index)

    def sent(self, m_index: int) -> None:
        m = self.message(m_index)
        self.drop(m_index)
        self.complete(m.src, m.send_slot, self.now)

    def answer(self, m_index: int) -> None:
        m = self.message(m_index)
        if m.kind == "request" and self.fetched(m):
            m.kind = "data"
            segment = self.path(m.src, m.dst).segment(m.size)
            takes = segment.latency_ps + m.size * segment.latency_fs_per_byte // 1000
            self.push(self.now + max(takes + self.draw(m.dst, segment.residual), 0), READY, m_index)
        elif m.kind == "request":
            m.kind = "grant"
            self.inject(m_index, self.now)
        else:
            m.kind = "data"
            self.complete(m.src, m.send_slot, self.inject(m_index, self.now))
