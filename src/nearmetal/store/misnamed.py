"""What was probably meant by a path that is no run directory: the next step of an error."""

from difflib import get_close_matches
from pathlib import Path
from shlex import quote

from nearmetal.errors import command_line
from nearmetal.store.searchdir import SearchDir

_MOST_NAMED = 3


def misnamed(root: Path, marker: str, verb: str) -> str:
    """Return the hint for a path without `marker`, which `verb` makes: a file, a search, runs, or a typing error.

    Directories that cannot be read hold nothing that is known.
    """
    if (root / SearchDir.MARKER).exists():
        return f"it holds a search; `{command_line('show', root)}` lists its trials"
    if root.is_file():
        if root.suffix == ".toml":
            return f"it looks like a study; `{verb} {quote(str(root))}` makes a directory from it"
        return f"a run directory is needed; of an archive: {command_line('unarchive', root)} DIR"
    if inside := _holding(root, marker):
        more = f" and {len(inside) - _MOST_NAMED} more" if len(inside) > _MOST_NAMED else ""
        return f"name one of those that it holds: {', '.join(map(str, inside[-_MOST_NAMED:]))}{more}"
    beside = {one.name: one for one in _holding(root.parent, marker)}
    if not root.exists() and (close := get_close_matches(root.name, beside, n=1)):
        return f"did you mean {beside[close[0]]}?"
    return f"`{verb}` makes one"


def _holding(place: Path, marker: str) -> list[Path]:
    """Return the directories there that have the marker, by name."""
    try:
        return sorted(one for one in place.iterdir() if (one / marker).exists())
    except OSError:
        return []
