"""A table of flows that follows the NIC's queues by itself does so again after a roll-back.

`ethtool` is a program of this test: no device of a test machine has such a table. It behaves like the kernel: a table
that was set stays, and forbids fewer queues than it leads to.
"""

from __future__ import annotations

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
    from nearmetal.study.order import Scalar

LO = Target("", "lo")
RINGS, ENTRIES = 8, 48
ETHTOOL = r"""#!/bin/sh
cd "${0%/*}" || exit 1
read -r rings < rings; read -r set < set
no() { echo "netlink error: Invalid argument" >&2; exit 1; }
case $1 in
-i) echo "driver: $(cat driver)" ;;
-g) printf 'Pre-set maximums:\nRX: 4096\nCurrent hardware settings:\nRX: %s\n' "$(cat ring)" ;;
-G) echo "$4" > ring; : > set ;; # as ixgbe, which restarts
-l) printf 'Pre-set maximums:\nCombined: 64\nCurrent hardware settings:\nCombined: %s\n' "$rings" ;;
-x)
    echo "RX flow hash indirection table for $2 with $rings RX ring(s):"
    entry=0
    while [ $entry -lt ENTRIES ]; do
        printf '%5d:' $entry
        for _ in 1 2 3 4 5 6 7 8; do
            printf ' %5d' $((entry % ${set:-$rings}))
            entry=$((entry + 1))
        done
        echo
    done ;;
-X)
    case $3 in
    default) : > set ;;
    *) [ "$4" -le "$rings" ] || no; echo "$4" > set ;;
    esac ;;
-L) [ "${set:-0}" -le "$4" ] || no; echo "$4" > rings ;;
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
    (place / "driver").write_text("made-up\n")
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin:/usr/sbin:/sbin")
    return place


def _table(nic: Path) -> list[str]:
    return [(nic / name).read_text().strip() for name in ("rings", "set")]


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
    folder = tmp_path / "journals"
    folder.mkdir(mode=0o700)
    with MachineShell() as shell:
        begun = session.begin(shell, plan(shell, setting, [LO]), folder)
        begun.apply()
        assert all(f"knob.{name}" in begun.facts() for name in setting)
        check_undone(shell, begun, by, lambda: _table(nic), before)


@pytest.mark.parametrize("by", WAYS)
def test_a_table_that_a_driver_makes_anew_when_it_restarts_is_restored(nic: Path, tmp_path: Path, by: str) -> None:
    """With other rings, frames or pause frames ixgbe lost it, and the session ended as if everything were back."""
    (nic / "driver").write_text("ixgbe\n")
    (nic / "set").write_text("3\n")
    (folder := tmp_path / "journals").mkdir(mode=0o700)
    with MachineShell() as shell:
        begun = session.begin(shell, plan(shell, {"nic.ring-rx": 1024}, [LO]), folder)
        begun.apply()
        assert begun.disturbed() == {"nic.rss-equal of lo": "3 -> 8"}
        check_undone(shell, begun, by, lambda: [*_table(nic), (nic / "ring").read_text()], ["8", "3", "512\n"])


@pytest.mark.parametrize("setting", [*SETTINGS[:2], {"nic.ring-rx": 1024}], ids=str)
def test_an_epilog_of_slurm_restores_the_default(nic: Path, tmp_path: Path, setting: dict[str, Scalar]) -> None:
    profile = Profile("p", "c", ("lo",), {name: str(value) for name, value in setting.items()})
    (nic / "set").write_text("3\n" if "nic.ring-rx" in setting else "")
    before = _table(nic)
    for name, text in slurm(profile).files.items():
        script = tmp_path / name
        script.write_text(text.replace("/run/nearmetal", str(tmp_path / "kept")))
        subprocess.run(["sh", str(script)], check=True, env={"SLURM_JOB_ID": "1", "PATH": f"{nic}:/usr/bin:/bin"})
        assert (_table(nic) == before) == name.startswith("epilog")
