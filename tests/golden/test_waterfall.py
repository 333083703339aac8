"""A trace recorded in the lab (a VF with default moderation, 64 B, the last 30 of 120 round trips), cut into parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal.errors import ForeignFileError, TrialError
from nearmetal.facts.ftrace import PAGE_BYTES, TraceEvent, page_events, read_trace
from nearmetal.facts.tracing import TCP_SEND
from nearmetal.facts.waterfall import Window, Wire, mean_ns, nearest_rank, round_trips
from nearmetal.results.waterfalls import windows_of
from nearmetal.store.bundle import read_bundle
from nearmetal.workloads.sample_file import read_sample_file

BUNDLE = Path(__file__).with_name("waterfall-v1.zip")


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return read_bundle(BUNDLE)


@pytest.fixture(scope="module")
def windows(files: dict[str, bytes]) -> list[Window]:
    return windows_of(read_sample_file(files["samples"]).cells[0])


def test_the_parts_add_up_to_what_the_engine_measured(files: dict[str, bytes], windows: list[Window]) -> None:
    trips = round_trips(read_trace(files), windows, message_bytes=64, shaped_wire=False)
    measured = {window.iteration: window.end_ns - window.begin_ns for window in windows}
    assert len(trips) == 30
    for trip in trips:
        assert trip.measured_ns == measured[trip.iteration]
        assert sum(trip.there.values()) + sum(trip.back.values()) == trip.measured_ns
        assert trip.residue < 0.05


def test_moderation_dominates_a_message_on_a_virtual_function(files: dict[str, bytes], windows: list[Window]) -> None:
    trips = round_trips(read_trace(files), windows, message_bytes=64, shaped_wire=False)
    mean = sum(trip.measured_ns for trip in trips) / (2 * len(trips))
    assert mean_ns(trips, "moderation wait") > 0.6 * mean
    median = nearest_rank(trips, 0.5)
    assert {part: median.part_ns(part) for part in ("sender's stack", "moderation wait", "receiver's stack")} == {
        "sender's stack": 13_860,
        "moderation wait": 387_408,
        "receiver's stack": 16_196,
    }


def test_a_lost_event_leaves_unattributed_time(files: dict[str, bytes], windows: list[Window]) -> None:
    lost = [e for e in read_trace(files) if e.name != "tcp/tcp_rcv_space_adjust"]
    trips = round_trips(lost, windows, message_bytes=64, shaped_wire=False)
    assert all(trip.part_ns("unattributed") > 0 for trip in trips)
    assert max(trip.residue for trip in trips) > 0.05


def test_an_answer_that_the_trace_lacks_is_not_time_of_the_receiving_program(
    files: dict[str, bytes], windows: list[Window]
) -> None:
    """Where the answer's first event was lost all of its way was called that, and no time was unattributed."""
    events = read_trace(files)
    whole = round_trips(events, windows, message_bytes=64, shaped_wire=False)[-20]
    inside = [e for e in events if windows[-20].begin_ns <= e.at_ns <= windows[-20].end_ns]
    first, *more = (e for e in inside if e.name == TCP_SEND)
    answers = [e for e in more if e.thread != first.thread]
    found = round_trips([e for e in events if e not in answers], windows, message_bytes=64, shaped_wire=False)[-20]
    assert found.measured_ns == whole.measured_ns == sum(found.there.values()) + sum(found.back.values())
    assert found.part_ns("unattributed") >= sum(whole.back.values())
    assert found.part_ns("receiving program") == 0
    assert found.residue > 0.05


def test_a_shaped_wire_includes_the_time_of_its_queueing_discipline(
    files: dict[str, bytes], windows: list[Window]
) -> None:
    events = read_trace(files)
    plain = round_trips(events, windows, message_bytes=64, shaped_wire=False)
    shaped = round_trips(events, windows, message_bytes=64, shaped_wire=True)
    for one, other in zip(plain, shaped, strict=True):
        assert other.part_ns("wire") > 0
        assert one.part_ns("sender's stack") == other.part_ns("sender's stack") + other.part_ns("wire")


def test_a_trace_of_something_else_shows_no_messages(files: dict[str, bytes]) -> None:
    events = read_trace(files)
    nothing = [Window(0, events[0].at_ns, events[0].at_ns + 1)]
    with pytest.raises(TrialError, match="no two programs"):
        round_trips(events, nothing, message_bytes=64, shaped_wire=False)


def test_a_truncated_trace_is_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(ForeignFileError, match="whole pages"):
        read_trace({**files, "trace/cpu0": files["trace/cpu0"][:-1]})
    with pytest.raises(ForeignFileError, match="no trace"):
        read_trace({"samples": files["samples"]})


def test_a_page_that_claims_more_than_it_has_is_refused(files: dict[str, bytes]) -> None:
    page = bytearray(files["trace/cpu0"][:PAGE_BYTES])
    page[8:16] = (PAGE_BYTES).to_bytes(8, "little")
    with pytest.raises(ForeignFileError, match="claims"):
        list(page_events(bytes(page)))


def test_a_bridge_has_a_part_of_its_own() -> None:
    """Recorded on the lab's path `bridge`: a virtual cable and a bridge on either side of the cards."""
    bridged = read_bundle(BUNDLE.with_name("waterfall-bridge-v1.zip"))
    there = windows_of(read_sample_file(bridged["samples"]).cells[0])
    trips = round_trips(read_trace(bridged), there, message_bytes=64, shaped_wire=False)
    assert max(trip.residue for trip in trips) < 0.05
    assert 8_000 < mean_ns(trips, "virtual devices") < 9_000


def _one_way(at_ns: int, sender: str, receiver: str) -> list[TraceEvent]:
    """A message between two machines whose processes, interrupt lines and buffers have the same numbers."""
    milestones = (
        (0, sender, "nearmetal/tcp_send"),
        (1000, sender, "net/net_dev_queue"),
        (1100, sender, "net/net_dev_start_xmit"),
        (2000, receiver, "irq/irq_handler_entry"),  # of another frame: too early for this one
        (2100, receiver, "irq/irq_handler_exit"),
        (3000, sender, "net/net_dev_xmit"),
        (3500, sender, "irq/softirq_entry"),  # the sender continues meanwhile
        (8000, receiver, "irq/irq_handler_entry"),
        (8500, receiver, "irq/softirq_entry"),
        (9000, receiver, "net/napi_gro_receive_entry"),
        (9400, sender, "nearmetal/tcp_receive"),
        (9500, receiver, "sched/sched_waking"),
        (9900, receiver, "nearmetal/tcp_receive"),
        (10_000, receiver, "tcp/tcp_rcv_space_adjust"),
    )
    fields = {"common_pid": 7, "pid": 7, "irq": 30, "skbaddr": 0xABC, "len": 64 + 66}
    return [TraceEvent(at_ns + after, name, fields, machine) for after, machine, name in milestones]


def test_two_machines_on_one_clock_are_distinguished_and_the_wire_has_its_part() -> None:
    events = [
        e for n in range(40) for e in (*_one_way(n * 30_000, "n0", "n1"), *_one_way(n * 30_000 + 11_000, "n1", "n0"))
    ]
    windows = [Window(n, n * 30_000, n * 30_000 + 22_000) for n in range(40)]
    trip = round_trips(events, windows, message_bytes=64, shaped_wire=False, wire=Wire(2000, 1000))[-1]
    assert trip.there == {
        "sender's stack": 1100,
        "send driver": 1900,
        "wire": 2000 + (130 + 24) * 8,
        "moderation wait": 8000 - 3000 - 3232,
        "interrupt": 500,
        "receive driver": 500,
        "receiver's stack": 600,
        "wake-up": 400,
        "receiving program": 1000,
    }
    assert trip.back == trip.there
    with pytest.raises(TrialError, match="no two programs"):
        round_trips([replace(e, machine="") for e in events], windows, message_bytes=64, shaped_wire=False)


def test_the_files_of_a_trace_name_their_machines(files: dict[str, bytes]) -> None:
    there = {name.replace("trace/cpu", "trace/n1/cpu"): content for name, content in files.items()}
    assert {event.machine for event in read_trace(there)} == {"n1"}
    assert {event.machine for event in read_trace(files)} == {""}
