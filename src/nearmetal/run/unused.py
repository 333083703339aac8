"""What a study asks for and nothing would carry out: refused, because a figure would be believed to be of it.

What it measures under two names is warned of.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from nearmetal.errors import BadInputError, listed, meant
from nearmetal.hosts.far.host import DECLARED, HYPERVISOR_OPTION, NETWORK, NODES
from nearmetal.knobs import mpi as mpi_knobs
from nearmetal.knobs.knob import Knob, canon
from nearmetal.knobs.table import find
from nearmetal.paths.shm import SHM
from nearmetal.paths.table import find_path
from nearmetal.stats.summary import Metric
from nearmetal.study.order import PACE, Order, Progress, Scalar
from nearmetal.study.spec import HostSpec, PathSpec, Study, TuneClass, TuneSpec, WorkloadSpec
from nearmetal.units import by_key, format_size
from nearmetal.workloads.apps import ApplicationWorkload
from nearmetal.workloads.command import CommandWorkload
from nearmetal.workloads.engine import Engine
from nearmetal.workloads.fabric import Fabric
from nearmetal.workloads.figures import WITH_OPERATIONS
from nearmetal.workloads.tools.perftest import Perftest

_ENGINES = ("operation", "sizes", "iterations", "warmup", "progress")
"""Keys of a workload that are for its program, as far as that takes them."""
_TAKEN = dict.fromkeys(WITH_OPERATIONS, _ENGINES) | {
    ApplicationWorkload.kind: ("operation", "progress"),
    Fabric.kind: ("progress",),
    CommandWorkload.kind: (),
    Perftest.kind: ("operation", "sizes", "iterations"),
}
_TAKEN_BY_PAIRS = ("sizes",)
_INSTEAD = {
    "operation": "its options say what it does",
    "iterations": "its options say for how long it runs",
    "warmup": "its options say for how long it runs",
    "sizes": "its options say what it does",
    "progress": "it is for ranks of an MPI",
}
_OF_SSH = ("user", "port", "jump", "connect_timeout_s")
_ELSEWHERE = {
    **{key: f"write {key} = ... below [[workload]], outside options" for key in _ENGINES},
    PACE: 'write pace = "random" and pace_range = "... us" below [[workload]]',
}


def refuse_unused(host: str, workload: WorkloadSpec) -> None:
    """Raise BadInputError for a key of a workload that another one overrides or its kind does not use on that host.

    The fake host makes figures of any kind from all of them.
    """
    for problem, hint in _unused(host, workload):
        raise BadInputError(f"workload {workload.name!r}: {problem}", hint=hint)


def _unused(host: str, workload: WorkloadSpec) -> Iterator[tuple[str, str]]:
    given = workload.model_fields_set
    if not workload.placement:
        yield "`placement` is empty, and a launch needs ranks", "placement = [0, 1]"
    for name in (one for one in workload.options if one in _ELSEWHERE):
        yield f"options.{name} would have no effect", _ELSEWHERE[name]
    if "ranks" in given and not isinstance(workload.placement, str) and workload.ranks != len(workload.placement):
        count = len(workload.placement)
        yield f"ranks = {workload.ranks}, but `placement` has {count} of them", "leave `ranks` out: it is for words"
    taken = _taken(workload)
    for key in (one for one in _ENGINES if one in given and one not in taken and host != "fake"):
        yield f"{key!r} would have no effect on kind {workload.kind!r}: {_INSTEAD[key]}", f"leave `{key}` out"


def _taken(workload: WorkloadSpec) -> tuple[str, ...]:
    if workload.kind == CommandWorkload.kind and workload.options.get("mpi"):
        return ("progress",)
    return _TAKEN.get(workload.kind, _TAKEN_BY_PAIRS)


def progress_of(workload: WorkloadSpec) -> Progress | None:
    """Return how a workload's ranks wait for messages, None where it has no ranks of an MPI."""
    return workload.progress if "progress" in _taken(workload) else None


def refuse_log_ins(host: HostSpec) -> None:
    """Raise BadInputError for pods with what only an sshd needs, and for those that are named in two ways."""
    if host.kind != "kubectl":
        return
    if host.hosts_file:
        hint = "write [[host.node]] tables, or the option `selector`"
        raise BadInputError("hosts_file would have no effect on host 'kubectl'", hint=hint)
    if host.node and "selector" in host.options:
        message = "'selector' would have no effect beside [[host.node]], which names the pods"
        raise BadInputError(message, hint="leave one of the two out")
    for node in host.node:
        for key in (one for one in _OF_SSH if one in node.model_fields_set):
            message = f"host.node {node.name!r}: {key!r} would have no effect: kubectl reaches pods without ssh"
            raise BadInputError(message, hint=f"leave `{key}` out")


def refuse_machines(path: PathSpec) -> None:
    """Raise BadInputError for an option that says on which machines a path of another kind is.

    Only far hosts have such options.
    """
    declared = path.recipe == DECLARED
    idle = (HYPERVISOR_OPTION, NETWORK) if declared else (NODES,)
    for option in (one for one in idle if one in path.options):
        message = f"{option!r} would have no effect on path {path.name!r} ({path.recipe})"
        built = "name the machine that it is built on: `hypervisor`, or give it kind = 'declared'"
        raise BadInputError(message, hint="it takes machines as they are: `nodes` names them" if declared else built)


def refuse_nodes(study: Study, order: Order) -> None:
    """Raise BadInputError for more or fewer nodes than a path of namespaces joins."""
    if study.host.kind == "local" and find_path(order.path.kind).pair and order.nodes != 2:
        message = f"path {order.path.label!r} ({order.path.kind}) joins 2 nodes, and its placement is on {order.nodes}"
        hint = "measure it on another path, such as `bridge` or `macvlan`" if order.nodes > 1 else _ALONE
        raise order.workload.invalid(message, hint=hint)


_ALONE = "give each node a rank, such as placement = [0, 1]; within one node, path `shm` measures"


def refuse_overridden(tune: TuneSpec) -> None:
    """Raise BadInputError for a class of workloads that the classes of a search override."""
    if tune.classes and "workload_class" in tune.model_fields_set:
        message = "tune.workload_class would have no effect beside [[tune.classes]]"
        raise BadInputError(message, hint="leave it out: each class has its name")


def refuse_no_path(study: Study, tune: TuneSpec) -> None:
    """Raise BadInputError where the path to tune is none of the study's."""
    names = [path.name for path in study.path]
    if tune.path and tune.path not in names:
        message = f"tune.path: {tune.path!r} is not a path of this study"
        raise BadInputError(message, hint=meant(tune.path, names))


def measured_twice(study: Study) -> Iterator[str]:
    """Yield what is one thing under several names, whose figures are near-metal to each other, always."""
    paths = by_key(((one.recipe, json.dumps(one.options, sort_keys=True)), one.name) for one in study.path)
    for (kind, _), names in paths.items():
        if len(names) > 1:
            same = "kind, options and machines" if kind == "declared" else "kind and options"
            yield f"paths {', '.join(names)} are one path under {len(names)} names: {same} are the same"
    for alike in by_key((_as_set(one.knobs), one.name) for one in study.setting).values():
        if len(alike) > 1:
            yield f"settings {', '.join(alike)} are one setting under {len(alike)} names: their knobs are the same"
    for workload in study.workload:
        if len(set(workload.placed)) == 1 and any(path.recipe != SHM.kind for path in study.path):
            yield f"all ranks of workload {workload.name} are on one node: no message crosses a path"
    yield from _knobs_without_effect(study)


def _as_set(knobs: Mapping[str, Scalar]) -> tuple[tuple[str, str], ...]:
    """Return knobs with their values as they are written, however the study gives them."""
    return tuple(sorted((name, canon(knob_named(name), value)) for name, value in knobs.items()))


def knob_named(name: str) -> Knob | mpi_knobs.MpiKnob:
    """Return a knob of a machine or of launches; raise BadInputError for a name that stands for none."""
    return mpi_knobs.find(name) if name.startswith(mpi_knobs.PREFIX) else find(name)


def _knobs_without_effect(study: Study) -> Iterator[str]:
    knobs = dict.fromkeys(name for setting in study.setting for name in setting.knobs)
    nowhere = "cannot be set there, whatever the setting's name says"
    if named := ", ".join(filter(_of_interface, knobs)):
        for path in (one.name for one in study.path if one.recipe == SHM.kind):
            yield f"path {path} has no interface: {named} {nowhere}"
    of_launches = ", ".join(one for one in knobs if one.startswith(mpi_knobs.PREFIX))
    if of_launches and study.host.kind != "fake":
        for workload in (one for one in study.workload if progress_of(one) is None):
            yield f"workload {workload.name} has no MPI ranks: {of_launches} {nowhere}"


def _of_interface(knob: str) -> bool:
    return not knob.startswith(mpi_knobs.PREFIX) and find(knob).scope == "interface"


def is_of(pattern: str, workloads: Iterable[str]) -> bool:
    """Return whether a pattern of figures can be of one of these workloads, as far as it names one."""
    named, slash, _ = pattern.partition("/")
    return not slash or bool({"*", "?", "["} & set(named)) or named in workloads


def refuse_idle(study: Study, pattern: str) -> None:
    """Raise BadInputError for a pattern of a limit or a weight that no figure of the study matches."""
    names = [one.name for one in study.workload]
    if not is_of(pattern, names):
        message = f"tune: {pattern!r} names no workload of this study, {_NO_EFFECT}"
        raise BadInputError(message, hint=meant(pattern.partition("/")[0], names))
    of = [one for one in study.workload if is_of(pattern, [one.name])]
    if not any(_may_match(pattern, one) for one in of):
        message = f"tune: {pattern!r} matches no figure of this study, {_NO_EFFECT}"
        raise BadInputError(message, hint=_figures_are(of))


def refuse_no_aim(study: Study, kind: TuneClass) -> None:
    """Raise BadInputError where no figure of a class can have a weight: no setting would be better than another.

    A pattern that matches no figure of any class is left to `refuse_idle`.
    """
    weighed = [pattern for pattern, weight in kind.weights.items() if weight > 0]
    matched = [[one.name for one in study.workload if _may_match(pattern, one)] for pattern in weighed]
    of = [one for one in study.workload if not kind.workloads or one.name in kind.workloads]
    if all(matched) and not any(one.name in names for names in matched for one in of):
        message = f"tune: no figure of class {kind.name!r} has a weight above 0, so no setting would be the best"
        raise BadInputError(message, hint=_figures_are(of))


_NO_EFFECT = "so it would limit or weigh nothing"
_COSTS = ("interrupts-per-s", "cpu-share")
_OTHERWISE = "OPERATION/SIZE"
"""Stands for what only the output of a program that is not nearmetal's engine tells."""


def _may_match(pattern: str, workload: WorkloadSpec) -> bool:
    """Return whether a pattern can match a figure of a workload, as far as that is known before a launch."""
    if workload.kind == Engine.kind:
        return any(fnmatchcase(figure, pattern) for figure in _figures(workload))
    last = pattern.rpartition("/")[2]
    ends = "*" in last or any(fnmatchcase(one, last) for one in (*Metric, *_COSTS))
    return ends and is_of(pattern, [workload.name])


def _figures(workload: WorkloadSpec) -> list[str]:
    """Return the figures of a workload that a search may weigh."""
    operation = workload.operation or workload.name
    sizes = [f"{operation}/{format_size(size)}" for size in workload.sizes or [0]]
    cells = sizes if workload.kind == Engine.kind else [_OTHERWISE]
    of = [*(f"{cell}/{metric}" for cell in cells for metric in Metric), *_COSTS]
    return [f"{workload.name}/{one}" for one in of]


def _figures_are(workloads: Iterable[WorkloadSpec]) -> str:
    return f"figures are {', '.join(listed([figure for one in workloads for figure in _figures(one)]))}"
