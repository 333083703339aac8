"""What a session is going to do: everything that a setting touches or disturbs is read, nothing is written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nearmetal.hosts.host import Shell, is_disposable
from nearmetal.knobs import coalesce, drivers
from nearmetal.knobs.access import Access, CommandOutputs, KnobError, Reading
from nearmetal.knobs.coalesce import OF_A_QUEUE, OwnValues, own_values
from nearmetal.knobs.guards import (
    RivalProgram,
    above,
    below,
    identify,
    refuse_management,
    refuse_without_files,
    rivals,
)
from nearmetal.knobs.identity import vanishes
from nearmetal.knobs.journal import Device, SavedValue
from nearmetal.knobs.knob import Knob, Step, Target, canon, check_limits, targets_of
from nearmetal.knobs.lasting import refuse_lasting
from nearmetal.knobs.napi import THREADS, CpuMask, as_wide
from nearmetal.knobs.nic import IPV6_MTU, LRO, MTU
from nearmetal.knobs.table import find
from nearmetal.study.order import Scalar


@dataclass(frozen=True, slots=True)
class Placed:
    """A knob on a target, and its value as the kernel writes it."""

    knob: Knob
    target: Target
    value: str

    @property
    def at(self) -> tuple[str, str]:
        """Return what its saved values say of it: the names of knob and target."""
        return self.knob.name, str(self.target)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a session will do: all reading is done, nothing is written."""

    placed: tuple[Placed, ...]
    cells: tuple[SavedValue, ...]
    devices: tuple[Device, ...]
    rivals: tuple[RivalProgram, ...]

    @property
    def planned(self) -> tuple[SavedValue, ...]:
        """Return the cells to write, in order."""
        return tuple(cell for cell in self.cells if cell.new is not None)


def plan(
    shell: Shell, wanted: Mapping[str, Scalar], interfaces: Sequence[Target], *, allow_management: bool = False
) -> Plan:
    """Look before the leap: read everything that the setting touches or disturbs, and refuse what is illegal.

    Raises BadInputError for unknown knobs, illegal values and management interfaces, KnobError for knobs that cannot be
    read here (what has no snapshot is not touched).
    """
    placed = [
        Placed(knob, target, canon(knob, value))
        for name, value in wanted.items()
        for knob in (find(name),)
        for target in targets_of(knob, interfaces)
    ]
    touched = list(dict.fromkeys(one.target for one in placed))
    devices = {target: identify(shell, target) for target in touched}
    shared = not is_disposable(shell)  # else nobody is logged in, and nothing runs but the trial
    for target in touched:
        if shared and target.interface:
            refuse_without_files(shell, target)
            if not allow_management:
                refuse_management(shell, target)
    snapshot = _Snapshot(shell, devices)
    placed += _of_queues(snapshot, placed)
    placed += _kept(snapshot, placed)
    for target in touched:
        _check_device(snapshot, target, [one for one in placed if one.target == target])
    # What is said of one queue comes after what is said of all.
    ordered = sorted(placed, key=lambda one: (snapshot.stage(one), drivers.queue_of(one.knob.name), str(one.target)))
    cells = _cells(snapshot, _in_legal_order(snapshot, ordered))
    nodes = dict.fromkeys(target.node for target in touched) if shared else ()
    # Programs of the machine do not look into namespaces that a trial made.
    found = [rival for node in nodes if not vanishes(shell, node) for rival in rivals(shell, node, wanted)]
    for target in (Target(c.node, c.target.rpartition("/")[2]) for c in cells if c.knob in {MTU, *LRO}):
        devices.setdefault(target, identify(shell, target))
    return Plan(tuple(ordered), tuple(cells), tuple(devices.values()), tuple(dict.fromkeys(found)))


class _Snapshot:
    """Readings of knobs on targets, each taken once."""

    def __init__(self, shell: Shell, devices: Mapping[Target, Device]) -> None:
        self.shell = shell
        self.devices = devices
        self._outputs = CommandOutputs(shell)
        self._own: dict[Target, OwnValues] = {}
        self._steps: dict[tuple[str, Target, str], tuple[tuple[Step, Reading], ...]] = {}

    def read_all(self, accesses: Iterable[Access]) -> list[Reading]:
        """Return what values are."""
        return self._outputs.read_all(accesses)

    def steps(self, knob: Knob, target: Target, value: str) -> tuple[tuple[Step, Reading], ...]:
        """Return the writes that set a knob, with the present reading of each."""
        key = (knob.name, target, value)
        if key not in self._steps:
            steps = knob.steps(self.shell, target, value)
            readings = self.read_all(step.access for step in steps)
            self._steps[key] = tuple(zip(steps, readings, strict=True))
        return self._steps[key]

    def may_renew_queues(self, one: Placed) -> bool:
        """Return whether writing a knob may make queues anew: a driver does so for most of what ethtool and ip set."""
        if is_disposable(self.shell) or drivers.queue_of(one.knob.name) or not one.target.interface:
            return False
        return any(access.change for access in one.knob.accesses(self.shell, one.target))

    def own_values(self, target: Target) -> OwnValues:
        """Return in what queues differ from their device."""
        if target not in self._own:
            self._own[target] = own_values(self.shell, self._outputs, target)
        return self._own[target]

    def driver(self, target: Target) -> str:
        """Return the driver of a target."""
        return self.devices[target].driver if target in self.devices else ""

    def stage(self, one: Placed) -> int:
        """Return when a knob is written: what the driver resets by it comes later."""
        return -1 if drivers.resets(self.driver(one.target), one.knob.name) else one.knob.stage

    def present(self, names: Iterable[str], target: Target) -> dict[str, str]:
        """Return the present values of knobs that the target has."""
        accesses = [(name, access) for name in names for access in find(name).accesses(self.shell, target)[:1]]
        readings = self.read_all(access for _, access in accesses)
        return {name: r.value for (name, _), r in zip(accesses, readings, strict=True) if r.value is not None}


def _kept(snapshot: _Snapshot, placed: Sequence[Placed]) -> list[Placed]:
    """Return what the setting leaves alone and a driver would reset: it is written again as it was.

    Not usecs of an adaptive direction: they are the driver's.
    """
    kept = []
    named = {(one.knob.name, one.target) for one in placed}
    for one in placed:
        names = drivers.resets(snapshot.driver(one.target), one.knob.name)
        present = snapshot.present(names, one.target)
        for name, value in present.items():
            adaptive = present.get(f"nic.adaptive-{name[4:6]}") if name.endswith("-usecs") else ""
            if (name, one.target) not in named and adaptive != "on":
                kept.append(Placed(find(name), one.target, value))
    return kept


def _of_queues(snapshot: _Snapshot, placed: Sequence[Placed]) -> list[Placed]:
    """Return what the setting says of the whole device as what it says of the queues that have values of their own.

    Raise KnobError where they have some that could not be put back.
    """
    named = {(one.knob.name, one.target) for one in placed}
    found = []
    for one in placed:
        if not snapshot.may_renew_queues(one):
            continue
        own = snapshot.own_values(one.target)
        if own.others and one.knob in coalesce.KNOBS:
            raise KnobError(
                f"the queues of {one.target} differ in {', '.join(own.others)}, which {one.knob.name} would overwrite "
                "for good",
                hint=f"set them alike first: `ethtool -C {one.target.interface} {own.others[0]} VALUE`",
            )
        of_this = [knob for knob in own.knobs if knob.name.startswith(f"{one.knob.name}.")]
        found += [Placed(knob, one.target, one.value) for knob in of_this if (knob.name, one.target) not in named]
    return found


RULED = tuple(
    f"nic.{name}"
    for name in (
        *("adaptive-rx", "adaptive-tx", "rx-usecs", "rx-frames", "tx-usecs", "tx-frames"),
        *("rx-usecs-low", "rx-usecs-high", "tx-usecs-low", "tx-usecs-high", "pkt-rate-low", "pkt-rate-high"),
    )
)
"""Knobs that rules over several values look at."""


def _check_device(snapshot: _Snapshot, target: Target, placed: Sequence[Placed]) -> None:
    wanted = {one.knob.name: one.value for one in placed}
    ruled = [f"nic.{name}{queue}" for queue in filter(None, map(drivers.queue_of, wanted)) for name in OF_A_QUEUE]
    ruled += RULED if any(name in RULED for name in wanted) else ()
    present = snapshot.present(dict.fromkeys(ruled), target)
    drivers.check(snapshot.driver(target), present, wanted)
    for one in placed:
        steps = snapshot.steps(one.knob, target, one.value)
        if not steps:
            raise KnobError(f"{one.knob.name} does not exist on {target}", hint="`nearmetal knobs` lists those that do")
        for _, reading in steps:
            if reading.value is None:
                raise KnobError(
                    f"{one.knob.name} cannot be read on {target}, so it is not touched: {reading.reason}",
                    hint="`nearmetal knobs --all` lists the knobs of each interface, and why it lacks the others",
                )
            check_limits(one.knob, one.value, reading, target)
        if not is_disposable(snapshot.shell):
            refuse_lasting(
                snapshot.shell, target, one.knob.name, one.value, [reading.value or "" for _, reading in steps]
            )


def _in_legal_order(snapshot: _Snapshot, ordered: Sequence[Placed]) -> list[Placed]:
    """Return the writes in an order whose every step is a legal state, such as frames 1 before usecs 0."""
    ruled = {one.target for one in ordered if one.knob.name in RULED}
    states = {one.target: snapshot.present(RULED, one.target) if one.target in ruled else {} for one in ordered}
    done: list[Placed] = []
    waiting = list(ordered)
    while waiting:
        stage = snapshot.stage(waiting[0])
        for one in waiting:
            state = states[one.target]
            after = {**state, one.knob.name: one.value}
            if snapshot.stage(one) == stage and drivers.legal(snapshot.driver(one.target), state, after):
                break
        else:
            # No single next write is legal; the whole is, so the kernel may judge.
            one = waiting[0]
        states[one.target][one.knob.name] = one.value
        waiting.remove(one)
        done.append(one)
    return done


def _cells(snapshot: _Snapshot, ordered: Sequence[Placed]) -> list[SavedValue]:
    """Return the cells to write, in order, then those that the writes may disturb."""
    cells: dict[tuple[str, str], SavedValue] = {}
    for one in ordered:
        for step, reading in snapshot.steps(one.knob, one.target, one.value):
            cells[_id(step.access)] = planned_cell(snapshot.driver(one.target), one, step, reading, len(cells))
    causes: dict[tuple[str, str], set[int]] = {}
    for one in ordered:
        writes = {cells[_id(step.access)].cell for step, _ in snapshot.steps(one.knob, one.target, one.value)}
        for knob, target in _disturbed(snapshot, one):
            accesses = knob.accesses(snapshot.shell, target)
            for access, reading in zip(accesses, snapshot.read_all(accesses), strict=True):
                causes.setdefault(_id(access), set()).update(writes)
                if reading.value is not None and _id(access) not in cells:
                    at = (knob.name, str(target), access.node, access.key)
                    put = drivers.taken_for(snapshot.driver(target), knob.name, reading.value)
                    saved = SavedValue(len(cells), *at, reading.value, default=reading.default, put=put, way=access)
                    cells[_id(access)] = saved
    return [replace(cell, disturbed_by=tuple(sorted(causes.get(key, ())))) for key, cell in cells.items()]


def _disturbed(snapshot: _Snapshot, one: Placed) -> Iterator[tuple[Knob, Target]]:
    """Yield what writing a knob may change besides, and where.

    With a port's largest frame the kernel lowers that of all that is built on it, and does not raise it again; that of
    a bond is given to its ports. It sets the largest packet of IPv6 to each, whatever that was.
    """
    of_driver = drivers.DISTURBS.get(snapshot.driver(one.target), {})
    for name in (*one.knob.disturbs, *of_driver.get(one.knob.name, ())):
        yield find(name), one.target
    if snapshot.may_renew_queues(one):
        for knob in (*snapshot.own_values(one.target).knobs, find(THREADS)):
            yield knob, one.target
    if one.knob.name == MTU:
        for interface in ("", *above(snapshot.shell, one.target), *below(snapshot.shell, one.target)):
            target = Target(one.target.node, interface) if interface else one.target
            if interface:
                yield one.knob, target
            if len(set(snapshot.present((MTU, IPV6_MTU), target).values())) > 1:
                yield find(IPV6_MTU), target
    if LRO[0] in {one.knob.name, *one.knob.disturbs}:
        for interface in below(snapshot.shell, one.target):
            yield from ((find(name), Target(one.target.node, interface)) for name in LRO)


def _id(access: Access) -> tuple[str, str]:
    return access.node, access.key


def planned_cell(driver: str, one: Placed, step: Step, reading: Reading, number: int) -> SavedValue:
    """Return a value that a driver is going to be given, with what it read and what it may read back."""
    old = reading.value or ""
    expected = drivers.reads_back(driver, one.knob.name, step.value)
    accept: tuple[str, ...] = (step.value, expected)
    if isinstance(one.knob.kind, CpuMask):
        accept = tuple(as_wide(mask, old) for mask in accept)
    at = (*one.at, step.access.node, step.access.key)
    accepted = tuple(dict.fromkeys(accept))
    put = drivers.taken_for(driver, one.knob.name, old)
    return SavedValue(number, *at, old, step.value, accepted, default=reading.default, put=put, way=step.access)
