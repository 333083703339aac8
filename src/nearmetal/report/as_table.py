"""The report on a terminal: readable without colour and in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import rich.table
from rich import box
from rich.text import Text

from nearmetal.report import steps, tables, words
from nearmetal.report.tables import Table
from nearmetal.results.records import View
from nearmetal.results.stopping import Unfinished
from nearmetal.stats.between import Standing
from nearmetal.stats.equivalence import Verdict
from nearmetal.units import counted, held

if TYPE_CHECKING:
    from nearmetal.report.terminal import Console

_STYLES = {
    str(Verdict.NEAR_METAL): "green",
    str(Verdict.FASTER): "cyan",
    str(Verdict.SLOWER): "red",
    str(Verdict.SLOWER_TAIL): "red",
    str(Verdict.DIFFERS): "yellow",
    str(Verdict.UNDECIDED): "yellow",
    str(Standing.WITHIN): "green",
    str(Standing.BETTER): "cyan",
    str(Standing.WORSE): "red",
}
_MOST_STEPS = 3
_LEAST_ROWS = 5
_TABLE_HEAD = 4
"""Lines of a table before its first row."""
_LONGEST_VERDICT = max(map(len, _STYLES))
_SHORTEST_VALUE = 16
_FIRST_COLUMN = 32
"""Names of counters are wrapped rather than let them push paths into another table."""


def render(view: View, console: Console, *, brief: bool = False) -> None:
    """Print the report; with `brief` only what `nearmetal run` ends with: means, noise floor and verdicts."""
    console.print(view.title, style="bold")
    if not brief:
        say_unfinished(view.unfinished, console)
    console.print(f"Figures from {view.host_label}.")
    console.print(words.blocks_sentence(view))
    for line in words.mixed(view):
        console.print(line)
    for group in view.groups:
        draw(console, [tables.levels(view, group)] if brief else tables.of_group(view, group))
    if not brief:
        draw(console, [tables.settings(view), tables.modes(view)])
        for cause in view.causes:
            console.print(f"{cause}.")
        draw(console, [tables.counters(view), tables.facts(view)])
    draw(console, [tables.failures(view), tables.verdicts(view), steps.open_cells(view)])
    for sentence in steps.gains(view):
        console.print(sentence)
    console.print()
    console.print(words.method_sentence(view))


def say_unfinished(lacks: Unfinished | None, console: Console) -> None:
    """Print what a run lacks; its command stays on one line, so that it can be copied."""
    for line in words.unfinished(lacks):
        console.print(line, soft_wrap=lacks is not None and line.endswith(lacks.resume), style="yellow")


def answer(view: View, console: Console, *, lines: int = 40, run: str = "RUN") -> None:
    """Print what a reader came for in at most `lines` lines: a sentence for each path and setting, then the ratios.

    Of a study with one path, its levels instead. Sentences and ratios that do not fit are left out, those of the
    smallest cost first; a line says how many. Sentences leave room for some ratios. `run` stands for the run in
    commands.
    """
    needed = _TABLE_HEAD + _LEAST_ROWS + 1 if tables.shortest(view, 1)[0].rows else 1
    for most in range(_MOST_STEPS, 0, -1):
        head = _head(view, console, most, verdicts=lines // 3, run=run)
        if len(head) <= lines - needed:
            break
    if len(head) >= lines:  # the last line is for what is left out of the ratios
        head = [*head[: lines - 2], f"{len(head) - lines + 2} more lines not shown."]
    console.out("\n".join(head))
    room = lines - len(head)
    drawn, left_out = _fitting(view, console, room - 1)
    if drawn:
        console.out("\n".join(drawn))
    if left_out:
        console.print(
            f"{left_out} more not shown, all of smaller cost." if drawn else f"{counted(left_out, 'ratio')} not shown."
        )


def _head(view: View, console: Console, most: int, *, verdicts: int, run: str) -> list[str]:
    """Return the lines above the ratios, with at most so many sentences of a kind."""
    with console.capture() as captured:
        console.print(view.title, style="bold")
        premature = view.unfinished is not None and view.unfinished.premature
        if premature:
            say_unfinished(view.unfinished, console)
        _verdicts(view, console, verdicts)
        for sentence in words.alone(view) if len(view.shown_paths) == 1 else ():
            console.print(f"{sentence}.")
        for sentence in _most([one.rstrip(".") for one in steps.gains(view)], most, "gains of settings"):
            console.print(f"{sentence}.")
        console.print(words.noise_sentence(view) + words.launches_sentence(view))
        console.print(f"Figures from {view.host_label}.")
        console.print(words.blocks_sentence(view))
        if not premature:
            say_unfinished(view.unfinished, console)
        for sentence in (
            *_most(words.mixed(view), most, "differences"),
            *_most(view.causes, most, "causes of modes"),
            *_most(steps.next_steps(view), most, "steps"),
            *_most(words.failure_sentences(view.failures, run), most, "kinds of failures"),
        ):
            console.print(f"{sentence}.")
    return [line.rstrip() for line in captured.get().splitlines()]


def _fitting(view: View, console: Console, most: int) -> tuple[list[str], int]:
    """Return the lines of the table of ratios, and how many it leaves out to have at most `most` lines."""
    for rows in range(max(0, most - _TABLE_HEAD), -1, -1):
        table, left_out = tables.shortest(view, rows)
        with console.capture() as captured:
            draw(console, [table])
        drawn = captured.get().splitlines()
        if len(drawn) <= most:
            break
    return drawn, left_out


def _verdicts(view: View, console: Console, most: int) -> None:
    """Print a sentence for each path and setting, the costliest where they are too many, the verdict coloured."""
    for one in words.costliest(view.verdicts, most):
        style = _STYLES.get(str(one.verdict), "")
        console.print(
            Text.assemble(f"{words.judged(view, one)}: ", (str(one.verdict), style), words.reached(view, one))
        )
    if len(view.verdicts) > most:
        console.print(f"{counted(len(view.verdicts) - most, 'more verdict')} not shown.")


def _most(sentences: Sequence[str], most: int, what: str) -> list[str]:
    left_out = len(sentences) - most
    return [*sentences[:most], f"{what} not shown: {left_out}"] if left_out > 0 else [*sentences]


def draw(console: Console, one: Sequence[Table], whole: str = "--format json") -> None:
    """Print tables below each other; those without rows are left out. `whole` has the values that are shortened."""
    for table in one:
        _print(console, table, whole)


def _print(console: Console, table: Table, whole: str) -> None:
    """Print a table, in parts one below the other when its columns do not fit; nothing when it has no rows."""
    if not table.rows:
        return
    table, shortened = _shortened(table, console.width)
    for columns in _parts(table, console.width):
        console.print()
        console.print(table.title, style="bold")
        with _wide_enough(console, _least(table, columns)):
            console.print(_drawn(table, columns, console.width))
    if table.note:
        console.print(table.note)
    if shortened:
        console.print(f"Values that end in '...' are shortened; {whole} has them whole.")


def _shortened(table: Table, width: int) -> tuple[Table, bool]:
    """Return a table of values with no line longer than half of what its labels leave, and whether any was cut.

    A longer one would take the labels' room, or need a table for each path.
    """
    most = max(_SHORTEST_VALUE, (width - min(_needed(table, 0), _FIRST_COLUMN)) // 2 - 1)
    if table.left > 1 or all(_needed(table, column) <= most for column in range(1, len(table.head))):
        return table, False
    rows = tuple(
        (row[0], *("\n".join(_cut(line, most) for line in entry.split("\n")) for entry in row[1:]))
        for row in table.rows
    )
    return replace(table, rows=rows), True


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."


def _drawn(table: Table, columns: Sequence[int], width: int) -> rich.table.Table:
    # The box parts columns by one blank; a second one only where there is room.
    roomy = sum(_needed(table, column) + 2 for column in columns) <= width
    drawn = rich.table.Table(box=box.SIMPLE_HEAD, padding=(0, 1 if roomy else 0, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        words_here = _of_words(table, [column])
        drawn.add_column(
            table.head[column],
            justify="left" if words_here else "right",
            overflow="fold",
            no_wrap=not words_here,
            min_width=min(_needed(table, column), _LONGEST_VERDICT) if words_here else None,
        )
    for row in table.rows:
        drawn.add_row(*(Text(held(row[column]), style=_STYLES.get(row[column], "")) for column in columns))
    return drawn


def _parts(table: Table, width: int) -> list[list[int]]:
    """Return groups of columns that fit the width, each with the columns of words that tell rows apart."""
    everything = list(range(len(table.head)))
    if table.left > 1 and (_least(table, everything) <= width or _of_words(table, everything)):
        return [everything]
    lead = everything[: table.left]
    parts = [lead]
    for column in everything[table.left :]:
        if len(parts[-1]) > table.left and _least(table, [*parts[-1], column]) > width:
            parts.append(lead)
        parts[-1] = [*parts[-1], column]
    return parts


def _of_words(table: Table, columns: Sequence[int]) -> bool:
    """Return whether columns hold words alone, which are broken where they do not fit; a figure never is."""
    return all(map(table.of_words, columns))


def _least(table: Table, columns: Sequence[int]) -> int:
    """Return the width below which figures in these columns would be cut."""
    longest = _LONGEST_VERDICT if table.left > 1 else _FIRST_COLUMN
    needed = [min(_needed(table, one), longest) if _of_words(table, [one]) else _needed(table, one) for one in columns]
    return sum(needed) + len(needed) - 1


@contextmanager
def _wide_enough(console: Console, least: int) -> Iterator[None]:
    """Let a table be wider than a terminal too narrow for its figures, whose lines then break, whole."""
    width = console.width
    console.width = max(width, least)
    try:
        yield
    finally:
        console.width = width


def _needed(table: Table, column: int) -> int:
    return max(len(line) for row in (table.head, *table.rows) for line in row[column].split("\n"))
