"""TOML that somebody wrote by hand, read in time proportional to its length.

Not by tomllib: that takes up to 1.6 s of processor time a MB, and time in the square of the parts of a key (`a.a.a`).
"""

from __future__ import annotations

from typing import Any

import rtoml

from nearmetal.reading import TOO_DEEP, check_depth, timed


@timed
def parse_toml(text: str) -> dict[str, Any]:
    """Return what a TOML text holds; raise ValueError for anything else, and for one that nests too deep."""
    try:
        held = rtoml.loads(text, none_value=None)
    except rtoml.TomlParsingError as error:
        if "recursion" in str(error):  # its own limit, which is above ours
            raise ValueError(TOO_DEEP) from error
        raise
    check_depth(held)
    return held
