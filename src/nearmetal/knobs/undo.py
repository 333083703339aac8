"""Undo as a POSIX shell script, and undo as Python: the same rule in both.

A value is put back when it is one that the session wrote or caused. One that somebody else has set meanwhile is left,
and named. Values are written backward, then forward: modes reset values, and some modes forbid writing values.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import KnobError, Reading, read_all, reset_one, write_one
from nearmetal.knobs.cpu import MIN_FREE
from nearmetal.knobs.nic import IPV6_MTU, LRO, MTU, known_as
from nearmetal.units import by_key

if TYPE_CHECKING:
    from nearmetal.knobs.journal import Device, JournalState, SavedValue

VALUE_OF_FUNCTION = r"""value_of() {
    pick=$1
    shift
    found=$("$@" 2>/dev/null | sed -nE "$pick" | head -n 1)
    set -f
    # Unquoted on purpose: blanks become single ones.
    set -- $found
    set +f
    printf '%s' "$*"
}
"""
"""A shell function: `value_of SED_SCRIPT COMMAND...` prints the value that a command shows, with single blanks."""

_PREAMBLE = r"""#!/bin/sh
# Puts back what nearmetal had changed, and nothing else. Runs as often as you like. Written by nearmetal.
LC_ALL=C
export LC_ALL
status=0
say() { printf '%s\n' "$*"; }
"""
GONE = ""
"""Stands for the value of what went with a write, such as a queue."""
NAMED = "# was: "
"""Starts the lines of an undo script that name a value and what it was."""


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """What a roll-back did: sentences about values, or their names.

    `put_back` are as they were because of it, `foreign` somebody else set, `gone` have no value any more, and `stuck`
    could not be read or put back. `elsewhere` were not looked at, because they are not those of this place, and `past`
    are known to have ended with a boot or with a namespace.
    """

    put_back: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    past: tuple[str, ...] = ()

    @property
    def unproven(self) -> tuple[str, ...]:
        """Return every sentence about a value that was not seen to be what it was."""
        return self.stuck + self.foreign + self.gone + self.elsewhere


def name_of(cell: SavedValue) -> str:
    """Return a cell's name for people."""
    return f"{known_as(cell.knob)} of {cell.target}"


def undo(shell: Shell, state: JournalState, cells: Iterable[SavedValue]) -> RollbackResult:
    """Put values back as they were; carry on after every failure, and say in the end what is not as it was."""
    candidates = list(cells)
    return twice_if_gone(lambda: _undo_once(shell, state, candidates))


def twice_if_gone(attempt: Callable[[], RollbackResult]) -> RollbackResult:
    """Return the result of an attempt, or of a second one: interrupts or a table may have come back with queues."""
    undone = attempt()
    if (undone.gone or undone.stuck) and undone.put_back:
        again = attempt()
        return replace(again, put_back=tuple(dict.fromkeys((*undone.put_back, *again.put_back))))
    return undone


def _undo_once(shell: Shell, state: JournalState, candidates: Sequence[SavedValue]) -> RollbackResult:
    found = _present(shell, candidates)
    here = [cell for cell in candidates if found[cell.cell].value is not None]
    foreign = {cell.cell for cell in here if not _answerable(state, cell, found[cell.cell].value)}
    # Every value has a goal, because a write that puts one value back may disturb another.
    goals = {cell.cell: (found[cell.cell].value or "") if cell.cell in foreign else cell.old for cell in here}
    failures, after = _restore(shell, here, goals, found)
    missing = [cell for cell in candidates if found[cell.cell].value is None]
    return RollbackResult(
        put_back=tuple(
            dict.fromkeys(name_of(c) for c in here if found[c.cell].value != goals[c.cell] == after[c.cell].value)
        ),
        foreign=tuple(
            f"{name_of(cell)}, which was {cell.old}, is {found[cell.cell].value}: another program set it"
            for cell in here
            if cell.cell in foreign
        ),
        gone=tuple(f"{name_of(cell)}, which was {cell.old}" for cell in missing if is_gone(found[cell.cell])),
        stuck=(
            *(
                f"{name_of(cell)} is {after[cell.cell].value} and was {goals[cell.cell]}{failures.get(cell.cell, '')}"
                for cell in here
                if after[cell.cell].value != goals[cell.cell]
            ),
            *(
                f"{name_of(cell)} was {cell.old} and cannot be read: {found[cell.cell].reason}"
                for cell in missing
                if not is_gone(found[cell.cell])
            ),
        ),
    )


def is_gone(reading: Reading) -> bool:
    """Return whether a value does not exist any more, rather than that it cannot be read."""
    return reading.reason.endswith(_GONE)


_GONE = ("No such file or directory", "No such device", "does not exist.", "per queue parameters: Invalid argument")


def _answerable(state: JournalState, cell: SavedValue, value: str | None) -> bool:
    """Return whether a value is as it was, or is one that the session wrote or caused.

    What went with a write, such as a queue, comes back with any value.
    """
    ours = state.ours(cell)
    return value == cell.old or value in ours or GONE in ours or state.unseen(cell)


def read_cells(shell: Shell, cells: Sequence[SavedValue]) -> list[tuple[SavedValue, Reading]]:
    """Return cells with what each of them reads now."""
    return list(zip(cells, read_all(shell, (cell.access for cell in cells)), strict=True))


def _present(shell: Shell, cells: Sequence[SavedValue]) -> dict[int, Reading]:
    return {cell.cell: reading for cell, reading in read_cells(shell, cells)}


def _restore(
    shell: Shell, cells: Sequence[SavedValue], goals: Mapping[int, str], present: Mapping[int, Reading]
) -> tuple[dict[int, str], Mapping[int, Reading]]:
    """Write what is not as its goal says: backward first, then forward; return failures and last readings."""
    failures: dict[int, str] = {}
    for direction in (reversed, list, list):
        pending = [
            cell
            for cell in direction(cells)
            if _is_due(cell, present[cell.cell].value, goals[cell.cell], first=direction is reversed)
        ]
        for cell in pending:
            try:
                _write_back(shell, cell, goals[cell.cell])
                failures.pop(cell.cell, None)
            except KnobError as error:
                failures[cell.cell] = f": {error.message}"
        if pending:
            present = _present(shell, cells)
        elif direction is list:
            break
    return failures, present


def _is_due(cell: SavedValue, value: str | None, goal: str, *, first: bool) -> bool:
    if first and _follows(cell):
        return False
    return value != goal or (first and goal == cell.old and _reset_first(cell))


def _follows(cell: SavedValue) -> bool:
    """Return whether a value waits for its cause: once it is written by itself it follows that no more.

    A bridge does not follow its ports then, nor the memory that the kernel keeps free the use of large pages. LRO is
    refused while it is off above, and asked for already when it is on there.
    """
    return cell.new is None and cell.knob in {MTU, IPV6_MTU, MIN_FREE, *LRO}


def _reset_first(cell: SavedValue) -> bool:
    """Return whether a default was overwritten that follows what else was written: a look at it does not tell."""
    return cell.default and bool(cell.access.reset and cell.new and cell.disturbed_by)


def _write_back(shell: Shell, cell: SavedValue, goal: str) -> None:
    if cell.default and cell.access.reset and goal == cell.old:
        reset_one(shell, cell.access)
    else:
        write_one(shell, cell.access, (goal == cell.old and cell.put) or goal)


def scripts_of(cells: Iterable[SavedValue], devices: Sequence[Device] = ()) -> dict[str, str]:
    """Return the undo script of each node."""
    return {node: script(own, devices) for node, own in by_key((cell.node, cell) for cell in cells).items()}


def script(cells: Iterable[SavedValue], devices: Sequence[Device] = ()) -> str:
    """Return the shell script that does the same as `undo` for the cells of one node.

    The values of a device are gone where its name is not that of the interface with its index: it may be another's.
    """
    ordered = list(cells)
    known = {device.target: f"here_{number}" for number, device in enumerate(devices) if device.index.isdecimal()}
    here = [
        f"{known[device.target]}=$(ip -o link show dev {shlex.quote(device.target.rpartition('/')[2])} 2> /dev/null | "
        f"sed -n 's/^{int(device.index)}: .*/1/p')"
        for device in devices
        if device.target in known.keys() & {cell.target for cell in ordered}
    ]
    functions = [f"{name}_{cell.cell}() {{\n{body(cell)}\n}}" for cell in ordered for name, body in _BODIES.items()]
    functions += [f"judge_{cell.cell}() {{\n{_judge(cell, known.get(cell.target, ''))}\n}}" for cell in ordered]
    judge = [f"judge_{cell.cell}" for cell in ordered]
    backward = [
        f"put_back_{cell.cell}" + " first" * _reset_first(cell) for cell in reversed(ordered) if not _follows(cell)
    ]
    put_back = [*backward, *(f"put_back_{cell.cell}" for cell in ordered)]
    # What was gone may have come back with what was put back, as `twice_if_gone`.
    again = [f'[ "$goal_{cell.cell}" ] || {{ judge_{cell.cell}; put_back_{cell.cell}; }}' for cell in ordered]
    check = [f"check_{cell.cell}" for cell in ordered]
    named = [f"{NAMED}{name_of(cell)} {cell.old}" for cell in ordered]
    deeds = [*judge, *put_back, *again, *check]
    return "\n".join([_PREAMBLE, *named, VALUE_OF_FUNCTION, *here, *functions, *deeds, "exit $status"]) + "\n"


def _judge(cell: SavedValue, here: str) -> str:
    # What a disturbed value became cannot be known in advance: any value of it counts as caused by the session.
    known = "|".join(map(shlex.quote, dict.fromkeys((cell.old, *cell.accept))))
    ours = known if cell.new is not None and not cell.disturbed_by else "?*"
    foreign = shlex.quote(f"left, another program set it: {name_of(cell)}, now ")
    reads = f"$({cell.access.script_reads()})"
    return f"""    now={f"${{{here}:+{reads}}}" if here else reads}
    goal_{cell.cell}={shlex.quote(cell.old)}
    case "$now" in
    '') goal_{cell.cell}= ;;
    {ours}) ;;
    *) say {foreign}"$now"; goal_{cell.cell}=$now; status=4 ;;
    esac"""


def _put_back(cell: SavedValue) -> str:
    goal = f'"$goal_{cell.cell}"'
    is_old = f"[ {goal} = {shlex.quote(cell.old)} ]"
    sets = cell.access.script_puts_back(goal, is_old) if cell.default else cell.access.script_sets(goal)
    if cell.put:
        sets = f"if {is_old}; then {cell.access.script_sets(shlex.quote(cell.put))}; else {sets}; fi"
    always = f'[ "$1" = first ] && {is_old} || ' if _reset_first(cell) else ""
    return f"""    [ {goal} ] || return 0
    {always}[ "$({cell.access.script_reads()})" != {goal} ] || return 0
    {sets} && say {shlex.quote(f"put back: {name_of(cell)} to ")}{goal} """


def _check(cell: SavedValue) -> str:
    stuck = shlex.quote(f"not as it was: {name_of(cell)}, which was {cell.old}, is ")
    gone = shlex.quote(f"gone: {name_of(cell)}")
    return f"""    [ "$goal_{cell.cell}" ] || {{ say {gone}; status=4; return; }}
    now=$({cell.access.script_reads()})
    [ "$now" = "$goal_{cell.cell}" ] && return 0
    status=4
    say {stuck}"$now" """


_BODIES = {"put_back": _put_back, "check": _check}
