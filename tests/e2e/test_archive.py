"""`nearmetal archive` and `unarchive`: a run to one file and back, and archives with false contents."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nearmetal.cli.main import run as nearmetal
from nearmetal.errors import BadInputError
from nearmetal.store import archive
from nearmetal.store.archive import LIST
from nearmetal.store.rundir import RunDir
from nearmetal.store.sums import sealed


def names(folder: str = ".") -> list[str]:
    return sorted(one.name for one in Path(folder).iterdir())


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != "lock"}


def test_archiving_and_unarchiving_restores_the_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(["archive", "r", "r.nmrun"]) == 0
    assert nearmetal(["unarchive", "r.nmrun", "deep/back"]) == 0
    assert "deep/back: 21 files, all match their checksums" in capsys.readouterr().out
    assert files(Path("deep/back")) == files(root)
    assert names("deep") == ["back"]
    with zipfile.ZipFile("r.nmrun") as opened:
        assert {entry.date_time for entry in opened.infolist()} == {(1980, 1, 1, 0, 0, 0)}, "the earliest of ZIP"
    assert nearmetal(["verify", "deep/back"]) == 0
    assert nearmetal(["archive", "deep/back", "again.nmrun"]) == 0
    assert Path("again.nmrun").read_bytes() == Path("r.nmrun").read_bytes()
    assert nearmetal(["archive", "r", "r.nmrun"]) == 2, "nothing is overwritten"
    assert nearmetal(["unarchive", "r.nmrun", "r"]) == 2


def test_a_run_without_a_trial_can_continue_elsewhere(root: Path) -> None:
    for one in [*root.glob("trials/*"), *root.glob("samples/*")]:
        one.unlink()
    (root / "records.sums").write_bytes(b"")
    assert nearmetal(["archive", "r", "r.nmrun"]) == 0
    assert nearmetal(["unarchive", "r.nmrun", "back"]) == 0
    assert nearmetal(["run", "--resume", "back"]) == 0
    assert nearmetal(["verify", "back"]) == 0


def test_a_damaged_run_is_not_archived(root: Path) -> None:
    (root / "samples" / "000001.parquet").write_bytes(b"x")
    assert nearmetal(["archive", "r", "r.nmrun"]) == 2
    assert names() == ["r"]


def remake(change: Callable[[dict[str, bytes]], object], listed: dict[str, bytes] | None = None) -> None:
    """Rewrite the archive with other files; `listed` files also go into its list."""
    with zipfile.ZipFile("r.nmrun") as opened:
        kept = {name: opened.read(name) for name in opened.namelist()}
    change(kept)
    if listed is not None:
        raw = json.loads(kept[LIST])
        del raw["sha256"]
        raw["files"] |= {name: {"bytes": len(data), "sha256": "0" * 64} for name, data in listed.items()}
        kept |= listed | {LIST: sealed(raw)}
    with zipfile.ZipFile("r.nmrun", "w") as made:
        for name, data in kept.items():
            made.writestr(name, data)


@pytest.mark.parametrize("what", ["r", "not-there"])
def test_an_unreadable_archive_is_not_reported_as_a_disk_error(
    root: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nearmetal(["unarchive", what, "back"]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"error: {what} cannot be read: ")
    assert "hint: `nearmetal archive` writes archives" in stderr


@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "trials/../../x.json", "samples/x.parquet", "run.json/../x", "lock", "a\x1b[31m"]
)
def test_a_file_name_that_no_run_has_is_refused(root: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    nearmetal(["archive", "r", "r.nmrun"])
    remake(lambda _: None, {name: b"x"})
    assert nearmetal(["unarchive", "r.nmrun", "back"]) == 2
    assert f"r.nmrun holds {name!r}, which no run does" in capsys.readouterr().err
    assert names() == ["r", "r.nmrun"]


CHANGES: dict[str, Callable[[dict[str, bytes]], object]] = {
    "is not the file that the archive lists": lambda kept: kept.update({"samples/000001.parquet": b"x" * 10**6}),
    "contains other files than it lists": lambda kept: kept.pop("samples/000001.parquet"),
    "its SHA-256 differs from the one that it carries": lambda kept: kept.update(
        {LIST: kept[LIST].replace(b"0", b"1")}
    ),
    "is not a complete archive of a run": lambda kept: kept.pop(LIST),
}


def test_an_archive_that_would_unpack_to_too_much_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nearmetal(["archive", "r", "r.nmrun"])
    remake(lambda _: None, {"samples/000900.parquet": bytes(10**7)})
    with zipfile.ZipFile("r.nmrun") as opened:
        raw = json.loads(opened.read(LIST))
    del raw["sha256"]
    raw["files"]["samples/000900.parquet"]["bytes"] = 99_000_000
    remake(lambda kept: kept.update({LIST: sealed(raw)}))
    assert nearmetal(["unarchive", "r.nmrun", "back"]) == 2
    assert "would unpack to more than its own size" in capsys.readouterr().err


@pytest.mark.parametrize("size", [-(10**12), "7", 7.5, None])
def test_an_invalid_size_is_refused(root: Path, size: object, capsys: pytest.CaptureFixture[str]) -> None:
    """A negative size would let other files unpack to more than the archive's limit in total."""
    nearmetal(["archive", "r", "r.nmrun"])
    with zipfile.ZipFile("r.nmrun") as opened:
        raw = json.loads(opened.read(LIST))
    del raw["sha256"]
    raw["files"]["samples/000000.parquet"]["bytes"] = size
    raw["files"]["samples/000001.parquet"]["bytes"] = 10**9
    remake(lambda kept: kept.update({LIST: sealed(raw)}))
    assert nearmetal(["unarchive", "r.nmrun", "back"]) == 2
    assert "r.nmrun lists a file whose size is not a number of bytes" in capsys.readouterr().err


def test_a_file_with_another_size_than_listed_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nearmetal(["archive", "r", "r.nmrun"])
    with zipfile.ZipFile("r.nmrun") as opened:
        raw = json.loads(opened.read(LIST))
    del raw["sha256"]
    raw["files"]["samples/000000.parquet"]["bytes"] += 1
    remake(lambda kept: kept.update({LIST: sealed(raw)}))
    assert nearmetal(["unarchive", "r.nmrun", "back"]) == 2
    assert "samples/000000.parquet is not the file that the archive lists: its size" in capsys.readouterr().err


def test_another_file_of_the_listed_size_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nearmetal(["archive", "r", "r.nmrun"])
    place = "samples/000001.parquet"
    remake(lambda kept: kept.update({place: kept[place][:-1] + b"x"}))
    assert nearmetal(["unarchive", "r.nmrun", "back"]) == 2
    assert f"{place} is not the file that the archive lists: its size or SHA-256 differs" in capsys.readouterr().err


@pytest.mark.parametrize("message", CHANGES)
def test_a_changed_archive_is_refused_and_leaves_nothing(
    root: Path, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nearmetal(["archive", "r", "r.nmrun"])
    remake(CHANGES[message])
    assert nearmetal(["unarchive", "r.nmrun", "back"]) == 2
    assert message in capsys.readouterr().err
    assert names() == ["r", "r.nmrun"]


def test_no_flipped_byte_or_truncation_gives_another_run(root: Path) -> None:
    nearmetal(["archive", "r", "r.nmrun"])
    whole, wanted = Path("r.nmrun").read_bytes(), files(root)
    step = len(whole) // 120
    for number, place in enumerate(range(0, len(whole), step)):
        Path("bad").write_bytes(whole[:place] + bytes([whole[place] ^ 1 << number % 8]) + whole[place + 1 :])
        if nearmetal(["unarchive", "bad", f"b{number}"]) == 0:
            assert files(Path(f"b{number}")) == wanted, f"byte {place}"  # a date, or data that ZIP stores twice
        Path("bad").write_bytes(whole[:place])
        assert nearmetal(["unarchive", "bad", f"c{number}"]) == 2


def test_a_run_that_is_being_written_is_not_archived(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its list would name trials that the archive lacks, so it could not be unpacked."""
    with RunDir.open_for_writing(root):
        assert nearmetal(["archive", str(root), "r.nmrun"]) == 2
    stderr = capsys.readouterr().err
    assert "is being written" in stderr
    assert f"continue it later: nearmetal run --resume {root}" in " ".join(stderr.split())


def test_a_run_that_another_machine_is_writing_is_not_archived(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def summed(path: Path) -> str:
        if path.name == "000008.json":  # the last file
            path.unlink()
        return ""

    monkeypatch.setattr(archive, "file_sha256", summed)
    monkeypatch.setattr(RunDir, "listed", lambda run: None)
    with pytest.raises(BadInputError, match="is being written"):
        archive.archive(root, Path("r.nmrun"))


def test_an_archive_in_place_of_a_run_is_reported_with_how_to_unpack_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nearmetal(["archive", str(root), "r.nmrun"]) == 0
    assert nearmetal(["compare", "r.nmrun"]) == 2
    assert "nearmetal unarchive r.nmrun DIR" in capsys.readouterr().err


def test_an_unwritable_destination_is_reported(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(["archive", str(root), "r.nmrun"]) == 0
    Path("file").touch()
    assert nearmetal(["unarchive", "r.nmrun", "file/new"]) == 1
    assert "cannot make file/new: " in capsys.readouterr().err
