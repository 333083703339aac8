"""What a kind of host is, before one is opened: the row of a study's word `host.kind`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nearmetal.hosts.far.host import FarHost
from nearmetal.hosts.host import Host
from nearmetal.study.spec import HostSpec, Study


@dataclass(frozen=True, slots=True)
class Pace:
    """What trials cost on a host: seconds besides measuring, by how much measuring is slowed down, how many at once."""

    trial_s: float
    slowdown: float = 1.0
    side_by_side: int = 1


@dataclass(frozen=True, slots=True)
class HostKind:
    """What the word in the study file stands for.

    `open` returns the host, ready to run trials, or raises UnavailableError; `pace` is for estimates. `about` and
    `options` are for the reference page. `path_options` are what the host itself understands of a path's options,
    besides the recipe. What trials need is tried before the first, except where `rehearsed` is False. `named_nodes`
    says that the study names its machines. `machine` opens one that a trial was on, by the way to it.
    """

    about: str
    open: Callable[[Study], Host]
    pace: Callable[[HostSpec], Pace]
    options: Mapping[str, str] = field(default_factory=dict)
    path_options: Mapping[str, str] = field(default_factory=dict)
    rehearsed: bool = True
    named_nodes: bool = False
    machine: Callable[[HostSpec], FarHost] | None = None
