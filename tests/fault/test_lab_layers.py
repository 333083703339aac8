"""The snapshot with a booted guest is made by resuming the one without and freezing it again."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import NearmetalError
from nearmetal.hosts.lab import cache, guest, image, lab
from nearmetal.hosts.lab.frames import ONLY_NODE, STAND_GUEST
from nearmetal.hosts.lab.manifest import Manifest
from nearmetal.study.order import Order, PathOrder, WorkloadOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WORKLOAD = WorkloadOrder("latency", "engine")
IN_GUESTS = Order(0, 0, PathOrder("guest-vf", "guest-vf"), WORKLOAD, seed=7, timeout_s=0.5)
BARE = replace(IN_GUESTS, path=PathOrder("native", "native"))


def of_machines(say: Callable[[str], None] = lambda _: None) -> contextlib.closing[lab.LabHost]:
    """Open a lab of two machines that can have guests."""
    return contextlib.closing(lab.open_lab({"machine": "kvm", "nodes": 2}, say))


@pytest.fixture
def machines(host: lab.LabHost) -> Iterator[lab.LabHost]:
    """Two machines that can have guests, over the stand-in."""
    with of_machines() as opened:
        yield opened


def snapshots() -> dict[str, Path]:
    """Return the folders of snapshots by the name of their source."""
    folders = image.cache_folder().glob("snapshot-*")
    return {json.loads((folder / "state").read_text())["below"]: folder for folder in folders}


def test_the_snapshot_with_a_guest_is_made_from_the_boot_without_it(machines: lab.LabHost) -> None:
    machines.prepare([IN_GUESTS])
    made = snapshots()
    plain = made.pop("")
    assert list(made) == [plain.name]
    guests = made[plain.name]
    assert (plain / "memory").read_text() == "machine\n"
    assert (guests / "memory").read_text() == "machine\nguest\n"
    assert [Manifest.load(folder).damaged(folder) for folder in (plain, guests)] == [(), ()]


def test_each_variant_is_made_from_its_own_boot(machines: lab.LabHost) -> None:
    machines.prepare(replace(IN_GUESTS, block=block) for block in range(3))
    states = {folder.name: json.loads((folder / "state").read_text()) for folder in snapshots().values()}
    of_guests = [state for state in states.values() if state["below"]]
    plain = {folder.name for folder in image.cache_folder().glob("snapshot-*")} - states.keys()
    assert len(of_guests) == 3
    for state in of_guests:
        below = image.cache_folder() / state["below"] / "state"
        assert json.loads(below.read_text()) == {"frozen": "machine", "seed": state["seed"], "below": ""}
    assert len(plain) == 2  # three without a guest; `snapshots` returns one of them
    kept = cache.cached({}, verify=False)
    sources = [one.about.partition("machine kvm, ")[2] for one in kept if "snapshot" in one.folder.name]
    assert sorted(sources) == sorted(f"variant {number}" for number in range(3) for _ in range(2))
    with_guest = [one for one in kept if "guest started" in one.about]
    assert len(with_guest) == 3


@pytest.mark.usefixtures("host")
def test_boots_that_leave_unused_ones_behind_report_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looked at a cache that a new emulator, or new sources, let grow until the disk was full."""

    def said() -> list[str]:
        lines: list[str] = []
        with of_machines(lines.append) as opened:
            opened.prepare([IN_GUESTS])
        return [line for line in lines if "hold" in line]

    assert said() == []
    monkeypatch.setenv("LAB_EMULATOR_VERSION", "10.0.3")
    (line,) = said()
    assert line.startswith("2 folders of other sources, packages or emulators hold 0.0 GiB: ")
    assert "`nearmetal lab clean --old`" in line
    assert said() == [], "nothing was booted"


def test_sources_of_other_snapshots_are_booted_first(host: lab.LabHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    messages: list[str] = []
    with contextlib.closing(lab.open_lab({"machine": "kvm", "nodes": 2}, messages.append)) as opened:
        opened.prepare(replace(IN_GUESTS, block=block) for block in range(2))
    made = [line.partition(" the lab")[0] for line in messages if "to its snapshot" in line]
    assert made == ["booting", "booting", "starting a guest in", "starting a guest in"]


def test_without_guests_no_guest_is_started(machines: lab.LabHost) -> None:
    machines.prepare([BARE])
    assert list(snapshots()) == [""]


def test_a_guest_that_does_not_come_up_leaves_the_boot_without_it(
    machines: lab.LabHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.prepare([BARE])
    monkeypatch.setenv("LAB_EMULATOR", "panics")
    with pytest.raises(NearmetalError, match=r"while booting(?s:.*)not syncing"):
        machines.prepare([IN_GUESTS])
    assert list(snapshots()) == [""]
    assert (snapshots()[""] / "memory").read_text() == "machine\n"
    assert not list(image.cache_folder().glob("unfinished-*"))
    monkeypatch.delenv("LAB_EMULATOR")
    with of_machines() as again:
        again.prepare([IN_GUESTS])
    assert len(snapshots()) == 2


@pytest.mark.parametrize(
    ("commands", "happens"),
    [
        ([BARE], ["freeze", "carried out", "off"]),
        ([STAND_GUEST, BARE], ["freeze", "stand", "freeze", "carried out", "off"]),
    ],
)
def test_a_machine_boots_a_guest_on_command(
    monkeypatch: pytest.MonkeyPatch, commands: list[bytes | Order], happens: list[str]
) -> None:
    seen: list[str] = []
    lives = iter(commands)

    def take_order() -> tuple[bytes, object]:
        order = next(lives)
        return order.to_json().encode() if isinstance(order, Order) else order, ONLY_NODE

    monkeypatch.setattr(guest, "freeze", lambda: seen.append("freeze"))
    monkeypatch.setattr(guest, "take_order", take_order)
    monkeypatch.setattr(guest, "switch_off", lambda: seen.append("off"))
    monkeypatch.setattr(guest.gc, "freeze", lambda: None)

    def carry_out(orders: object, *_: object) -> Iterator[guest.Outcome]:
        assert orders == [BARE]
        seen.append("carried out")
        yield from ()

    guest.serve(carry_out, lambda: seen.append("stand"))
    assert seen == happens
