"""Undo as a POSIX shell script, and undo as Python: the same rule in both.

A value is put back when it is one that the session wrote or caused. A value that is already as it was is left, and so
is one that somebody else has set meanwhile; the latter is named.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.knobs.access import KnobError, read_all, write_one

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nearmetal.hosts.host import Shell
    from nearmetal.knobs.journal import Cell, Story

_PASSES = 3
"""Writes can disturb each other (a mode resets values), so values that are not as they were are written again."""

_PREAMBLE = r"""#!/bin/sh
# Puts back what nearmetal had changed, and nothing else. Runs as often as you like. Written by nearmetal.
LC_ALL=C
export LC_ALL
status=0
say() { printf '%s\n' "$*"; }
value_of() {
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


@dataclass(frozen=True, slots=True)
class Undone:
    """What a roll-back did: names of values put back, left because somebody else set them, gone, and stuck."""

    put_back: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()


def name_of(cell: Cell) -> str:
    """Return a cell's name for people."""
    return f"{cell.knob} of {cell.target}"


def undo(shell: Shell, story: Story, cells: Iterable[Cell] | None = None) -> Undone:
    """Put values back as they were; carry on after every failure, and say in the end what is not as it was."""
    candidates = list(story.cells.values() if cells is None else cells)
    before = _present(shell, candidates)
    gone = [cell for cell in candidates if before[cell.cell] is None]
    here = [cell for cell in candidates if before[cell.cell] is not None]
    foreign = [cell for cell in here if not _answerable(story, cell, before[cell.cell])]
    # A write that puts one value back may disturb another, so values that are as they were are watched too.
    watched = [cell for cell in here if cell not in foreign]
    changed = [cell for cell in watched if before[cell.cell] != cell.old]
    failures = _restore(shell, changed, watched)
    after = _present(shell, watched)
    return Undone(
        put_back=tuple(name_of(cell) for cell in changed if after[cell.cell] == cell.old),
        foreign=tuple(
            f"{name_of(cell)} is {before[cell.cell]}, neither what it was nor what was written" for cell in foreign
        ),
        gone=tuple(name_of(cell) for cell in gone),
        stuck=tuple(
            f"{name_of(cell)} is {after[cell.cell]} and was {cell.old}{failures.get(cell.cell, '')}"
            for cell in watched
            if after[cell.cell] != cell.old
        ),
    )


def _answerable(story: Story, cell: Cell, value: str | None) -> bool:
    """Tell whether a value is as it was, or is one that the session wrote or caused."""
    return value == cell.old or value in story.ours(cell) or _disturbed_unseen(story, cell)


def _disturbed_unseen(story: Story, cell: Cell) -> bool:
    """Tell whether the session died between a write and the look at what the write had disturbed."""
    return story.unfinished is not None and (cell.new is None or cell.cell == story.unfinished)


def _present(shell: Shell, cells: Sequence[Cell]) -> dict[int, str | None]:
    readings = read_all(shell, (cell.access for cell in cells))
    return {cell.cell: reading.value for cell, reading in zip(cells, readings, strict=True)}


def _restore(shell: Shell, ours: Sequence[Cell], watched: Sequence[Cell]) -> dict[int, str]:
    failures: dict[int, str] = {}
    pending: Sequence[Cell] = list(reversed(ours))
    for _ in range(_PASSES):
        for cell in pending:
            try:
                write_one(shell, cell.access, cell.old)
                failures.pop(cell.cell, None)
            except KnobError as error:
                failures[cell.cell] = f": {error.message}"
        present = _present(shell, watched)
        # The next pass goes forward: modes first, then the values that they reset.
        pending = [cell for cell in watched if present[cell.cell] != cell.old]
        if not pending:
            break
    return failures


def script(cells: Iterable[Cell]) -> str:
    """Return the shell script that does the same as `undo` for the cells of one node."""
    ordered = list(cells)
    functions = [f"{name}_{cell.cell}() {{\n{body(cell)}\n}}" for cell in ordered for name, body in _BODIES.items()]
    judge = [f"judge_{cell.cell}" for cell in ordered]
    # Backward, then forward, as `undo` does: modes reset values, and some modes forbid writing values.
    put_back = [f"put_back_{cell.cell}" for cell in [*reversed(ordered), *ordered]]
    check = [f"check_{cell.cell}" for cell in ordered]
    return "\n".join([_PREAMBLE, *functions, *judge, *put_back, *check, "exit $status"]) + "\n"


def _judge(cell: Cell) -> str:
    # What a disturbed value became cannot be known in advance: any value of it counts as caused by the session.
    ours = "|".join(map(shlex.quote, dict.fromkeys((cell.old, *cell.accept)))) if cell.new is not None else "?*"
    foreign = shlex.quote(f"left, somebody else set it: {name_of(cell)}, now ")
    return f"""    mine_{cell.cell}=
    now=$({_value_of(cell)})
    case "$now" in
    '') say {shlex.quote(f"gone: {name_of(cell)}")} ;;
    {ours}) mine_{cell.cell}=yes ;;
    *) say {foreign}"$now" ;;
    esac"""


def _put_back(cell: Cell) -> str:
    return f"""    [ "$mine_{cell.cell}" ] || return 0
    [ "$({_value_of(cell)})" = {shlex.quote(cell.old)} ] && return 0
    {_set(cell)} && say {shlex.quote(f"put back: {name_of(cell)} to {cell.old}")}"""


def _check(cell: Cell) -> str:
    stuck = shlex.quote(f"not as it was: {name_of(cell)}, which was {cell.old}, is ")
    return f"""    [ "$mine_{cell.cell}" ] || return 0
    now=$({_value_of(cell)})
    [ "$now" = {shlex.quote(cell.old)} ] && return 0
    status=4
    say {stuck}"$now" """


_BODIES = {"judge": _judge, "put_back": _put_back, "check": _check}


def _set(cell: Cell) -> str:
    if cell.access.path:
        return f"printf '%s\\n' {shlex.quote(cell.old)} > {shlex.quote(cell.access.path)}"
    return shlex.join(cell.access.change_argv(cell.old))


def _value_of(cell: Cell) -> str:
    return f"value_of {shlex.quote(cell.access.pick.sed())} {shlex.join(cell.access.show)}"
