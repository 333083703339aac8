"""One session: snapshot, journal, watchdog, writes one at a time, read back, and everything put back or confirmed.

States: IDLE -> SNAPSHOT -> ARMED -> APPLYING -> VERIFYING -> held -> CONFIRMED | RESTORED | QUARANTINED. The journal is
on the disk and the watchdog alive before the first write; what the journal cannot announce is not written.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nearmetal.errors import StoreError, TrialError
from nearmetal.hosts.host import Shell, is_disposable, is_far
from nearmetal.knobs import affinity, drivers, registry, undo
from nearmetal.knobs.access import KnobError, file_access, read_all, read_one, write_one
from nearmetal.knobs.coalesce import adapts
from nearmetal.knobs.folder import forget_scripts, new_journal
from nearmetal.knobs.identity import UNKNOWN_PLACE, Place, present
from nearmetal.knobs.journal import JOURNAL_FORMAT, EndState, Journal, SavedValue, cell_record, put_durably
from nearmetal.knobs.nic import PARTS, waiting
from nearmetal.knobs.plan import Plan, planned_cell
from nearmetal.knobs.rollback import end, forget_far_scripts, on_their_devices
from nearmetal.knobs.watchdog import Watchdog, WatchLimits
from nearmetal.study.order import Scalar
from nearmetal.units import by_key

_BUSY_TRIES = 5
_BUSY_PAUSE_S = 0.05


@dataclass(slots=True)
class Session:
    """A setting that is on a host; made by `begin`, ended by `confirm` or `restore`."""

    shell: Shell
    plan: Plan
    journal: Journal
    watchdogs: list[Watchdog] = field(default_factory=list)
    _read_back: dict[int, str] = field(default_factory=dict)
    _came: list[SavedValue] = field(default_factory=list)

    @property
    def undo_script(self) -> str:
        """Return the shell scripts that put everything back, one a node."""
        return "\n".join(undo.scripts_of(self.plan.cells, self.plan.devices).values())

    def apply(self) -> None:
        """Write one value at a time, each announced in the journal and read back; restore everything on an error.

        Raise KnobError, with nothing written, where somebody else has set a value since it was saved: the roll-back
        would take theirs back in silence. Raise TrialError if a watchdog does not watch any more at the end. Machines
        that end with the trial have nobody else on them, and the trial's end looks at every value again.
        """
        lasting = not is_disposable(self.shell)
        if lasting:
            self._still_as_saved()
        for cell in self.plan.planned:
            if self._read_back.get(cell.cell) != undo.GONE:
                self._write(cell)
        self._write_what_came()
        if lasting:
            self.settle()
        if self.unguarded():  # what was written after it acted would stay if this process died
            raise TrialError(
                "the watchdog acted, or is gone, before the setting was complete",
                hint="its report says why; with limits that are too narrow it acts at once",
            )

    def _still_as_saved(self) -> None:
        present = by_key((cell.target, (cell.knob, cell.old)) for cell in self.plan.cells)
        for cell, now in undo.read_cells(self.shell, self.plan.planned):
            if now.value != cell.old and not adapts(cell.knob, dict(present[cell.target])):
                raise KnobError(
                    f"{undo.name_of(cell)} was {cell.old} a moment ago and is {now.value or now.reason}: "
                    "another program set it, so nothing was written",
                    hint="find out which program sets it, then try again",
                )

    def facts(self) -> dict[str, Scalar]:
        """Return what every knob reads back, by knob; values that differ between targets are joined with `;`."""
        return {f"knob.{name}": read for name, read in self._by_knob(self._held, self._read_back).items()}

    def found(self) -> dict[str, str]:
        """Return what every knob was before, by knob; values that differ between targets are joined with `;`."""
        return self._by_knob(self.plan.planned, {cell.cell: cell.old for cell in self.plan.planned})

    @property
    def _held(self) -> tuple[SavedValue, ...]:
        """Return the values that the setting has: without those of queues that went with it, with those that came."""
        return (*(cell for cell in self.plan.planned if self._read_back.get(cell.cell) != undo.GONE), *self._came)

    def _by_knob(self, cells: Iterable[SavedValue], values: Mapping[int, str]) -> dict[str, str]:
        placed = {(one.knob.name, str(one.target)): one for one in self.plan.placed}
        of_targets = by_key(((cell.knob, cell.target), (cell.key, values[cell.cell])) for cell in cells)
        told: dict[str, list[str]] = {}
        for key, of_cells in of_targets.items():
            one = placed[key]
            told.setdefault(one.knob.name, []).extend(one.knob.told(self.shell, one.target, dict(of_cells)))
        return {name: ";".join(dict.fromkeys(several)) for name, several in told.items()}

    def disturbed(self) -> dict[str, str]:
        """Return what the writes changed besides, by knob and target, as `old -> now`; not a written knob's parts."""
        own = {f"{cell.knob}{PARTS}" for cell in self.plan.planned}
        cells = [c for c in self.plan.cells if c.new is None and c.cell in self._read_back and c.knob not in own]
        changed = by_key((undo.name_of(c), f"{c.old} -> {self._read_back[c.cell] or 'gone'}") for c in cells)
        return {name: "; ".join(dict.fromkeys(several)) for name, several in changed.items()}

    def readback_doubts(self) -> dict[str, str]:
        """Return the knobs whose read-back proves nothing, on their device or after the roll-back, and why."""
        driver = {device.target: device.driver for device in self.plan.devices}
        found = (
            (c.knob, drivers.readback_doubt(driver.get(c.target, ""), c.knob) or affinity.lingers(c.knob, c.old))
            for c in self.plan.planned
        )
        return {knob: reason for knob, reason in found if reason} | self._partly_on()

    def _partly_on(self) -> dict[str, str]:
        """Return the words for features that are on although some of these are not, and which."""
        words = {c.knob.removesuffix(PARTS) for c in self.plan.cells if c.knob.endswith(PARTS)}
        found = ((c, waiting(self.shell, c.access)) for c in self.plan.planned if c.new == "on" and c.knob in words)
        return {
            c.knob: f"it stands for {', '.join(off)}, too, which wait for another feature and are off on {c.target}"
            for c, off in found
            if off
        }

    def confirm(self) -> EndState:
        """Keep the setting: it survives this process, and no roll-back will undo it.

        Raise StoreError when the disk does not take that, TrialError when the values are not those of the setting any
        more, as after the watchdog acted; the caller restores then.
        """
        self.settle()  # who dies after the next record is not asked again, so that it may not claim what is not so
        # On the disk first: until it is there, the watchdog guards.
        self.journal.append({"kind": "end", "state": EndState.CONFIRMED, "left": []})
        if report := self._disarm():
            raise TrialError(f"too late to confirm, the watchdog has acted: {report}")
        self.settle()
        self._forget_far_scripts()
        forget_scripts(self.journal.path)
        self.journal.close()
        return EndState.CONFIRMED

    def restore(self, tell: Callable[[undo.RollbackResult], None] = lambda _: None) -> tuple[undo.RollbackResult, str]:
        """Put everything back; return what was done and the watchdog's report; `tell` hears it before the journal ends.

        Raises QuarantinedError for what is stuck; what somebody else set, and what is gone, is for the caller to name.
        """
        if self.journal.state.end is EndState.CONFIRMED:  # who dies from here on has not kept the setting
            with suppress(StoreError):
                self.journal.append({"kind": "end", "state": EndState.QUARANTINED, "left": []})
        # Not from the disk: it may be what is broken.
        state = self.journal.state
        undone = on_their_devices(self.shell, state, self.plan.cells, lambda here: undo.undo(self.shell, state, here))
        report = self._disarm()
        tell(undone)
        if not undone.stuck:
            self._forget_far_scripts()
        end(self.journal, undone, self.undo_script)
        forget_scripts(self.journal.path)
        return undone, report

    def unguarded(self) -> bool:
        """Return whether a watchdog is gone or acts: nobody would put values back later if this process died."""
        return not all(watchdog.alive() for watchdog in self.watchdogs)

    def renew(self) -> None:
        """Let the deadlines of the watchdogs count from now: writing may have taken long."""
        for watchdog in self.watchdogs:
            watchdog.renew()

    def _forget_far_scripts(self) -> None:
        """Remove the undo scripts and the reports of watchdogs on far machines: the session ends well.

        Before the journal does: who loses the connection afterwards would be asked for them by no roll-back.
        """
        if is_far(self.shell):
            for node in undo.scripts_of(self.plan.cells):
                forget_far_scripts(self.shell, self.journal.path, node)

    def _disarm(self) -> str:
        reports = [watchdog.disarm() for watchdog in self.watchdogs]
        self.watchdogs.clear()
        return "; ".join(report for report in reports if report)

    def _write(self, cell: SavedValue) -> None:
        assert cell.new is not None
        self.journal.append({"kind": "intent", "cell": cell.cell, "value": cell.new})
        read = self._standing(cell)
        if read is None:
            _patiently_write(self.shell, cell)
            read = read_one(self.shell, cell.access).value or ""
        disturbed = self._disturbed_by(cell)
        self._read_back |= {cell.cell: read, **disturbed}
        self.journal.append(
            {"kind": "done", "cell": cell.cell, "value": cell.new, "read": read, "disturbed": disturbed}
        )
        _refuse_other(cell, read)

    def _standing(self, cell: SavedValue) -> str | None:
        """Return what a value reads if a write would change nothing: ethtool over ioctl fails then, as some files do.

        A word for features does not stand by itself: what it stands for may wait for another feature.
        """
        if f"{cell.knob}{PARTS}" in {other.knob for other in self.plan.cells}:
            return None
        if self._read_back.get(cell.cell, cell.old) != cell.new:
            return None
        read = read_one(self.shell, cell.access).value
        return read if read == cell.new else None

    def _write_what_came(self) -> None:
        """Set what came with a write, such as a queue, as well; it goes with it again, so no journal needs to know."""
        known = {(cell.node, cell.key) for cell in self.plan.cells}
        moved = {(cell.knob, cell.target) for cell in self.plan.planned if cell.disturbed_by}
        driver = {device.target: device.driver for device in self.plan.devices}
        for one in self.plan.placed:
            steps = one.knob.steps(self.shell, one.target, one.value) if one.at in moved else ()
            for step in steps:
                if (step.access.node, step.access.key) not in known:
                    number = len(self.plan.cells) + len(self._came)
                    before = read_one(self.shell, step.access)
                    cell = planned_cell(driver.get(str(one.target), ""), one, step, before, number)
                    _patiently_write(self.shell, cell)
                    self._read_back[number] = read_one(self.shell, cell.access).value or ""
                    self._came.append(cell)
                    _refuse_other(cell, self._read_back[number])

    def _disturbed_by(self, cause: SavedValue) -> dict[int, str]:
        """Return what a write changed besides its own value; what went with it is `undo.GONE`."""
        others = [cell for cell in self.plan.cells if cause.cell in cell.disturbed_by]
        now = {
            cell.cell: (undo.GONE if undo.is_gone(reading) else reading.value, self._read_back.get(cell.cell, cell.old))
            for cell, reading in undo.read_cells(self.shell, others)
        }
        return {number: value for number, (value, before) in now.items() if value is not None and value != before}

    def settle(self) -> None:
        """Look at every written value once more: a later write may have changed an earlier one."""
        for lost in self.lost():
            raise KnobError(
                f"{lost} after other writes", hint="another knob of the setting, or another program, changes it"
            )

    def lost(self) -> list[str]:
        """Return what was written and is not any more, such as `nic.rx-usecs of eth1 was 0 and is 3`."""
        return [
            f"{undo.name_of(cell)} was {self._read_back[cell.cell]} and is "
            + (f"unreadable ({reading.reason})" if reading.value is None else reading.value)
            for cell, reading in undo.read_cells(self.shell, self._held)
            if reading.value not in cell.accept
        ]


def _refuse_other(cell: SavedValue, read: str) -> None:
    """Raise KnobError where a value reads back as another than was written."""
    if read not in cell.accept:
        raise KnobError(
            f"{undo.name_of(cell)} reads back {read!r} after {cell.new!r} was written",
            hint="the driver rounds or ignores this value; choose one that it keeps",
        )


def begin(
    shell: Shell, intended: Plan, folder: Path, *, host: str = "local", guard: WatchLimits | None = None
) -> Session:
    """Bring the journal to the disk and arm the watchdogs; after this, `apply` may write.

    The caller holds `journal.host_lock(folder)`. Raises StoreError or TrialError with nothing written.
    """
    path = new_journal(folder)
    nodes = dict.fromkeys(cell.node for cell in intended.cells)
    # A journal on machines that end with the trial is read by nobody after them.
    lasting = not is_disposable(shell)
    places = {node: present(shell, node).place if lasting else UNKNOWN_PLACE for node in nodes}
    records: list[dict[str, Any]] = [
        {
            "kind": "session",
            "format": JOURNAL_FORMAT,
            "host": host,
            "pid": os.getpid(),
            "boot_id": present(shell).place.boot if lasting else "",
            "started": int(time.time()),
            **_machines(shell, places, host),
        },
        *({"kind": "device", "target": d.target, "driver": d.driver, "identity": d.identity} for d in intended.devices),
        *(cell_record(replace(cell, place=places[cell.node])) for cell in intended.cells),
    ]
    session = Session(shell, intended, Journal.create(path, records))
    try:
        for number, (node, script) in enumerate(undo.scripts_of(intended.cells, intended.devices).items()):
            report = _leave_script(shell, node, path, number, script)
            if guard is not None:
                links = tuple(dict.fromkeys((*guard.links, *_own_links(shell, intended, node, guard))))
                session.watchdogs.append(Watchdog.arm(shell, node, replace(guard, links=links), script, report))
    except BaseException:
        session.restore()
        raise
    return session


def _own_links(shell: Shell, intended: Plan, node: str, guard: WatchLimits) -> list[str]:
    """Return the interfaces of a node that are written to and have a carrier now, where the guard needs them."""
    if not guard.own_links:
        return []
    found = [one.target.interface for one in intended.placed if one.target.node == node and one.target.interface]
    carriers = [file_access(node, f"/sys/class/net/{name}/carrier") for name in dict.fromkeys(found)]
    up = read_all(shell, carriers)
    return [name for name, reading in zip(dict.fromkeys(found), up, strict=True) if reading.value == "1"]


# Writes standard input to a file of its owner alone, and to the disk with its name; sync(1) of old takes no files. The
# root of a machine also keeps it where the machine's own sessions look, if there is such a place.
_PUT_SCRIPT = r"""
umask 077
mkdir -p -- "$1" && cat > "$1/$2.part" && mv -f -- "$1/$2.part" "$1/$2" || exit 1
machine=${NEARMETAL_MACHINE_STATE:-/run/nearmetal}
if [ "$(id -u)" = 0 ] && (umask 022; mkdir -p -- "$machine"); then
    { cat -- "$1/$2"; printf '%s\n' "$3"; } > "$machine/$2.part" && mv -f -- "$machine/$2.part" "$machine/$2"
fi 2> /dev/null
sync -- "$1/$2" "$1" 2> /dev/null || sync
"""


def _leave_script(shell: Shell, node: str, path: Path, number: int, script: str) -> str:
    """Save a node's undo script next to the journal, for a far machine also on it; return a report's place.

    It is on the disk before the first write, and can be read and run by hand.
    """
    name = f"{path.name}.{number}"
    os.close(put_durably(path.with_name(f"{name}.undo.sh"), script.encode()))
    if registry.is_of_the_machine(shell):
        registry.note(path, number, script)
    if not is_far(shell) or is_disposable(shell):
        return str(path.with_name(f"{name}.watchdog"))
    place = f"{shell.site.state}/journal"
    argv = ["sh", "-c", _PUT_SCRIPT, "put", place, f"{name}.undo.sh", registry.origin(path)]
    finished = shell.run(argv, node=node, stdin=script.encode(), check=False)
    if not finished.ok:
        where = shell.machine_name(node)
        raise StoreError(
            f"cannot write {place}/{name}.undo.sh on {where}: {finished.complaint()}; no setting was changed",
            hint=f"free some space on {where}",
        )
    return f"{place}/{name}.watchdog"


def _machines(shell: Shell, places: Mapping[str, Place], host: str) -> dict[str, dict[str, Any]]:
    """Return the far machines of a trial's nodes, and the ways to them, for the journal's first record.

    Nothing for one named machine: it is reached by its name.
    """
    if host != "local" or not is_far(shell):
        return {}
    return {
        "machines": {node: (shell.machine_name(node), place.boot) for node, place in places.items()},
        "ways": {shell.machine_name(node): way for node in places if (way := shell.way(node))},
    }


def _patiently_write(shell: Shell, cell: SavedValue) -> None:
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
