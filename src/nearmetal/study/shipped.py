"""The studies that come with nearmetal, by name: `paths` stands for the file studies/paths.toml that ships."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

from nearmetal.errors import BadInputError

_PLACES = (Path(__file__).parents[3] / "studies", Path(sys.prefix) / "share" / "nearmetal" / "studies")
"""Where they are: beside the sources, or where an installation puts data."""


def shipped() -> dict[str, Path]:
    """Return every shipped study's file by its name, in order; empty where an installation left them out."""
    for place in _PLACES:
        if found := sorted(place.glob("*.toml")):
            return {path.stem: path for path in found}
    return {}


def find_study(word: Path) -> Path:
    """Return the file that a word on the command line stands for: a file that is there, else a shipped study's name.

    Raises BadInputError, with the closest name, for what is neither.
    """
    if word.exists() or word.suffix or len(word.parts) != 1:
        return word
    known = shipped()
    if word.name in known:
        return known[word.name]
    close = difflib.get_close_matches(word.name, known, n=1)
    raise BadInputError(
        f"there is no file and no shipped study {word.name!r}",
        hint=f"did you mean {close[0]!r}?" if close else "`nearmetal studies` lists those that come with it",
    )
