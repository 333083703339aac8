"""Checksums of cached folders: any change of a file is found, and holes are not read."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import ForeignFileError
from nearmetal.hosts.lab import manifest

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 256 * 1024
SIZE = 40 * BLOCK + 123


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed folder with a file of two blocks of data, apart and unaligned, and holes around them."""
    with (tmp_path / "memory").open("wb") as stream:
        stream.truncate(SIZE)
        for at in (3 * BLOCK + 5000, 20 * BLOCK - 10):
            stream.seek(at)
            stream.write(os.urandom(4096))
    manifest.seal(tmp_path, "snapshot", "key", {}, {})
    return tmp_path


def damaged(folder: Path) -> tuple[str, ...]:
    return manifest.Manifest.load(folder).damaged(folder)


def test_what_was_sealed_is_whole(folder: Path) -> None:
    assert damaged(folder) == ()


@pytest.mark.parametrize("at", [0, 3 * BLOCK + 5001, 20 * BLOCK, 30 * BLOCK + 7, SIZE - 1])
def test_a_changed_byte_is_found_wherever_it_is(folder: Path, at: int) -> None:
    with (folder / "memory").open("r+b") as stream:
        stream.seek(at)
        before = stream.read(1)
        stream.seek(at)
        stream.write(bytes([before[0] ^ 1]))
    assert damaged(folder) == ("memory",)


@pytest.mark.parametrize("size", [0, SIZE - 1, SIZE + 1, 39 * BLOCK])
def test_another_length_is_found_although_only_zeros_were_cut_or_added(folder: Path, size: int) -> None:
    os.truncate(folder / "memory", size)
    assert damaged(folder) == ("memory",)


def test_a_block_in_another_place_is_found(folder: Path) -> None:
    content = bytearray((folder / "memory").read_bytes())
    content[8 * BLOCK : 9 * BLOCK], content[3 * BLOCK : 4 * BLOCK] = content[3 * BLOCK : 4 * BLOCK], bytes(BLOCK)
    (folder / "memory").write_bytes(content)
    assert damaged(folder) == ("memory",)


def test_a_copy_without_holes_is_whole(folder: Path) -> None:
    content = (folder / "memory").read_bytes()
    (folder / "memory").write_bytes(content)
    assert (folder / "memory").stat().st_blocks * 512 >= SIZE
    assert damaged(folder) == ()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The blocks that were read so far."""
    blocks: list[int] = []
    true_read = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], at: int) -> int:
        blocks.append(at // BLOCK)
        return true_read(descriptor, buffers, at)

    monkeypatch.setattr(os, "preadv", counted)
    return blocks


def test_holes_are_not_read(folder: Path, read: list[int]) -> None:
    if (folder / "memory").stat().st_blocks * 512 >= SIZE:
        pytest.skip("this file system keeps no holes")
    assert damaged(folder) == ()
    assert read == [3, 19, 20]


def later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return what is damaged, a minute from now."""
    now_ns = time.time_ns()
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: now_ns + 60 * 10**9)
        return manifest.Manifest.load(folder).damaged_since(folder)


def test_files_that_nobody_touched_are_read_once(
    folder: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert later(folder, monkeypatch) == ()
    assert read
    read.clear()
    assert later(folder, monkeypatch) == ()
    assert read == []
    assert damaged(folder) == ()
    assert read, "who asks for a check gets one"


def test_files_are_read_again_while_a_change_could_go_unnoticed(folder: Path, read: list[int]) -> None:
    for _ in range(2):
        read.clear()
        assert manifest.Manifest.load(folder).damaged_since(folder) == ()
        assert read


def test_files_are_read_again_after_a_boot(
    folder: Path, read: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    later(folder, monkeypatch)
    read.clear()
    boot = tmp_path_factory.mktemp("proc") / "boot_id"
    boot.write_text("another\n")
    monkeypatch.setattr(manifest, "_BOOT_ID", boot)
    assert later(folder, monkeypatch) == ()
    assert read


def test_a_change_after_a_check_is_found_although_its_time_was_set_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = folder / "memory"
    assert later(folder, monkeypatch) == ()
    before = memory.stat()
    with memory.open("r+b") as stream:
        stream.write(b"x")
    os.utime(memory, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert later(folder, monkeypatch) == ("memory",)


def test_another_file_in_its_place_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert later(folder, monkeypatch) == ()
    (folder / "other").write_bytes(bytes(SIZE))
    (folder / "other").rename(folder / "memory")
    assert later(folder, monkeypatch) == ("memory",)
    (folder / "memory").unlink()
    assert later(folder, monkeypatch) == ("memory",)


@pytest.mark.parametrize("text", ["", "[", "null", "[1]"])
def test_a_torn_note_of_a_check_is_not_believed(
    folder: Path, text: str, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "seen.json").write_text(text)
    assert later(folder, monkeypatch) == ()
    assert read


def test_a_cache_that_may_not_be_written_is_read_each_time(
    folder: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "seen.json").mkdir()
    for _ in range(2):
        read.clear()
        assert later(folder, monkeypatch) == ()
        assert read


def test_a_file_that_is_gone_is_found(folder: Path) -> None:
    (folder / "memory").unlink()
    assert damaged(folder) == ("memory",)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 2, "kind": "x"}', "null"])
def test_a_foreign_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ForeignFileError):
        manifest.Manifest.load(tmp_path)
