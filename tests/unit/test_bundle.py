"""Files of one trial in one archive: what is written, and what is refused."""

from __future__ import annotations

import hashlib
import zipfile
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import ForeignFileError
from nearmetal.store.bundle import declared_bytes, read_bundle, write_bundle

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"b": b"22", "a": b"", "c/d": b"55555"}
HELD_BYTES = 7


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run" / "traces").mkdir(parents=True)
    write_bundle(tmp_path / "run" / "traces" / "000000.zip", FILES)
    return tmp_path / "run" / "traces" / "000000.zip"


def test_the_same_files_give_the_same_bytes_in_any_order(path: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "again", dict(reversed(FILES.items())))
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}, "the earliest of ZIP"
    assert list(read_bundle(path)) == ["a", "b", "c/d"]
    assert read_bundle(path) == read_bundle(path, sha256=hashlib.sha256(path.read_bytes()).hexdigest()) == FILES


def test_an_archive_may_unpack_to_just_what_is_allowed(path: Path) -> None:
    assert read_bundle(path, HELD_BYTES) == FILES
    with pytest.raises(ForeignFileError, match="unpacks to more than 6 bytes"):
        read_bundle(path, HELD_BYTES - 1)


def test_an_archive_holds_at_most_1024_files(path: Path) -> None:
    write_bundle(path, {f"{number}": b"" for number in range(1024)})
    assert len(read_bundle(path)) == 1024
    write_bundle(path, {f"{number}": b"" for number in range(1025)})
    with pytest.raises(ForeignFileError, match="or more than 1024 files"):
        read_bundle(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a", b"other")
    with pytest.raises(ForeignFileError, match="holds a name twice"):
        read_bundle(path)


def test_a_foreign_file_is_refused_with_the_command_that_measures_its_trial_again(path: Path) -> None:
    path.write_bytes(b"PK")
    with pytest.raises(ForeignFileError, match="is not a complete archive of a trial's files") as raised:
        read_bundle(path)
    assert raised.value.hint.endswith(f"measure the trial again: nearmetal run --resume {path.parent.parent}")


def test_a_way_to_compress_that_python_does_not_know_is_refused(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):  # APPNOTE.TXT 4.3.7 and 4.3.12
        at = data.index(mark) + place
        data[at : at + 2] = (99).to_bytes(2, "little")
    path.write_bytes(data)
    with pytest.raises(ForeignFileError, match="is not a complete archive of a trial's files"):
        read_bundle(path)


def test_the_largest_file_is_known_before_it_is_read(path: Path, tmp_path: Path) -> None:
    assert declared_bytes(path) == 5
    write_bundle(tmp_path / "empty", {})
    (tmp_path / "foreign").write_bytes(b"x")
    assert [declared_bytes(tmp_path / name) for name in ("empty", "foreign", "none")] == [0, 0, 0]
