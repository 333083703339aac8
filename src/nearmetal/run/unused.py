"""What a study asks for and nothing would carry out: refused, because a figure would be believed to be of it."""

from __future__ import annotations

from collections.abc import Iterator

from nearmetal.errors import BadInputError
from nearmetal.paths.table import find_path
from nearmetal.study.order import PACE, Order
from nearmetal.study.spec import HostSpec, Study, TuneSpec, WorkloadSpec
from nearmetal.workloads.apps import ApplicationWorkload
from nearmetal.workloads.command import CommandWorkload
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
    taken = _TAKEN.get(workload.kind, _TAKEN_BY_PAIRS)
    if workload.kind == CommandWorkload.kind and workload.options.get("mpi"):
        taken = ("progress",)
    for key in (one for one in _ENGINES if one in given and one not in taken and host != "fake"):
        yield f"{key!r} would have no effect on kind {workload.kind!r}: {_INSTEAD[key]}", f"leave `{key}` out"


def refuse_log_ins(host: HostSpec) -> None:
    """Raise BadInputError for pods with what only an sshd needs."""
    if host.kind != "kubectl":
        return
    if host.hosts_file:
        hint = "write [[host.node]] tables, or the option `selector`"
        raise BadInputError("hosts_file would have no effect on host 'kubectl'", hint=hint)
    for node in host.node:
        for key in (one for one in _OF_SSH if one in node.model_fields_set):
            message = f"host.node {node.name!r}: {key!r} would have no effect: kubectl reaches pods without ssh"
            raise BadInputError(message, hint=f"leave `{key}` out")


def refuse_nodes(study: Study, order: Order) -> None:
    """Raise BadInputError for more or fewer nodes than a path of namespaces joins."""
    if study.host.kind == "local" and find_path(order.path.kind).pair and order.nodes != 2:
        message = f"path {order.path.label!r} ({order.path.kind}) joins 2 nodes, and its placement is on {order.nodes}"
        raise order.workload.invalid(message, hint="measure it on another path, such as `bridge` or `macvlan`")


def refuse_overridden(tune: TuneSpec) -> None:
    """Raise BadInputError for a class of workloads that the classes of a search override."""
    if tune.classes and "workload_class" in tune.model_fields_set:
        message = "tune.workload_class would have no effect beside [[tune.classes]]"
        raise BadInputError(message, hint="leave it out: each class has its name")
