"""Studies as the command line names them: a file, or one that ships (`paths` is studies/paths.toml)."""

import sys
from pathlib import Path

from nearmetal.errors import BadInputError, command_line, meant
from nearmetal.reading import read_text
from nearmetal.study.spec import NodeSpec, Study, parse_nodes, parse_study, with_machines

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
    if word.is_file() or (word / "run.json").exists() or word.suffix or len(word.parts) != 1:
        return word
    known = shipped()
    if word.name in known:  # also where a directory, which is no study, happens to have that name
        return known[word.name]
    if word.exists():
        return word
    hint = meant(word.name, known, "`nearmetal studies` lists the shipped ones")
    raise BadInputError(f"there is no file and no shipped study {word.name!r}", hint=hint)


def read_study(path: Path) -> tuple[Study, str]:
    """Read a study file, or a shipped study by its name; return the study and its text.

    Raise BadInputError that lists every error.
    """
    path = find_study(path)
    try:
        text = read_text(path)
    except OSError as error:
        raise BadInputError(f"cannot read the study {path}: {error.strerror}", hint=_meant(path)) from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"the study {path} is not UTF-8 text: {error}", hint="save it as UTF-8") from error
    return parse_study(text, str(path)), text


def read_hosts_file(path: Path) -> str:
    """Return the text of a hosts file; raise BadInputError where it cannot be read."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(
            f"{path} is not a hosts file: {why}", hint="a hosts file has [[node]] tables and nothing else"
        ) from error


def read_nodes(path: Path) -> list[NodeSpec]:
    """Return the machines in a hosts file; raise BadInputError that lists every error."""
    return parse_nodes(read_hosts_file(path), str(path))


def with_hosts_file(study: Study) -> tuple[Study, str | None]:
    """Return a study with the machines of its hosts file among its own, and that file's text, None where it names none.

    A run keeps that text: what it measured does not depend on a file that may be edited, or be missing elsewhere.
    """
    if not study.host.hosts_file:
        return study, None
    path = Path(study.host.hosts_file).expanduser()
    text = read_hosts_file(path)
    return with_machines(study, text, str(path)), text


def _meant(path: Path) -> str:
    """Return the hint for a study that cannot be read: a run, a file of nearly that name, or the shipped studies."""
    if (path / "run.json").exists():
        return f"it is a run; to continue it: {command_line('run', '--resume', path)}"
    from difflib import get_close_matches  # noqa: PLC0415 (only for a typo)

    known = {one.stem: one for one in path.parent.glob("*.toml")}
    if not path.exists() and (close := get_close_matches(path.stem, known, n=1)):
        return f"did you mean {known[close[0]]}?"
    return "`nearmetal studies` lists the shipped ones, which run by name: nearmetal run paths"
