"""One trial, from bringing the path up to reading what the workload left.

    nodes -> path up -> knobs on -> facts -> launch -> facts again -> proof -> knobs back -> path down

Standard library only: the lab's guest runs this very module.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from nearmetal.errors import NearmetalError, QuarantinedError, StoreError, TimedOutError, TrialError
from nearmetal.facts import counters, inventory, proof, tenants, tracing
from nearmetal.hosts.host import Shell, is_disposable, is_far
from nearmetal.hosts.machine import MachineShell
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.knobs import places
from nearmetal.knobs.folder import journal_folder
from nearmetal.knobs.hold import KNOB_END, hold
from nearmetal.knobs.journal import EndState
from nearmetal.knobs.look import look
from nearmetal.knobs.session import Session
from nearmetal.knobs.watchdog import WatchLimits
from nearmetal.paths.links import refuse_narrow
from nearmetal.paths.path import Endpoints
from nearmetal.paths.table import find_path
from nearmetal.process import Finished
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus
from nearmetal.workloads.table import find_workload
from nearmetal.workloads.workload import Counting, Launch, Workload


@dataclass(frozen=True, slots=True)
class _MeasuredLaunch:
    """What one launch gave, before it is believed."""

    finished: Finished
    files: dict[str, bytes]
    counted: dict[str, int]


@dataclass(slots=True)
class StandingPath:
    """What launches share that follow each other on machines which end with the last of them: nodes, and a path.

    A setting stays, too, until a launch has another: `kept` are its sessions, and `following` the launches to come.
    """

    path: PathOrder | None = None
    endpoints: Endpoints | None = None
    following: Sequence[Order] = ()
    kept: dict[int, Session] = field(default_factory=dict)

    def ends_setting(self, order: Order) -> bool:
        """Return whether a launch follows that has another setting than this order."""
        return bool(self.following) and self.following[0].knobs != order.knobs

    def end(self) -> str:
        """Return what became of the setting of a launch that is over."""
        left = "kept for the next launch" if self.following else "discarded with the machine"
        return left if self.kept else str(EndState.RESTORED)


def carry_out(shell: Shell, order: Order, standing: StandingPath | None = None) -> Outcome:
    """Run one trial on a shell; whatever a person can act on becomes a failed outcome with its reason.

    A path that is `standing` is reused; all launches on it must be of the same path. What keeps further trials from
    being run is raised: QuarantinedError for a knob that could not be put back, and StoreError for an undo journal that
    cannot be written.
    """
    known = Outcome(TrialStatus.FAILED)
    stages = _stages(shell, order, standing or StandingPath())
    try:
        while (stage := next(stages, None)) is not None:
            known = stage
    except (QuarantinedError, StoreError):
        raise
    except NearmetalError as error:
        late = isinstance(error, TimedOutError)
        return replace(known, reason=error.message, hint=error.hint, timed_out=late)
    return replace(known, status=TrialStatus.VALID)


def _stages(shell: Shell, order: Order, standing: StandingPath) -> Iterator[Outcome]:
    """Yield the outcome as it grows, so that a trial that fails keeps all that was known by then."""
    outcome = Outcome(TrialStatus.FAILED)
    workload = find_workload(order.workload.kind)
    strangers = tenants.look_for_tenants(shell).keys()  # before anything of this trial runs, servers included
    nodes = [f"n{index}" for index in range(order.nodes)]
    if standing.endpoints is None:
        for node in nodes:
            shell.add_node(node)
    lasting = is_far(shell) and not is_disposable(shell)
    if lasting:
        places.refuse_unfinished_on(shell, measuring=True)
    guard = _guard(order)
    with (
        path_up(shell, order, nodes, standing) as endpoints,
        machine_itself(shell) as machine,
        hold(
            shell,
            endpoints,
            order.knobs,
            journal_folder(),
            guard=guard if lasting else None,
            machine=machine,
            machine_guard=guard if machine else None,
            patience_s=_LOCK_PATIENCE_S,
            put_back=standing.ends_setting(order) or not is_disposable(shell),
            kept=standing.kept,
            locked=bool(order.look),
        ) as held,
    ):
        if "nic.mtu" in order.knobs:
            refuse_narrow(shell, endpoints)
        launch = workload.prepare(shell, order, endpoints)
        ends = list(dict.fromkeys(end.node for end in endpoints.ends))  # a path may end on the machine itself
        facts = inventory.machine_facts(shell) | inventory.sharing_facts(shell, ends)
        facts |= inventory.path_facts(shell, endpoints) | launch.facts | held.facts
        facts |= look(shell, endpoints, order.look, machine)
        outcome = replace(outcome, facts=facts, launch_argv=launch.argv)
        yield outcome
        tallies = held.tallies()
        measured = _measure(shell, order, launch, list(dict.fromkeys(nodes + ends)), strangers)
        facts |= held.effects(tallies, measured.finished.elapsed_ns)
        outcome = replace(
            outcome,
            facts=facts,
            elapsed_ns=measured.finished.elapsed_ns,
            counters=measured.counted,
            proof=proof.of_counters(measured.counted, endpoints),
            said=measured.finished.text[-_KEPT_CHARACTERS:],
            files=measured.files,
        )
        yield outcome
        if measured.finished.timed_out:
            raise _late(order, measured.finished, launch)
        _check_trial(workload, order, measured, outcome, endpoints, late_hint=launch.late_hint)
        if isinstance(workload, Counting):
            outcome = replace(outcome, counters=outcome.counters | workload.counters(order, measured.files))
    # What could not be put back was raised; nothing is ever confirmed in a trial.
    yield replace(outcome, facts=outcome.facts | ({KNOB_END: standing.end()} if held.facts else {}))


_KEPT_CHARACTERS = 100_000
_KNOB_MARGIN_S = 180
"""How much longer than its launch a trial may hold knobs that outlive it before the watchdog puts them back."""
_LOCK_PATIENCE_S = 60.0
"""How long a trial waits for another one that holds knobs of the same machine."""


def _guard(order: Order) -> WatchLimits:
    return WatchLimits(
        deadline_s=int(order.timeout_s) + _KNOB_MARGIN_S,
        own_links=True,
        probe=str(order.watch.get("probe", "")),
        storm_per_s=int(order.watch.get("storm", 0)),
    )


@contextlib.contextmanager
def machine_itself(shell: Shell) -> Iterator[MachineShell | None]:
    """Return the machine whose settings outlive the trial, where the nodes are namespaces of one that keeps running."""
    if isinstance(shell, NamespaceShell) and shell.own_network:
        with MachineShell() as machine:
            yield machine
    else:
        yield None


@contextlib.contextmanager
def path_up(shell: Shell, order: Order, nodes: list[str], standing: StandingPath | None = None) -> Iterator[Endpoints]:
    """Bring an order's path up between nodes for the length of a `with`, or give the one that is standing."""
    standing = standing or StandingPath()
    if standing.path and standing.path != order.path:
        raise TrialError(f"path {order.path.label!r} cannot be used where path {standing.path.label!r} stands")
    path = find_path(order.path.kind)
    endpoints = standing.endpoints or path.up(shell, order.path, nodes)
    standing.path, standing.endpoints = order.path, endpoints
    try:
        yield endpoints
    finally:
        if not is_disposable(shell):
            path.down(shell, endpoints)


def _measure(
    shell: Shell, order: Order, launch: Launch, nodes: list[str], strangers: Collection[str]
) -> _MeasuredLaunch:
    tenants_before = {key: ticks for key, ticks in tenants.look_for_tenants(shell).items() if key in strangers}
    before = counters.read_counters(shell, nodes)
    with tracing.recorded(shell, order) as trace:
        finished = shell.run(launch.argv, node=launch.node, env=launch.env, timeout_s=order.timeout_s, check=False)
    tenants_after = tenants.look_for_tenants(shell)  # before the counters, as at the start: over the same time
    after = counters.read_counters(shell, nodes)
    files = dict(trace)
    if finished.ok:
        files |= {name: shell.read(path, node=launch.node) for name, path in launch.files.items()}
    others = tenants.used_between(tenants_before, tenants_after)
    return _MeasuredLaunch(finished, files, counters.difference(before, after) | others)


def _late(order: Order, finished: Finished, launch: Launch) -> TimedOutError:
    return TimedOutError(
        f"the launch did not end within {order.timeout_s:g} s; {finished.complaint()}",
        hint=launch.late_hint
        or "raise `trials.timeout`, ask for fewer iterations, or look for ranks that wait for each other",
    )


def _check_trial(
    workload: Workload,
    order: Order,
    measured: _MeasuredLaunch,
    outcome: Outcome,
    endpoints: Endpoints,
    *,
    late_hint: str,
) -> None:
    """Raise TrialError unless the program did its work and its traffic took the path."""
    try:
        workload.verify(order, measured.finished, measured.files)
    except TimedOutError as error:  # of a group of programs, which has its own limit
        raise TimedOutError(error.message, hint=late_hint or error.hint) from error
    proof.check(outcome.proof, endpoints, workload.least_packets(order))
