"""What a data path is: a recipe over a host that joins nodes, and says where the traffic must show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from nearmetal.hosts.host import Shell
from nearmetal.study.order import PathOrder


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a path ends on a node: `interface` and `address` are empty on paths without a network."""

    node: str
    interface: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """A path that is up: one endpoint a node, in node order, and its subnet such as `10.77.0.0/24`.

    `alone` says whether the nodes are nearmetal's own; on a machine that others use too, other interfaces carry
    other traffic. `beneath` are interfaces whose counters include the path's traffic, such as the port under
    a function.
    """

    ends: tuple[Endpoint, ...]
    subnet: str = ""
    alone: bool = True
    beneath: tuple[Endpoint, ...] = ()

    @property
    def networked(self) -> bool:
        """Return whether traffic between nodes shows on interfaces."""
        return bool(self.subnet)


NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


class Path(Protocol):
    """A recipe. A path may be brought up again after it was taken down; recipes hold no state."""

    @property
    def kind(self) -> str:
        """The word in the study file, and the key in the table of paths."""

    @property
    def about(self) -> str:
        """One line for people: what the traffic goes through."""

    @property
    def options(self) -> Mapping[str, str]:
        """What each of the path's options means, by name; a study that gives another one is refused."""

    def up(self, shell: Shell, order: PathOrder, nodes: Sequence[str], /) -> Endpoints:
        """Join the nodes and wait until each reaches each; raise NearmetalError when that fails."""

    def down(self, shell: Shell, endpoints: Endpoints, /) -> None:
        """Take the path apart where that matters to the machine; scratch nodes may simply vanish."""


@dataclass(frozen=True, slots=True)
class PathRecipe:
    """A path as two functions; one whose parts vanish with their nodes has nothing to take down."""

    kind: str
    about: str
    up: Callable[[Shell, PathOrder, Sequence[str]], Endpoints]
    down: Callable[[Shell, Endpoints], None] = lambda _shell, _endpoints: None
    options: Mapping[str, str] = field(default_factory=lambda: NO_OPTIONS)
