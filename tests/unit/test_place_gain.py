"""What `place --check` launches, and the gain that it reports, on a host whose times are known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from nearmetal.errors import BadInputError, TrialError
from nearmetal.hosts.host import Host
from nearmetal.predict.measured import CHOSEN, DEFAULT, measure_gain, placement_study, traced_program
from nearmetal.predict.models import NamedMachine
from nearmetal.predict.trace import RankTrace, Trace
from nearmetal.study.order import TrialStatus
from nearmetal.study.spec import parse_study
from tests.trace_writer import made_rank
from tests.unit.simulated import MACHINE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.study.order import Order
    from nearmetal.study.spec import Study

STUDY = parse_study(
    """
name = "gain"
baseline = "veth"
path = [{ name = "veth" }, { name = "bridge" }]
setting = [{ name = "quick", knobs = { "nic.rx-usecs" = 0 } }, { name = "slow", knobs = { "nic.rx-usecs" = 9 } }]
[[workload]]
name = "latency"
sizes = [8]
iterations = 10
[trials]
min_blocks = 3
max_blocks = 3
""",
    "study",
)
PLACEMENTS = {DEFAULT: np.array([0, 0, 1, 1], np.uint32), CHOSEN: np.array([0, 1, 0, 1], np.uint32)}


def study(progress: str = "polling", figure: str = "", **named: str) -> Study:
    machine = NamedMachine(named.get("path", "bridge"), named.get("setting", "slow"), progress, MACHINE)
    return placement_study(STUDY, machine, ("./app", "8"), PLACEMENTS, figure)


class TimedHost:
    """Carries out launches in the given times (ms), with so many figures each; those of the other label fail."""

    def __init__(self, times_ms: dict[str, Sequence[float]], fails: str = "", figures: int = 1) -> None:
        self.times_ms = {label: iter(of) for label, of in times_ms.items()}
        self.fails, self.figures = fails, figures
        self.orders: list[Order] = []

    def carry_out(self, order: Order, body: object) -> SimpleNamespace:
        del body
        self.orders.append(order)
        status = TrialStatus.FAILED if order.workload.label == self.fails else TrialStatus.VALID
        ns = 1e6 * next(self.times_ms[order.workload.label])
        cell = SimpleNamespace(ns=np.array([[ns] * self.figures]))
        return SimpleNamespace(status=status, reason="it ran away", hint="catch it", cells=[cell])


@pytest.fixture(autouse=True)
def _decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.predict.measured.decode", lambda outcome: outcome.cells)


def test_the_program_alone_runs_under_each_placement_on_the_machine_s_path() -> None:
    found = study(figure=r"took (\S+)")
    assert ([one.name for one in found.path], found.baseline) == (["bridge"], "bridge")
    assert [one.name for one in found.setting] == ["slow"]
    assert found.tune is None
    assert {one.name: one.placement for one in found.workload} == {DEFAULT: [0, 0, 1, 1], CHOSEN: [0, 1, 0, 1]}
    options = {"argv": ["./app", "8"], "mpi": True}
    assert all(one.kind == "command" and one.progress == "polling" for one in found.workload)
    assert [one.options for one in found.workload] == [
        options | {"figure": "regex", "pattern": r"took (\S+)", "unit": "s"}
    ] * 2
    assert [(one.progress, one.options) for one in study("blocking").workload] == [("blocking", options)] * 2


@pytest.mark.parametrize("lacking", [{"path": "vf"}, {"setting": "as-found"}])
def test_a_path_or_setting_that_the_run_lacks_is_refused(lacking: dict[str, str]) -> None:
    with pytest.raises(BadInputError, match=r"no path '\w+' with the setting '[\w-]+'"):
        study(**lacking)


def test_the_gain_is_that_of_the_mean_ratio_of_blocks() -> None:
    lines: list[str] = []
    host = TimedHost({DEFAULT: (100, 200, 400, 999), CHOSEN: (40, 100, 250, 999)})
    found = measure_gain(study(), cast("Host", host), 3, lines.append)
    assert found.share == pytest.approx(1 - (0.4 * 0.5 * 0.625) ** (1 / 3))
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.share < found.high < 1
    assert [order.workload.label for order in host.orders].count(CHOSEN) == 3
    assert [order.block for order in host.orders] == [0, 0, 1, 1, 2, 2]
    assert {order.path.label for order in host.orders} == {"bridge"}, "the baseline runs once"
    assert lines == [
        "block 1 of 3: default 0.100 s, chosen 0.040 s",
        "block 2 of 3: default 0.200 s, chosen 0.100 s",
        "block 3 of 3: default 0.400 s, chosen 0.250 s",
    ]


def test_too_few_blocks_and_failed_launches_are_refused() -> None:
    times = {DEFAULT: (1.0,) * 3, CHOSEN: (1.0,) * 3}
    with pytest.raises(BadInputError, match="2 blocks"):
        measure_gain(study(), cast("Host", TimedHost(times)), 2, print)
    with pytest.raises(TrialError, match="chosen placement: it ran away"):
        measure_gain(study(), cast("Host", TimedHost(times, fails=CHOSEN)), 3, print)


def test_a_pattern_that_matches_the_time_of_each_step_is_refused() -> None:
    """The gain was that of the median step, beside a prediction of the run time."""
    times = {DEFAULT: (1.0,) * 3, CHOSEN: (1.0,) * 3}
    with pytest.raises(TrialError, match="placement: the pattern matches 20 figures of a launch, not its run time"):
        measure_gain(study(figure=r"took (\S+)"), cast("Host", TimedHost(times, figures=20)), 3, print)


def trace(*commands: str) -> Trace:
    ranks: tuple[RankTrace, ...] = tuple(
        replace(made_rank(rank, len(commands), []), meta={"command": one} if one else {})
        for rank, one in enumerate(commands)
    )
    return Trace(ranks)


def test_a_trace_names_its_program() -> None:
    assert traced_program(trace("/a/app  -n 8", "/a/app  -n 9")) == ("/a/app", "-n", "8")
    for words in ("", " "):
        with pytest.raises(BadInputError, match="does not name its program"):
            traced_program(trace(words))


def test_several_programs_of_one_launch_are_not_measured_as_the_first() -> None:
    """All ranks ran the program of rank 0, and the gain of that was reported for both."""
    with pytest.raises(BadInputError, match="2 programs were launched together: /a/ocean 4, /b/ice 2"):
        traced_program(trace("/a/ocean 4", "/a/ocean 4", "/b/ice 2"))
