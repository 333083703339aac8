"""What a terminal is sent: nothing that text of studies, tools and files could have made a command of.

Neither square brackets (rich's markup) nor control characters do anything.
"""

import re
from collections.abc import Container, Iterable, Iterator
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table

from nearmetal.errors import visible


class Console(rich.console.Console):
    """A console that shows text verbatim: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is drawn, with control characters made visible; those of rich itself pass."""
        return _unpadded(
            one if one.control else Segment(visible(one.text), one.style) for one in super().render(renderable, options)
        )


def plain_table(*heads: str, right: Container[str] = ()) -> Table:
    """Return a table without lines, with the columns `right` flush right; a narrow terminal breaks words, cuts none."""
    columns = (Column(one, justify="right" if one in right else "left", overflow="fold") for one in heads)
    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def _unpadded(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Leave out the blanks that end a line: those that pad a table's last column, or stand where a line was broken."""
    blanks: list[Segment] = []
    for one in segments:
        if one.control:
            yield one
            continue
        whole = re.sub(" +\n", "\n", one.text)
        text = whole.rstrip(" ")
        if text and not text.startswith("\n"):
            yield from blanks
        if text:
            blanks.clear()
            yield Segment(text, one.style)
        if text != whole:
            blanks.append(Segment(whole[len(text) :], one.style))
    yield from blanks
