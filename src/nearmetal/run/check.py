"""A study against what this nearmetal knows: paths, workloads, operations and knobs by name, before anything starts."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial

from nearmetal.errors import BadInputError, UnavailableError, refuse_unknown
from nearmetal.hosts.lab import image
from nearmetal.hosts.lab.cluster import nodes_of
from nearmetal.hosts.lab.lab import machine_of
from nearmetal.hosts.processors import own_processors
from nearmetal.hosts.table import HOSTS, find_host, refuse_imported
from nearmetal.knobs.knob import canon
from nearmetal.packages import PACKAGES
from nearmetal.paths.guests import ends_of
from nearmetal.paths.ports import refuse_wire
from nearmetal.paths.roce import ROCE_PATHS
from nearmetal.paths.shm import SHM
from nearmetal.paths.table import find_path
from nearmetal.run.unused import (
    knob_named,
    refuse_idle,
    refuse_log_ins,
    refuse_machines,
    refuse_no_aim,
    refuse_no_path,
    refuse_nodes,
    refuse_overridden,
    refuse_unused,
)
from nearmetal.study.order import TRACE_OPTION, Order, PathOrder, Scalar
from nearmetal.study.plan import block
from nearmetal.study.spec import HostSpec, PathSpec, Study, TuneSpec
from nearmetal.units import counted
from nearmetal.workloads.apps import ApplicationWorkload
from nearmetal.workloads.engine import Engine
from nearmetal.workloads.fabric import Fabric
from nearmetal.workloads.figures import SUITES, WITH_OPERATIONS
from nearmetal.workloads.mpi.mpi import Mpi
from nearmetal.workloads.mpi.table import find_mpi, flavour_named
from nearmetal.workloads.operations import operation_named
from nearmetal.workloads.pairs import check_halves
from nearmetal.workloads.parallel import GUEST_KINDS, check_waiting
from nearmetal.workloads.table import find_workload


def check_study(study: Study) -> None:
    """Raise BadInputError that lists every name in a study that stands for nothing, UnavailableError of an import."""
    refuse_imported(study.host.kind)
    problems = [problem for attempt in _checks(study) if (problem := _problem(attempt))]
    unique = list(dict.fromkeys(problems))
    if unique:
        count = counted(len(unique), "error")
        raise BadInputError(f"the study {study.name!r} has {count}:\n  " + "\n  ".join(unique))


def _checks(study: Study) -> Iterator[Callable[[], object]]:
    yield partial(_check_host, study.host)
    yield partial(flavour_named, study.mpi.flavour)
    for path in study.path:
        yield partial(check_path, study.host.kind, path)
    for workload in study.workload:
        yield partial(refuse_unused, study.host.kind, workload)
    version_in_lab = cache(image.package_version)  # it reads what the image is made of
    for order in block(study, 0):
        if order.path.again:
            continue  # a name that the study does not give, of a path that has one
        yield partial(_check_workload, order)
        yield partial(_check_placement, order)
        yield partial(_check_waiting, study, order, version_in_lab)
        yield partial(_check_nodes, study, order)
        yield partial(refuse_nodes, study, order)
        yield partial(_check_guests, study, order)
    for setting in study.setting:
        for knob, value in setting.knobs.items():
            yield partial(_check_knob, knob, value)
    if study.tune:
        yield from _checks_of_search(study, study.tune)


def _checks_of_search(study: Study, tune: TuneSpec) -> Iterator[Callable[[], object]]:
    yield partial(refuse_overridden, tune)
    yield partial(refuse_no_path, study, tune)
    weighed = (pattern for kind in tune.searches for pattern in kind.weights)
    for pattern in dict.fromkeys([*tune.limits, *weighed]):
        yield partial(refuse_idle, study, pattern)
    for kind in tune.searches:
        yield partial(refuse_no_aim, study, kind)
    for knob, values in tune.knobs.items():
        yield partial(_check_knob, knob)
        for value in values:
            yield partial(_check_knob, knob, value)


def check_path(host: str, path: PathSpec) -> None:
    """Raise BadInputError for a path that nobody knows, or an option that neither its recipe nor that host has."""
    known = {**find_path(path.recipe).options, **find_host(host).path_options}
    refuse_unknown(path.options, known, f"path {path.name!r} ({path.recipe})")
    refuse_machines(path)
    if host == "local":
        refuse_wire(PathOrder(path.name, path.recipe, dict(path.options)))


def _check_host(host: HostSpec) -> None:
    """Refuse an option that this kind of host does not have, and machines where it takes none from the study."""
    kind = find_host(host.kind)
    refuse_unknown(host.options, kind.options, f"host {host.kind!r}")
    if (host.node or host.hosts_file) and not kind.named_nodes:
        named = "[[host.node]]" if host.node else "hosts_file"
        taking = " or ".join(f"kind = {name!r}" for name, one in HOSTS.items() if one.named_nodes)
        message = f"{named} names machines, and host {host.kind!r} would not use them"
        raise BadInputError(message, hint=f"{taking} in [host], or leave it out")
    refuse_log_ins(host)


def _check_workload(order: Order) -> None:
    find_workload(order.workload.kind).check(order.workload)
    if order.workload.kind in WITH_OPERATIONS:
        operation = operation_named(str(order.workload.options["operation"]))
        operation.check_ranks(len(order.workload.placement))
        if operation.has_size != bool(order.workload.numbers("sizes")):
            wants = "needs `sizes`" if operation.has_size else "has no sizes"
            raise BadInputError(f"workload {order.workload.label!r}: {operation.name} {wants}")
        if order.workload.kind == Engine.kind and operation.even_ranks:
            check_halves(order.workload, operation.name)


_OF_ONE_MACHINE = {path.kind for path in ROCE_PATHS}
OF_MPI = {Engine.kind, ApplicationWorkload.kind, Fabric.kind, *SUITES}


def _check_placement(order: Order) -> None:
    """Refuse a node without a rank: nothing would cross its end of the path, and no trial pass its proof."""
    placement = order.workload.placement
    idle = sorted(set(range(order.nodes)).difference(placement))
    if idle and order.workload.kind in OF_MPI and order.path.kind != SHM.kind:
        raise BadInputError(
            f"workload {order.workload.label!r}: its placement leaves node {idle[0]} without a rank",
            hint=f"nodes are numbered without gaps: 0 to {len(set(placement)) - 1}",
        )


def _check_waiting(study: Study, order: Order, version_in_lab: Callable[[str], str]) -> None:
    """Refuse what a launch would refuse, where processors and MPI are known before one."""
    if order.workload.kind not in OF_MPI:
        return
    if study.host.kind == "lab":
        version = version_in_lab(PACKAGES[flavour_named(order.mpi).name].apt.split()[0])
        if version:
            check_waiting(order, Mpi(order.mpi, version, ""), _lab_processors(study, order))
    elif study.host.kind == "local" and len(order.workload.placement) > own_processors():
        try:
            mpi = find_mpi(order.mpi)
        except UnavailableError:
            return  # a plan needs no MPI; a launch says that there is none
        check_waiting(order, mpi, own_processors())


def _check_nodes(study: Study, order: Order) -> None:
    """Refuse what a cluster of the lab cannot do; other hosts know their nodes when they are reached."""
    nodes = nodes_of(study.host.options) if study.host.kind == "lab" else 0
    if not nodes:
        return
    if order.path.kind in _OF_ONE_MACHINE:
        raise BadInputError(
            f"path {order.path.label!r} ({order.path.kind}) is built on one machine that holds all nodes",
            hint="leave `nodes` out of [host.options]",
        )
    if nodes < order.nodes:
        raise BadInputError(
            f"workload {order.workload.label!r} needs {order.nodes} nodes, but the cluster has {nodes}",
            hint=f"nodes = {order.nodes} in [host.options]",
        )


def _check_guests(study: Study, order: Order) -> None:
    """Refuse guests that the lab's machine cannot hold, before it is booted to find that out."""
    if study.host.kind != "lab" or order.path.kind not in GUEST_KINDS:
        return
    if order.workload.options.get(TRACE_OPTION):
        raise BadInputError(
            f"workload {order.workload.label!r} asks for a kernel trace, which covers machines only, and the "
            f"ranks of path {order.path.label!r} run in guests",
            hint="counts of exits and interrupts are in every trial's record: nearmetal show RUN --trial N",
        )
    machine = machine_of(study.host.options)
    if not machine.iommu:
        raise BadInputError(
            f"path {order.path.label!r} ({order.path.kind}) has guests, and the machine {machine.name!r} has no KVM",
            hint="machine = 'kvm' in [host.options]",
        )
    ends_of(order.path, machines=bool(nodes_of(study.host.options)))


def _lab_processors(study: Study, order: Order) -> int:
    """Return how many processors ranks share; 0 where every node of a cluster has one for each of its own."""
    own = machine_of(study.host.options).vcpus
    crowd = max(Counter(order.workload.placement).values())
    return 0 if nodes_of(study.host.options) and crowd <= own else own


def _check_knob(name: str, value: Scalar | None = None) -> None:
    knob = knob_named(name)
    if value is not None:
        canon(knob, value)


def _problem(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (BadInputError, UnavailableError) as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return ""
