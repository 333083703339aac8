"""Processors that are offline, or are taken offline while a setting is looked at or held, are left out or named.

A machine of files stands in for the kernel's: what goes with a processor is moved away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from knob_machine import KnobMachine
from nearmetal.knobs.hold import hold
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.session import begin
from nearmetal.knobs.table import find
from nearmetal.paths.path import Endpoint, Endpoints

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nearmetal.process import Finished

CPU = "/sys/devices/system/cpu"
IDLE = [f"{CPU}/cpu{cpu}/cpuidle" for cpu in (0, 1)]
STATES = [(f"{folder}/state{state}", us) for folder in IDLE for state, us in enumerate((2, 133))]
LATENCIES = {f"{state}/latency": f"{us}\n" for state, us in STATES}
NAME, PLACE = "host.idle-latency-us", Target("")
ENDS = Endpoints((Endpoint("", "eth1", "10.0.0.1"),), "10.0.0.0/24")


class Leaving(KnobMachine):
    """A machine whose second processor is taken offline when its idle states have been listed."""

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        said = super().run(argv, **options)
        if argv[-1] == IDLE[1]:
            take_offline(self)
        return said


def take_offline(machine: KnobMachine) -> None:
    if (folder := machine.root / IDLE[1].lstrip("/")).exists():
        folder.rename(machine.root / "away")


@pytest.fixture
def machine(tmp_path: Path) -> KnobMachine:
    switches = {f"{state}/disable": "0\n" for state, _ in STATES}
    return KnobMachine.make(tmp_path / "machine", {"eth1": {}}, {**LATENCIES, **switches})


def test_a_processor_taken_offline_under_a_setting_is_named(machine: KnobMachine, tmp_path: Path) -> None:
    """What it was ended in a traceback: switches and latencies, which were looked up again, were paired by number."""
    (journals := tmp_path / "journals").mkdir(mode=0o700)
    begun = begin(machine, plan(machine, {NAME: 2}, [PLACE]), journals)
    begun.apply()
    take_offline(machine)
    assert begun.facts() == {f"knob.{NAME}": "2"}
    assert begun.found() == {NAME: "133"}
    assert len(begun.lost()) == 2
    assert len(begun.restore()[0].gone) == 2
    assert machine.read(f"{IDLE[0]}/state1/disable") == b"0\n"


def test_a_processor_taken_offline_while_it_is_looked_at_is_left_out(machine: KnobMachine) -> None:
    """The search for latencies found fewer states than that for their switches: a traceback."""
    steps = find(NAME).steps(Leaving(machine.root), PLACE, "2")
    assert [(step.access.key, step.value) for step in steps] == [
        (f"{IDLE[0]}/state0/disable", "0"),
        (f"{IDLE[0]}/state1/disable", "1"),
    ]


def test_what_is_left_is_still_read(machine: KnobMachine) -> None:
    assert find(NAME).read(Leaving(machine.root), PLACE).value == "133"


@pytest.mark.parametrize("affected", [{f"{CPU}/cpufreq/policy1/affected_cpus": "\n"}, {}], ids=["empty", "busy"])
def test_policies_without_processors_are_left_out(tmp_path: Path, affected: dict[str, str]) -> None:
    """With every second processor offline, as where SMT is off, no governor could be set: its file answers EBUSY."""
    first, second = (f"{CPU}/cpufreq/policy{number}" for number in (0, 1))
    choices = {f"{folder}/scaling_available_governors": "performance powersave\n" for folder in (first, second)}
    files = {f"{first}/affected_cpus": "0\n", f"{first}/scaling_governor": "powersave\n", **choices, **affected}
    machine = KnobMachine.make(tmp_path / "machine", {"eth1": {}}, files)
    governor = find("host.cpu-governor")
    assert governor.read(machine, PLACE).value == "powersave"
    alone = KnobMachine.make(tmp_path / "alone", {}, {f"{second}/scaling_governor": "powersave\n", **affected})
    assert governor.read(alone, PLACE).value is None
    with hold(machine, ENDS, {governor.name: "performance"}, tmp_path) as held:
        assert held.facts == {f"knob.{governor.name}": "performance", f"knob.was.{governor.name}": "powersave"}
    assert machine.writes == [f"{first}/scaling_governor"] * 2


def test_a_policy_that_loses_its_processors_waits_for_the_roll_back(tmp_path: Path) -> None:
    """It comes back as it was set, so that it is not counted as gone: the access stays among the knob's."""
    folders = [f"{CPU}/cpufreq/policy{number}" for number in (0, 1)]
    machine = KnobMachine.make(tmp_path / "machine", {"eth1": {}}, {f"{folders[0]}/affected_cpus": "0\n"})
    (machine.root / folders[1].lstrip("/")).mkdir()
    keys = [access.key for access in find("host.cpu-governor").accesses(machine, PLACE)]
    assert keys == [f"{folder}/scaling_governor" for folder in folders]
