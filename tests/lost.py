"""Power failures: only synced data are left of a folder (tests/native/lose.c); and trials to lose."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nearmetal import process
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.samples import CellSamples
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.study.spec import digest
from tests.compiled import compile_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.process import Finished

SOURCE = Path(__file__).parent / "native" / "lose.c"
PACKAGES = (Path(__file__).parents[1], Path(__file__).parents[1] / "src", Path(__file__).parent)
INFO = RunInfo("t", digest("study"), "fake", "a fake", "0", "2026-01-01T00:00:00+00:00")
OUTCOME = Outcome(TrialStatus.VALID, counters={"irq.LOC": 3})


@dataclass(frozen=True)
class LostDisk:
    """A disk that keeps synced data in the folder `kept`."""

    shim: Path
    kept: Path

    def run(self, argv: Sequence[str], *, drop: str = "") -> Finished:
        """Run a program to its end, however it ends, on this disk; `drop` is LOSE_DROP."""
        environment = {
            **os.environ,
            "LD_PRELOAD": str(self.shim),
            "LOSE_KEEP": str(self.kept),
            "LOSE_DROP": drop,
            "PYTHONPATH": ":".join(map(str, PACKAGES)),
        }
        return process.run(argv, timeout_s=600, env=environment)

    def python(self, program: str, *arguments: str, drop: str = "") -> Finished:
        """Run a Python program given as text."""
        return self.run([sys.executable, "-c", program, *arguments], drop=drop)

    def after_power_loss(self, folder: Path, into: Path) -> Path:
        """Rebuild what is left of an earlier folder."""
        real = str(folder.resolve())
        into.mkdir()
        for listing in self.kept.glob("*.folder"):
            if listing.read_text().partition("\n")[0] == real:
                self._build(listing, into)
        return into

    def _build(self, listing: Path, into: Path) -> None:
        for line in listing.read_text().splitlines()[1:]:
            key, name = line.split("\t", 1)
            kept = self.kept / key
            if key.endswith(".file"):
                (into / name).write_bytes(kept.read_bytes() if kept.exists() else b"")
            else:
                (into / name).mkdir()
                if kept.exists():
                    self._build(kept, into / name)


def library(folder: Path) -> Path:
    """Compile the library that puts a program on such a disk."""
    made = folder / "lose.so"
    flags = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
    compile_to(made, ["cc", *flags, str(SOURCE), "-ldl"])
    return made


def append(run: RunDir, trial: int) -> None:
    """Store a trial whose samples are its own."""
    order = Order(trial, 0, PathOrder("veth", "veth"), WorkloadOrder("latency", "engine"))
    ns = np.arange(40, dtype=np.int64).reshape(2, 20) + trial * 1000
    cells = [CellSamples("latency", 8, 5, (0,), ns.copy(), ns, np.zeros((2, 20), np.uint8))]
    run.append(order, OUTCOME, cells, attempt=1, started_utc="2026-01-01T00:00:00+00:00")
