"""A table of flows that follows the NIC's queues by itself does so again after a roll-back.

`ethtool` is a program of this test: no device of a test machine has such a table. It behaves like the kernel: a table
that was set stays, and forbids fewer queues than it leads to.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs import session
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.tune.export.scripts import slurm
from nearmetal.tune.profile import Profile
from undoing import WAYS, check_undone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nearmetal.study.order import Scalar

LO = Target("", "lo")
RINGS, ENTRIES = 8, 48
ETHTOOL = r"""#!/bin/sh
cd "${0%/*}" || exit 1
read -r rings < rings; read -r set < set; read -r driver < driver
no() { echo "netlink error: Invalid argument" >&2; exit 1; }
anew() { [ "$driver" = made-up ] || : > set; }
used=${set##* }
case $set in *blocks*) used=$(echo $set | wc -w); used=$((used - 1)) ;; *start*) used=$((${set%% *} + used)) ;; esac
case $1 in
-i) echo "driver: $driver" ;;
-g) printf 'Pre-set maximums:\nRX: 4096\nCurrent hardware settings:\nRX: %s\n' "$(cat ring)" ;;
-G) echo "$4" > ring; anew ;;
-l) printf 'Pre-set maximums:\nCombined: 64\nCurrent hardware settings:\nCombined: %s\n' "$rings" ;;
-x)
    echo "RX flow hash indirection table for $2 with $rings RX ring(s):"
    [ "$set" ] || [ "$driver" != igb ] || set="blocks $(yes $((ENTRIES / rings)) | head -n "$rings" | tr '\n' ' ')"
    echo "${set:-$rings}" | awk '{
        $1 == "blocks" ? n = 0 : n = $NF
        queue = n ? 0 : 2; left = $2
        for (i = 0; i < ENTRIES; i++) {
            while (!n && !left) left = $(++queue)
            left--
            entry = n ? (NF > 1 ? $1 : 0) + i % n : queue - 2
            printf (i % 8 ? " %5d" : (i ? "\n" : "") sprintf("%5d:", i) " %5d"), entry
        }
        print ""
    }'
    printf 'RSS hash key:\n%s\nRSS hash function:\n    toeplitz: on\n' "$(cat key)" ;;
-X)
    case $3 in
    default) : > set ;;
    hkey) echo "$4" > key ;;
    weight) shift 3; echo "blocks $*" > set ;;
    *) [ $(($4 + ${6:-0})) -le "$rings" ] || no; echo "${6:+$6 start }$4" > set ;;
    esac ;;
-L)
    [ "${used:-0}" -le "$4" ] || no
    [ "$4" -ge "$rings" ] || echo 6d:5a:56:da > key  # i40e_reconfig_rss_queues discards the user's
    echo "$4" > rings; anew ;;
*) exit 1 ;;
esac
"""


@pytest.fixture
def nic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "nic"
    place.mkdir()
    tool = place / "ethtool"
    tool.write_text(ETHTOOL.replace("ENTRIES", str(ENTRIES)))
    tool.chmod(0o755)
    (place / "rings").write_text(f"{RINGS}\n")
    (place / "set").write_text("")
    (place / "ring").write_text("512\n")
    (place / "key").write_text("00:11:22:33\n")
    (place / "driver").write_text("made-up\n")
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin:/usr/sbin:/sbin")
    return place


def _table(nic: Path) -> list[str]:
    return [(nic / name).read_text().strip() for name in ("rings", "set", "key")]


@contextlib.contextmanager
def _applied(folder: Path, setting: Mapping[str, Scalar]) -> Iterator[tuple[MachineShell, session.Session]]:
    """Apply a setting to `lo`; yield the shell and the session that can undo it."""
    (journals := folder / "journals").mkdir(mode=0o700)
    with MachineShell() as shell:
        begun = session.begin(shell, plan(shell, setting, [LO]), journals)
        begun.apply()
        yield shell, begun


SETTINGS: list[dict[str, Scalar]] = [
    {"nic.rss-equal": 2},
    {"nic.channels-combined": 4},
    {"nic.channels-combined": 16},
    {"nic.channels-combined": 4, "nic.rss-equal": 2},
    {"nic.channels-combined": 16, "nic.rss-equal": 12},
    {"nic.channels-combined": 16, "nic.rss-equal": 8},
]


@pytest.mark.parametrize("found", ["", "2", "3"], ids=["default", "two queues", "three queues"])
@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_table_is_the_default_again_where_it_was(
    nic: Path, tmp_path: Path, setting: dict[str, Scalar], by: str, found: str
) -> None:
    """It was set to all queues, and forbade fewer of them from then on."""
    (nic / "set").write_text(found)
    before = _table(nic)
    with _applied(tmp_path, setting) as (shell, begun):
        assert all(f"knob.{name}" in begun.facts() for name in setting)
        check_undone(shell, begun, by, lambda: _table(nic), before)


@pytest.mark.parametrize("found", ["3", "2 start 4", "blocks 30 0 18"])
@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("name", ["nic.ring-rx", "nic.channels-combined"])
def test_a_table_that_a_driver_makes_anew_is_restored(
    nic: Path, tmp_path: Path, name: str, by: str, found: str
) -> None:
    """With other rings, frames or pause frames ixgbe lost it, and the session ended as if everything were back."""
    (nic / "driver").write_text("ixgbe\n")
    (nic / "set").write_text(f"{found}\n")
    before = [*_table(nic), "512\n"]
    with _applied(tmp_path, {name: 1024 if "ring" in name else 16}) as (shell, begun):
        assert _table(nic)[1] == ""
        assert begun.disturbed()
        check_undone(shell, begun, by, lambda: [*_table(nic), (nic / "ring").read_text()], before)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize(("rings", "asked"), [("1", 4), ("4", 1), ("4", 2)])
def test_a_table_of_blocks_that_follows_the_queues_still_does(
    nic: Path, tmp_path: Path, rings: str, asked: int, by: str
) -> None:
    """That of one queue could not be read with four, and was called stuck although it came back with them."""
    (nic / "driver").write_text("igb\n")
    (nic / "rings").write_text(f"{rings}\n")
    with _applied(tmp_path, {"nic.channels-combined": asked}) as (shell, begun):
        check_undone(shell, begun, by, lambda: _table(nic), [rings, "", "00:11:22:33"])


@pytest.mark.parametrize("setting", [*SETTINGS[:2], {"nic.ring-rx": 1024}], ids=str)
def test_an_epilog_of_slurm_restores_the_default(nic: Path, tmp_path: Path, setting: dict[str, Scalar]) -> None:
    profile = Profile("p", "c", ("lo",), {name: str(value) for name, value in setting.items()})
    if "nic.ring-rx" in setting:
        (nic / "driver").write_text("ixgbe\n")
        (nic / "set").write_text("blocks 30 0 18\n")
    before = _table(nic)
    for name, text in slurm(profile).files.items():
        script = tmp_path / name
        script.write_text(text.replace("/run/nearmetal", str(tmp_path / "kept")))
        subprocess.run(["sh", str(script)], check=True, env={"SLURM_JOB_ID": "1", "PATH": f"{nic}:/usr/bin:/bin"})
        assert (_table(nic) == before) == name.startswith("epilog")
