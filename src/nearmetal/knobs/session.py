"""One session: snapshot, journal, watchdog, writes one at a time, read back, and everything put back or confirmed.

States: IDLE -> SNAPSHOT -> ARMED -> APPLYING -> VERIFYING -> held -> CONFIRMED | RESTORED | QUARANTINED. The journal is
on the disk and the watchdog alive before the first write; what the journal cannot announce is not written.
"""

from __future__ import annotations

import glob
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nearmetal.errors import NearmetalError, QuarantinedError, StoreError, TrialError
from nearmetal.hosts.host import FarShell, is_far
from nearmetal.knobs import drivers, undo
from nearmetal.knobs.access import KnobError, Reading, file_access, read_all, read_one, run_c, write_one
from nearmetal.knobs.coalesce import OF_A_QUEUE
from nearmetal.knobs.guards import Rival, boot_id, identify, refuse_management, rivals
from nearmetal.knobs.journal import SUFFIX, Cell, Device, EndState, Journal, Story, cell_record, put_durably, read_story
from nearmetal.knobs.knob import Knob, Step, Target, canon, check_limits, targets_of
from nearmetal.knobs.table import find
from nearmetal.knobs.watchdog import Guard, Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from nearmetal.hosts.host import Shell
    from nearmetal.study.order import Scalar

_BUSY_TRIES = 5
_BUSY_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Placed:
    """A knob on a target, and its value as the kernel writes it."""

    knob: Knob
    target: Target
    value: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a session will do: all reading is done, nothing is written."""

    placed: tuple[Placed, ...]
    cells: tuple[Cell, ...]
    devices: tuple[Device, ...]
    rivals: tuple[Rival, ...]

    @property
    def planned(self) -> tuple[Cell, ...]:
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
    for target in touched:
        if target.interface and not allow_management:
            refuse_management(shell, target)
    snapshot = _Snapshot(shell, devices)
    for target in touched:
        _check_device(snapshot, target, [one for one in placed if one.target == target])
    ordered = sorted(placed, key=lambda one: (one.knob.stage, str(one.target)))
    cells = _cells(snapshot, _in_legal_order(snapshot, ordered))
    fought = [rival for node in dict.fromkeys(t.node for t in touched) for rival in rivals(shell, node, wanted)]
    return Plan(tuple(ordered), tuple(cells), tuple(devices.values()), tuple(dict.fromkeys(fought)))


class _Snapshot:
    """Readings of knobs on targets, each taken once."""

    def __init__(self, shell: Shell, devices: Mapping[Target, Device]) -> None:
        self.shell = shell
        self.devices = devices
        self._steps: dict[tuple[str, Target, str], tuple[tuple[Step, Reading], ...]] = {}

    def steps(self, knob: Knob, target: Target, value: str) -> tuple[tuple[Step, Reading], ...]:
        """Return the writes that set a knob, with the present reading of each."""
        key = (knob.name, target, value)
        if key not in self._steps:
            steps = knob.steps(self.shell, target, value)
            readings = read_all(self.shell, (step.access for step in steps))
            self._steps[key] = tuple(zip(steps, readings, strict=True))
        return self._steps[key]

    def driver(self, target: Target) -> str:
        """Return the driver of a target."""
        return self.devices[target].driver if target in self.devices else ""

    def present(self, names: Iterable[str], target: Target) -> dict[str, str]:
        """Return the present values of knobs that the target has."""
        accesses = [(name, access) for name in names for access in find(name).accesses(self.shell, target)[:1]]
        readings = read_all(self.shell, (access for _, access in accesses))
        return {name: r.value for (name, _), r in zip(accesses, readings, strict=True) if r.value is not None}


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
            raise KnobError(f"{one.knob.name} does not exist on {target}", hint="`nearmetal knobs` says what does")
        for _, reading in steps:
            if reading.value is None:
                raise KnobError(
                    f"{one.knob.name} cannot be read on {target}, so it is not touched: {reading.reason}",
                    hint="`nearmetal knobs` lists what each interface has, and why not what it lacks",
                )
            check_limits(one.knob, one.value, reading, target)


def _in_legal_order(snapshot: _Snapshot, ordered: Sequence[Placed]) -> list[Placed]:
    """Return the writes in an order whose every step is a legal state, such as frames 1 before usecs 0."""
    states: dict[Target, dict[str, str]] = {}
    done: list[Placed] = []
    waiting = list(ordered)
    while waiting:
        stage = waiting[0].knob.stage
        for one in waiting:
            if one.target not in states:
                states[one.target] = snapshot.present(RULED, one.target) if one.knob.name in RULED else {}
            state = states[one.target]
            after = {**state, one.knob.name: one.value}
            if one.knob.stage == stage and drivers.legal(snapshot.driver(one.target), state, after):
                break
        else:
            # No single next write is legal; the whole is, so the kernel may judge.
            one = waiting[0]
        states[one.target][one.knob.name] = one.value
        waiting.remove(one)
        done.append(one)
    return done


def _cells(snapshot: _Snapshot, ordered: Sequence[Placed]) -> list[Cell]:
    """Return the cells to write, in order, then those that the writes may disturb."""
    cells: dict[str, Cell] = {}
    for one in ordered:
        for step, reading in snapshot.steps(one.knob, one.target, one.value):
            cells[step.access.key] = _planned_cell(snapshot, one, step, reading, len(cells))
    for one in ordered:
        for name in one.knob.disturbs:
            accesses = find(name).accesses(snapshot.shell, one.target)
            for access, reading in zip(accesses, read_all(snapshot.shell, accesses), strict=True):
                if reading.value is not None and access.key not in cells:
                    cells[access.key] = Cell(len(cells), name, str(one.target), access, reading.value)
    return [_with_causes(cell, cells.values()) for cell in cells.values()]


def _with_causes(cell: Cell, others: Iterable[Cell]) -> Cell:
    causes = [
        other.cell
        for other in others
        if other.new is not None and other.target == cell.target and cell.knob in find(other.knob).disturbs
    ]
    return replace(cell, disturbed_by=tuple(causes))


def _planned_cell(snapshot: _Snapshot, one: Placed, step: Step, reading: Reading, number: int) -> Cell:
    old = reading.value or ""
    expected = drivers.reads_back(snapshot.driver(one.target), one.knob.name, step.value)
    accept = tuple(dict.fromkeys((_as_wide(step.value, old), _as_wide(expected, old))))
    return Cell(number, one.knob.name, str(one.target), step.access, old, step.value, accept)


def _as_wide(value: str, old: str) -> str:
    """Return a processor mask with as many words as the kernel prints; other values as they are."""
    words = old.split(",")
    if len(words) < 2 or any(len(word) != 8 for word in words):
        return value.rjust(len(old), "0") if _is_mask(old) and _is_mask(value) else value
    given = [word.rjust(8, "0") for word in value.split(",")]
    return ",".join(["0" * 8] * (len(words) - len(given)) + given)


def _is_mask(text: str) -> bool:
    return len(text) > 1 and text.startswith("0") and all(letter in "0123456789abcdef" for letter in text)


@dataclass(slots=True)
class Session:
    """A setting that is on a host; made by `begin`, ended by `confirm` or `restore`."""

    shell: Shell
    plan: Plan
    journal: Journal
    watchdogs: list[Watchdog] = field(default_factory=list)
    _read_back: dict[int, str] = field(default_factory=dict)

    @property
    def undo_script(self) -> str:
        """Return the shell scripts that put everything back, one a node."""
        return "\n".join(scripts_of(self.plan.cells).values())

    def apply(self) -> None:
        """Write one value at a time, each announced in the journal and read back; restore everything on an error."""
        for cell in self.plan.planned:
            self._write(cell)
        self._settle()

    def facts(self) -> dict[str, Scalar]:
        """Return what every knob reads back, by knob; values that differ between targets are joined with `;`."""
        return {f"knob.{name}": read for name, read in self._by_knob(self._read_back).items()}

    def found(self) -> dict[str, str]:
        """Return what every knob was before, by knob; values that differ between targets are joined with `;`."""
        return self._by_knob({cell.cell: cell.old for cell in self.plan.planned})

    def _by_knob(self, values: Mapping[int, str]) -> dict[str, str]:
        named: dict[str, list[str]] = {}
        for cell in self.plan.planned:
            named.setdefault(cell.knob, []).append(values[cell.cell])
        return {name: ";".join(dict.fromkeys(several)) for name, several in named.items()}

    def disturbed(self) -> dict[str, str]:
        """Return what the writes changed besides, by knob and target, as `old -> now`."""
        cells = [cell for cell in self.plan.cells if cell.new is None and cell.cell in self._read_back]
        return {undo.name_of(cell): f"{cell.old} -> {self._read_back[cell.cell]}" for cell in cells}

    def lies(self) -> dict[str, str]:
        """Return the knobs whose read-back proves nothing on their device, and why."""
        driver = {device.target: device.driver for device in self.plan.devices}
        found = ((cell.knob, drivers.lie(driver.get(cell.target, ""), cell.knob)) for cell in self.plan.planned)
        return {knob: reason for knob, reason in found if reason}

    def confirm(self) -> EndState:
        """Keep the setting: it survives this process, and no roll-back will undo it.

        Raise StoreError when the disk does not take that, TrialError when the values are not those of the setting any
        more, as after the watchdog acted; the caller restores then.
        """
        # On the disk first: until it is there, the watchdog guards.
        self.journal.append({"kind": "end", "state": EndState.CONFIRMED, "left": []})
        if report := self._disarm():
            raise TrialError(f"too late to confirm, the watchdog has acted: {report}")
        self._settle()
        self._forget_scripts()
        self.journal.close()
        return EndState.CONFIRMED

    def restore(self) -> tuple[EndState, str]:
        """Put everything back; return the state and the watchdog's report, and raise QuarantinedError for a residue."""
        # Not from the disk: it may be what is broken.
        undone = undo.undo(self.shell, self.journal.story, self.plan.cells)
        report = self._disarm()
        end(self.journal, undone, self.undo_script)
        self._forget_scripts()
        return EndState.RESTORED, report

    def _forget_scripts(self) -> None:
        """Remove the undo scripts and what watchdogs said, here and on far machines: the session ended well."""
        forget_scripts(self.journal.path)
        if is_far(self.shell):
            for node in scripts_of(self.plan.cells):
                _forget_far(self.shell, self.journal.path.name, node)

    def _disarm(self) -> str:
        reports = [watchdog.disarm() for watchdog in self.watchdogs]
        self.watchdogs.clear()
        return "; ".join(report for report in reports if report)

    def _write(self, cell: Cell) -> None:
        assert cell.new is not None
        self.journal.append({"kind": "intent", "cell": cell.cell, "value": cell.new})
        _patiently_write(self.shell, cell)
        read = read_one(self.shell, cell.access).value or ""
        disturbed = self._disturbed_by(cell)
        self._read_back |= {cell.cell: read, **disturbed}
        self.journal.append(
            {"kind": "done", "cell": cell.cell, "value": cell.new, "read": read, "disturbed": disturbed}
        )
        if read not in cell.accept:
            raise KnobError(
                f"{undo.name_of(cell)} reads back {read!r} after {cell.new!r} was written",
                hint="the driver rounds or ignores this value; choose one that it keeps",
            )

    def _disturbed_by(self, cause: Cell) -> dict[int, str]:
        """Return what a write changed besides its own value."""
        others = [cell for cell in self.plan.cells if cause.cell in cell.disturbed_by]
        readings = read_all(self.shell, (cell.access for cell in others))
        return {
            cell.cell: reading.value
            for cell, reading in zip(others, readings, strict=True)
            if reading.value is not None and reading.value != self._read_back.get(cell.cell, cell.old)
        }

    def _settle(self) -> None:
        """Look at every written value once more: a later write may have changed an earlier one."""
        planned = self.plan.planned
        for cell, reading in zip(planned, read_all(self.shell, (c.access for c in planned)), strict=True):
            if reading.value not in cell.accept:
                raise KnobError(
                    f"{undo.name_of(cell)} was {self._read_back[cell.cell]} and is {reading.value} after other writes",
                    hint="another knob of the setting, or another program, changes it",
                )


def begin(shell: Shell, intended: Plan, folder: Path, *, host: str = "local", guard: Guard | None = None) -> Session:
    """Bring the journal to the disk and arm the watchdogs; after this, `apply` may write.

    The caller holds `journal.host_lock(folder)`. Raises StoreError or TrialError with nothing written.
    """
    started_ns = time.time_ns()
    path = folder / f"{started_ns}-{os.getpid()}{SUFFIX}"
    records: list[dict[str, Any]] = [
        {
            "kind": "session",
            "format": 1,
            "host": host,
            "pid": os.getpid(),
            "boot_id": boot_id(shell),
            "started": started_ns // 10**9,
            **_machines(shell, intended, host),
        },
        *({"kind": "device", "target": d.target, "driver": d.driver, "identity": d.identity} for d in intended.devices),
        *(cell_record(cell) for cell in intended.cells),
    ]
    session = Session(shell, intended, Journal.create(path, records))
    try:
        for number, (node, script) in enumerate(scripts_of(intended.cells).items()):
            report = _leave_script(shell, node, path, number, script)
            if guard is not None:
                links = tuple(dict.fromkeys((*guard.links, *_own_links(shell, intended, node, guard))))
                session.watchdogs.append(Watchdog.arm(shell, node, replace(guard, links=links), script, report))
    except BaseException:
        session.restore()
        raise
    return session


def _own_links(shell: Shell, intended: Plan, node: str, guard: Guard) -> list[str]:
    """Return the interfaces of a node that are written to and have a carrier now, where the guard asks for them."""
    if not guard.own_links:
        return []
    found = [one.target.interface for one in intended.placed if one.target.node == node and one.target.interface]
    carriers = [file_access(node, f"/sys/class/net/{name}/carrier") for name in dict.fromkeys(found)]
    up = read_all(shell, carriers)
    return [name for name, reading in zip(dict.fromkeys(found), up, strict=True) if reading.value == "1"]


# Writes standard input to a file of its owner alone, and to the disk with its name; sync(1) of old takes no files.
_PUT_SCRIPT = r"""
umask 077
mkdir -p -- "$1" && cat > "$1/$2.part" && mv -f -- "$1/$2.part" "$1/$2" || exit 1
sync -- "$1/$2" "$1" 2> /dev/null || sync
"""
_FORGET_SCRIPT = 'rm -f -- "$1/$2".*.undo.sh "$1/$2".*.watchdog'


def _leave_script(shell: Shell, node: str, path: Path, number: int, script: str) -> str:
    """Leave a node's undo script beside the journal, on a far machine there too; return where a report would go.

    It is on the disk before the first write, and can be read and run by hand.
    """
    name = f"{path.name}.{number}"
    os.close(put_durably(path.with_name(f"{name}.undo.sh"), script.encode()))
    if not is_far(shell):
        return str(path.with_name(f"{name}.watchdog"))
    place = f"{shell.site.state}/journal"
    shell.run(["sh", "-c", _PUT_SCRIPT, "put", place, f"{name}.undo.sh"], node=node, stdin=script.encode())
    return f"{place}/{name}.watchdog"


def forget_scripts(path: Path) -> None:
    """Remove the undo scripts beside a journal, and what watchdogs said."""
    for kind in ("undo.sh", "watchdog"):
        for beside in path.parent.glob(f"{glob.escape(path.name)}.*.{kind}"):
            beside.unlink(missing_ok=True)


def _forget_far(shell: FarShell, name: str, node: str) -> None:
    run_c(shell, ("sh", "-c", _FORGET_SCRIPT, "forget", f"{shell.site.state}/journal", name), node)


def scripts_of(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the undo script of each node."""
    by_node: dict[str, list[Cell]] = {}
    for cell in cells:
        by_node.setdefault(cell.access.node, []).append(cell)
    return {node: undo.script(own) for node, own in by_node.items()}


def end(journal: Journal, undone: undo.Undone, undo_script: str) -> None:
    """Write the last record after a roll-back; raise QuarantinedError for a residue."""
    state = EndState.QUARANTINED if undone.stuck else EndState.RESTORED
    failure: StoreError | None = None
    try:
        journal.append({"kind": "end", "state": state, "left": [*undone.stuck, *undone.foreign]})
    except StoreError as error:
        failure = error
    finally:
        journal.close()
    if undone.stuck:
        raise QuarantinedError("could not put back: " + "; ".join(undone.stuck), undo_script, str(journal.path))
    if failure is not None:
        raise StoreError(
            f"every setting is as it was, but {failure.message}",
            hint="`nearmetal rollback` looks at the settings once more and ends the journal",
        ) from failure


def _machines(shell: Shell, intended: Plan, host: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the far machines of a trial's nodes for the journal's first record; nothing for one named machine."""
    if host != "local" or not is_far(shell):
        return {}
    nodes = dict.fromkeys(cell.access.node for cell in intended.cells)
    return {"machines": {node: (shell.machine_name(node), boot_id(shell, node)) for node in nodes}}


def roll_back(shell: Shell, path: Path, machine: str = "") -> undo.Undone:
    """Replay a journal: put everything back that it tells of, once or again; raise QuarantinedError for a residue.

    Values that did not outlive a reboot, and devices that are gone, count as put back. `machine` is the one of a
    trial's far machines that the shell is on; the journal ends with the last of them.
    """
    story = read_story(path)
    if story.end in {EndState.RESTORED, EndState.CONFIRMED}:
        return undo.Undone()
    last = not story.waiting - {machine}
    story = story.on(machine) if machine else story
    cells = list(story.cells.values()) if story.touched() and story.boot_id == boot_id(shell) else []
    lost = _lost_targets(shell, story)
    undone = undo.undo(shell, story, [cell for cell in cells if cell.target not in lost])
    gone = tuple(undo.name_of(cell) for cell in cells if cell.target in lost)
    journal = Journal.reopen(path)
    if machine and not last and not undone.stuck:
        journal.append({"kind": "undone", "machine": machine})
        journal.close()
    else:
        end(journal, undone, "\n".join(scripts_of(cells).values()))
        forget_scripts(path)
    if is_far(shell):
        _forget_far(shell, path.name, "")
    return undo.Undone(undone.put_back, undone.foreign, undone.gone + gone, undone.stuck)


def _lost_targets(shell: Shell, story: Story) -> set[str]:
    lost = set()
    for device in story.devices:
        node, _, interface = device.target.rpartition("/")
        if not device.identity:
            continue
        try:
            present = identify(shell, Target(node, interface))
        except NearmetalError:
            lost.add(device.target)
            continue
        if present.identity != device.identity:
            lost.add(device.target)
    return lost


def _patiently_write(shell: Shell, cell: Cell) -> None:
    assert cell.new is not None
    for attempt in range(_BUSY_TRIES):
        try:
            write_one(shell, cell.access, cell.new)
        except KnobError as error:
            if error.errno_name != "EBUSY" or attempt == _BUSY_TRIES - 1:
                raise
            time.sleep(_BUSY_PAUSE_S)
        else:
            return
