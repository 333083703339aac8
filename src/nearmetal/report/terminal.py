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
from rich.text import Text

from nearmetal.errors import visible
from nearmetal.units import HELD, wrapped


class Console(rich.console.Console):
    """A console that shows text verbatim: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; prose is broken into lines as `wrapped` does it, so that what is to be copied stays whole."""
        whole = options.get("soft_wrap", self.soft_wrap) or options.get("no_wrap")
        if len(objects) == 1 and isinstance(objects[0], str | Text) and not whole:
            options = {"no_wrap": True, "overflow": "ignore", "crop": False, **options}
            objects = (_in_lines(Text() + objects[0], self.width),)
        super().print(*objects, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is drawn, with control characters made visible; those of rich itself pass."""
        return _unpadded(
            one if one.control else Segment(visible(one.text).replace(HELD, " "), one.style)
            for one in super().render(renderable, options)
        )


def _in_lines(text: Text, width: int) -> Text:
    lines = []
    for line in text.split(allow_blank=True):
        end, fits = 0, len(line) <= width
        for part in [line.plain] if fits else wrapped(line.plain, width, expand_tabs=False, replace_whitespace=False):
            start = line.plain.index(part, end)
            end = start + len(part)
            lines.append(line[start:end])
    return Text("\n").join(lines)


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
