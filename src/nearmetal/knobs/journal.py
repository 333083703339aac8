"""The undo journal: what every value was, on disk before the first write.

One file a session, JSON lines. Each record holds a sequence number and the CRC-32 of itself and of the record before
it. The first records (`session`, `cell` ..., `armed`) reach the disk as a whole: written to another name, fsynced,
renamed, directory fsynced. After that each record is appended and fsynced before the deed that it announces. A record
that is torn at the end of the file announced a deed that never began; damage anywhere else is an error.

Record kinds, in order:

| kind | fields |
|---|---|
| `session` | `format`, `host`, `pid`, `boot_id`, `started` (Unix seconds) |
| `device` | `target`, `driver`, `identity`: what the values belong to |
| `cell` | `cell`, `knob`, `node`, `target`, `key`, `place`, `old`, `new` (planned value or null), |
| | `accept` (read-backs of `new`), `disturbed_by` (cells whose write may change this one), `default` (`old` is the |
| | device's own, and is put back by a reset), `put` (is written to read `old`, where that is another value) |
| `intent` | `cell`, `value`: the next deed is this write |
| `done` | `cell`, `value`, `read` (what it reads back), `disturbed` (cells that the write changed besides: values, |
| | empty where there is none any more) |
| `undone` | `machine`: all that was on this one of several far machines was put back |
| `end` | `state`: `confirmed`, `restored`, `quarantined` or `forgotten`; `left`: cells that were not put back |

`key` names the value among those of the knob on the target; how it is read and written comes from the table of knobs
alone, never from a file. Format 1 had an `access` instead, and no `place`: it is read, its places are unknown.

A session of a trial on far machines has `machines` in its first record, node to `[name, boot_id]`, and `ways`, name to
how that machine is reached: `kind` of host, `node` and `options`, as in a study.
"""

from __future__ import annotations

import json
import os
import shlex
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from nearmetal.errors import ForeignFileError, StoreError, os_errors_as
from nearmetal.hosts.host import RUN, Way
from nearmetal.knobs.access import Access
from nearmetal.knobs.identity import UNKNOWN_PLACE, Place
from nearmetal.knobs.trust import trusted_bytes
from nearmetal.reading import parse_json

JOURNAL_FORMAT = 2
_FIRST_FORMAT = 1
_ROOM = "free some space, or name another place for journals with XDG_STATE_HOME"
NEW_SUFFIX = ".new"
"""Of a file that does not have its name yet."""


class EndState(StrEnum):
    """How a session ended."""

    CONFIRMED = "confirmed"
    RESTORED = "restored"
    QUARANTINED = "quarantined"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class SavedValue:
    """One value that a session may change, and what it was.

    `new` is None for values that the session does not write but that its writes may disturb. `accept` are the
    read-backs that mean that the value is ours. `default` says that the device followed its own default, and `put` what
    is written to read `old`, where that is another value. `key` is `Access.key`; `way` is how the table of knobs says
    that the value is reached, None in what was read from a file.
    """

    cell: int
    knob: str
    target: str
    node: str
    key: str
    old: str
    new: str | None = None
    accept: tuple[str, ...] = ()
    disturbed_by: tuple[int, ...] = ()
    place: Place = UNKNOWN_PLACE
    default: bool = False
    put: str = ""
    way: Access | None = None

    @property
    def access(self) -> Access:
        """Return how the value is reached; only for cells whose way was looked up in the table of knobs."""
        assert self.way is not None
        return self.way


@dataclass(frozen=True, slots=True)
class Device:
    """What values belong to: a roll-back leaves a device alone that is not the one that was read."""

    target: str
    driver: str
    identity: str

    @property
    def index(self) -> str:
        """Return the interface index in the identity; the kernel gives none twice in the life of a namespace."""
        return self._word("ifindex ")

    @property
    def address(self) -> str:
        """Return the hardware address in the identity, which a device keeps in another namespace; empty without one."""
        return self._word("address ")

    def _word(self, lead: str) -> str:
        words = self.identity.split(", ")
        return next((word.removeprefix(lead) for word in words if word.startswith(lead)), "")


@dataclass(slots=True)
class JournalState:
    """A journal as read: the cells, and what is known to have happened to each."""

    host: str
    boot_id: str
    pid: int
    started: int
    cells: dict[int, SavedValue] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    intended: dict[int, str] = field(default_factory=dict)
    read: dict[int, set[str]] = field(default_factory=dict)
    unfinished: int | None = None
    end: EndState | None = None
    machines: dict[str, tuple[str, str]] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)
    ways: dict[str, Way] = field(default_factory=dict)

    def rolled_back_by(self, machine: str) -> str:
        """Return the command that rolls a far machine back, of this journal's name for it.

        What its way would run on this side is named there: nothing in a file is run.
        """
        options = self.ways.get(machine, {}).get("options", {})
        named = [word for name in sorted(RUN & options.keys()) for word in ("-o", f"{name}={options[name]}")]
        return shlex.join(["nearmetal", "rollback", machine, *named])

    def touched(self) -> bool:
        """Return whether any write may have happened."""
        return bool(self.intended)

    def ours(self, cell: SavedValue) -> frozenset[str]:
        """Return the values of a cell that this session is answerable for."""
        planned = cell.accept if cell.cell in self.intended else ()
        return frozenset({*planned, *self.read.get(cell.cell, ())})

    @property
    def waiting(self) -> set[str]:
        """Return the far machines that nobody has put back yet."""
        return {name for name, _ in self.machines.values()} - self.undone

    def on(self, machine: str) -> JournalState:
        """Return what happened on one far machine, as that machine itself would report it: its node is the machine."""
        nodes = {node for node, (name, _) in self.machines.items() if name == machine}
        boots = [boot for name, boot in self.machines.values() if name == machine]
        return replace(
            self,
            boot_id=boots[0] if boots else "",
            machines={},
            cells={
                number: replace(cell, target=_bare(cell.target, nodes), node="")
                for number, cell in self.cells.items()
                if cell.node in nodes
            },
            devices=[
                replace(device, target=_bare(device.target, nodes))
                for device in self.devices
                if device.target.partition("/")[0] in nodes
            ],
        )

    def unseen(self, cell: SavedValue) -> bool:
        """Return whether the session died between a write that may have changed the cell and the look at it."""
        return self.unfinished is not None and self.unfinished in {cell.cell, *cell.disturbed_by}


class Journal:
    """A journal that is being written; made by `create`. `state` is its content, whatever becomes of the file."""

    def __init__(
        self, path: Path, descriptor: int, records: list[dict[str, Any]], chain: int, whole_bytes: int
    ) -> None:
        self.path = path
        self.state = _state_of(records)
        self._descriptor = descriptor
        self._sequence = len(records)
        self._chain = chain
        self._whole_bytes = whole_bytes

    @staticmethod
    def create(path: Path, records: list[dict[str, Any]]) -> Journal:
        """Bring the first records to the disk as a whole; raise StoreError, with nothing left, when that fails."""
        chain = 0
        lines = []
        for sequence, record in enumerate(records):
            line, chain = _line(sequence, record, chain)
            lines.append(line)
        content = b"".join(lines)
        return Journal(path, put_durably(path, content), records, chain, len(content))

    def append(self, record: dict[str, Any]) -> None:
        """Bring one record to the disk; raise StoreError when that fails."""
        line, chain = _line(self._sequence, record, self._chain)
        try:
            # What a failed attempt left behind would be damage in the middle of the file.
            os.ftruncate(self._descriptor, self._whole_bytes)
            _write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except BaseException as error:
            # What the caller takes for unwritten must not be read later: it may say that a setting was confirmed.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._whole_bytes)
            if not isinstance(error, OSError):
                raise
            raise StoreError(f"cannot write the undo journal {self.path}: {error.strerror}", hint=_ROOM) from error
        self._sequence, self._chain = self._sequence + 1, chain
        self._whole_bytes += len(line)
        _replay(self.state, record)

    def close(self) -> None:
        """Close the file; calling twice does nothing more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @staticmethod
    def reopen(path: Path) -> Journal:
        """Open a journal to append to it, cutting a torn last record off; raise StoreError where that is impossible."""
        records, chain, whole_bytes = _parse(path, trusted_bytes(path))
        with os_errors_as(StoreError, f"cannot write the undo journal {path}"):
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        return Journal(path, descriptor, records, chain, whole_bytes)


def put_durably(path: Path, content: bytes) -> int:
    """Bring a private file to the disk as a whole; return it open to append. Raise StoreError, with nothing left."""
    part = path.with_name(f"{path.name}{NEW_SUFFIX}")
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, content)
            os.fsync(descriptor)
            part.rename(path)
            _sync_folder(path.parent)
        except BaseException:
            os.close(descriptor)
            part.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}; no setting was changed",
            hint=_ROOM,
        ) from error
    return descriptor


def cell_record(cell: SavedValue) -> dict[str, Any]:
    """Return the record of a cell."""
    kept = asdict(replace(cell, way=None))
    del kept["way"]  # comes from the table of knobs alone
    return {"kind": "cell", **kept}


def read_state(path: Path) -> JournalState:
    """Read a journal.

    Raises ForeignFileError for a file of another kind, or with damage inside, and StoreError for one that cannot be
    read, that others may have written, or that a newer version wrote.
    """
    records, _, _ = _parse(path, trusted_bytes(path))
    of = records[0].get("format")
    if isinstance(of, int) and of > JOURNAL_FORMAT:
        raise StoreError(
            f"{path} was written by a newer nearmetal: format {of}, this one reads {_FIRST_FORMAT} to {JOURNAL_FORMAT}",
            hint="roll back with that version; the undo scripts next to it can be read and run by hand",
        )
    try:
        return _state_of(records)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ForeignFileError(f"{path} is not a journal of nearmetal: {error!r}") from error


def _line(sequence: int, record: dict[str, Any], chain: int) -> tuple[bytes, int]:
    body = json.dumps({"seq": sequence, **record}, sort_keys=True).encode()
    checksum = zlib.crc32(body, chain)
    return _frame(body, checksum), checksum


def _parse(path: Path, content: bytes) -> tuple[list[dict[str, Any]], int, int]:
    """Return the whole records, the checksum of the last, and how many bytes they fill."""
    records: list[dict[str, Any]] = []
    chain = whole_bytes = 0
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines):
        record = _record(line, len(records), chain)
        if record is None:
            if number == len(lines) - 1 and records and not line.endswith(b"}\n"):
                break
            raise ForeignFileError(
                f"{path} is damaged at line {number + 1}",
                hint="the undo scripts next to it can be read and run by hand",
            )
        records.append(record)
        chain = zlib.crc32(_body(line), chain)
        whole_bytes += len(line)
    if not records:
        raise ForeignFileError(f"{path} is empty")
    return records, chain, whole_bytes


def _body(line: bytes) -> bytes:
    return line.partition(b'"record":')[2].rstrip(b"\n")[:-1]


def _record(line: bytes, sequence: int, chain: int) -> dict[str, Any] | None:
    """Return the record of a line, or None unless the line is byte for byte what was written."""
    body = _body(line)
    if line != _frame(body, zlib.crc32(body, chain)):
        return None
    try:
        record = parse_json(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.get("seq") == sequence else None


def _frame(body: bytes, checksum: int) -> bytes:
    return b'{"crc":"%08x","record":%s}\n' % (checksum, body)


def _state_of(records: list[dict[str, Any]]) -> JournalState:
    first = records[0]
    if first["kind"] != "session" or first["format"] not in {_FIRST_FORMAT, JOURNAL_FORMAT}:
        raise ValueError(f"format {first.get('format')}, this nearmetal reads {_FIRST_FORMAT} and {JOURNAL_FORMAT}")
    state = JournalState(str(first["host"]), str(first["boot_id"]), int(first["pid"]), int(first["started"]))
    state.machines = {str(node): (str(name), str(boot)) for node, (name, boot) in first.get("machines", {}).items()}
    state.ways = {
        str(name): {"kind": str(way["kind"]), "node": dict(way["node"]), "options": dict(way["options"])}
        for name, way in first.get("ways", {}).items()
    }
    for record in records[1:]:
        _replay(state, record)
    return state


def _replay(state: JournalState, record: dict[str, Any]) -> None:
    match record["kind"]:
        case "device":
            state.devices.append(Device(record["target"], record["driver"], record["identity"]))
        case "cell":
            state.cells[int(record["cell"])] = _cell(record, state.boot_id)
        case "intent":
            state.intended[int(record["cell"])] = str(record["value"])
            state.unfinished = int(record["cell"])
        case "done":
            state.read.setdefault(int(record["cell"]), set()).add(str(record["read"]))
            for disturbed, read in record["disturbed"].items():
                state.read.setdefault(int(disturbed), set()).add(str(read))
            state.unfinished = None
        case "undone":
            state.undone.add(str(record["machine"]))
        case "end":
            state.end = EndState(record["state"])
        case other:
            raise ValueError(f"unknown record {other!r}")


def _cell(record: dict[str, Any], boot_id: str) -> SavedValue:
    old_access = record.get("access")
    node, key = (old_access["node"], _old_key(old_access)) if old_access else (record["node"], record["key"])
    place = Place(boot=boot_id) if old_access else Place(**record["place"])
    return SavedValue(
        int(record["cell"]),
        str(record["knob"]),
        str(record["target"]),
        str(node),
        str(key),
        str(record["old"]),
        None if record["new"] is None else str(record["new"]),
        tuple(map(str, record["accept"])),
        tuple(map(int, record["disturbed_by"])),
        place,
        record.get("default") is True,
        str(record.get("put", "")),
    )


def _old_key(access: dict[str, Any]) -> str:
    """Return the key of an access as format 1 wrote it."""
    return str(access["path"]) or shlex.join(map(str, access["change"]))


def _bare(target: str, nodes: set[str]) -> str:
    """Return the name of a target on the machine that is one of these nodes."""
    node, _, interface = target.partition("/")
    return (interface or "machine") if node in nodes else target


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
