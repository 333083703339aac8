"""A program that never ends, at a path that only one test has: others hang the same one at the same time."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from nearmetal.process import of_each_process

if TYPE_CHECKING:
    from pathlib import Path


class Hanging:
    """The program: `argv` starts it."""

    def __init__(self, folder: Path) -> None:
        program = folder / "hangs"
        program.symlink_to(shutil.which("sleep") or "")
        self.argv = [str(program), "infinity"]

    def script(self, place: Path) -> Path:
        """Write a program that turns into it; return the place."""
        place.write_text(f"#!/bin/sh\nexec {' '.join(self.argv)}\n")
        place.chmod(0o755)
        return place

    def running(self) -> list[int]:
        """Return the processes that run it, or have it among their words: they are about to start it."""
        return [pid for pid, line in of_each_process("cmdline") if self.argv[0].encode() in line.split(b"\0")]
