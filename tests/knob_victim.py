"""Applies a setting to a `KnobMachine` and dies by SIGKILL at event N: before or after each record and each write.

Called by `test_knob_faults.py` as `python knob_victim.py ROOT FOLDER EVENT`; status 7 says that there is no
event N.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from knob_machine import KnobMachine
from nearmetal.knobs import session
from nearmetal.knobs.folder import host_lock
from nearmetal.knobs.journal import Journal
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan

SETTING = {"nic.adaptive-rx": False, "nic.rx-usecs": 0, "nic.gro": False, "host.busy_read": 50}


class Countdown:
    def __init__(self, events: int) -> None:
        self.left = events

    def tick(self, _what: object = None) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main(root: Path, folder: Path, event: int) -> None:
    countdown = Countdown(event)
    shell = KnobMachine(root, countdown.tick)
    create, append = Journal.create, Journal.append

    def dying_append(journal: Journal, record: dict[str, Any]) -> None:
        countdown.tick()
        append(journal, record)
        countdown.tick()

    def dying_create(path: Path, records: list[dict[str, Any]]) -> Journal:
        countdown.tick()
        made = create(path, records)
        countdown.tick()
        return made

    Journal.append = dying_append  # type: ignore[method-assign]
    Journal.create = staticmethod(dying_create)  # type: ignore[method-assign]
    with host_lock(folder):
        intended = plan(shell, SETTING, [Target("", "eth1"), Target("")])
        session.begin(shell, intended, folder).apply()
    sys.exit(7)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
