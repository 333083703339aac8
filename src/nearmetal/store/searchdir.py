"""The launches of a search of settings, kept as those of a run are, with `search.json` in place of `run.json`.

Its trials differ in settings that no study names, and must not be compared as those of a run.
"""

from pathlib import Path
from typing import ClassVar

from nearmetal.errors import ForeignFileError
from nearmetal.store.rundir import RunDir

_PLACE = "profiles-go-to"


class SearchDir(RunDir):
    """The launches of a search, numbered in the order in which it asked for them."""

    MARKER: ClassVar[str] = "search.json"
    WHAT: ClassVar[str] = "search directory"
    VERB: ClassVar[str] = "nearmetal tune"
    OPTION: ClassVar[str] = "--run"

    def keep_out(self, place: Path) -> None:
        """Keep where the profiles go."""
        self._disk.put_bytes(self.root / _PLACE, str(place.absolute()).encode())

    def kept_out(self) -> Path:
        """Return where the profiles go; raise ForeignFileError when that is not told."""
        try:
            return Path((self.root / _PLACE).read_text())
        except (OSError, ValueError) as error:
            raise ForeignFileError(f"{self.root}/{_PLACE}: {error}", hint="name the place with --out") from error


def open_either(root: Path) -> RunDir:
    """Open a run or a search for reading."""
    return SearchDir.open(root) if (root / SearchDir.MARKER).exists() else RunDir.open(root)
