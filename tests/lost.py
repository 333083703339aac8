"""Power failures: only synced data are left of a folder (tests/native/lose.c)."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal import process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.process import Finished

SOURCE = Path(__file__).parent / "native" / "lose.c"
PACKAGES = (Path(__file__).parents[1], Path(__file__).parents[1] / "src", Path(__file__).parent)


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
    process.run(["cc", *flags, "-o", str(made), str(SOURCE), "-ldl"], timeout_s=600, check=True)
    return made
