"""The recorder keeps exactly the recorded calls, however it folds them, in little memory and few bytes."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearmetal import process
from nearmetal.predict.models import Recorded
from nearmetal.predict.trace import DoCall, DoGap, Repeat, walk
from tests.trace_recorder import TIMEOUT_S, Event, drive, driver, expand, recorded, script

SMALL = "-DNMT_SMALL_LIMITS"
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

one = st.builds(
    Event,
    kind=st.sampled_from([1, 2, 4, 19]),
    peer=st.integers(-1, 3),
    message_bytes=st.sampled_from([0, 8, 1024]),
    code=st.integers(1, 3),
    gap_ns=st.integers(0, 50),
    inside_ns=st.integers(0, 1_000_000),
)
loops = st.recursive(
    st.lists(one, min_size=1, max_size=3),
    lambda inner: st.builds(
        lambda bodies, times: [event for body in bodies for event in body] * times,
        st.lists(inner, min_size=1, max_size=3),
        st.integers(1, 6),
    ),
    max_leaves=12,
).filter(lambda events: len(events) < 4000)


def check(events: list[Event], flags: tuple[str, ...] = ()) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = recorded(Path(folder), script(events), *flags)
    steps = list(expand(trace.program))
    calls = [trace.calls[step.index] for step in steps if isinstance(step, DoCall)]
    assert [(c.kind, c.peer, c.message_bytes) for c in calls] == [(e.kind, e.peer, e.message_bytes) for e in events]
    # Every call but the first has the gap before it, and gaps hold all the compute time.
    assert [type(step) for step in steps] == [DoCall, *[DoGap, DoCall] * (len(events) - 1)]
    assert sum(gap.visits for gap in trace.gaps) == len(events) - 1
    assert sum(gap.total_ns for gap in trace.gaps) == sum(event.gap_ns for event in events[1:])
    inside: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for event in events:
        inside[event.kind, event.peer, event.message_bytes].append(event.inside_ns)
    for call, time in zip(trace.calls, trace.times, strict=True):
        spent = inside[call.kind, call.peer, call.message_bytes]
        assert (time.calls, time.total_ns, time.max_ns) == (len(spent), sum(spent), max(spent))


@few
@given(loops)
def test_loops_expand_to_what_was_recorded(events: list[Event]) -> None:
    check(events)


@few
@given(loops)
def test_loops_larger_than_the_window_are_recorded(events: list[Event]) -> None:
    check(events, (SMALL,))


def drawn(seed: int, count: int) -> list[Event]:
    """Return so many events without loops: lists as long as spilling takes are beyond what Hypothesis draws itself."""
    draw = random.Random(seed)
    return [
        Event(
            draw.choice([1, 2, 4, 19]),
            peer=draw.randint(-1, 3),
            message_bytes=draw.choice([0, 8, 1024]),
            code=draw.randint(1, 3),
            gap_ns=draw.randint(0, 50),
            inside_ns=draw.randint(0, 1_000_000),
        )
        for _ in range(count)
    ]


@few
@given(st.builds(drawn, st.integers(0, 1 << 32), st.integers(400, 900)))
def test_random_sequences_survive_spilling_to_disk(events: list[Event]) -> None:
    check(events, (SMALL,))


def test_what_was_spilled_has_no_name(tmp_path: Path) -> None:
    assert recorded(tmp_path, script(drawn(1, 900)), SMALL).calls
    assert {path.name for path in tmp_path.iterdir()} <= {"rank.nmtrace", "part"}


def nested(counts: tuple[int, ...]) -> list[Event]:
    """Return nested loops; the innermost body differs by level, so that no two levels are alike."""
    events: list[Event] = []
    for level, count in enumerate(counts):
        body = [*events, Event(1, peer=level % 4, message_bytes=level), Event(2, peer=level % 4)]
        events = body * count
    return events


@pytest.mark.parametrize("counts", [(10_000,), (100, 100), (7, 9, 11), (2, 3, 4, 5, 6)])
def test_any_number_of_equal_iterations_takes_a_few_bytes(counts: tuple[int, ...], tmp_path: Path) -> None:
    trace = recorded(tmp_path, script(nested(counts)))
    assert sum(1 for _ in walk(trace.program)) <= 16 * len(counts) ** 2
    order = sum(len(gap.order) for gap in trace.gaps)
    assert (tmp_path / "rank.nmtrace").stat().st_size < 20_000 + order


def test_a_long_body_is_found(tmp_path: Path) -> None:
    body = [Event(1, peer=i % 4, message_bytes=i) for i in range(3000)]
    trace = recorded(tmp_path, script(body * 5))
    assert sum(1 for _ in walk(trace.program)) <= 4 * len(body)


def test_repeats_nest_no_deeper_than_the_format_allows(tmp_path: Path) -> None:
    # A ruler sequence: 1, 1 2, 1 2 1 3 ...; doubling it again and again would nest without end.
    events = [Event(1, message_bytes=(i & -i).bit_length()) for i in range(1, 4096)]
    trace = recorded(tmp_path, script(events))

    def depth(program: tuple[object, ...]) -> int:
        return max((1 + depth(step.body) for step in program if isinstance(step, Repeat)), default=0)

    assert depth(trace.program) <= 32
    calls = [trace.calls[step.index].message_bytes for step in expand(trace.program) if isinstance(step, DoCall)]
    assert calls == [event.message_bytes for event in events]


@few
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=900), st.integers(1, 3))
def test_gap_distributions_match_the_quantiles(gaps_ns: list[int], spread: int) -> None:
    durations = [ns**spread % 10**12 for ns in gaps_ns]
    events = [Event(1), *(Event(1, gap_ns=ns) for ns in durations)]
    with tempfile.TemporaryDirectory() as folder:
        trace = recorded(Path(folder), script(events))
    (gap,) = trace.gaps
    ordered = sorted(durations)
    assert (gap.visits, gap.total_ns) == (len(durations), sum(durations))
    assert (gap.quantiles_ns[0], gap.quantiles_ns[-1]) == (ordered[0], ordered[-1])
    for probability, ns in zip(trace.gap_probabilities, gap.quantiles_ns, strict=True):
        rank = probability * (len(ordered) - 1)
        low, high = ordered[int(rank)], ordered[min(int(rank) + 1, len(ordered) - 1)]
        assert low * 15 / 16 - 1 <= ns <= high * 17 / 16 + 1


@few
@given(st.lists(st.integers(0, 2**42 - 1), min_size=1, max_size=150), st.booleans())
def test_gaps_keep_their_order(gaps_ns: list[int], small: bool) -> None:
    # Two alternating sites; with small limits 48 durations are kept of each and 100 in all.
    events = [Event(1), *(Event(1, gap_ns=ns, code=1 + i % 2) for i, ns in enumerate(gaps_ns))]
    with tempfile.TemporaryDirectory() as folder:
        trace = recorded(Path(folder), script(events), *([SMALL] if small else []))
    sites = [gaps_ns[0:1], gaps_ns[1::2], gaps_ns[2::2]]
    expected = [site for site in sites if site]
    room, most = (100, 48) if small else (1 << 21, 1 << 14)
    assert sum(len(gap.order) for gap in trace.gaps) // 2 == min(room, sum(min(len(site), most) for site in expected))
    for gap, durations in zip(trace.gaps, expected, strict=True):
        found = Recorded(gap.order).values_ps() / 1000
        wanted = np.array(durations[: found.size], dtype=np.float64)
        assert (np.abs(found - wanted) <= wanted / 4096).all()
        assert (found[wanted < 4096] == wanted[wanted < 4096]).all()


def test_the_longest_gap_in_an_order_is_clamped(tmp_path: Path) -> None:
    trace = recorded(tmp_path, script([Event(1), Event(1, gap_ns=2**42 - 1), Event(1, gap_ns=2**50)]))
    longest = [int(ps) for gap in trace.gaps for ps in Recorded(gap.order).values_ps()]
    assert longest == [4095 * 2**30 * 1000] * 2


def test_short_pauses_between_fruitless_polls_are_waiting(tmp_path: Path) -> None:
    lines = ["call 1 0 8 -1 1 1000 1100", "poll 1600 1700", "poll 2000 2100", "poll 7100 7200"]
    trace = recorded(tmp_path, "\n".join([*lines, "call 4 -1 0 -1 2 7500 7600"]))
    # Compute: 500 ns before the first poll and the pause of 5000 ns; the rest is the wait's.
    assert [gap.total_ns for gap in trace.gaps] == [5500]
    assert trace.times[1].total_ns == 7600 - 1100 - 5500


def test_sizes_are_rounded_only_when_there_are_too_many(tmp_path: Path) -> None:
    sends = [Event(1, message_bytes=1000 + i, list_length=1) for i in range(100)]
    trace = recorded(tmp_path, script(sends), SMALL)
    exact = [call.message_bytes for call in trace.calls[:64]]
    assert exact == [1000 + i for i in range(64)]
    assert {call.message_bytes for call in trace.calls[64:]} == {1024}
    collectives = recorded(tmp_path, script([Event(19, message_bytes=1000 + i) for i in range(100)]), SMALL)
    assert [call.message_bytes for call in collectives.calls] == [1000 + i for i in range(100)]


def test_a_trace_with_too_many_distinct_calls_is_not_written(tmp_path: Path) -> None:
    finished = drive(tmp_path, script([Event(19, message_bytes=i) for i in range(200)]), SMALL)
    assert finished.exit_status == 1
    assert b"too many distinct calls" in finished.stderr
    assert not (tmp_path / "rank.nmtrace").exists()


def test_a_full_disk_leaves_no_trace(tmp_path: Path) -> None:
    finished = drive(tmp_path, script([Event(1)] * 10), part="/dev/full")
    assert finished.exit_status == 1
    assert b"No space left" in finished.stderr
    assert not (tmp_path / "rank.nmtrace").exists()


class Slots:
    """The plain twin of requests.c."""

    def __init__(self) -> None:
        self.known: list[list[object]] = []  # handle, slot, persistent, active

    def take(self) -> int:
        used = {entry[1] for entry in self.known}
        return next(slot for slot in itertools.count() if slot not in used)

    def do(self, word: str, handle: int) -> int:
        if word in ("new", "null", "other", "persist"):
            slot = -1 if word == "other" else -2 if word == "null" else self.take()
            self.known.append([handle, slot, word == "persist", False])
            return max(slot, -1)
        entry = next((entry for entry in self.known if entry[0] == handle), None)
        if word == "find":
            return -1 if entry is None else -2 if entry[2] and not entry[3] else int(str(entry[1]))
        if entry is None or (word == "start" and not entry[2]):
            return -1
        if word == "start":
            entry[3] = True
            return 1
        if word == "done" and entry[2]:
            was_active, entry[3] = entry[3], False
            return int(str(entry[1])) if was_active else -2
        self.known.remove(entry)
        return int(str(entry[1])) if word == "done" else 1


@few
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["new", "new", "null", "other", "done", "done", "persist", "start", "free", "find"]),
            st.integers(1, 4),
        ),
        max_size=200,
    )
)
def test_requests_take_the_lowest_free_slot(operations: list[tuple[str, int]]) -> None:
    twin = Slots()
    expected = [twin.do(word, handle) for word, handle in operations]
    text = "\n".join(f"{word} {handle}" for word, handle in operations)
    finished = process.run([str(driver()), "requests"], stdin=text.encode(), timeout_s=TIMEOUT_S, check=True)
    assert [int(line) for line in finished.text.split()] == expected
