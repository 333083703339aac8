"""What a data path is: a recipe over a host that joins nodes, and says where the traffic must show."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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

    Where it has several, commas separate them.

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


@dataclass(frozen=True, slots=True)
class PathRecipe:
    """A path; it may be brought up again after it was taken down, and holds no state.

    `kind` is the word in the study file, and the key in the table of paths; `about` is one line for people: what the
    traffic goes through. `up` joins the nodes and waits until each reaches each; it raises NearmetalError when that
    fails. `down` takes the path apart where that matters to the machine; one whose parts vanish with their nodes has
    nothing to do. `options` says what each of the path's options means; a study that gives another one is refused.
    `pair` says that it joins two namespaces, and no more.
    """

    kind: str
    about: str
    up: Callable[[Shell, PathOrder, Sequence[str]], Endpoints]
    down: Callable[[Shell, Endpoints], None] = lambda _shell, _endpoints: None
    options: Mapping[str, str] = field(default_factory=dict)
    pair: bool = False
