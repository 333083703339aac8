"""The header of a framed file as a record; apart from the frame, because pydantic is not in the lab's guest."""

from typing import TypeVar

from nearmetal.errors import ForeignFileError
from nearmetal.typed import read_typed
from nearmetal.workloads.framed_file import FileFormat

_H = TypeVar("_H")


def read_header(header: type[_H], raw: bytes, of: FileFormat) -> _H:
    """Return the header as a record that checks itself; raise ForeignFileError for one that is not of this version."""
    try:
        return read_typed(header, raw)
    except ValueError as error:
        message = f"the {of.name}'s header is not one of version {of.version}: {error}"
        raise ForeignFileError(message, hint="the checksum is right, so the writer was wrong; report it") from error
