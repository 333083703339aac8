"""Putting back what an interrupted session left changed: only what is of this place, only through the table of knobs.

A journal says which knob of which target was what. Whether that is a value of this machine, boot and namespace is
compared first; how it is read and written is looked up in the table of knobs, so a file can never say what is run.
"""

import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nearmetal.errors import NearmetalError, QuarantinedError, StoreError
from nearmetal.hosts.host import HYPERVISOR, FarShell, Shell, is_far
from nearmetal.knobs import guards, undo
from nearmetal.knobs.access import Access, run_c
from nearmetal.knobs.folder import JournalFolder, forget_scripts, survey
from nearmetal.knobs.identity import Claim, Present, claim, present
from nearmetal.knobs.journal import Device, EndState, Journal, JournalState, SavedValue, read_state
from nearmetal.knobs.knob import Target
from nearmetal.knobs.table import find

OVER = frozenset({EndState.CONFIRMED, EndState.RESTORED, EndState.FORGOTTEN})
"""How a session may have ended so that nothing is left to do."""

_FORGET_SCRIPT = r"""
rm -f -- "$1/journal/$2".*.undo.sh "$1/journal/$2".*.watchdog "${NEARMETAL_MACHINE_STATE:-/run/nearmetal}/$2".*.undo.sh
"""
_INTERFACE = re.compile(r"[^-/\s][^/\s]{0,14}")
_VALUE = re.compile(r"(?!-\D)[\w.,:;+/= -]*", re.ASCII)


class UnfinishedError(NearmetalError):
    """An earlier session left settings changed, so nothing may be set or measured before they are put back."""


def end(journal: Journal, undone: undo.RollbackResult, undo_script: str) -> None:
    """Write the last record after a roll-back; raise QuarantinedError for a residue."""
    how = EndState.QUARANTINED if undone.stuck else EndState.RESTORED
    failure: StoreError | None = None
    try:
        journal.append({"kind": "end", "state": how, "left": list(undone.unproven)})
    except StoreError as error:
        failure = error
    finally:
        journal.close()
    _raise_stuck(undone, undo_script, journal.path)
    if failure is not None:
        raise _not_ended(undone, failure) from failure


def _raise_stuck(undone: undo.RollbackResult, undo_script: str, path: Path) -> None:
    if undone.stuck:
        raise QuarantinedError("could not put back: " + "; ".join(undone.unproven), undo_script, str(path))


def _not_ended(undone: undo.RollbackResult, failure: StoreError) -> StoreError:
    how = (
        "not back to their old values: " + "; ".join(undone.unproven)
        if undone.unproven
        else "every setting is back to its old value"
    )
    return StoreError(
        f"{how}, but {failure.message}",
        hint="`nearmetal rollback` checks the settings once more and closes the journal",
    )


def roll_back(
    shell: Shell,
    path: Path,
    machine: str = "",
    *,
    force: bool = False,
    tell: Callable[[undo.RollbackResult], None] = lambda _: None,
) -> undo.RollbackResult:
    """Replay a journal: put back everything in it, once or again; raise QuarantinedError for a residue.

    What belongs to another machine or namespace is not touched, and the journal stays open for it; where the journal
    does not tell, `force` takes it for this one. Values that did not outlive a boot or a namespace count as put back.
    `machine` is the one of a trial's far machines that the shell is on; the journal ends with the last of them. `tell`
    hears what was done before that: who is killed after it would not be asked again. Raises StoreError when the journal
    can be read but not ended.
    """
    whole = read_state(path)
    if whole.end in OVER:
        return undo.RollbackResult()
    last = not whole.waiting - {machine}
    state = whole.on(machine) if machine else whole
    cells = list(state.cells.values()) if state.touched() else []
    claims = _claims(shell, state, cells, force=force)
    mine = [cell for cell in cells if claims[cell.cell][0] == "mine"]
    undone = _with_claims(_put_back(shell, state, mine), cells, claims)
    script = "\n".join(undo.scripts_of(_reached(shell, mine)[0], state.devices).values())
    tell(undone)
    if undone.elsewhere:
        _raise_stuck(undone, script, path)
        return undone
    if is_far(shell) and not undone.stuck:  # before the journal ends, as `Session.restore`
        forget_far_scripts(shell, path, HYPERVISOR)
    _end(path, undone, script, machine if machine and not last else "")
    return undone


def _end(path: Path, undone: undo.RollbackResult, script: str, machine: str) -> None:
    """End a journal, or one far machine's part of it; remove the undo scripts when nothing is stuck."""
    try:
        journal = Journal.reopen(path)
        if machine and not undone.stuck:
            journal.append({"kind": "undone", "machine": machine})
            journal.close()
            return
    except StoreError as error:
        _raise_stuck(undone, script, path)
        raise _not_ended(undone, error) from error
    end(journal, undone, script)
    forget_scripts(path)


def forget(path: Path) -> tuple[str, ...]:
    """End a journal without putting anything back; return what it told of, with the old values."""
    state = read_state(path)
    journal = Journal.reopen(path)
    names = tuple(_with_old_value(cell) for cell in state.cells.values())
    if state.end not in OVER:
        journal.append({"kind": "end", "state": EndState.FORGOTTEN, "left": list(names)})
    journal.close()
    forget_scripts(path)
    return names


def forget_far_scripts(shell: FarShell, path: Path, node: str) -> None:
    """Remove the undo scripts of a journal on a far machine, and the reports of watchdogs there."""
    run_c(shell, ("sh", "-c", _FORGET_SCRIPT, "forget", shell.site.state, path.name), node)


def journals_of(
    shell: Shell, node: str, host: str, folder: JournalFolder, *, named: bool
) -> Iterator[tuple[Path, str, JournalState]]:
    """Yield the open journals of a node's machine: path, the name that the journal gives it, what happened there.

    They are those under its name, `host` - `named` says that the folder has that name - and, since a machine may have
    several names, those of values of its boot and namespaces.
    """
    here: Present | None = None
    for path, name, state in folder.waiting():
        if (name == host) if name else named:
            yield path, name, state
        elif state.touched():
            here = here or _present(shell, node)
            cells = {number: cell for number, cell in state.cells.items() if _is_here(cell, here)}
            if cells:
                yield path, name, replace(state, cells=cells)


def _is_here(cell: SavedValue, here: Present) -> bool:
    return bool(cell.place.boot) and claim(cell.place, here, 0.0)[0] in {"mine", "unknown"}


def refuse_unfinished(shell: Shell, folder: Path, called: str = "", *, measuring: bool = False) -> None:
    """Raise UnfinishedError when an earlier session left settings of a shell's machines changed.

    So does a journal that cannot be read, or that does not say of which machine it is, in a folder that is `called` as
    one of them; this machine's is called nothing. Where values are only measured under, `measuring`, those that are as
    they were are in nobody's way. The caller holds the lock.
    """
    left = changed_by_journals(shell, folder, called, measuring=measuring)
    if left:
        command = next((f"{command}" for _, name, command in left if name), "nearmetal rollback")
        raise UnfinishedError(
            "an earlier session was interrupted and left settings changed: "
            + "; ".join(f"{text} (on {name})" if name else text for text, name, _ in left),
            hint=f"run `{command}` to restore them; nothing was changed now",
        )


def changed_by_journals(
    shell: Shell, folder: Path, called: str = "", *, measuring: bool = False
) -> list[tuple[str, str, str]]:
    """Return what open journals of a folder say is changed on a shell's machines, the machine's name, and the command.

    See `refuse_unfinished`.
    """
    found = survey(folder)
    nodes = {node: shell.machine_name(node) for node in shell.machines} if is_far(shell) else {HYPERVISOR: ""}
    left = [(error.message, "", "") for _, error in found.refused if called in {"", *nodes.values()}]
    for node, name in nodes.items():
        for _, known_as, state in journals_of(shell, node, name, found, named=called == name):
            command = state.rolled_back_by(_own_name(state, known_as) or name)
            left += [(text, name, command) for text in _left_changed(shell, state, node, measuring=measuring)]
    return left


def _own_name(state: JournalState, known_as: str) -> str:
    """Return the name by which a journal's machine is reached; empty where it does not say."""
    if known_as:
        return known_as if known_as in state.ways else ""
    return "" if state.host == "local" else state.host


def _left_changed(shell: Shell, state: JournalState, node: str, *, measuring: bool) -> list[str]:
    if not state.touched():
        return []
    cells = [replace(cell, node=cell.node or node) for cell in state.cells.values()]
    claims = _claims(shell, state, cells)
    left = [cell for cell in cells if claims[cell.cell][0] in {"mine", "unknown"}]
    if measuring:
        reached = _reached(shell, left)[0]
        as_found = {cell.cell for cell, now in undo.read_cells(shell, reached) if now.value == cell.old}
        left = [cell for cell in left if cell.cell not in as_found]
    return [_with_old_value(cell) for cell in left]


def _claims(
    shell: Shell, state: JournalState, cells: Iterable[SavedValue], *, force: bool = False
) -> dict[int, tuple[Claim, str]]:
    """Return what each cell's place is to this one."""
    elapsed_s = time.time() - state.started
    now: dict[str, Present] = {}
    found = {}
    for cell in cells:
        if cell.node not in now:
            now[cell.node] = _present(shell, cell.node)
        what, why = claim(cell.place, now[cell.node], elapsed_s)
        if force and what == "unknown":
            what = "mine" if cell.place.boot == now[cell.node].place.boot else "past"
        found[cell.cell] = (what, why)
    return found


def _present(shell: Shell, node: str) -> Present:
    try:
        return present(shell, node)
    except NearmetalError:
        here = present(shell)
        return replace(here, place=replace(here.place, network=f"a machine without node {node}", mount=""))


def _with_claims(
    undone: undo.RollbackResult, cells: Iterable[SavedValue], claims: Mapping[int, tuple[Claim, str]]
) -> undo.RollbackResult:
    away = {"elsewhere", "unknown"}
    told = {cell.cell: f"{_with_old_value(cell)}: {claims[cell.cell][1]}" for cell in cells}
    return replace(
        undone,
        elsewhere=tuple(text for number, text in told.items() if claims[number][0] in away),
        past=tuple(text for number, text in told.items() if claims[number][0] == "past"),
    )


def _put_back(shell: Shell, state: JournalState, cells: list[SavedValue]) -> undo.RollbackResult:
    """Put this place's cells back, as far as their devices are here and the table of knobs knows them."""
    return on_their_devices(
        shell, state, cells, lambda here: undo.twice_if_gone(lambda: _put_back_here(shell, state, here))
    )


def on_their_devices(
    shell: Shell,
    state: JournalState,
    cells: Sequence[SavedValue],
    put_back: Callable[[list[SavedValue]], undo.RollbackResult],
) -> undo.RollbackResult:
    """Put the cells back whose devices still have their names, and tell of the others: a name may be another's now."""
    lost, away = _lost_targets(shell, state.devices, {cell.target for cell in cells})
    undone = put_back([cell for cell in cells if cell.target not in {*lost, *away}])
    return replace(
        undone,
        gone=(*undone.gone, *(_with_old_value(cell) for cell in cells if cell.target in lost)),
        stuck=(*undone.stuck, *(f"{_with_old_value(c)}: {away[c.target]}" for c in cells if c.target in away)),
    )


def _put_back_here(shell: Shell, state: JournalState, cells: list[SavedValue]) -> undo.RollbackResult:
    reached, gone, unknown = _reached(shell, cells)
    undone = undo.undo(shell, state, reached)
    return replace(undone, gone=(*undone.gone, *gone), stuck=(*undone.stuck, *unknown))


def _reached(shell: Shell, cells: Iterable[SavedValue]) -> tuple[list[SavedValue], list[str], list[str]]:
    """Return the cells with their ways from the table of knobs; those that are gone; those that it does not know."""
    reached: list[SavedValue] = []
    gone: list[str] = []
    unknown: list[str] = []
    for cell in cells:
        try:
            ways = {key: way for way in _ways(shell, cell) for key in way.keys}
        except NearmetalError as error:
            unknown.append(f"{_with_old_value(cell)}: {error.message}")
            continue
        if not all(map(_VALUE.fullmatch, (cell.old, cell.put))):
            unknown.append(f"{_with_old_value(cell)}: that is not a knob value")
        elif cell.key in ways:
            reached.append(replace(cell, way=ways[cell.key]))
        elif ways:
            gone.append(f"{_with_old_value(cell)}: there is no {cell.key} any more")
        else:
            unknown.append(f"{_with_old_value(cell)}: {cell.target} has no such knob now")
    return reached, gone, unknown


def _with_old_value(cell: SavedValue) -> str:
    return f"{undo.name_of(cell)}, which was {cell.old}"


def _ways(shell: Shell, cell: SavedValue) -> tuple[Access, ...]:
    knob = find(cell.knob)
    interface = cell.target.rpartition("/")[2] if knob.scope == "interface" else ""
    if interface and (not _INTERFACE.fullmatch(interface) or interface in {".", ".."}):
        return ()
    return knob.accesses(shell, Target(cell.node, interface))


def _lost_targets(shell: Shell, devices: Iterable[Device], wanted: set[str]) -> tuple[set[str], dict[str, str]]:
    """Return the targets whose device is no more, and those whose device is elsewhere now, with where."""
    lost: set[str] = set()
    away: dict[str, str] = {}
    for device in devices:
        if not device.identity or device.target not in wanted:
            continue
        node, _, interface = device.target.rpartition("/")
        if guards.index_of(shell, node, interface) == device.index:
            continue
        if name := _now_called(shell, node, device.index):
            away[device.target] = f"that interface is now called {name}"
        elif places := guards.moved_to(shell, node, device):
            away[device.target] = _moved(*places[0])
        else:
            lost.add(device.target)
    return lost, away


def _moved(place: str, name: str) -> str:
    """Return the sentence about an interface that was moved. Its values are left: whoever has it now may use them."""
    back = shlex.join(["nsenter", f"--net={place}", "ip", "link", "set", name, "netns"])
    return f"that interface is {name} in the network namespace {place} now; move it back, such as with `{back} $$`"


def _now_called(shell: Shell, node: str, index: str) -> str:
    lead = f"{index}: "
    lines = run_c(shell, ("ip", "-o", "link", "show"), node).text.splitlines()
    names = (line.removeprefix(lead).partition(":")[0].partition("@")[0] for line in lines if line.startswith(lead))
    return next(names, "")
