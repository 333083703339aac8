"""Every path that nearmetal knows, in the order of `nearmetal doctor`: a new path is one file and one row."""

from nearmetal.errors import named
from nearmetal.paths.bridge import BRIDGE
from nearmetal.paths.declared import DECLARED_PATH
from nearmetal.paths.guests import GUEST_PATHS
from nearmetal.paths.macvlan import MACVLAN
from nearmetal.paths.native import NATIVE
from nearmetal.paths.path import PathRecipe
from nearmetal.paths.roce import ROCE_PATHS
from nearmetal.paths.shm import SHM
from nearmetal.paths.tap import TAP
from nearmetal.paths.veth import VETH
from nearmetal.paths.vf import VF

_OF_ANY_KERNEL = (SHM, VETH, BRIDGE, MACVLAN, TAP)
_ALL = (*_OF_ANY_KERNEL, NATIVE, VF, *GUEST_PATHS, *ROCE_PATHS, DECLARED_PATH)
PATHS: dict[str, PathRecipe] = {path.kind: path for path in _ALL}


def find_path(kind: str) -> PathRecipe:
    """Return the recipe of that kind; raise BadInputError with the known kinds otherwise."""
    return named(PATHS, kind, f"there is no path {kind!r}")
