"""Fitting recovers the known parameters that samples were made with."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.predict.fit import (
    Exchanges,
    Interruption,
    RoundTrips,
    Windows,
    fit_beside,
    fit_cold,
    fit_copy,
    fit_path,
    fit_port,
    typical_times,
)
from nearmetal.predict.model_file import ModelFile, read_model, write_model
from nearmetal.predict.models import Cores, Distribution, Machine, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.residual import one_way_quantiles, residual_of
from nearmetal.predict.schedule import Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.simulate import simulate
from nearmetal.predict.trace import DoCall, DoGap, Repeat
from nearmetal.predict.wire import KnownWire, works_beside

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

SIZES = [0, *(1 << k for k in range(21))]


def one_way_ns(size: int) -> float:
    """8 us + 1 ns/B up to 4 KiB; then another protocol: 20 us + 0.4 ns/B."""
    return 8_000 + size if size <= 4096 else 20_000 + 0.4 * size


def samples(time: Callable[[int], float], n: int = 4000, tail: float = 0.0, noise: float = 0.02) -> RoundTrips:
    rng = np.random.default_rng(1)

    def way(size: int) -> NDArray[np.float64]:
        base = time(size) * (1 + noise * rng.standard_normal(n))
        slow = rng.random(n) < tail
        return base + slow * rng.exponential(200_000, n)

    return {size: [(way(size) + way(size)).astype(np.int64)] for size in SIZES}


def stream(tau: Callable[[int], float], window: int = 64) -> list[Windows]:
    return [
        Windows(
            size, window, 1, np.full(50, (window - 1) * tau(size) + one_way_ns(size) + one_way_ns(0)).astype(np.int64)
        )
        for size in SIZES[1:]
    ]


def test_segments_and_parameters_are_recovered() -> None:
    path = fit_path(samples(one_way_ns), stream(lambda size: 500 + 0.3 * size))
    assert 4096 in [segment.up_to_bytes for segment in path.segments]
    small, large = path.segment(4096), path.segment(16_384)
    for size in (0, 64, 4096, 8192, 1 << 20):
        assert path.segment(size).one_way_ps(size) == pytest.approx(one_way_ns(size) * 1000, rel=0.01)
    assert small.one_way_ps(0) == pytest.approx(8_000_000, rel=0.01)
    assert small.latency_fs_per_byte == pytest.approx(1_000_000, rel=0.02)
    assert large.latency_fs_per_byte == pytest.approx(400_000, rel=0.02)
    assert large.fs_per_byte == pytest.approx(300_000, rel=0.02)
    assert small.gap_ps == pytest.approx(500_000, rel=0.05)
    assert small.send_overhead_ps == pytest.approx(500_000, rel=0.05)
    assert path.fit is not None
    assert path.fit.worst_error < 0.02


def test_each_size_has_the_residual_of_its_own_round_trips() -> None:
    measured = samples(one_way_ns, tail=0.02)
    path = fit_path(measured)
    for size in (8, 512, 65_536):
        assert path.segment(size).residual == residual_of(measured[size])


def ping_pong(size: int, rounds: int) -> Schedule:
    def program(peer: int, order: tuple[int, int]) -> Program:
        ops = (Op(OpKind.SEND, peer=peer, message_bytes=size), Op(OpKind.RECV, peer=peer, message_bytes=size))
        return Program((Repeat(rounds, tuple(DoCall(i) for i in order)),), ops, (Comm(0, size=2),))

    return Schedule(2, (program(1, (0, 1)), program(0, (1, 0))))


def test_a_simulated_ping_pong_has_the_measured_distribution() -> None:
    measured = samples(one_way_ns, n=20_000, tail=0.02)
    path = fit_path(measured, stream(lambda s: 500 + 0.3 * s))
    for size in (8, 4096, 65_536):
        found = simulate(ping_pong(size, 1), Machine(None, path), Placement.block(2, 1), replicas=4000).makespan_ns
        (truth,) = measured[size]
        assert np.median(found) == pytest.approx(np.median(truth), rel=0.01), size
        for p, tolerance in ((0.05, 0.02), (0.9, 0.02), (0.99, 0.12)):
            assert np.quantile(found, p) == pytest.approx(np.quantile(truth, p), rel=tolerance), size


def test_above_the_eager_limit_the_handshake_is_not_counted_twice() -> None:
    path = fit_path(samples(one_way_ns), stream(lambda size: 500 + 0.3 * size), eager_up_to_bytes=4096)
    assert path.eager_up_to_bytes == 4096
    found = simulate(ping_pong(65_536, 10), Machine(None, path), Placement.block(2, 1), replicas=200).makespan_ns
    assert np.median(found) / 20 == pytest.approx(one_way_ns(65_536), rel=0.04)


def test_eager_sizes_beyond_the_largest_measured_one_are_still_eager() -> None:
    """The handshake from 32 KiB on tells nothing about 5,000 B, which the library still sends eagerly."""
    path = fit_path(samples(one_way_ns, 400), stream(lambda size: 500 + 0.3 * size), 6000)
    assert path.segment(5000).one_way_ps(5000) == pytest.approx(13_000_000, rel=0.02)
    assert 6000 in [segment.up_to_bytes for segment in path.segments]


def test_a_one_way_residual_keeps_the_median_of_the_round_trip() -> None:
    rng = np.random.default_rng(2)
    round_trip = (20_000 + rng.exponential(3000, 10_000) + rng.exponential(3000, 10_000)).astype(np.int64)
    probabilities = np.linspace(0, 1, 101)
    residual = one_way_quantiles(round_trip, probabilities)
    draws = np.interp(rng.random((2, 50_000)), probabilities, residual).sum(axis=0)
    assert np.median(draws) == pytest.approx(0, abs=100)
    assert (np.diff(residual) >= 0).all()


def windows_of(pairs: int, total_ns_per_byte: float) -> Windows:
    ns = int(65_536 * 64 * pairs * total_ns_per_byte)
    return Windows(65_536, 64, pairs, np.full(10, ns, dtype=np.int64))


def test_a_round_trip_with_two_modes_is_split_into_its_two_ways() -> None:
    # In half of the round trips one or both ways take 40 ms longer (a delayed acknowledgement, for example).
    rng = np.random.default_rng(3)
    slow = rng.random((2, 20_000)) < 1 - 0.5**0.5
    round_trip = (200_000 + 40_000_000 * slow.sum(axis=0) + rng.integers(0, 1000, 20_000)).astype(np.int64)
    path = fit_path({size: [round_trip] for size in (8, 16)})
    found = simulate(ping_pong(8, 1), Machine(None, path), Placement.block(2, 1), replicas=5000).makespan_ns
    for p in (0.1, 0.4, 0.6):
        assert np.quantile(found, p) == pytest.approx(np.quantile(round_trip, p), rel=0.15)


@pytest.mark.parametrize("fast", [0.1, 0.5])
def test_messages_of_two_modes_take_their_mean_time(fast: float) -> None:
    """No two independent ways add up to round trips of 10 or 30 us: a replay once took 8 to 34 % longer than these."""
    rng = np.random.default_rng(4)
    round_trip = np.where(rng.random(2000) < fast, 10_000, 30_000) + rng.integers(0, 200, 2000)
    path = fit_path({size: [round_trip] for size in (8, 16)})
    found = simulate(ping_pong(8, 1000), Machine(None, path), Placement.block(2, 1), replicas=10).makespan_ns
    assert np.median(found) == pytest.approx(1000 * round_trip.mean(), rel=0.02)


def test_messages_of_one_mode_keep_their_upper_half() -> None:
    """A few samples of plain noise come out half a per cent too long, which is no reason to narrow their spread."""
    round_trip = np.random.default_rng(5).normal(20_000, 700, 1000).astype(np.int64)
    found = residual_of([round_trip])
    ways = one_way_quantiles(round_trip, np.array(found.probabilities))
    assert found.values_ps == pytest.approx(1000 * ways, abs=1)


def test_a_shared_wire_is_as_fast_as_all_pairs_together() -> None:
    assert fit_port([windows_of(1, 0.8), windows_of(2, 0.8), windows_of(4, 0.75)]) == 750_000


def test_too_little_to_fit_is_an_error() -> None:
    with pytest.raises(BadInputError, match="at least 2 sizes"):
        fit_path({8: samples(one_way_ns)[8]})
    with pytest.raises(BadInputError, match="5 ping-pong samples"):
        fit_path({size: [np.full(5, 100, dtype=np.int64)] for size in (1, 2, 4)})
    with pytest.raises(BadInputError, match="10 ping-pong samples of 1 B, shortest 0 ns"):
        fit_path({size: [np.arange(10)] for size in (1, 2, 4)})
    with pytest.raises(BadInputError, match="no streaming"):
        fit_port([])


def test_a_model_file_is_read_back(tmp_path: Path) -> None:
    machine = Machine(None, fit_path(samples(one_way_ns, n=50)))
    model = ModelFile("nearmetal-model", 1, "run", (NamedMachine("veth", "as-found", "polling", machine),))
    file = tmp_path / "model.json"
    write_model(model, file)
    assert read_model(file) == model


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"version": 1', '"version": 9'),
        lambda text: text.replace("nearmetal-model", "other"),
        lambda text: text.replace('"up_to_bytes": 9223372036854775807', '"up_to_bytes": 5'),
    ],
)
def test_a_damaged_model_file_is_refused(tmp_path: Path, damage: Callable[[str], str]) -> None:
    machine = Machine(None, fit_path(samples(one_way_ns, n=50)))
    file = tmp_path / "model.json"
    write_model(ModelFile("nearmetal-model", 1, "run", (NamedMachine("a", "b", "polling", machine),)), file)
    file.write_text(damage(file.read_text()))
    with pytest.raises((ForeignFileError, BadInputError)):
        read_model(file)


def test_without_the_intra_path_two_ranks_of_a_node_are_refused() -> None:
    machine = Machine(None, fit_path(samples(one_way_ns, n=50)))
    with pytest.raises(BadInputError, match="no path for that"):
        simulate(ping_pong(8, 1), replace(machine), Placement.block(2, 2))


def test_a_copying_path_has_no_more_bandwidth_both_ways_than_one_way() -> None:
    def windows(ns: float) -> list[Windows]:
        return [Windows(65536, 16, 1, np.full(20, round(ns)))]

    one_way = windows(65536 * 16 * 0.8)  # 0.8 ns a byte
    assert fit_copy(one_way, windows(65536 * 16 * 1.6)) == 800_000  # both directions share it
    assert fit_copy(one_way, windows(65536 * 16 * 0.82)) == 0  # each has its own
    assert fit_copy(one_way, []) == 0


def test_bidirectional_streams_separate_the_overheads() -> None:
    o_s, o_r = 3000.0, 1000.0
    one_way = stream(lambda size: o_s + 0.3 * size)
    both_ways = stream(lambda size: o_s + o_r + 0.5 * size)
    path = fit_path(samples(one_way_ns, 400), one_way, both_ways=both_ways)
    small = path.segment(8)
    assert small.send_overhead_ps == pytest.approx(o_s * 1000, rel=0.02)
    assert small.recv_overhead_ps == pytest.approx(o_r * 1000, rel=0.05)
    assert small.latency_ps == pytest.approx((one_way_ns(0) - o_s - o_r) * 1000, rel=0.02)
    for size in (0, 64, 4096, 1 << 20):
        assert path.segment(size).one_way_ps(size) == pytest.approx(one_way_ns(size) * 1000, rel=0.01)


def test_the_cost_added_by_computing_is_split_between_both_ends_and_never_falls() -> None:
    def exchanged(computed_ns: int, size: int, ns: float) -> Exchanges:
        return Exchanges(size, computed_ns, np.array([ns - 100, ns, ns + 5000]))

    hot = [exchanged(0, 8, 8_000), exchanged(0, 1024, 9_000)]
    after = [
        exchanged(400_000, 8, 11_000),
        exchanged(400_000, 1024, 12_400),
        exchanged(100_000, 8, 8_000 - 50),  # faster than back to back: noise
        exchanged(20_000, 8, 8_600),
        exchanged(20_000, 64, 99_000),  # a size that was not exchanged back to back
    ]
    for order in (hot + after, after[::-1] + hot):
        assert fit_cold(order) == ((20_000_000, 300_000), (100_000_000, 300_000), (400_000_000, 1_600_000))
        assert fit_cold(order, 8) == ((20_000_000, 300_000), (100_000_000, 300_000), (400_000_000, 1_500_000))
    assert fit_cold(hot) == fit_cold(after) == fit_cold(hot + after, 7) == ()


def test_what_messages_take_of_ends_that_compute_never_falls() -> None:
    """A message that comes when its receiver has computed is waited for."""
    times = np.array([8.0, 1000.0, 9000.0]), np.array([20_000.0, 40_000.0, 200_000.0])
    one_way = [Interruption(8, *ends, 100_000) for ends in ((10.0, 30.0), (14.0, 20.0), (900.0, 25.0))]
    one_way += [Interruption(1000, 12.0, 50.0, 100_000), Interruption(2000, 40.0, 60.0, 100_000)]
    late = Interruption(4500, 50.0, 99_000.0, 100_000)
    sent = ((0, 14_000), (8, 14_000), (1000, 14_000), (2000, 40_000))
    received = ((0, 25_000), (8, 25_000), (1000, 50_000), (2000, 60_000))
    limit = 100_000
    assert fit_beside([*one_way, late], times, limit) == ((*sent, (limit, 40_000)), received)
    assert fit_beside([*one_way, late], times, 1000) == (sent[:3], received[:3])
    assert fit_beside([late], times, limit) == fit_beside([], times, 8) == ((), ())
    longer = fit_beside([*one_way, replace(late, computed_ns=150_000)], times, limit)
    assert longer == ((*sent, (4500, 50_000), (limit, 50_000)), (*received, (4500, 99_000_000)))


def test_streams_tell_the_work_of_sizes_that_single_messages_leave_out() -> None:
    times = np.array([8.0, 9000.0]), np.array([20_000.0, 200_000.0])
    one_way = [Interruption(size, *ends, 900_000) for size, ends in ((8, (14.0, 30.0)), (1000, (16.0, 40.0)))]
    streams = ((0, 10_000), (8, 10_000), (2000, 20_000))
    sent, received = fit_beside(one_way, times, 100_000, streams)
    assert sent == ((0, 14_000), (8, 14_000), (1000, 16_000), (2000, 20_000))
    assert received == ((0, 30_000), (8, 30_000), (1000, 40_000), (2000, 40_000))
    further = [*one_way, Interruption(4000, 18.0, 35.0, 900_000)]
    assert fit_beside(further, times, 100_000, streams) == ((*sent, (4000, 40_000)), (*received, (4000, 40_000)))
    assert fit_beside([], times, 100_000, streams) == ((), ())


def test_between_measured_sizes_a_time_stays_between_theirs() -> None:
    """A drop from one size to the next, as moderation causes it, must not be extrapolated as a steep slope."""
    measured = {8: 60_000, 512: 40_000, 1024: 41_000, 65_536: 90_000}
    path = fit_path({size: [np.full(400, 2 * ns)] for size, ns in measured.items()})
    assert path.measured_bytes == (8, 512, 1024, 65_536)
    assert all(min(segment.latency_ps, segment.latency_fs_per_byte) >= 0 for segment in path.segments)
    for (low, low_ns), (high, high_ns) in pairwise(measured.items()):
        assert path.segment(high).one_way_ps(high) == pytest.approx(high_ns * 1000, rel=0.001)
        for size in np.geomspace(low + 1, high, 20).astype(int):
            found = path.segment(size).one_way_ps(int(size)) / 1000
            assert min(low_ns, high_ns) * 0.999 <= found <= max(low_ns, high_ns) * 1.001
    assert path.segment(33_280).one_way_ps(33_280) == pytest.approx(65_500_000, rel=0.001)


VF = {8: 248_600, 64: 248_900, 512: 249_100, 4096: 525_200, 32_768: 578_800, 131_072: 1_754_700}
PORT = {8: 100_300, 64: 100_100, 512: 106_500, 4096: 223_700, 32_768: 1_145_600, 131_072: 1_805_100}


@pytest.mark.parametrize("measured", [VF, PORT], ids=["vf", "port"])
@pytest.mark.parametrize("streamed", [False, True])
def test_sizes_between_two_segments_stay_between_their_neighbours(measured: dict[int, int], streamed: bool) -> None:
    """With moderation in the lab, 5,600 B came out at 254 us over the function and at 917 us over the port."""
    gaps = {8: 28_000, 512: 55_000, 8192: 116_000, 65_536: 648_000}
    one, both = ([Windows(size, 16, 1, np.full(50, 16 * share * ns)) for size, ns in gaps.items()] for share in (1, 2))
    path = fit_path(
        {size: [np.full(400, 2 * ns)] for size, ns in measured.items()},
        one if streamed else (),
        both_ways=both if streamed else (),
    )
    for (low, low_ns), (high, high_ns) in pairwise(measured.items()):
        assert path.segment(high).one_way_ps(high) == pytest.approx(high_ns * 1000, rel=0.001)
        for size in np.geomspace(low + 1, high, 40).astype(int):
            found = path.segment(size).one_way_ps(int(size)) / 1000
            assert min(low_ns, high_ns) * 0.999 <= found <= max(low_ns, high_ns) * 1.001
    on_line_ns = np.interp(5600, list(measured), list(measured.values()))
    assert path.segment(5600).one_way_ps(5600) == pytest.approx(on_line_ns * 1000, rel=0.001)


@pytest.mark.parametrize("streamed", [False, True])
def test_sizes_between_two_large_ones_are_not_as_slow_as_the_larger(streamed: bool) -> None:
    """Where a byte costs a little more in larger messages, 600 KB took the time of 1 MiB, 500 KB that of 256 KiB."""
    measured = {8: 1_000, 64: 1_030, 4096: 3_000, 262_144: 131_900, 1 << 20: 530_000}
    gaps = {size: 200 + 4 * size // 10 for size in measured}
    windows = [Windows(size, 64, 1, np.full(50, 63 * gap + measured[size] + 1_000)) for size, gap in gaps.items()]
    trips = {size: [np.full(400, 2 * ns)] for size, ns in measured.items()}
    path = fit_path(trips, windows if streamed else ())
    for (low, low_ns), (high, high_ns) in pairwise(measured.items()):
        assert path.segment(high).one_way_ps(high) == pytest.approx(high_ns * 1000, rel=0.001)
        for size in np.geomspace(low + 1, high, 40).astype(int):
            on_line_ns = low_ns + (high_ns - low_ns) * (size - low) / (high - low)
            assert path.segment(size).one_way_ps(int(size)) == pytest.approx(on_line_ns * 1000, rel=0.01)


def test_a_gap_between_messages_applies_only_to_its_size() -> None:
    """The gap of the only streamed size of a range was once used for all sizes in it: 0.5 ms for 8 KiB."""
    round_trips = {
        size: [np.full(400, 2 * ns)]
        for size, ns in {8: 36_000, 512: 37_000, 4096: 67_000, 32_768: 252_000, 131_072: 726_000}.items()
    }
    gaps = {8: 13_000, 512: 17_000, 8192: 64_000, 65_536: 510_000}

    def windows(times: float) -> list[Windows]:
        return [Windows(size, 65, 1, np.full(50, round(65 * times * ns))) for size, ns in gaps.items()]

    path = fit_path(round_trips, windows(1), both_ways=windows(1.9))
    previous = 0.0
    for size in (8, 512, 4096, 8192, 20_000, 65_536, 131_072):
        segment = path.segment(size)
        gap_ns = segment.gap_ps / 1000 + segment.fs_per_byte * size / 1e6
        assert segment.one_way_ps(size) >= segment.send_overhead_ps + segment.recv_overhead_ps
        assert gap_ns >= previous
        previous = gap_ns
        if size in gaps:
            assert gap_ns == pytest.approx(gaps[size], rel=0.1)  # without the way of the last message


def test_the_gap_between_messages_is_the_median_over_launches() -> None:
    """The last launch's gap was once used for all."""
    launches = [one for gap_ns in (1000, 2000, 4000) for one in stream(lambda _, gap_ns=gap_ns: gap_ns)]
    gaps = {fit_path(samples(one_way_ns, 400), order).segments[0].gap_ps for order in (launches, launches[::-1])}
    (gap_ps,) = gaps
    assert gap_ps == fit_path(samples(one_way_ns, 400), stream(lambda _: 2000)).segments[0].gap_ps


def test_small_messages_do_not_get_the_gap_of_large_streamed_ones() -> None:
    """A run that streams one large size tells nothing about small ones, whose gap is at most one message's time."""
    round_trips = {size: [np.full(400, 2 * ns)] for size, ns in {8: 36_000, 65_536: 480_000}.items()}
    path = fit_path(round_trips, [Windows(65_536, 65, 1, np.full(50, 65 * 510_000))])
    small, large = path.segment(8), path.segment(65_536)
    assert small.gap_ps + 8 * small.fs_per_byte / 1000 == pytest.approx(36_000_000, rel=0.05)
    assert large.gap_ps + 65_536 * large.fs_per_byte / 1000 == pytest.approx(510_000_000, rel=0.05)


def test_on_one_processor_the_gap_between_messages_covers_both_ends() -> None:
    """Two ranks that compute and exchange then need it in full, one after the other; the wire hides none of it."""
    round_trips = {
        size: [np.full(400, 2 * ns)] for size, ns in {8: 60_000, 512: 62_000, 4096: 67_000, 32_768: 252_000}.items()
    }
    gaps = {8: 13_000, 512: 17_000, 8192: 64_000, 65_536: 510_000}
    windows = [Windows(size, 65, 1, np.full(50, 65 * ns)) for size, ns in gaps.items()]
    path = fit_path(round_trips, windows, one_processor=True)
    for size, ns in ((8, 60_000), (512, 62_000), (4096, 67_000), (32_768, 252_000)):
        segment = path.segment(size)
        assert segment.one_way_ps(size) == pytest.approx(ns * 1000, rel=0.01)
        both = segment.send_overhead_ps + segment.recv_overhead_ps + 2 * size * segment.overhead_fs_per_byte / 1000
        streamed = np.interp(size, list(gaps), list(gaps.values())) * 1000
        assert both == pytest.approx(min(streamed, segment.one_way_ps(size)), rel=0.15)
        # Only the processor separates messages: the sender continues as soon as its work for one is done.
        assert (segment.gap_ps, segment.fs_per_byte) == (segment.send_overhead_ps, segment.overhead_fs_per_byte)
    machine = Machine(None, path, cores=Cores(1, one_computer=True))
    ops = (Op(OpKind.SENDRECV, peer=1, recv_peer=1, message_bytes=8192),)
    other = (Op(OpKind.SENDRECV, peer=0, recv_peer=0, message_bytes=8192),)
    steps = (Repeat(50, (DoGap(0), DoCall(0))),)
    programs = tuple(Program(steps, one, (Comm(0, size=2),), (0,)) for one in (ops, other))
    schedule = Schedule(2, programs, (Distribution((0.0,), (100_000_000,)),))
    found = simulate(schedule, machine, Placement.block(2, 1)).makespan_ns[0]
    assert found > 50 * (200_000 + 2 * 55_000)


def test_waiting_caused_by_a_setting_is_not_processor_work() -> None:
    """Moderation lengthens the gaps of streams; they counted as overhead, twice in a bidirectional exchange."""
    wire = KnownWire(2.0, 1000.0)
    quick = {8: 25_000, 512: 30_000, 4096: 72_000, 32_768: 414_000}
    slow = {8: 100_000, 512: 106_000, 4096: 224_000, 32_768: 1_146_000}
    samples = [{size: [np.full(400, 2 * ns)] for size, ns in times.items()} for times in (quick, slow)]
    works_ns = works_beside(wire, [typical_times(one) for one in samples])
    streamed = [Windows(size, 16, 1, np.full(50, 16 * ns)) for size, ns in ((8, 28_000), (65_536, 645_000))]
    for times, measured in zip((quick, slow), samples, strict=True):
        path = fit_path(measured, streamed, both_ways=streamed, works_ns=works_ns)
        for size, ns in times.items():
            segment = path.segment(size)
            assert segment.one_way_ps(size) == pytest.approx(ns * 1000, rel=0.001)
            both = segment.send_overhead_ps + segment.recv_overhead_ps + 2 * size * segment.overhead_fs_per_byte / 1000
            assert both == pytest.approx((quick[size] - wire.ns(size)) * 1000, rel=0.01)
        beyond = path.segment(1 << 20)  # processors work there too, presumably as much as for the largest
        both = beyond.send_overhead_ps + beyond.recv_overhead_ps + 2 * beyond.overhead_fs_per_byte * (1 << 20) / 1000
        assert both == pytest.approx((quick[32_768] - wire.ns(32_768)) * 1000, rel=0.01)
        middle = 1 << 14  # between two measured sizes, on the line through both
        line = np.interp(middle, list(times), list(times.values()))
        assert path.segment(middle).one_way_ps(middle) == pytest.approx(line * 1000, rel=0.02)
    assert KnownWire.of({"lab.wire_delay_us": 2.0, "lab.wire_rate_mbit": 1000.0}) == wire
    assert KnownWire.of({"lab.wire_delay_us": 2.0}) is None
    assert wire.ns(1448) == 2000 + (1448 + 90) * 8
