"""The space of a study: values that are missing, refused or already set are excluded before the search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from knob_machine import KnobMachine
from nearmetal.errors import BadInputError
from nearmetal.knobs.knob import Target
from nearmetal.knobs.look import look
from nearmetal.knobs.plan import plan
from nearmetal.knobs.table import find
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.study.spec import TuneSpec
from nearmetal.tune.narrow import narrowed
from nearmetal.tune.profile import Profile
from nearmetal.tune.space import AS_FOUND

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.study.order import Scalar

ENDS = Endpoints((Endpoint("", "eth1", "10.0.0.1"), Endpoint("", "eth2", "10.0.0.2")), "10.0.0.0/24")
FILES = {"/proc/sys/net/core/busy_read": "0\n"}


def _facts(place: Path, asked: dict[str, list[Scalar]], **second: str) -> dict[str, Scalar]:
    nic = {"adaptive-rx": "off", "driver": "iavf"}
    other = {**nic, **{key.replace("_", "-"): value for key, value in second.items()}}
    machine = KnobMachine.make(place, {"eth1": nic, "eth2": other}, FILES)
    facts = look(machine, ENDS, asked)
    assert machine.writes == [], "reading must not write"
    return facts


def test_missing_refused_and_already_set_values_are_left_out_and_named(tmp_path: Path) -> None:
    asked: dict[str, list[Scalar]] = {
        "nic.rx-usecs": ["16", "50", "9000"],
        "nic.gro": ["on", "off"],
        "nic.lro": ["on"],
        "nic.mtu": ["1500"],
        "host.busy_read": ["50"],
        "mpi.progress": ["yielding"],
    }
    made = narrowed(TuneSpec(knobs=asked), _facts(tmp_path, asked))
    assert {axis.knob: axis.values for axis in made.space.axes} == {
        "nic.rx-usecs": ("16", "50"),
        "nic.gro": ("on", "off"),
        "host.busy_read": ("0", "50"),
        "mpi.progress": (AS_FOUND, "yielding"),
    }
    reasons = "\n".join(made.left_out)
    assert "nic.rx-usecs = 9000: nic.rx-usecs 9000 is not among 0 to 8160" in reasons
    assert "nic.lro is not there: eth1: the driver holds it fixed" in reasons
    assert "nic.mtu is 1500 already" in reasons


def test_settings_that_a_driver_rejects_are_not_in_the_space(tmp_path: Path) -> None:
    asked: dict[str, list[Scalar]] = {
        "nic.adaptive-rx": ["on"],
        "nic.rx-usecs": ["0", "50"],
        "nic.rx-frames": ["0", "1"],
    }
    space = narrowed(TuneSpec(knobs=asked), _facts(tmp_path, asked, driver="stmmac")).space
    settings = [space.setting(point) for point in space.points]
    assert {"nic.rx-usecs": "50", "nic.rx-frames": "1"} in settings
    assert {"nic.rx-usecs": "0", "nic.rx-frames": "0"} not in settings, "no interrupt of the second would fire"
    assert {"nic.adaptive-rx": "on", "nic.rx-usecs": "50"} not in settings, "iavf refuses usecs while adaptive is on"
    assert {"nic.adaptive-rx": "on", "nic.rx-frames": "1"} in settings


def test_ends_that_differ_keep_their_present_values(tmp_path: Path) -> None:
    asked: dict[str, list[Scalar]] = {"nic.rx-usecs": ["16", "50"]}
    (axis,) = narrowed(TuneSpec(knobs=asked), _facts(tmp_path, asked, rx_usecs="50")).space.axes
    assert axis.values == (AS_FOUND, "16", "50")


@pytest.mark.parametrize(
    ("present", "values"),
    [("0f", ("0-3", "1,3", "none")), ("00", ("none", "0-3", "1,3")), ("00000001,00000003", ("0-1,32", "0-3", "1,3"))],
)
def test_processors_of_a_mask_are_searched_as_they_are_named(
    tmp_path: Path, present: str, values: tuple[str, ...]
) -> None:
    """Their mask was read as a list again: processor 1 was set where 0 was asked for, and 10 for 4.

    The present ones were named by the mask, in facts and profiles, too: 3 for processors 0 and 1.
    """
    steering = "/sys/class/net/eth1/queues/rx-0/rps_cpus"
    machine = KnobMachine.make(tmp_path, {"eth1": {}}, {steering: f"{present}\n"})
    asked: dict[str, list[Scalar]] = {"nic.rps-cpus": ["0-3", "1,3", "none"]}
    ends = Endpoints(ENDS.ends[:1], ENDS.subnet)
    space = narrowed(TuneSpec(knobs=asked), look(machine, ends, asked)).space
    assert [axis.values[: len(values)] for axis in space.axes] == [values]
    masks = {"0-3": "f", "1,3": "a", "none": "0"}
    for point in space.points[1:]:
        setting = space.setting(point)
        Profile("p", "any", ("eth1",), setting)
        (cell,) = plan(machine, setting, [Target("", "eth1")]).planned
        assert cell.new == masks[setting["nic.rps-cpus"]]
        (told,) = find("nic.rps-cpus").told(machine, Target("", "eth1"), {cell.key: cell.old})
        assert told == values[0]


def test_a_host_without_facts_keeps_the_whole_space() -> None:
    made = narrowed(TuneSpec(knobs={"nic.rx-usecs": [0, 10], "nic.gro": ["off"]}), {})
    assert [axis.values for axis in made.space.axes] == [(AS_FOUND, "0", "10"), (AS_FOUND, "off")]
    assert made.left_out == ()


def test_an_empty_space_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    asked: dict[str, list[Scalar]] = {"nic.lro": ["on"], "nic.gro": ["on"]}
    with pytest.raises(BadInputError, match=r"nic.lro is not there.*; nic.gro is on already"):
        narrowed(TuneSpec(knobs=asked), _facts(tmp_path, asked))


def test_the_management_interface_is_refused_value_by_value(tmp_path: Path) -> None:
    machine = KnobMachine.make(tmp_path, {"eth1": {}, "eth2": {}}, FILES)
    (tmp_path / "routes").write_text("default via 10.0.0.254 dev eth2 proto static\n")
    facts = look(machine, ENDS, {"nic.gro": ["off"]})
    assert "carries the default route" in str(facts["knob.refuses.nic.gro=off"])
