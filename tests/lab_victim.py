"""Dies in the middle of setting knobs of a real device, in the lab's guest: `python3 lab_victim.py DEVICE SETTING`.

DEVICE is an interface of the node, or `netdevsim`, which is made here; SETTING is JSON. Prints what happened, one line
per event; the last line is `all as found` when every death was undone.
"""

from __future__ import annotations

import base64
import json
import lzma
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs import rollback, session
from nearmetal.knobs.access import KnobError, read_all, write_one
from nearmetal.knobs.folder import host_lock, open_journals
from nearmetal.knobs.journal import Journal
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.table import find
from nearmetal.knobs.watchdog import WatchLimits

HERE = Path(__file__).parent
NETDEVSIM_ID = 7
MOST = Path(f"/sys/kernel/debug/netdevsim/netdevsim{NETDEVSIM_ID}/ports/0/ethtool/ring/rx_max_pending")
"""How long a receive ring netdevsim takes."""


class Countdown:
    def __init__(self, events: int) -> None:
        self.left = events

    def tick(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def make_netdevsim() -> str:
    """Return a new netdevsim device; print the reason and exit if the kernel has none."""
    for name in ("psample", "netdevsim"):
        packed = HERE / f"{name}.ko.xz.base64"
        if packed.exists():
            (HERE / f"{name}.ko").write_bytes(lzma.decompress(base64.b64decode(packed.read_text())))
            subprocess.run(["insmod", str(HERE / f"{name}.ko")], check=False)
    subprocess.run(["modprobe", "-q", "netdevsim"], check=False)
    if not Path("/sys/bus/netdevsim").exists():
        say("the kernel has no netdevsim")
        sys.exit(0)
    before = set(Path("/sys/class/net").iterdir())
    Path("/sys/bus/netdevsim/new_device").write_text(f"{NETDEVSIM_ID} 1 4")
    (made,) = set(Path("/sys/class/net").iterdir()) - before
    # A node has a sysfs of its own, without what is mounted in the machine's.
    subprocess.run(["mount", "-t", "debugfs", "debugfs", "/sys/kernel/debug"], check=True)
    subprocess.run(["ip", "link", "set", made.name, "up"], check=True)
    return made.name


def state(shell: MachineShell, target: Target, names: list[str]) -> list[str | None]:
    accesses = [access for name in names for access in find(name).accesses(shell, target)]
    return [reading.value for reading in read_all(shell, accesses)]


def victim(target: Target, setting: dict[str, object], folder: Path, event: int) -> None:
    """Set everything and die at an event: before or after a record, before or after a write."""
    countdown = Countdown(event)
    append, write = Journal.append, session.write_one

    def dying_append(journal: Journal, record: dict[str, object]) -> None:
        countdown.tick()
        append(journal, record)
        countdown.tick()

    def dying_write(*given: object) -> None:
        countdown.tick()
        write(*given)  # type: ignore[arg-type]
        countdown.tick()

    Journal.append = dying_append  # type: ignore[method-assign]
    session.write_one = dying_write  # type: ignore[assignment]
    with MachineShell() as shell, host_lock(folder):
        session.begin(shell, plan(shell, setting, [target]), folder).apply()  # type: ignore[arg-type]


def orphan(target: Target, setting: dict[str, object], folder: Path) -> None:
    """Set everything under a watchdog and die."""
    with MachineShell() as shell, host_lock(folder):
        intended = plan(shell, setting, [target])  # type: ignore[arg-type]
        session.begin(shell, intended, folder, guard=WatchLimits(look_ms=100)).apply()
        os.kill(os.getpid(), signal.SIGKILL)


def died(run: object, *given: object) -> bool:
    """Run a function in a child; return whether it was killed."""
    child = os.fork()
    if not child:
        try:
            run(*given)  # type: ignore[operator]
        except BaseException:  # noqa: BLE001 - nothing of the child may go on as the parent
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def expect(met: bool, what: str) -> None:
    if not met:
        say(f"not so: {what}")
        sys.exit(1)


def refusals(shell: MachineShell, target: Target) -> None:
    """A value that the device refuses gives an errno in the middle of a setting, and everything is restored."""
    names = ["nic.rx-usecs", "nic.ring-rx", "nic.channels-combined"]
    present = state(shell, target, names)
    for name, value in (("nic.ring-rx", "4000"), ("nic.channels-combined", "9"), ("nic.pause-autoneg", "on")):
        (access,) = find(name).accesses(shell, target)
        MOST.write_text("128")
        try:
            write_one(shell, access, value)
        except KnobError as error:
            expect(error.errno_name in {"EINVAL", "EOPNOTSUPP"}, f"the answer to {name} has a name: {error.message}")
        else:
            expect(False, f"{name} = {value} was taken")
    MOST.write_text("4096")
    intended = plan(shell, {"nic.rx-usecs": 77, "nic.ring-rx": 1024}, [target])
    begun = session.begin(shell, intended, HERE / "journals")
    MOST.write_text("128")
    try:
        begun.apply()
    except KnobError as error:
        expect(error.errno_name == "EINVAL", f"a ring that no longer fits is refused: {error.message}")
    else:
        expect(False, "the ring was taken")
    begun.restore()
    expect(state(shell, target, names) == present, "a refusal in the middle leaves nothing behind")
    say("refusals have names")


def main() -> None:
    setting = json.loads(sys.argv[2])
    device = make_netdevsim() if sys.argv[1] == "netdevsim" else sys.argv[1]
    target, folder = Target("", device), HERE / "journals"
    folder.mkdir()
    with MachineShell() as shell:
        found = state(shell, target, list(setting))
        say(f"{device}: {dict(zip(setting, found, strict=False))}")
        event = 0
        while died(victim, target, setting, folder, event):
            for path in open_journals(folder):
                rollback.roll_back(shell, path)
            expect(open_journals(folder) == [], f"journals end after a kill at event {event}")
            expect(state(shell, target, list(setting)) == found, f"all is as found after a kill at event {event}")
            event += 1
        for path in open_journals(folder):
            rollback.roll_back(shell, path)
        expect(event == 6 * len(setting), f"every record and write was died at, {event} events")
        say(f"killed {event} times")
        expect(died(orphan, target, setting, folder), "the orphan was killed")
        for _ in range(100):
            if state(shell, target, list(setting)) == found:
                break
            time.sleep(0.1)
        expect(state(shell, target, list(setting)) == found, "the watchdog put everything back")
        say("the watchdog acted")
        if sys.argv[1] == "netdevsim":
            refusals(shell, target)
    say("all as found")


if __name__ == "__main__":
    main()
