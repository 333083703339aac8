"""How bytes become permanent: what is synced and in which order, what is left after an error, and what it says."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nearmetal.errors import StoreError
from nearmetal.store.disk import Disk, is_being_written, take_lock


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files and folders that were synced, by the names that they had then."""
    done: list[Path] = []
    sync = os.fsync

    def telling(descriptor: int) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", telling)
    return done


def test_each_new_folder_is_synced_in_the_one_that_holds_it(tmp_path: Path, synced: list[Path]) -> None:
    Disk().make_folder(tmp_path / "a" / "b")
    assert sorted(synced) == [tmp_path, tmp_path / "a"]
    synced.clear()
    Disk().make_folder(tmp_path / "a" / "b")
    assert synced == []


def test_a_file_is_synced_before_it_gets_its_name_and_then_its_folder(tmp_path: Path, synced: list[Path]) -> None:
    Disk().put_bytes(tmp_path / "x", b"whole")
    assert synced == [tmp_path / "x.part", tmp_path]
    synced.clear()
    Disk().append(tmp_path / "x", b" and more")
    assert synced == [tmp_path / "x"]
    assert (tmp_path / "x").read_bytes() == b"whole and more"


def test_each_step_is_marked_before_it_is_taken(tmp_path: Path) -> None:
    class Told(Disk):
        def __init__(self) -> None:
            self.steps: list[tuple[str, str, bool]] = []

        def step(self, name: str, path: Path) -> None:
            self.steps.append((name, path.name, path.exists()))

    disk = Told()
    disk.put_bytes(tmp_path / "x", b"whole")
    disk.append(tmp_path / "y", b"more")
    assert disk.steps == [
        ("write", "x", False),
        ("fsync", "x", False),
        ("rename", "x", False),
        ("fsync-directory", "x", True),
        ("append", "y", False),
    ]


@pytest.mark.parametrize(("marker", "verb"), [("run.json", "run"), ("search.json", "tune")])
def test_a_full_disk_names_the_command_that_continues(tmp_path: Path, marker: str, verb: str) -> None:
    """A search was to be repeated by a command that refuses its directory."""

    def refuse(_part: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / marker).touch()
    (tmp_path / "samples").mkdir()
    with pytest.raises(StoreError) as raised:
        Disk().put(tmp_path / "samples" / "x", refuse)
    assert raised.value.hint == f"free some space and continue: nearmetal {verb} --resume {tmp_path}"


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        (errno.ENOSPC, "no space left to write {}", "free some space and repeat the command"),
        (errno.EDQUOT, "no space left to write {}", "free some space and repeat the command"),
        (errno.EISDIR, "cannot write {}: Is a directory", "name a file in it"),
        (errno.EACCES, "cannot write {}: Permission denied", "check the directory and its permissions"),
    ],
)
def test_a_refusal_says_what_to_do_and_leaves_the_old_file(tmp_path: Path, code: int, message: str, hint: str) -> None:
    def refuse(part: Path) -> None:
        part.write_bytes(b"half")
        raise OSError(code, os.strerror(code))

    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(StoreError) as raised:
        Disk().put(tmp_path / "x", refuse)
    assert (raised.value.message, raised.value.hint) == (message.format(tmp_path / "x"), hint)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("x", b"old")]


def test_a_directory_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        Disk().put_bytes(tmp_path, b"x")
    assert raised.value.hint == "name a file in it"


def test_a_lock_is_held_until_it_is_closed(tmp_path: Path) -> None:
    assert not is_being_written(tmp_path)
    lock = take_lock(tmp_path)
    assert is_being_written(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["lock"]
    with pytest.raises(StoreError, match="in use by another nearmetal"):
        take_lock(tmp_path)
    lock.close()
    assert not is_being_written(tmp_path)
    take_lock(tmp_path).close()
