"""The distribution of replays, which launches they take, and what the time depends on: figures by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import comb

import numpy as np
import pytest

from nearmetal.errors import BadInputError
from nearmetal.predict.models import UNBOUNDED, Distribution, Machine, PathModel, Segment
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Schedule
from nearmetal.predict.simulate import MOST_REPLICAS, SENSITIVITY_PARAMETERS, sensitivity, simulate, simulate_launches
from tests.unit.simulated import MACHINE, NS, computing, path, ping, program, run_ns

APART = Placement.block(2, 1)


@pytest.mark.parametrize(("n", "p"), [(40, 0.5), (100, 0.9), (20, 0.1), (6, 0.5), (5, 0.5), (30, 0.99)])
def test_the_interval_of_a_quantile_is_that_of_order_statistics(n: int, p: float) -> None:
    """Below the value of rank l at most a fortieth of samples have the quantile, and likewise above that of rank u."""

    def below(rank: int) -> float:
        return sum(comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(rank))

    low = max((rank for rank in range(1, n + 1) if below(rank) <= 0.025), default=None)
    high = min((rank for rank in range(1, n + 1) if 1 - below(rank) <= 0.025), default=None)
    times = np.random.default_rng(0).permutation(np.arange(10, 10 * n + 1, 10))
    found = replace(simulate(ping(8), MACHINE, APART), makespan_ns=times).quantile(p)
    assert found.low_ns == (None if low is None else 10 * low)
    assert found.high_ns == (None if high is None else 10 * high)
    assert found.value_ns == pytest.approx(10 + (n - 1) * p * 10)


@pytest.mark.parametrize(("programs", "launches"), [(1, 3), (3, 1), (2, 2), (2, 4), (4, 6), (6, 4), (3, 2)])
def test_every_program_is_replayed_on_every_launch(programs: int, launches: int) -> None:
    schedules = [ping(1000 * (1 + at)) for at in range(programs)]
    machines = [replace(MACHINE, inter=path(latency=1000 + at)) for at in range(launches)]
    found = simulate_launches(schedules, machines, APART, replicas=programs * launches + 1)
    alone = {(a, b): run_ns(one, on) for a, one in enumerate(schedules) for b, on in enumerate(machines)}
    assert len(set(alone.values())) == programs * launches
    pairs = [next(pair for pair, ns in alone.items() if ns == time) for time in found.makespan_ns]
    assert sorted(pairs[:-1]) == sorted(alone)
    assert pairs[-1] == pairs[0] == (0, 0)
    assert found.machines.tolist() == [machine for _, machine in pairs]
    if min(programs, launches) > 1:
        assert all(a != c and b != d for (a, b), (c, d) in itertools.pairwise(pairs[: max(programs, launches)]))


@pytest.mark.parametrize("wrong", [{"replicas": 0}, {"replicas": MOST_REPLICAS + 1}, {"seed": -1}, {"seed": 1 << 64}])
def test_impossible_numbers_of_replays_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInputError, match=r"replicas with seed"):
        simulate(ping(8), MACHINE, APART, **wrong)
    assert simulate(ping(8), MACHINE, APART, seed=(1 << 64) - 1).makespan_ns.size == 1


def test_no_machine_is_none_to_replay_on() -> None:
    with pytest.raises(BadInputError, match=r"traces of \[2\] ranks on 0 machines"):
        simulate_launches([ping(8)], [], APART)


def elasticities(schedule: Schedule, machine: Machine, where: Placement = APART) -> dict[str, float]:
    """Return those that are not 0, of a time that takes no draws."""
    found = sensitivity([schedule], machine, where)
    assert list(map(abs, found.values())) == sorted(map(abs, found.values()), reverse=True)
    assert set(found) == set(SENSITIVITY_PARAMETERS)
    return {name: value for name, value in found.items() if value}


def test_what_a_message_takes_tells_what_it_depends_on() -> None:
    """100 ns to send, 1000 on the way and as many for as many bytes, 200 to receive: of 2300 in all."""
    shares = {"inter.latency": 1000 / 2300, "inter.bandwidth": 1000 / 2300, "inter.overhead": 300 / 2300}
    assert elasticities(ping(1000), MACHINE) == pytest.approx(shares)
    inside = {"intra.latency": 100 / 1400, "intra.bandwidth": 1000 / 1400, "intra.overhead": 300 / 1400}
    assert elasticities(ping(1000), MACHINE, Placement.block(2, 2)) == pytest.approx(inside)
    assert elasticities(computing(3), MACHINE, Placement.block(1, 1)) == pytest.approx({"compute": 1.0})


def test_delays_and_the_cost_of_having_computed_are_varied_too() -> None:
    tail = Distribution((0.0,), (500 * NS,))
    slow = PathModel(tuple(replace(one, residual=tail) for one in MACHINE.inter.segments))
    found = elasticities(ping(1000), replace(MACHINE, inter=slow))
    assert found["inter.residual"] == pytest.approx(500 / 2800)
    streams = Schedule(2, (program([ping(1000).programs[0].ops[0]] * 9), program([ping(1000).programs[1].ops[0]] * 9)))
    gapped = PathModel((Segment(UNBOUNDED, 1000, gap_ps=2000 * NS),))
    assert elasticities(streams, replace(MACHINE, inter=gapped))["inter.gap"] == pytest.approx(1, abs=0.01)
    port = elasticities(streams, replace(MACHINE, inter=gapped, port_fs_per_byte=10_000_000))
    assert port["port"] == pytest.approx(1, abs=0.1)


def test_a_program_without_time_depends_on_nothing() -> None:
    with pytest.raises(BadInputError, match="takes no time"):
        sensitivity([Schedule(2, (program([]), program([])))], MACHINE, APART)
