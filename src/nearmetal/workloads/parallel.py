"""A parallel program over an order's placement: the one place where a workload meets an MPI. Standard library only."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nearmetal.errors import TrialError, UnavailableError
from nearmetal.hosts.host import HYPERVISOR, Shell, is_far, machines_of, management_of
from nearmetal.knobs.mpi import dialect, mpi_environment
from nearmetal.paths.guests import GUEST_PATHS
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import Order, Scalar, WorkloadOrder
from nearmetal.workloads.mpi.mpi import Job, Mpi
from nearmetal.workloads.mpi.table import flavour_named, job_nodes, launch
from nearmetal.workloads.pairs import HINT_SHOW
from nearmetal.workloads.processors import cores, processors
from nearmetal.workloads.workload import Launch

_SLEEP = {"NEARMETAL_YIELD": "sleep"}
_BIND, _MAP = "mpi.bind", "mpi.map"
_PROGRESS, _TRANSPORT, _EAGER, _SLEEP_NS = "mpi.progress", "mpi.transport", "mpi.eager-bytes", "mpi.yield-sleep-ns"
_OF_VERBS = ("mpi.srq-size", "mpi.srq-limit", "mpi.inline-bytes")
GUEST_KINDS = frozenset(path.kind for path in GUEST_PATHS)
_ON_ITS_CORE = """count=$1
shift
exec taskset -c "$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} % count))" "$@"
"""


def parallel_launch(
    shell: Shell,
    order: Order,
    endpoints: Endpoints,
    mpi: Mpi,
    program: Sequence[str],
    *,
    files: Mapping[str, str] | None = None,
    facts: Mapping[str, Scalar] | None = None,
    environment: Mapping[str, str] | None = None,
    sleeps: bool = False,
) -> Launch:
    """Return the launch of a program with an MPI, a rank for each entry of the placement, started on the first's node.

    The setting's `mpi.` knobs are in it, and `environment` is set for the ranks. `sleeps` says that the program was
    built with native/common/yield.c. Raise UnavailableError for a binding that cannot be had on these nodes.
    """
    placement = order.workload.placement
    nodes = tuple(endpoints.ends[index].node for index in placement)
    shared = processors(shell, nodes)
    check_waiting(order, mpi, shared)
    first = endpoints.ends[placement[0]]
    tuned = mpi_environment(order.knobs, dialect(mpi.flavour, mpi.version))
    check_environment(tuned.env, environment or {})
    bind, map_by = (str(order.knobs.get(name, default)) for name, default in ((_BIND, "none"), (_MAP, "")))
    if (bind != "none" or map_by) and is_far(shell) and shell.site.starter:
        message = f"{_BIND} and {_MAP} are options of the MPI's own launcher, but here a batch system starts the ranks"
        raise UnavailableError(message, hint="leave them out of the setting")
    blocking = sleeps and order.workload.progress == "blocking"
    share_a_machine = len(set(nodes)) > 1 and machines_of(shell) == (HYPERVISOR,)
    by_hand = bind != "none" and share_a_machine
    check_effect(order, mpi, one_node=len(set(nodes)) == 1, binds=bind != "none" and not by_hand)
    job = Job(
        nodes=job_nodes(shell, nodes),
        program=_bound_by_hand(shell, bind, program) if by_hand else tuple(program),
        remote_shell=shell.agent,
        scratch=shell.scratch,
        interface=first.interface,
        subnet=endpoints.subnet,
        management=management_of(shell),
        progress=order.workload.progress,
        bind="none" if by_hand else bind,
        map_by=map_by,
        oversubscribed=0 < shared < len(nodes),
        sleeps=sleeps,
        environment=tuple({**tuned.env, **(environment or {}), **(_SLEEP if blocking else {})}.items()),
    )
    command = launch(mpi, job, shell)
    known: dict[str, Scalar] = {
        "mpi.flavour": mpi.flavour,
        "mpi.version": mpi.version,
        _PROGRESS: waits(order),
        _BIND: bind,
    }
    known |= dict(facts or {})
    return Launch(command.argv, first.node, dict(command.env), dict(files or {}), known, late_hint=command.late_hint)


def check_ended(
    finished: Finished, statuses: Mapping[int, str], *, what: str, rank: str = "rank", hint: str = HINT_SHOW
) -> None:
    """Raise TrialError unless a parallel program ended well; `statuses` say what its own exit statuses mean."""
    if not finished.ok:
        meaning = statuses.get(finished.exit_status, f"a {rank} died or the MPI could not start")
        failures = [line.strip() for line in finished.text.splitlines() if "FAILURE:" in line]
        raise TrialError(f"{what} ({meaning}): {'; '.join(failures) or finished.complaint()}", hint=hint)


def check_effect(order: Order, mpi: Mpi, *, one_node: bool, binds: bool) -> None:
    """Raise UnavailableError for an `mpi.` knob that would change nothing in a launch, so that it is not measured.

    Ranks of Open MPI meet over ob1 here, not over UCX, and over TCP unless a setting says otherwise. `binds` says
    whether the MPI's launcher binds the ranks.
    """
    knobs = order.knobs
    verbs = mpi.flavour != "openmpi" or (mpi.major < 5 and "openib" in str(knobs.get(_TRANSPORT, "")).split(","))
    needs = {
        _MAP: (
            binds,
            f"its launcher binds no rank, as {_BIND} makes it do for ranks of one node or of several machines",
        ),
        _SLEEP_NS: (waits(order) == "blocking", f'ranks do not sleep: set {_PROGRESS} = "blocking" as well'),
        _EAGER: (not one_node, "all ranks are on one node, and it is of messages between nodes"),
        **dict.fromkeys(
            _OF_VERBS, (verbs, f'its ranks meet over TCP: Open MPI 4 takes {_TRANSPORT} = "openib,self,vader"')
        ),
    }
    for name, (met, why) in needs.items():
        if name in knobs and not met:
            raise UnavailableError(
                f"{name} would change nothing with {mpi.label}: {why}", hint=f"or leave {name} out of the setting"
            )


def check_environment(tuned: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Raise UnavailableError where a workload's own environment would override what its setting sets."""
    for name in (one for one in own if tuned.get(one, own[one]) != own[one]):
        raise UnavailableError(
            f"the setting makes {name} {tuned[name]!r}, but the workload's `env` makes it {own[name]!r}",
            hint="leave it out of one of the two",
        )


def waits(order: Order) -> str:
    """Return how ranks wait: as the setting says, else as the workload does."""
    return str(order.knobs.get(_PROGRESS, order.workload.progress))


def check_waiting(order: Order, mpi: Mpi, processors: int) -> None:
    """Raise UnavailableError where a rank that polls keeps a processor that another rank needs.

    `processors` are those that all ranks share, 0 where that is not known or each machine has enough. Such a launch
    measures the scheduler's time slices, very repeatably, and not the path.
    """
    ranks, placement = len(order.workload.placement), order.workload.placement
    if not 0 < processors < ranks or order.workload.progress == "blocking":
        return
    shared = f"{ranks} ranks share {processors} processor{'' if processors == 1 else 's'}"
    if order.path.kind in GUEST_KINDS and len(set(placement)) > 1:
        raise UnavailableError(
            f"path {order.path.label!r}: {shared}, and a rank that polls inside a guest keeps its processor for a "
            "whole time slice: the figure would be that of the scheduler",
            hint='use progress = "blocking", or a workload that blocks, such as sockperf or nuttcp',
        )
    if mpi.major < flavour_named(mpi.flavour).yields_from:
        raise UnavailableError(
            f"{shared}, and a waiting rank of {mpi.label} polls without yielding: the figure would be that of the "
            "scheduler's time slices",
            hint='use mpi.flavour = "openmpi", a newer MPICH, or as many processors as ranks',
        )


def _bound_by_hand(shell: Shell, bind: str, program: Sequence[str]) -> tuple[str, ...]:
    """Return a program that puts rank r on processor r; raise UnavailableError for anything but cores.

    The launcher starts each node's ranks by themselves: where nodes share a machine it would bind the first rank of
    each to the same processor.
    """
    if bind != "core":
        raise UnavailableError(
            f"{_BIND} = {bind!r} is impossible: the nodes share one machine, and its launcher would bind each node's "
            "first rank to the same place",
            hint=f'{_BIND} = "core" puts rank r on processor r there',
        )
    count = cores(shell, HYPERVISOR)
    return ("sh", "-c", _ON_ITS_CORE, "sh", str(count), *program)


def mpi_prefix(workload: WorkloadOrder) -> Path | None:
    """Return the directory of the MPI that the program was built with, where the study names one."""
    asked = workload.options.get("mpi", False)
    if isinstance(asked, bool):
        return None
    if not isinstance(asked, str) or not asked.startswith("/"):
        message = f"option 'mpi' is true, false or the directory of an MPI, not {asked!r}"
        raise workload.invalid(message, hint='a program of Debian was built with Debian\'s MPI: mpi = "/usr"')
    return Path(asked)
