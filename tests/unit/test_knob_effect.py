"""The interrupt rate compared with the value of a register."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from knob_machine import KnobMachine
from nearmetal.errors import TrialError
from nearmetal.knobs.effect import (
    Agreement,
    Observed,
    Tally,
    judge,
    judge_launch,
    moderated,
    observe,
    tally,
    verified,
)
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nearmetal.hosts.host import Shell
    from nearmetal.process import Finished

ETH1 = Target("", "eth1")
SECOND_NS = 1_000_000_000


def _seen(packets: int, interrupts: int, vectors: int = 1) -> Observed:
    return Observed(packets, interrupts, SECOND_NS, vectors)


@pytest.mark.parametrize(
    ("driver", "usecs", "frames", "packets", "interrupts", "agreement"),
    [
        ("igb", 50, 0, 100_000, 19_500, "agrees"),
        ("igb", 50, 0, 100_000, 40_000, "contradicts"),
        ("igb", 50, 0, 100_000, 8_000, "silent"),
        ("igb", 50, 0, 5_000, 5_000, "silent"),
        ("igbvf", 50, 0, 60_000, 8_197, "silent"),
        ("igbvf", 0, 0, 60_000, 8_197, "contradicts"),
        ("igbvf", 122, 0, 60_000, 8_197, "agrees"),
        ("mlx5_core", 16, 32, 6_400_000, 200_000, "agrees"),
        ("mlx5_core", 16, 0, 6_400_000, 200_000, "contradicts"),
    ],
)
def test_rates_are_compared_with_the_setting(
    driver: str, usecs: int, frames: int, packets: int, interrupts: int, agreement: Agreement
) -> None:
    made = judge(_seen(packets, interrupts), driver=driver, usecs=usecs, frames=frames)
    assert made.agreement is agreement, made.reason


@pytest.mark.parametrize(("interrupts", "named"), [(8_197, True), (3_000, False), (0, False)])
def test_a_fallback_that_may_be_pauses_is_named(interrupts: int, named: bool) -> None:
    """A virtual function that had lost its 50 us was said to have had a load with pauses."""
    made = judge(_seen(60_000, interrupts), driver="igbvf", usecs=50)
    assert made.agreement == "silent"
    assert ("122 us, its fallback, or pauses" in made.reason) is named
    assert "fallback" not in judge(_seen(60_000, interrupts), driver="igb", usecs=50).reason


def test_rates_are_per_vector() -> None:
    assert judge(_seen(400_000, 78_000, vectors=4), driver="igb", usecs=50).agreement == "agrees"


def test_only_interrupts_caused_by_the_load_are_counted(tmp_path: Path) -> None:
    machine = KnobMachine.make(
        tmp_path,
        {"eth1": {}},
        {
            "/sys/class/net/eth1/statistics/rx_packets": "1000\n",
            "/sys/class/net/eth1/device/msi_irqs/31": "msix\n",
            "/proc/interrupts": "  CPU0 CPU1\n 31: 10 20 IR-PCI-MSI 1 eth1-rx\n 9: 5 5 acpi\n",
        },
    )

    def load() -> None:
        machine.write("/sys/class/net/eth1/statistics/rx_packets", b"5000\n")
        machine.write("/proc/interrupts", b"  CPU0 CPU1\n 31: 110 220 IR-PCI-MSI 1 eth1-rx\n 9: 50 50 acpi\n")

    seen = observe(machine, ETH1, load)
    assert (seen.packets, seen.interrupts, seen.vectors) == (4000, 300, 1)


def test_only_vectors_that_carried_the_load_are_counted(tmp_path: Path) -> None:
    vectors = {f"/sys/class/net/eth1/device/msi_irqs/{number}": "msix\n" for number in (31, 32, 33)}
    before = " 31: 10 eth1-rx-0\n 32: 10 eth1-rx-1\n 33: 10 eth1-tx-0\n"
    files = {"/sys/class/net/eth1/statistics/rx_packets": "0\n", "/proc/interrupts": before}
    machine = KnobMachine.make(tmp_path, {"eth1": {}}, {**vectors, **files})
    after = b" 31: 9010 eth1-rx-0\n 32: 11 eth1-rx-1\n 33: 9010 eth1-tx-0\n"
    seen = observe(machine, ETH1, lambda: machine.write("/proc/interrupts", after))
    assert (seen.interrupts, seen.vectors) == (9000, 1)


def test_moderation_is_verified_under_pings_and_unknown_without_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "/sys/class/net/eth1/device/msi_irqs/31": "msix\n",
        "/sys/class/net/eth1/statistics/rx_packets": "0\n",
        "/proc/interrupts": " 31: 10 eth1-0\n",
    }
    machine = KnobMachine.make(tmp_path, {"eth1": {"tx-usecs": "50", "tx-frames": "0"}}, files)
    intended = plan(machine, {"nic.adaptive-rx": "off", "nic.rx-usecs": 50, "nic.rx-frames": 0}, [ETH1])
    (silent,) = verified(machine, intended, "10.0.0.2").values()
    assert silent.agreement == "silent"
    assert "10.0.0.2 does not answer" in silent.reason
    ticks = iter((0, SECOND_NS))
    monkeypatch.setattr("nearmetal.knobs.effect.time.monotonic_ns", lambda: next(ticks))

    def flood(_shell: object, _target: Target, _address: str) -> None:
        machine.write("/sys/class/net/eth1/statistics/rx_packets", b"90000\n")
        machine.write("/proc/interrupts", b" 31: 90010 eth1-0\n")

    monkeypatch.setattr("nearmetal.knobs.effect.flood", flood)
    assert {name: one.agreement for name, one in verified(machine, intended, "10.0.0.2").items()} == {
        "nic.rx-usecs of eth1": "contradicts"
    }


def test_interrupts_of_virtio_are_those_of_the_device_above(tmp_path: Path) -> None:
    """`apply --verify` and trials never judged a virtio NIC: it seemed to have no interrupts of its own."""
    vectors = {f"/sys/class/net/eth1/msi_irqs/{number}": "msix\n" for number in (30, 31, 32)}  # eth1/device/..
    names = " 30: 0 virtio2-config\n 31: %d virtio2-input.0\n 32: %d virtio2-output.0\n"
    files = {
        "/sys/class/net/eth1/device/features": "0" * 53 + "1\n",
        "/sys/class/net/eth1/statistics/rx_packets": "93000\n",
        "/proc/interrupts": names % (90_000, 93_000),
    }
    nic = {"eth1": {"driver": "virtio_net", "adaptive-rx": "off"}}
    machine = KnobMachine.make(tmp_path, nic, {**vectors, **files})
    wanted = {"nic.rx-usecs": 100, "nic.rx-frames": 0, "nic.tx-usecs": 100, "nic.tx-frames": 0}
    (one,) = moderated(machine, plan(machine, wanted, [ETH1]))
    before = Tally(0, {"30": 0, "31": 0, "32": 0})
    found = judge_launch(one, before, tally(machine, ETH1), SECOND_NS)
    assert (found.agreement, found.reason.split()[0]) == ("contradicts", "90000")


@pytest.mark.parametrize(("adaptive", "vectors"), [("off", {}), ("on", {"31": "msix\n"})])
def test_moderation_that_cannot_be_verified_is_said_to_be_so(
    tmp_path: Path, adaptive: str, vectors: dict[str, str]
) -> None:
    """`apply --verify` said of a virtio NIC, whose vectors are its parent's, that no nic.rx-usecs was set."""
    files = {f"/sys/class/net/eth1/device/msi_irqs/{number}": text for number, text in vectors.items()}
    machine = KnobMachine.make(tmp_path, {"eth1": {"driver": "unheard-of", "adaptive-rx": adaptive}}, files)
    (made,) = verified(machine, plan(machine, {"nic.rx-usecs": 50}, [ETH1]), "10.0.0.2").items()
    assert made[0] == "nic.rx-usecs of eth1"
    assert made[1].agreement == "silent"
    assert made[1].reason == "it adapts to the load, or the device has no interrupts of its own"


def test_devices_without_interrupts_are_named(tmp_path: Path) -> None:
    files = {"/sys/class/net/eth1/statistics/rx_packets": "1\n", "/proc/interrupts": " 9: 5 5 acpi\n"}
    with pytest.raises(TrialError, match="no interrupts of its own"):
        observe(KnobMachine.make(tmp_path, {"eth1": {}}, files), ETH1, lambda: None)


@pytest.mark.parametrize(
    ("interrupts", "agreement"),
    [(90_000, "contradicts"), (5_000, "silent"), (0, "silent")],
    ids=["too many", "perhaps idle", "none counted"],
)
def test_a_launch_can_show_too_many_interrupts_but_never_too_few(
    tmp_path: Path, interrupts: int, agreement: Agreement
) -> None:
    machine = KnobMachine.make(
        tmp_path,
        {"eth1": {"tx-usecs": "50", "tx-frames": "0"}},
        {"/sys/class/net/eth1/device/msi_irqs/31": "msix\n", "/sys/class/net/eth1/device/msi_irqs/7": "msix\n"},
    )
    intended = plan(machine, {"nic.adaptive-rx": "off", "nic.rx-usecs": 50, "nic.rx-frames": 0}, [ETH1])
    (one,) = moderated(machine, intended)
    assert (one.usecs, one.frames) == (50, 0)
    after = Tally(90_000, {"31": 1000 + interrupts, "7": 5})
    assert judge_launch(one, Tally(0, {"31": 1000, "7": 5}), after, SECOND_NS).agreement is agreement


@pytest.mark.parametrize(
    ("nic", "agreement"),
    [
        ({"rx-frames": "0", "tx-usecs": "50", "tx-frames": "0"}, "contradicts"),
        ({"rx-frames": "1", "tx-usecs": "50", "tx-frames": "0"}, "silent"),
        ({"rx-frames": "0", "tx-usecs": "16", "tx-frames": "0"}, "silent"),
        ({"rx-frames": "0", "tx-usecs": "50", "tx-frames": "1"}, "silent"),
        ({"rx-frames": "0", "tx-usecs": "50", "tx-frames": "0", "adaptive-tx": "on"}, "silent"),
        ({"rx-frames": "0", "tx-usecs": "16", "tx-frames": "0", "driver": "igb"}, "contradicts"),
    ],
)
def test_what_a_setting_leaves_alone_is_judged_as_it_is(
    tmp_path: Path, nic: dict[str, str], agreement: Agreement
) -> None:
    """The device was said to contradict its setting where its frames, or what it sends, allow the interrupts."""
    files = {"/sys/class/net/eth1/device/msi_irqs/31": "msix\n"}
    machine = KnobMachine.make(tmp_path, {"eth1": {"adaptive-rx": "off", **nic}}, files)
    (one,) = moderated(machine, plan(machine, {"nic.rx-usecs": 50}, [ETH1]))
    made = judge_launch(one, Tally(0, {}), Tally(90_000, {"31": 60_000}), SECOND_NS)
    assert made.agreement == agreement, made.reason


def test_moderation_that_adapts_as_it_was_is_not_judged(tmp_path: Path) -> None:
    files = {"/sys/class/net/eth1/device/msi_irqs/31": "msix\n"}
    machine = KnobMachine.make(tmp_path, {"eth1": {"driver": "unheard-of", "adaptive-rx": "on"}}, files)
    assert moderated(machine, plan(machine, {"nic.rx-usecs": 50}, [ETH1])) == []


@pytest.mark.parametrize(
    ("driver", "usecs", "judged"), [("igbvf", 3, 0), ("igbvf", 2, 0), ("igb", 3, 0), ("ixgbe", 1, 0), ("igbvf", 10, 1)]
)
def test_dynamic_modes_are_not_judged_as_microseconds(tmp_path: Path, driver: str, usecs: int, judged: int) -> None:
    """4,000 to 20,000 interrupts/s of igbvf at its default, 3, contradicted the setting."""
    machine = KnobMachine.make(
        tmp_path,
        {"eth1": {"driver": driver, "adaptive-rx": "n/a"}},
        {"/sys/class/net/eth1/device/msi_irqs/31": "msix\n"},
    )
    assert len(moderated(machine, plan(machine, {"nic.rx-usecs": usecs}, [ETH1]))) == judged


def test_adaptive_moderation_is_not_judged(tmp_path: Path) -> None:
    machine = KnobMachine.make(
        tmp_path, {"eth1": {"driver": "unheard-of"}}, {"/sys/class/net/eth1/device/msi_irqs/31": "msix\n"}
    )
    intended = plan(machine, {"nic.adaptive-rx": "on", "nic.rx-usecs": 50}, [ETH1])
    assert moderated(machine, intended) == []


def test_without_a_timer_a_launch_shows_nothing_and_sending_does_not_count(tmp_path: Path) -> None:
    vectors = {f"/sys/class/net/eth1/device/msi_irqs/{number}": "msix\n" for number in (31, 32)}
    files = {"/sys/class/net/eth1/statistics/rx_packets": "93\n", "/proc/interrupts": INTERRUPTS % (254, 90_000)}
    machine = KnobMachine.make(tmp_path, {"eth1": {}}, {**vectors, **files})
    for usecs in (0, 50):
        wanted = {"nic.adaptive-rx": "off", "nic.rx-usecs": usecs, "nic.rx-frames": 1}
        (one,) = moderated(machine, plan(machine, wanted, [ETH1]))
        assert judge_launch(one, Tally(0, {}), tally(machine, ETH1), SECOND_NS).agreement == "silent"


INTERRUPTS = " 31: %d eth1-rx-0\n 32: %d eth1-tx-0\n"


class _Alike:
    """Two machines alike, as nodes n0 and n1 of one shell: their NICs have interrupts of the same numbers."""

    machines = ("n0", "n1")

    def __init__(self, folder: Path) -> None:
        files = {
            **{f"/sys/class/net/eth1/device/msi_irqs/{number}": "msix\n" for number in (31, 32)},
            "/sys/class/net/eth1/statistics/rx_packets": "0\n",
            "/proc/interrupts": INTERRUPTS % (0, 0),
        }
        nic = {"adaptive-rx": "off", "rx-frames": "0", "tx-usecs": "50", "tx-frames": "0"}
        for name in self.machines:
            (folder / name).mkdir()
        self.of = {name: KnobMachine.make(folder / name, {"eth1": nic}, files) for name in self.machines}

    def run(self, argv: Sequence[str], *, node: str = "", **options: Any) -> Finished:
        return self.of[node].run(argv, **options)

    def read(self, path: str, *, node: str = "") -> bytes:
        return self.of[node].read(path)


def test_interrupts_of_another_machine_are_not_counted(tmp_path: Path) -> None:
    """Those of all machines were added up by their numbers, so that two NICs that kept 50 us seemed to break it."""
    both = cast("Shell", alike := _Alike(tmp_path))
    ends = [Target(name, "eth1") for name in alike.machines]
    intended = plan(both, {"nic.rx-usecs": 50}, ends)
    before = [tally(both, end) for end in ends]
    for machine, rate in zip(alike.of.values(), (19_500, 8_000), strict=True):
        machine.write("/sys/class/net/eth1/statistics/rx_packets", b"100000\n")
        machine.write("/proc/interrupts", (INTERRUPTS % (rate, 90_000)).encode())
    seen = [
        judge_launch(one, was, tally(both, one.target), SECOND_NS)
        for one, was in zip(moderated(both, intended), before, strict=True)
    ]
    assert [one.agreement for one in seen] == ["agrees", "silent"]
    assert seen[0].reason.startswith("19500 interrupts/s and vector under 100000 packets/s")
    assert seen[1].reason.startswith("8000 interrupts/s and vector under 100000 packets/s")
