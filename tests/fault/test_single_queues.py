"""Interrupt moderation that was set for single queues is there again after a roll-back.

`ethtool` is a program of this test: no device of a test machine has such queues. It behaves like ice (the device's
values are those of queue 0) or like mlx5 (they are separate): what is new for the device becomes that of all queues,
and new queues have the device's values.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs import session
from nearmetal.knobs.access import KnobError
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.tune.export.scripts import slurm
from nearmetal.tune.profile import Profile
from undoing import WAYS, check_undone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.study.order import Scalar

LO = Target("", "lo")
FOUND = {"adaptive-rx": "off", "adaptive-tx": "off", "rx-usecs": "16", "rx-frames": "32", "tx-usecs": "16"}
FOUND |= {"tx-frames": "32", "rx-usecs-high": "0"}
ETHTOOL = r"""#!/bin/sh
cd "${0%/*}" || exit 1
of() { read -r is < "$1/$2"; }
copy() { for file in "$1"/*; do of "$1" "${file##*/}"; echo "$is" > "$2/${file##*/}"; done; } # without a program
show() {
    of $1 adaptive-rx; rx=$is; of $1 adaptive-tx
    echo "Adaptive RX: $rx  TX: $is"
    echo "stats-block-usecs: 0"
    for name in rx-usecs rx-frames tx-usecs tx-frames rx-usecs-high; do of $1 $name; echo "$name: $is"; done
}
of . driver
count=0 driver=$is
while [ -d queue$count ]; do count=$((count + 1)); done
whole=device
[ "$driver" != ice ] || whole=queue0
case "$1 $3" in
"-i ") echo "driver: $driver" ;;
"-l ") printf 'Pre-set maximums:\nCombined: 8\nCurrent hardware settings:\nCombined: %s\n' "$count" ;;
"-c ") echo "Coalesce parameters for $2:"; show $whole ;;
"-C "*)
    of $whole "$3"
    [ "$is" != "$4" ] || exit 0
    echo "$4" > "$whole/$3"
    for queue in queue*; do [ $queue = $whole ] || copy $whole $queue; done ;;
"-L "*)
    mkdir new
    copy $whole new
    rm -r queue*
    number=1
    while [ $number -lt "$4" ]; do mkdir queue$number; copy new queue$number; number=$((number + 1)); done
    mv new queue0 ;;
"-Q --show-coalesce")
    echo "The sub commands will be applied to all $count queues"
    number=0
    while [ $number -lt "$count" ]; do echo "Queue: $number"; show queue$number; echo; number=$((number + 1)); done ;;
"-Q queue_mask")
    number=0 mask=${4#0x}
    while [ ${#mask} -gt 1 ]; do mask=${mask%0} number=$((number + 4)); done
    while [ $mask -gt 1 ]; do mask=$((mask / 2)); number=$((number + 1)); done
    [ -d queue$number ] || { echo "Cannot get device per queue parameters: Invalid argument" >&2; exit 1; }
    case $5 in
    --coalesce) echo "$7" > "queue$number/$6" ;;
    *) echo "Queue: $number"; show queue$number ;;
    esac ;;
*) exit 1 ;;
esac
"""


@pytest.fixture(params=["ice", "mlx5_core"])
def nic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Make a NIC with four queues, of which the third was told other values."""
    place = tmp_path / "nic"
    place.mkdir()
    (place / "driver").write_text(f"{request.param}\n")
    for name in ("device", *(f"queue{number}" for number in range(4))):
        (place / name).mkdir()
        for parameter, value in FOUND.items():
            (place / name / parameter).write_text(f"{value}\n")
    (place / "queue2" / "rx-usecs").write_text("50\n")
    (place / "queue2" / "tx-frames").write_text("8\n")
    tool = place / "ethtool"
    tool.write_text(ETHTOOL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin:/usr/sbin:/sbin")
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "journals"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def shell() -> Iterator[MachineShell]:
    with MachineShell() as machine:
        yield machine


def _of_queues(nic: Path, parameter: str) -> list[str]:
    return [path.read_text().strip() for path in sorted(nic.glob(f"queue*/{parameter}"))]


def _state(nic: Path) -> dict[str, str]:
    places = (path for path in sorted(nic.glob("*/*")) if path.parent.name != "device" or "mlx5" in _driver(nic))
    return {str(path.relative_to(nic)): path.read_text() for path in places}


def _driver(nic: Path) -> str:
    return (nic / "driver").read_text()


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize(
    "setting",
    [
        {"nic.rx-usecs": 8},
        {"nic.rx-usecs": 16},
        {"nic.rx-frames": 1},
        {"nic.adaptive-rx": "on"},
        {"nic.rx-usecs": 8, "nic.rx-usecs.queue1": 4},
        {"nic.channels-combined": 2},
        {"nic.channels-combined": 6, "nic.rx-usecs": 8},
    ],
    ids=str,
)
def test_values_of_single_queues_are_restored(
    nic: Path, shell: MachineShell, folder: Path, setting: dict[str, Scalar], by: str
) -> None:
    """Those of queue 0 came back for all, and the session ended as if everything were as before."""
    before = _state(nic)
    begun = session.begin(shell, plan(shell, setting, [LO]), folder)
    begun.apply()
    if "nic.rx-usecs" in setting:
        of_one = str(setting.get("nic.rx-usecs.queue1", setting["nic.rx-usecs"]))
        held = _of_queues(nic, "rx-usecs")
        assert held[:4] == [str(setting["nic.rx-usecs"]), of_one, *[str(setting["nic.rx-usecs"])] * 2]
    check_undone(shell, begun, by, lambda: _state(nic), before)


def test_other_values_of_queues_are_not_overwritten(nic: Path, shell: MachineShell) -> None:
    (nic / "queue2" / "rx-usecs-high").write_text("40\n")
    with pytest.raises(KnobError, match="queues of lo differ in rx-usecs-high"):
        plan(shell, {"nic.rx-usecs": 8}, [LO])


def test_queues_that_are_alike_need_no_care(nic: Path, shell: MachineShell) -> None:
    for parameter, value in FOUND.items():
        (nic / "queue2" / parameter).write_text(f"{value}\n")
    assert [cell.knob for cell in plan(shell, {"nic.rx-usecs": 8}, [LO]).cells] == ["nic.rx-usecs"]


def test_what_a_queue_adapts_by_itself_is_no_value_of_its_own(nic: Path, shell: MachineShell) -> None:
    for name in ("device", *(f"queue{number}" for number in range(4))):
        (nic / name / "adaptive-rx").write_text("on\n")
    (nic / "queue2" / "tx-frames").write_text(f"{FOUND['tx-frames']}\n")
    assert [cell.knob for cell in plan(shell, {"nic.tx-usecs": 8}, [LO]).cells] == ["nic.tx-usecs"]


@pytest.mark.parametrize("setting", [{"nic.rx-usecs": "8"}, {"nic.adaptive-rx": "on"}, {"nic.rx-frames": "1"}], ids=str)
def test_an_epilog_of_slurm_restores_single_queues(nic: Path, tmp_path: Path, setting: dict[str, Scalar]) -> None:
    for number in range(4, 70):  # no shell counts as far as the mask of the last ones
        (nic / f"queue{number}").mkdir()
        for parameter, value in FOUND.items():
            (nic / f"queue{number}" / parameter).write_text(f"{value}\n")
    (nic / "queue69" / "rx-usecs").write_text("70\n")
    before = _state(nic)
    for name, text in slurm(Profile("p", "c", ("lo",), dict(setting))).files.items():
        script = tmp_path / name
        script.write_text(text.replace("/run/nearmetal", str(tmp_path / "kept")))
        subprocess.run(["sh", str(script)], check=True, env={"SLURM_JOB_ID": "1", "PATH": f"{nic}:/usr/bin:/bin"})
        assert (_state(nic) == before) == name.startswith("epilog")
    assert not (tmp_path / "kept/1").exists()


IGBVF = r"""#!/bin/sh
cd "${0%/*}" || exit 1
read -r usecs < usecs
case "$1 $3 $4" in
"-i "*) echo "driver: igbvf" ;;
"-c "*) printf 'Coalesce parameters for %s:\nAdaptive RX: n/a  TX: n/a\nrx-usecs: %s\nrx-frames: n/a\n' "$2" "$usecs" ;;
"-C rx-usecs 0") echo 1 > usecs ;;
"-C rx-usecs 1") echo "netlink error: Invalid argument" >&2; exit 1 ;;
"-C rx-usecs "*) echo "$4" > usecs ;;
*) exit 1 ;;
esac
"""


@pytest.mark.parametrize("by", WAYS)
def test_a_value_that_a_driver_shows_and_does_not_take_is_restored(
    by: str, tmp_path: Path, shell: MachineShell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """igbvf shows 1 after 0 was written, as by a profile that was applied: no later setting could be put back."""
    tool, usecs = tmp_path / "ethtool", tmp_path / "usecs"
    tool.write_text(IGBVF)
    tool.chmod(0o755)
    usecs.write_text("1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin:/usr/sbin:/sbin")
    begun = session.begin(shell, plan(shell, {"nic.rx-usecs": 50}, [LO]), folder)
    begun.apply()
    assert usecs.read_text() == "50\n"
    check_undone(shell, begun, by, usecs.read_text, "1\n")
