"""What `nearmetal knobs` shows of NICs that are not in this machine: ethtool's output for each, in tests/data/nics."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from knob_machine import KnobMachine
from nearmetal.cli.main import run as nearmetal
from nearmetal.knobs import drivers
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.table import find

if TYPE_CHECKING:
    from collections.abc import Mapping

NICS = Path(__file__).parents[1] / "data" / "nics"
ETH1 = Target("", "eth1")


@dataclass(frozen=True)
class Expected:
    """What must be shown: values and ranges by knob, missing moderation, and inconclusive read-backs."""

    shown: Mapping[str, tuple[str, str]]
    absent: tuple[str, ...]
    doubtful: tuple[str, ...] = ()


EXPECTED = {
    "mlx5_core": Expected(
        {
            "adaptive-rx": ("on", "on | off"),
            "cqe-mode-rx": ("on", "on | off"),
            "cqe-mode-tx": ("off", "on | off"),
            "rx-usecs": ("8", "0 to 4095 us"),
            "rx-frames": ("128", "0 to 65535 frames"),
            "ring-rx": ("1024", "16 to 8192 descriptors"),
            "channels-combined": ("16", "0 to 16 queues"),
        },
        ("rx-usecs-irq", "rx-usecs-high", "pkt-rate-low", "channels-rx"),
        ("rx-usecs",),
    ),
    "mlx4_en": Expected(
        {
            "rx-usecs": ("16", "0 to 65535 us"),
            "rx-usecs-low": ("0", "0 to 65535 us"),
            "rx-usecs-high": ("128", "0 to 65535 us"),
            "pkt-rate-high": ("450000", "0 to 4294967295 packets/s"),
            "tx-frames-irq": ("256", "1 to 65535 frames"),
            "ring-tx": ("1024", "64 to 8192 descriptors"),
            "channels-rx": ("16", "1 to 16 queues"),
            "channels-tx": ("8", "1 to 16 queues"),
        },
        ("adaptive-tx", "cqe-mode-rx", "channels-combined"),
    ),
    "ice": Expected(
        {
            "adaptive-tx": ("on", "on | off"),
            "rx-usecs": ("50", "0 to 8160 us"),
            "rx-usecs-high": ("0", "0, 4 to 236 us"),
            "ring-rx": ("2048", "64 to 8160 descriptors in steps of 32"),
            "channels-combined": ("16", "0 to 16 queues"),
        },
        ("rx-frames", "tx-usecs-high"),
        ("rx-usecs", "tx-usecs"),
    ),
    "i40e": Expected(
        {
            "rx-usecs": ("50", "0 to 8160 us in steps of 2"),
            "tx-frames-irq": ("256", "1 to 65535 frames"),
            "rx-usecs-high": ("0", "0 to 236 us in steps of 4"),
            "ring-rx": ("512", "64 to 4096 descriptors in steps of 32"),
        },
        ("rx-frames", "channels-rx"),
        ("rx-usecs",),
    ),
    "ixgbe": Expected(
        {
            "rx-usecs": ("1", "0, 1, 2 to 1022 us"),
            "tx-usecs": ("0", "0 to 0 us"),
            "lro": ("off", "on | off"),
            "ring-rx": ("512", "64 to 8192 descriptors in steps of 8"),
            "channels-combined": ("16", "0 to 63 queues"),
        },
        ("adaptive-rx", "rx-frames"),
        ("lro",),
    ),
    "bnxt_en": Expected(
        {
            "adaptive-rx": ("on", "on | off"),
            "rx-usecs": ("10", "0 to 65535 us"),
            "rx-frames": ("15", "0 to 32767 frames"),
            "rx-usecs-irq": ("1", "0 to 65535 us"),
            "rx-gro-hw": ("on", "on | off"),
            "ring-tx": ("511", "19 to 2047 descriptors"),
            "channels-rx": ("0", "0 to 37 queues"),
        },
        ("adaptive-tx", "rx-usecs-high"),
    ),
    "ena": Expected(
        {
            "adaptive-rx": ("on", "on | off"),
            "rx-usecs": ("20", "0 to 32767 us"),
            "tx-usecs": ("64", "0 to 32767 us"),
            "ring-rx": ("1024", "256 to 16384 descriptors"),
            "channels-combined": ("8", "0 to 8 queues"),
        },
        ("adaptive-tx", "rx-frames", "lro"),
        ("rx-usecs",),
    ),
    "gve": Expected(
        {
            "rx-usecs": ("20", "0 to 8190 us"),
            "tx-usecs": ("50", "0 to 8190 us"),
            "ring-rx": ("1024", "1 to 4096 descriptors, powers of two"),
            "channels-rx": ("8", "0 to 16 queues"),
        },
        ("adaptive-rx", "rx-frames", "channels-combined"),
        ("rx-usecs", "tx-usecs"),
    ),
    "iavf": Expected(
        {
            "adaptive-rx": ("on", "on | off"),
            "rx-usecs": ("50", "0 to 8160 us in steps of 2"),
            "ring-tx": ("512", "64 to 4096 descriptors in steps of 32"),
            "channels-combined": ("4", "0 to 16 queues"),
        },
        ("rx-frames", "rx-usecs-high"),
        ("rx-usecs",),
    ),
    "mana": Expected(
        {
            "ring-rx": ("512", "128 to 8192 descriptors"),
            "ring-tx": ("256", "128 to 16384 descriptors"),
            "channels-combined": ("16", "0 to 64 queues"),
        },
        ("rx-usecs", "rx-frames", "adaptive-rx", "channels-rx"),
    ),
}


def machine_with(driver: str, folder: Path) -> KnobMachine:
    made = KnobMachine.make(folder, {"eth1": {"driver": driver}}, {})
    (folder / "eth1.recorded").write_text((NICS / f"{driver}.txt").read_text())
    return made


def test_every_recording_has_an_expectation() -> None:
    assert {path.stem for path in NICS.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("driver", EXPECTED)
class TestNic:
    def test_knobs_shows_what_the_driver_offers(
        self, driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        machine, wanted = machine_with(driver, tmp_path), EXPECTED[driver]
        monkeypatch.setattr("nearmetal.cli.knobs.open_shell", lambda _host: nullcontext(machine))
        assert nearmetal(["knobs", "-i", "eth1", "--all", "--format", "json"]) == 0
        rows = {row["knob"].removeprefix("nic."): row for row in json.loads(capsys.readouterr().out)}
        assert {name: (rows[name]["value"], rows[name]["takes"]) for name in wanted.shown} == dict(wanted.shown)
        for name in wanted.absent:
            assert rows[name]["value"] is None
            assert rows[name]["reason"], name
        assert {name for name, row in rows.items() if row["doubt"]} == set(wanted.doubtful)
        assert {row["driver"] for row in rows.values() if row["target"] == "eth1"} == {driver}

    def test_present_settings_are_legal_and_unchanged(self, driver: str, tmp_path: Path) -> None:
        machine = machine_with(driver, tmp_path)
        for name in drivers.RANGES[driver]:
            value = find(name).read(machine, ETH1).value
            if value and (value, name) != ("0", "nic.channels-rx"):
                assert drivers.range_refusal(driver, name, value) == ""
                assert drivers.reads_back(driver, name, value) == value

    def test_rounding_twice_is_rounding_once(self, driver: str) -> None:
        for name, one in drivers.RANGES[driver].items():
            for value in {one.lowest, one.lowest + 1, (one.lowest + one.highest) // 2, one.highest - 1, one.highest}:
                if one.takes(value):
                    assert one.takes(one.reads_back(value)), (name, value)
                    assert one.reads_back(one.reads_back(value)) == one.reads_back(value)

    def test_rules_name_their_source(self, driver: str) -> None:
        assert re.fullmatch(r"[\w/.]+\.c: \w+.*", drivers.SOURCES[driver])

    def test_a_setting_beyond_its_range_is_refused_before_a_write(self, driver: str, tmp_path: Path) -> None:
        machine = machine_with(driver, tmp_path)
        with pytest.raises(Exception, match=r"ring-rx"):
            plan(machine, {"nic.ring-rx": 40_000}, [ETH1])
        assert machine.writes == []
