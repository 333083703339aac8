"""Applies a setting to this machine under a watchdog, then dies by SIGKILL: `python knob_orphan.py DEVICE FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs import session
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.watchdog import WatchLimits

if __name__ == "__main__":
    shell = MachineShell()
    intended = plan(shell, {"nic.mtu": 1400, "nic.gro": True}, [Target("", sys.argv[1])])
    session.begin(shell, intended, Path(sys.argv[2]), guard=WatchLimits(look_ms=50)).apply()
    os.kill(os.getpid(), signal.SIGKILL)
