"""The interrupt stage against samples of the lab: the bare port and its function, with moderation off and on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal.predict.fit_run import fit_records
from nearmetal.predict.machine_file import Changes
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.simulate import simulate
from nearmetal.predict.trace import DoCall, Repeat
from nearmetal.store.archive import unarchive
from nearmetal.store.rundir import RunDir

if TYPE_CHECKING:
    from nearmetal.predict.models import Machine

STEPS = 100


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    folder = tmp_path_factory.mktemp("lab") / "run"
    unarchive(Path(__file__).parents[1] / "data" / "older-lab-run.zip", folder)
    return RunDir.open(folder)


def round_trip_ns(machine: Machine, message_bytes: int) -> float:
    """Return the median of a ping-pong's round trips."""

    def program(rank: int) -> Program:
        call = {"peer": 1 - rank, "message_bytes": message_bytes}
        ops = (Op(OpKind.SEND, **call), Op(OpKind.RECV, **call), Op(OpKind.MARK, tag=1))  # type: ignore[arg-type]
        return Program((Repeat(STEPS, tuple(map(DoCall, (1, 0) if rank else (0, 1, 2)))),), ops, (Comm(0, size=2),))

    found = simulate(Schedule(2, (program(0), program(1))), machine, Placement.block(2, 1), keep_marks=True)
    return float(np.median(np.diff(found.marks[0][:, 2]))) / 1000


@pytest.mark.parametrize(
    ("path", "rule", "interval_ns"), [("native", "igb-queue", 196 * 1024), ("vf", "igbvf", 488 * 1024)]
)
def test_a_ping_pong_locks_to_the_moderation_timer(lab: RunDir, path: str, rule: str, interval_ns: int) -> None:
    """Fitted without moderation and replayed with the driver's rule, a round trip takes one interval, as measured."""
    launches = [one for one in lab.trials() if one.order.path.label == path and one.order.setting == "default"]
    cells = [(one, cell) for one in launches for cell in one.cells if cell.message_bytes == 8]
    measured_ns = float(np.median([np.median(lab.values(*one)) for one in cells]))
    tuned = fit_records(lab, lab.trials()).find(path, "tuned")
    added = Changes(interrupts=f"{rule}:usecs=3,itr_unit_ns=1024").apply(tuned)
    assert round_trip_ns(tuned.machine, 8) < measured_ns / 3
    assert round_trip_ns(added.machine, 8) == pytest.approx(interval_ns, rel=0.001)
    assert measured_ns == pytest.approx(interval_ns, rel=0.05)  # launches of the function: 467 to 499 us
