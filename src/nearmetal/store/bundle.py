"""Raw files of one trial in one ZIP archive, the same bytes for the same files."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from nearmetal.errors import ForeignFileError
from nearmetal.reading import timed
from nearmetal.store.sums import hint_damaged, read_verified

NO_DATE = (1980, 1, 1, 0, 0, 0)
MAX_FILE_BYTES = 1 << 28
"""What an archive may unpack to, unless its reader knows better."""
MALFORMED = (ValueError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError)
"""What `zipfile` raises of a file that is no complete archive."""
MAX_FILES = 1024
"""A traced launch leaves some files a node."""


def write_bundle(path: Path, files: Mapping[str, bytes]) -> None:
    """Write the files, in order of name, without dates."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, NO_DATE), files[name], zipfile.ZIP_DEFLATED)


@timed
def read_bundle(path: Path, most_bytes: int = MAX_FILE_BYTES, sha256: str = "") -> dict[str, bytes]:
    """Read what `write_bundle` wrote; raise ForeignFileError for a damaged or foreign file, and for a larger one.

    `sha256` is the recorded digest, '' where none was recorded.
    """
    try:
        data = read_verified(path, sha256) if sha256 else None
        with zipfile.ZipFile(path if data is None else io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > most_bytes:
                raise ForeignFileError(f"{path} unpacks to more than {most_bytes} bytes")
            if len({entry.filename for entry in entries}) != len(entries) or len(entries) > MAX_FILES:
                raise ForeignFileError(f"{path} holds a name twice, or more than {MAX_FILES} files")
            return {entry.filename: archive.read(entry) for entry in entries}
    except (OSError, *MALFORMED) as error:
        message = f"{path} is not a complete archive of a trial's files: {error}"
        raise ForeignFileError(message, hint=hint_damaged(path.parent.parent)) from error


def declared_bytes(path: Path) -> int:
    """Return the size of the largest file in an archive, as the archive declares it; 0 where there is none to read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return max((entry.file_size for entry in archive.infolist()), default=0)
    except (OSError, *MALFORMED):
        return 0  # its reader reports what is wrong
