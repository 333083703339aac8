"""What the NAPI threads of an interface were told comes back with them: real threads of a veth.

The kernel ends them with their NAPIs, and since Linux 6.17 with `nic.threaded-napi` 0; others begin anew.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs import session
from nearmetal.knobs.knob import Target
from nearmetal.knobs.napi import THREADS
from nearmetal.knobs.plan import plan
from nearmetal.knobs.table import find
from undoing import WAYS, check_undone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nearmetal.process import Finished
    from nearmetal.study.order import Scalar

# Threads of the kernel are seen from every namespace, by the name of their interface alone.
pytestmark = pytest.mark.xdist_group("napi threads")

NAME = "napith0"
T0 = Target("", NAME)
PLACE = f"""set -e
ip link add {NAME} numrxqueues 2 numtxqueues 2 type veth peer name {NAME}p numrxqueues 2 numtxqueues 2
ip link set {NAME} up
ethtool -K {NAME} gro on
echo 1 > /sys/class/net/{NAME}/threaded
for file in /proc/[0-9]*/comm; do
    read -r name < "$file" || continue
    case $name in napi/{NAME}-*) thread=${{file%/comm}} thread=${{thread#/proc/}} ;; *) continue ;; esac
    if [ "$first" ]; then
        chrt -b -p 0 "$thread"
        renice -n 7 -p "$thread"
    else
        first=$thread
        taskset -pc 0 "$thread"
        chrt -f -p 10 "$thread"
    fi
done
[ "$first" ]
"""


class Inside(MachineShell):
    """This machine, threads of the kernel and all, in another network namespace."""

    def __init__(self, holder: int) -> None:
        super().__init__()
        self._enter = ["nsenter", "-t", str(holder), "-n", "-m"]

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        return super().run([*self._enter, *argv], **options)

    def write(self, path: str, data: bytes, *, node: str = "") -> None:
        self.run(["sh", "-c", 'cat > "$0"', path], stdin=data)


@pytest.fixture
def shell() -> Iterator[Inside]:
    argv = ["unshare", "-n", "-m", "sh", "-c", "mount -t sysfs sysfs /sys && echo there && exec sleep 600"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as holder:
        try:
            if holder.stdout is None or not holder.stdout.readline():
                pytest.skip("this user can make no network namespace")
            with Inside(holder.pid) as machine:
                placed = machine.run(["sh", "-c", PLACE], check=False)
                if not placed.ok:
                    pytest.skip(f"no NAPI threads can be placed here: {placed.complaint()}")
                yield machine
        finally:
            holder.kill()


def _told(shell: Inside) -> str | None:
    return find(THREADS).read(shell, T0).value


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("setting", [{"nic.threaded-napi": 0}, {"nic.gro": "off"}], ids=str)
def test_what_napi_threads_were_told_is_restored(
    shell: Inside, tmp_path: Path, setting: dict[str, Scalar], by: str
) -> None:
    """They ran on all processors, at no priority, and the session ended as if everything were back."""
    before = _told(shell)
    assert before is not None
    assert {one.partition("/")[2] for one in before.split(";")} == {"1/10/0", "3/0/7"}
    begun = session.begin(shell, plan(shell, setting, [T0]), tmp_path)
    begun.apply()
    assert _told(shell) != before
    check_undone(shell, begun, by, lambda: _told(shell), before)


def test_an_interface_without_threads_has_none_to_restore(shell: Inside) -> None:
    shell.write(f"/sys/class/net/{NAME}/threaded", b"0\n")
    if _told(shell) is not None:
        pytest.skip("this kernel keeps the threads")
    assert THREADS not in {cell.knob for cell in plan(shell, {"nic.threaded-napi": 1}, [T0]).cells}
