"""A history on a terminal, in 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from nearmetal.history import words
from nearmetal.report import as_table

if TYPE_CHECKING:
    from rich.console import Console

    from nearmetal.history.records import History

_LATEST = 12


def render(history: History, console: Console) -> None:
    """Print each study's series, the changes, and the latest runs."""
    groups = list(dict.fromkeys(words.title(one) for one in history.series))
    as_table.draw(console, [words.overview(history, group) for group in groups])
    as_table.draw(console, [words.changes(history)])
    listed = words.runs(history)
    if len(listed.rows) > _LATEST:
        title = f"The latest {_LATEST} of {len(listed.rows)} runs"
        listed = type(listed)(title, listed.head, listed.rows[-_LATEST:], listed.note, listed.left)
    as_table.draw(console, [listed])
    console.print()
    console.print(Text(words.found(history)))
