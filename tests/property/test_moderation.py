"""The interrupt stage in C++ equals its plain Python twin, step by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.errors import BadInputError
from nearmetal.predict import _sim
from nearmetal.predict.moderation import PS_PER_US, Moderation, ModerationSetting, StageSetting
from nearmetal.predict.native import native_stage

from .interrupt_stage_twin import run_stage

LOG = {1: "interrupt", 2: "poll", 3: "rearm"}

fixed = st.builds(
    ModerationSetting,
    kind=st.sampled_from([Moderation.FIXED_EQE, Moderation.FIXED_CQE]),
    usecs=st.integers(0, 200),
    frames=st.integers(1, 128),
)
mlx4 = st.builds(
    ModerationSetting,
    kind=st.just(Moderation.MLX4),
    frames=st.integers(1, 88),
    rate_low=st.integers(1, 40_000),
    rate_high=st.integers(40_001, 450_000),
    usecs_low=st.integers(0, 16),
    usecs_high=st.integers(16, 128),
    rings=st.integers(1, 16),
)
dim = st.builds(ModerationSetting, kind=st.sampled_from([Moderation.DIM_EQE, Moderation.DIM_CQE]))
igb = st.builds(
    ModerationSetting,
    kind=st.sampled_from([Moderation.IGB_QUEUE, Moderation.IGB_SHARED]),
    usecs=st.sampled_from([0, 1, 3, 10, 50, 10_000]),
    link_mbps=st.sampled_from([100, 1000]),
    emulated=st.booleans(),
)
igbvf = st.builds(
    ModerationSetting,
    kind=st.just(Moderation.IGBVF),
    usecs=st.sampled_from([0, 2, 3]) | st.integers(10, 10_000),
    emulated=st.booleans(),
)
ixgbevf = st.builds(ModerationSetting, kind=st.just(Moderation.IXGBEVF), usecs=st.integers(0, 1022))
rules = st.just(ModerationSetting()) | fixed | mlx4 | dim | igb | igbvf | ixgbevf

stages = st.builds(
    StageSetting,
    moderation=rules,
    delivery_ps=st.integers(0, 5 * PS_PER_US),
    poll_ps=st.integers(0, PS_PER_US),
    packet_ps=st.integers(0, PS_PER_US),
    weight=st.sampled_from([1, 4, 64]),
    budget=st.sampled_from([8, 300]),
    budget_ps=st.sampled_from([20 * PS_PER_US, 8000 * PS_PER_US]),
    ksoftirqd_ps=st.integers(0, 50 * PS_PER_US),
    defer_count=st.integers(0, 3),
    defer_ps=st.integers(0, 30 * PS_PER_US),
)

# Phases of constant gap, packets and bytes: adaptive rules need long steady streams to move at all.
phase = st.tuples(
    st.integers(1, 300),
    st.sampled_from([0, 1, 300_000, 2 * PS_PER_US, 50 * PS_PER_US, 4000 * PS_PER_US]),
    st.integers(1, 70),
    st.sampled_from([0, 60, 400, 1500, 9000, 65_536]),
)
arrivals = st.lists(phase, min_size=1, max_size=6).map(
    lambda phases: [
        (int(time), frames, size)
        for time, (frames, size) in zip(
            np.cumsum([gap for count, gap, _, _ in phases for _ in range(count)]),
            [(frames, size) for count, _, frames, size in phases for _ in range(count)],
            strict=True,
        )
    ]
)


def run_native(
    setting: StageSetting, stream: list[tuple[int, int, int]]
) -> tuple[list[tuple[str, int, int]], list[tuple[int, int]]]:
    times, frames, sizes = (np.array(column) for column in zip(*stream, strict=True))
    steps, visible = _sim.run_stage(
        native_stage(setting), times.astype(np.int64), frames.astype(np.uint32), sizes.astype(np.int64)
    )
    return [(LOG[what], time, value) for what, time, value in steps], visible


@settings(deadline=None, max_examples=150)
@given(stages, arrivals)
def test_the_stage_equals_its_twin_event_by_event(setting: StageSetting, stream: list[tuple[int, int, int]]) -> None:
    twin = run_stage(setting, stream)
    steps, visible = run_native(setting, stream)
    assert steps == twin.steps
    assert visible == twin.visible


@settings(deadline=None, max_examples=100)
@given(stages, st.data(), st.sampled_from([1, 700, 12_304_000, 60 * PS_PER_US]))
def test_packets_that_arrive_one_by_one_equal_the_twin(setting: StageSetting, data: st.DataObject, gap_ps: int) -> None:
    apart = st.tuples(st.sampled_from([0, 1, 300_000, 50 * PS_PER_US]), st.integers(1, 12), st.integers(0, 9000))
    stream, now_ps = [], 0
    for gap, frames, size in data.draw(st.lists(apart, min_size=1, max_size=20)):
        now_ps += gap
        stream.append((now_ps, frames, size))
    setting = replace(setting, packet_gap_ps=gap_ps)
    twin = run_stage(setting, stream)
    assert run_native(setting, stream) == (twin.steps, twin.visible)


@settings(deadline=None, max_examples=50)
@given(stages, arrivals)
def test_every_message_becomes_visible_once_unless_no_interrupt_can_fire(
    setting: StageSetting, stream: list[tuple[int, int, int]]
) -> None:
    _, visible = run_native(setting, stream)
    idents = [ident for ident, _ in visible]
    assert idents == sorted(set(idents))
    waits_for_frames = setting.moderation.usecs == 0 and setting.moderation.frames > 1
    if not waits_for_frames or setting.moderation.kind not in {Moderation.FIXED_EQE, Moderation.FIXED_CQE}:
        assert len(idents) == len(stream)
    assert all(time >= stream[ident][0] for ident, time in visible)


def steady(count: int, gap_ps: int, size_bytes: int) -> list[tuple[int, int, int]]:
    return [(i * gap_ps, 1, size_bytes) for i in range(count)]


def programmed(setting: ModerationSetting, stream: list[tuple[int, int, int]]) -> list[int]:
    """The programmed values in order, without repeats."""
    steps, _ = run_native(StageSetting(moderation=setting), stream)
    values = [value for what, _, value in steps if what == "rearm"]
    return [value for i, value in enumerate(values) if i == 0 or value != values[i - 1]]


@pytest.mark.parametrize(("rate", "usecs"), [(400_000, 0), (412_500, 32), (425_000, 64), (437_500, 96), (450_000, 128)])
def test_mlx4_interpolates_between_its_rates(rate: int, usecs: int) -> None:
    # One burst every 2 ms, so that 125 of them make the packets of a period exactly.
    burst = rate // 4 // 125
    stream = [(i * PS_PER_US * 2000 + 1, burst, burst * 1500) for i in range(150)]
    assert programmed(ModerationSetting(Moderation.MLX4, frames=44), stream)[-1] == usecs


def test_dim_goes_up_under_a_saturated_stream() -> None:
    # Bytes stay the same and events fall. It leaves its first profile to the left, sees more events, and turns.
    stream = steady(40_000, 2 * PS_PER_US, 1500)
    assert programmed(ModerationSetting(Moderation.DIM_EQE), stream) == [8, 1, 8, 64, 128, 256]


def test_igbvf_converges_to_488_from_any_setting() -> None:
    # Register 200 (50 us): each re-enabling adds 122 and the value is written at the next interrupt.
    stream = steady(20, 1000 * PS_PER_US, 64)
    assert programmed(ModerationSetting(Moderation.IGBVF, usecs=50), stream) == [200, 322, 444, 488]
    assert programmed(ModerationSetting(Moderation.IGBVF, usecs=0), stream) == [4, 126, 248, 370, 488]


def test_a_fixed_throttle_of_125_us_pins_the_interrupt_rate_at_8000() -> None:
    steps, _ = run_native(
        StageSetting(moderation=ModerationSetting(Moderation.IGB_QUEUE, usecs=125)), steady(10_000, 100 * PS_PER_US, 64)
    )
    fired = [time for what, time, _ in steps if what == "interrupt"]
    assert (len(fired) - 1) / ((fired[-1] - fired[0]) * 1e-12) == pytest.approx(8000, rel=0.01)


@pytest.mark.parametrize(
    "setting",
    [
        {"kind": Moderation.FIXED_EQE, "usecs": 0, "frames": 0},
        {"kind": Moderation.MLX4, "usecs_low": 128, "usecs_high": 0},
        {"kind": Moderation.MLX4, "rate_low": 450_000, "rate_high": 450_000},
        {"kind": Moderation.IGBVF, "usecs": 5},
        {"kind": Moderation.IGB_QUEUE, "usecs": 2},
        {"kind": Moderation.IXGBEVF, "usecs": 1023},
    ],
)
def test_settings_that_no_driver_accepts_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(BadInputError):
        ModerationSetting(**setting)  # type: ignore[arg-type]
