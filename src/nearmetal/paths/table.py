"""Every path that nearmetal knows, in the order of `nearmetal doctor`: a new path is one file and one row."""

from __future__ import annotations

from nearmetal.errors import named
from nearmetal.paths.bridge import Bridge
from nearmetal.paths.declared import DeclaredPath
from nearmetal.paths.guests import GUEST_PATHS
from nearmetal.paths.macvlan import Macvlan
from nearmetal.paths.native import Native
from nearmetal.paths.path import Path
from nearmetal.paths.roce import ROCE_PATHS
from nearmetal.paths.shm import Shm
from nearmetal.paths.tap import Tap
from nearmetal.paths.veth import Veth
from nearmetal.paths.vf import Vf

_OF_ANY_KERNEL = (Shm(), Veth(), Bridge(), Macvlan(), Tap())
_ALL: tuple[Path, ...] = (*_OF_ANY_KERNEL, Native(), Vf(), *GUEST_PATHS, *ROCE_PATHS, DeclaredPath())
PATHS: dict[str, Path] = {path.kind: path for path in _ALL}


def find_path(kind: str) -> Path:
    """Return the recipe of that kind; raise BadInputError with the known kinds otherwise."""
    return named(PATHS, kind, f"there is no path {kind!r}")
