"""The list of a run's records, so that one that is gone is named: a line for each, chained to all lines before it.

    <chain> <seal of the record> 000042

A chain is the SHA-256 of the chain before it and of the rest of its line, so a line that is changed, moved or taken out
breaks all that follow. A record is permanent before its line is: after a crash one record may stand without, and the
end of a line may be missing.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from nearmetal import limits
from nearmetal.errors import ForeignFileError
from nearmetal.reading import read_bytes
from nearmetal.store.record import TrialRecord, record_paths
from nearmetal.store.sums import HINT_RESTORE, unread

LIST = "records.sums"
_TORN = re.compile(r"[0-9a-f .]*")
"""What a crash may leave of a line."""


def line_after(chain: str, record: TrialRecord) -> str:
    """Return the line of a record behind one whose chain is `chain` ('' for the first)."""
    rest = f" {record.seal} {record.name}\n"
    return hashlib.sha256((chain + rest).encode()).hexdigest() + rest


def whole_list(records: Iterable[TrialRecord]) -> bytes:
    """Return the list of these records in their order."""
    lines = [""]
    for record in records:
        lines.append(line_after(chain_of(lines[-1]), record))
    return "".join(lines).encode()


def chain_of(line: str) -> str:
    """Return the chain of a line, '' where there is none."""
    return line.partition(" ")[0]


def read_list(path: Path) -> dict[str, str]:
    """Return the seals that were listed by the names of their records; raise ForeignFileError for a damaged list."""
    try:
        text = read_bytes(path, limits.TEXT).decode("ascii")
    except OSError as error:
        raise unread(path, error) from error
    except ValueError as error:
        raise ForeignFileError(f"{path}: {error}", hint=HINT_RESTORE) from error
    listed, chain, altered = dict[str, str](), "", f"{path} has changed since it was written"
    *lines, torn = text.split("\n")
    if not _TORN.fullmatch(torn):
        raise ForeignFileError(f"{altered}: it ends with {torn[-40:]!r}", hint=HINT_RESTORE)
    for number, line in enumerate(lines, 1):
        found, _, rest = line.partition(" ")
        chain = hashlib.sha256(f"{chain} {rest}\n".encode()).hexdigest()
        seal, _, name = rest.partition(" ")
        if found != chain or name in listed:
            raise ForeignFileError(f"{altered}: line {number} does not continue the chain", hint=HINT_RESTORE)
        listed[name] = seal
    return listed


def gone(root: Path, listed: Mapping[str, str], records: Mapping[str, TrialRecord]) -> list[str]:
    """Return a sentence for each listed record that is not there; one that exists came after `records` were read."""
    there = {path.stem for path in record_paths(root)} if listed else set()
    missing = [name for name in listed if name not in records and name not in there]
    return [f"{root}/trials/{name}.json is missing, but its trial was finished" for name in missing]


def replaced(root: Path, listed: Mapping[str, str], records: Mapping[str, TrialRecord]) -> list[str]:
    """Return a sentence for each record that is another one than was listed."""
    names = [name for name, seal in listed.items() if name in records and records[name].seal != seal]
    return [f"{root}/trials/{name}.json is not the record that this run committed" for name in names]
