"""Settings that are on for the length of a `with` block: what a trial uses.

    with hold(shell, endpoints, order.knobs, journal_folder, machine=MachineShell()) as held:
        outcome = ...            # held.facts goes into the trial's record

`nic.` knobs are set on the interface of every endpoint, node settings (`host.tcp_...`) on every endpoint's node, and
machine settings (`host.busy_read`, `host.cpu-governor` ...) once. `mpi.` knobs are not looked at: they belong to the
launch, see `mpi_environment`. Everything is put back at the end of the block, whatever happens in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nearmetal.errors import NearmetalError, TrialError
from nearmetal.hosts.host import Shell, machines_of
from nearmetal.knobs import mpi
from nearmetal.knobs.effect import Moderated, Tally, judge_launch, moderated, tally
from nearmetal.knobs.folder import expire, host_lock, remove
from nearmetal.knobs.knob import Target
from nearmetal.knobs.places import folders_for, lock_of_the_machine, refuse_unfinished_on
from nearmetal.knobs.plan import Plan, plan
from nearmetal.knobs.session import Session, begin
from nearmetal.knobs.table import find
from nearmetal.knobs.watchdog import WatchLimits
from nearmetal.paths.path import Endpoints
from nearmetal.study.facts import KNOB_EFFECT, KNOB_RIVAL
from nearmetal.study.order import Scalar

KNOB_WAS = "knob.was."
KNOB_UNPROVEN = "knob.unproven."
KNOB_DISTURBED = "knob.disturbed."
KNOB_END = "knob.end"


@dataclass(slots=True)
class HeldSetting:
    """What a held setting is.

    `facts` are read-backs for the trial's record (`knob.nic.rx-usecs`: "0"), what was there before
    (`knob.was.nic.rx-usecs`: "3"), and what a later reader must know: `knob.unproven.NAME` for read-backs that prove
    nothing on that driver, `knob.disturbed.NAME of TARGET` for what changed besides, and `knob.rival.PROGRAM` for
    programs that run and would fight over a knob.
    """

    facts: dict[str, Scalar] = field(default_factory=dict)
    _moderated: list[tuple[Shell, Moderated]] = field(default_factory=list)

    def tallies(self) -> list[Tally]:
        """Return what the interfaces with moderation that was set have counted so far."""
        return [tally(shell, one.target) for shell, one in self._moderated]

    def effects(self, before: Sequence[Tally], elapsed_ns: int) -> dict[str, Scalar]:
        """Return what the interrupts of a launch say about moderation that was set, as facts.

        `knob.effect.NAME` says what was seen; a contradiction is `knob.unproven.NAME` as well. `before` are the
        tallies before the launch.
        """
        facts: dict[str, Scalar] = {}
        for (_, one), was, now in zip(self._moderated, before, self.tallies(), strict=True):
            seen = judge_launch(one, was, now, elapsed_ns)
            facts[f"{KNOB_EFFECT}nic.rx-usecs.{one.target}"] = f"{seen.agreement}: {seen.reason}"
            if seen.agreement == "contradicts":
                facts[f"{KNOB_UNPROVEN}nic.rx-usecs"] = seen.reason
        return facts

    def add(self, session: Session) -> None:
        """Take a session's facts in."""
        self._moderated += [(session.shell, one) for one in moderated(session.shell, session.plan)]
        self.facts |= session.facts() | {f"{KNOB_WAS}{name}": old for name, old in session.found().items()}
        self.facts |= {f"{KNOB_UNPROVEN}{knob}": reason for knob, reason in session.readback_doubts().items()}
        self.facts |= {f"{KNOB_DISTURBED}{what}": how for what, how in session.disturbed().items()}
        self.facts |= {f"{KNOB_RIVAL}{rival.program}": ", ".join(rival.knobs) for rival in session.plan.rivals}


@contextmanager
def hold(
    shell: Shell,
    endpoints: Endpoints,
    wanted: Mapping[str, Scalar],
    journal_folder: Path,
    *,
    guard: WatchLimits | None = None,
    machine: Shell | None = None,
    machine_guard: WatchLimits | None = None,
    allow_management: bool = False,
    patience_s: float = 0.0,
    put_back: bool = True,
    kept: dict[int, Session] | None = None,
    locked: bool = False,
) -> Iterator[HeldSetting]:
    """Put a setting on for the length of a block and then everything back as it was.

    `journal_folder` keeps the undo journal and the lock while the block runs; a journal whose session ended well is
    removed. `guard` arms a watchdog on every node that is written to; leave it out where the nodes themselves vanish
    with the process (scratch namespaces, the lab's guest). `machine` is the shell for machine settings when `shell`
    only reaches throw-away namespaces of it, and `machine_guard` the watchdog there. A lock that another session holds
    is waited for, `patience_s` at most; a block without a setting takes it if it is to be `locked`, so that no other
    session of this user changes anything meanwhile. Without `put_back` the block's end only looks whether the setting
    still holds: for machines that are thrown away then, or whose next launch has the same setting. Such a launch finds
    its sessions in `kept`, where those that are not put back are left, and writes nothing anew.

    Raises BadInputError (unknown knob, illegal value, management interface), KnobError (not here, not accepted, not
    kept), TrialError (lock taken; watchdog acted or somebody else changed a value during the block), UnfinishedError
    (an earlier session left settings changed), StoreError (journal not writable, nothing was touched) and
    QuarantinedError (something could not be put back).
    """
    held = HeldSetting()
    sides = _sides(shell, endpoints, wanted, machine)
    with ExitStack() as stack:
        if locked or any(side.knobs for side in sides):
            of_machine = lock_of_the_machine(*(side.shell for side in sides if side.knobs))
            for folder in (*of_machine, *folders_for(shell, journal_folder)):
                stack.enter_context(host_lock(folder, patience_s=patience_s))
            expire(journal_folder)
        kept = {} if kept is None else kept
        for side in sides:
            if side.knobs and not kept:
                refuse_unfinished_on(side.shell, journal_folder, held=folders_for(shell, journal_folder))
        for number, (side, watch) in enumerate(zip(sides, (machine_guard or guard, guard), strict=True)):
            if side.knobs:
                session = kept.pop(number, None)
                stands = session is not None
                if session is None:
                    intended = side.plan(allow_management=allow_management)
                    session = begin(side.shell, intended, journal_folder, guard=watch)
                held.add(stack.enter_context(_applied(session, put_back, stands=stands)))
                if not put_back:
                    kept[number] = session
        yield held


def check(shell: Shell, endpoints: Endpoints, wanted: Mapping[str, Scalar], machine: Shell | None = None) -> None:
    """Raise what `hold` would raise before its first write: BadInputError or KnobError. Nothing is written."""
    for side in _sides(shell, endpoints, wanted, machine):
        if side.knobs:
            side.plan()


@dataclass(frozen=True, slots=True)
class _NodeSetting:
    """The part of a setting that is set through one shell."""

    shell: Shell
    knobs: Mapping[str, Scalar]
    targets: Sequence[Target]

    def plan(self, *, allow_management: bool = False) -> Plan:
        return plan(self.shell, self.knobs, self.targets, allow_management=allow_management)


def _sides(
    shell: Shell, endpoints: Endpoints, wanted: Mapping[str, Scalar], machine: Shell | None
) -> tuple[_NodeSetting, _NodeSetting]:
    """Return the settings of the machine, then those of nodes and interfaces, with where they are set."""
    parts: dict[bool, dict[str, Scalar]] = {True: {}, False: {}}
    for name, value in wanted.items():
        if not name.startswith(mpi.PREFIX):
            parts[find(name).scope == "machine"][name] = value
    return (
        _NodeSetting(machine or shell, parts[True], [Target(name) for name in machines_of(machine or shell)]),
        _NodeSetting(shell, parts[False], [Target(end.node, end.interface) for end in endpoints.ends]),
    )


@contextmanager
def _applied(session: Session, put_back: bool, *, stands: bool = False) -> Iterator[Session]:
    failure: BaseException | None = None
    lost: list[str] = []
    if not put_back:
        if not stands:
            session.apply()
        yield session
        session.settle()
        return
    try:
        if not stands:
            session.apply()
        yield session
        lost = session.lost()
    except BaseException as error:
        failure = error
        raise
    finally:
        undone, report = session.restore()
        remove(session.journal.path)
        acted = [f"the watchdog acted: {report}"] if report else []
        # A value that became what it was before, as by a driver's reset, is no residue; the trial still lost it.
        why = [*acted, *undone.unproven] or [f"{one} at its end: another program or the driver set it" for one in lost]
        if why and (failure is None or isinstance(failure, NearmetalError)):
            raise TrialError("the trial does not count: " + "; ".join(why)) from failure
