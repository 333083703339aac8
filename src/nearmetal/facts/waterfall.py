"""Where one message's time went: a round trip cut at the milestones that the kernel's tracepoints give.

A round trip is two legs. On each leg the milestones are, in this order:

    program -> tcp_sendmsg -> net_dev_queue -> net_dev_start_xmit -> [doorbell] net_dev_xmit -> irq_handler_entry
    -> softirq_entry -> napi_gro_receive_entry -> sched_waking or softirq_exit -> tcp_recvmsg -> data copied -> program

The stretch between two milestones has one name, so the parts of a round trip add up to it exactly; what lies after
a milestone that is missing (an event that was lost, a message of several frames) is `unattributed`. Only stamps of
one clock are compared, so both ends must be on one kernel, or on machines that share a clock to the nanosecond, as the
lab's do. Pure, standard library only.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError, TrialError
from nearmetal.facts.tracing import TCP_RECEIVE, TCP_SEND

if TYPE_CHECKING:
    from nearmetal.facts.ftrace import Thread, TraceEvent

PARTS: dict[str, str] = {
    "sending program": "from the program's call to the kernel's TCP",
    "sender's stack": "TCP, IP and the queueing discipline",
    "virtual devices": "bridges, virtual cables and macvlans between the program's interface and the card, both ends",
    "wire": "between machines; on one machine, the queueing discipline in its place, if there is one",
    "send driver": "the driver, up to and including the doorbell",
    "moderation wait": "the frame has arrived, and the card delays its interrupt",
    "interrupt": "the interrupt handler, up to the polling of the card",
    "receive driver": "the driver takes the frame out of its ring",
    "receiver's stack": "IP and TCP, and copying to the program",
    "wake-up": "until the receiving program runs and asks for its data",
    "receiving program": "from the data to the end of the call",
    "unattributed": "between points that the trace does not record",
}
"""Every part of a message, in the order of its way, and what it is."""

_OVERHEAD_BYTES = 14 + 20 + 20
"""Ethernet, IP and TCP headers without options: what a frame with data has at the least beside the data."""
_IRQ, _IRQ_END = "irq/irq_handler_entry", "irq/irq_handler_exit"
_MOST_RESIDUE = 0.05


MessageParts = dict[str, int]
"""One message: ns by part; parts that took no time are left out."""


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One iteration of a ping-pong as measured, cut into its two messages, there and back."""

    iteration: int
    measured_ns: int
    there: MessageParts
    back: MessageParts

    def part_ns(self, part: str) -> int:
        """Return a part's time in both messages together."""
        return self.there.get(part, 0) + self.back.get(part, 0)

    @property
    def attributed_ns(self) -> int:
        """The sum of all parts that have a name of their own."""
        return sum(self.part_ns(part) for part in PARTS if part != "unattributed")

    @property
    def residue(self) -> float:
        """How far the named parts are from the measured time, as a share of it."""
        return abs(self.measured_ns - self.attributed_ns) / max(1, self.measured_ns)


@dataclass(frozen=True, slots=True)
class Wire:
    """What lies between two machines; rate 0 means that a frame takes no time on the line itself."""

    delay_ns: int = 0
    rate_mbps: int = 0

    def ns(self, frame_bytes: int) -> int:
        """Return what a frame takes: at least 60 bytes and 24 more of preamble, checksum and gap (IEEE 802.3)."""
        line_ns = (max(60, frame_bytes) + 24) * 8000 // self.rate_mbps if self.rate_mbps else 0
        return self.delay_ns + line_ns


@dataclass(frozen=True, slots=True)
class Window:
    """One iteration as the engine stamped it, on the trace's clock."""

    iteration: int
    begin_ns: int
    end_ns: int


def round_trips(
    events: Sequence[TraceEvent],
    windows: Sequence[Window],
    *,
    message_bytes: int,
    shaped_wire: bool,
    wire: Wire | None = None,
) -> list[RoundTrip]:
    """Cut every iteration that the trace covers into parts.

    `shaped_wire` says that a queueing discipline stands for the wire; `wire` is what lies between two machines,
    and None where both ends are on one. Raises TrialError when the trace covers no
    iteration or does not show exactly two programs that talk.
    """
    times_ns = [event.at_ns for event in events]

    def within(begin_ns: int, end_ns: int) -> Sequence[TraceEvent]:
        return events[bisect.bisect_left(times_ns, begin_ns) : bisect.bisect_right(times_ns, end_ns)]

    covered = [window for window in windows if times_ns and times_ns[0] <= window.begin_ns]
    slices = [within(window.begin_ns, window.end_ns) for window in covered]
    near, far = _client_and_server(slices)
    lines = _receive_lines(slices, message_bytes)
    cut = _Cutter(message_bytes, shaped_wire, wire or Wire(), lines)
    return [
        RoundTrip(window.iteration, window.end_ns - window.begin_ns, *cut.both_legs(part, window, near, far))
        for window, part in zip(covered, slices, strict=True)
    ]


def _client_and_server(slices: Sequence[Sequence[TraceEvent]]) -> tuple[Thread, Thread]:
    """Return the program that begins and its partner."""
    senders = [[e.thread for e in part if e.name == TCP_SEND] for part in slices]
    first = Counter(threads[0] for threads in senders if threads)
    near = first.most_common(1)[0][0] if first else None
    others = Counter(thread for threads in senders for thread in threads if thread != near)
    if near is None or not others:
        raise TrialError(
            f"the trace shows no two programs that talk over TCP in {len(slices)} iterations",
            hint="the trace's buffer holds only the end of a long launch: ask for fewer iterations; "
            "both ends must run on the traced kernel, not in guests",
        )
    return near, others.most_common(1)[0][0]


def _receive_lines(slices: Sequence[Sequence[TraceEvent]], message_bytes: int) -> frozenset[tuple[str, int]]:
    """Return the interrupt lines that bring frames, by machine: those that most often come last before data."""
    last: Counter[tuple[str, int]] = Counter()
    for part in slices:
        lines: dict[str, int] = {}
        for event in part:
            if event.name == _IRQ:
                lines[event.machine] = event.number("irq")
            elif event.machine in lines and _is_arrival(event, message_bytes):
                last[event.machine, lines.pop(event.machine)] += 1
    enough = sum(last.values()) * _MOST_RESIDUE
    return frozenset(line for line, count in last.items() if count > enough)


def _is_arrival(event: TraceEvent, message_bytes: int) -> bool:
    # The driver has taken the Ethernet header off by now.
    return event.name == "net/napi_gro_receive_entry" and event.number("len") >= message_bytes + _OVERHEAD_BYTES - 14


@dataclass(frozen=True, slots=True)
class _Cutter:
    message_bytes: int
    shaped_wire: bool
    wire: Wire
    lines: frozenset[tuple[str, int]]

    def both_legs(
        self, part: Sequence[TraceEvent], window: Window, near: Thread, far: Thread
    ) -> tuple[MessageParts, MessageParts]:
        answer = next((e.at_ns for e in part if e.name == TCP_SEND and e.thread == far), None)
        if answer is None:  # where the first message ends, and what of the rest is the answer, is not known
            return self.leg(part, window.begin_ns, window.end_ns, near, far, last="unattributed"), {}
        # Each program's own time before it answers belongs to the message that it received.
        there = self.leg([e for e in part if e.at_ns < answer], window.begin_ns, answer, near, far)
        back = self.leg([e for e in part if e.at_ns >= answer], answer, window.end_ns, far, near)
        return there, back

    def leg(
        self,
        part: Sequence[TraceEvent],
        begin_ns: int,
        end_ns: int,
        sender: Thread,
        receiver: Thread,
        *,
        last: str = "receiving program",
    ) -> MessageParts:
        """Cut one message. Milestones are looked for in order; at the first that is missing the rest has no name.

        `last` is the part from the data to the end.
        """
        found = _Milestones(part)
        cut = _Cut(begin_ns, {})
        send = found.next(lambda e: e.name == TCP_SEND and e.thread == sender)
        queue = found.next(lambda e: e.machine == sender[0] and e.name == "net/net_dev_queue" and self._has_data(e))
        if send is None or queue is None:
            return cut.end("unattributed", end_ns)
        cut.to("sending program", send.at_ns).to("sender's stack", queue.at_ns)
        arrival = found.peek(lambda e: e.machine == receiver[0] and _is_arrival(e, self.message_bytes))
        if arrival is None:
            return cut.end("unattributed", end_ns)
        self._send(found.until(arrival), queue, receiver[0], cut)
        there = [e for e in found.until(arrival) if e.machine == receiver[0]]
        self._interrupt(there, arrival, self._wire_ns(queue), cut)
        there = [e for e in found.after(arrival) if e.machine == receiver[0]]
        received = self._receive(there, arrival, receiver, cut)
        return cut.end(last if received else "unattributed", end_ns)

    def _has_data(self, event: TraceEvent) -> bool:
        return event.number("len") >= self.message_bytes + _OVERHEAD_BYTES

    def _wire_ns(self, queue: TraceEvent) -> int:
        return self.wire.ns(queue.number("len"))

    def _send(self, part: Sequence[TraceEvent], queue: TraceEvent, receiver: str, cut: _Cut) -> None:
        """From the queue to the doorbell. Over stacked devices the last driver is the card's."""
        skb = queue.fields.get("skbaddr")
        same = [e for e in part if e.machine == queue.machine and e.fields.get("skbaddr") == skb]
        first, start = _first(same, "net/net_dev_start_xmit"), _last(same, "net/net_dev_start_xmit")
        if first is None or start is None:
            return
        if first is not start:
            card = _last([e for e in same if e.at_ns <= start.at_ns], "net/net_dev_queue") or start
            cut.to("sender's stack", first.at_ns).to("virtual devices", card.at_ns)
        cut.to("wire" if self.shaped_wire else "sender's stack", start.at_ns)
        done = next((e for e in same if e.name == "net/net_dev_xmit" and e.at_ns > start.at_ns), None)
        wire_ns = self._wire_ns(queue)
        there = (e for e in part if e.at_ns > start.at_ns + wire_ns and e.machine == receiver)
        interrupt = next((e for e in there if self._brings_frames(e)), None)
        if interrupt is not None and (done is None or interrupt.at_ns - wire_ns < done.at_ns):
            # Without moderation the card answers the doorbell at once, on top of the driver that rang it: what the
            # driver still does is on nobody's way where the receiver is another machine.
            cut.to("send driver", interrupt.at_ns - wire_ns)
            if receiver != queue.machine:
                return
            handled = next((e for e in part if e.at_ns > interrupt.at_ns and e.name == _IRQ_END), interrupt)
            cut.to("interrupt", handled.at_ns)
        if done is not None:
            cut.to("send driver", done.at_ns)

    def _brings_frames(self, event: TraceEvent) -> bool:
        return event.name == _IRQ and (event.machine, event.number("irq")) in self.lines

    def _interrupt(self, part: Sequence[TraceEvent], arrival: TraceEvent, wire_ns: int, cut: _Cut) -> None:
        """From the doorbell to the frame in the driver's hands; a card that is still polled needs no interrupt."""
        interrupt = next((e for e in part if e.at_ns >= cut.at_ns and self._brings_frames(e)), None)
        polling = _last(part, "irq/softirq_entry")
        cut.to("wire", min(cut.at_ns + wire_ns, (interrupt or arrival).at_ns))
        if interrupt is not None:
            cut.to("moderation wait", interrupt.at_ns)
        if polling is not None:
            cut.to("interrupt", polling.at_ns)
        cut.to("receive driver", arrival.at_ns)

    def _receive(self, part: Sequence[TraceEvent], arrival: TraceEvent, receiver: Thread, cut: _Cut) -> bool:
        """From the driver to the program that has its data; return whether the trace shows that."""
        copied = next((e for e in part if e.name == "tcp/tcp_rcv_space_adjust" and e.thread == receiver), None)
        asks = None
        if copied is not None:
            asks = _last([e for e in part if e.at_ns < copied.at_ns and e.thread == receiver], TCP_RECEIVE)
        if copied is None or asks is None:
            return False
        before = [e for e in part if e.at_ns < asks.at_ns]
        same = [e for e in before if e.fields.get("skbaddr") == arrival.fields.get("skbaddr")]
        passed = _last(same, "net/net_dev_xmit")
        if passed is not None:
            # A virtual cable passes the frame on to its own softirq.
            cut.to("virtual devices", passed.at_ns)
            entry = next((e for e in before if e.at_ns > passed.at_ns and e.name == "irq/softirq_entry"), passed)
            before = [e for e in before if e.at_ns > entry.at_ns]
        woken = next((e for e in before if e.name == "sched/sched_waking" and e.fields.get("pid") == receiver[1]), None)
        done = woken or _first(before, "irq/softirq_exit") or asks
        cut.to("receiver's stack", done.at_ns).to("wake-up", asks.at_ns).to("receiver's stack", copied.at_ns)
        return True


@dataclass(slots=True)
class _Cut:
    """How far a message has been cut, and the parts so far."""

    at_ns: int
    ns: MessageParts

    def to(self, part: str, until_ns: int) -> _Cut:
        """Give a part the time up to `until_ns`; a milestone that was passed already takes nothing."""
        if until_ns > self.at_ns:
            self.ns[part] = self.ns.get(part, 0) + until_ns - self.at_ns
            self.at_ns = until_ns
        return self

    def end(self, part: str, until_ns: int) -> MessageParts:
        """Give the rest to a part."""
        return self.to(part, until_ns).ns


class _Milestones:
    """A walk through events in order of time."""

    def __init__(self, events: Sequence[TraceEvent]) -> None:
        self._events = events
        self._position = 0

    def peek(self, wanted: Callable[[TraceEvent], bool]) -> TraceEvent | None:
        """Return the next event that is wanted, and stay."""
        return next((e for e in self._events[self._position :] if wanted(e)), None)

    def next(self, wanted: Callable[[TraceEvent], bool]) -> TraceEvent | None:
        """Return the next event that is wanted, and go behind it; stay when there is none."""
        for index in range(self._position, len(self._events)):
            if wanted(self._events[index]):
                self._position = index + 1
                return self._events[index]
        return None

    def until(self, event: TraceEvent) -> Sequence[TraceEvent]:
        """Return the events from here to before `event`."""
        return [e for e in self._events[self._position :] if e.at_ns < event.at_ns]

    def after(self, event: TraceEvent) -> Sequence[TraceEvent]:
        """Return the events behind `event`."""
        return [e for e in self._events[self._position :] if e.at_ns > event.at_ns]


def _first(events: Sequence[TraceEvent], name: str) -> TraceEvent | None:
    return next((e for e in events if e.name == name), None)


def _last(events: Sequence[TraceEvent], name: str) -> TraceEvent | None:
    return next((e for e in reversed(events) if e.name == name), None)


def nearest_rank(trips: Sequence[RoundTrip], share: float) -> RoundTrip:
    """Return the round trip at a quantile of the measured time, one that really happened (nearest rank)."""
    if not trips or not 0 <= share <= 1:
        raise BadInputError(f"there is no quantile {share} of {len(trips)} round trips")
    ordered = sorted(trips, key=lambda trip: (trip.measured_ns, trip.iteration))
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def mean_ns(trips: Sequence[RoundTrip], part: str) -> float:
    """Return a part's mean time a message (half of what both messages of a round trip hold)."""
    return sum(trip.part_ns(part) for trip in trips) / (2 * max(1, len(trips)))
