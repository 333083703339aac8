"""`nearmetal verify`, and runs whose study or files were changed by hand."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_runs import STUDY, RunCache, edit_study, rewrite
from nearmetal.cli.main import run as nearmetal
from nearmetal.errors import ForeignFileError
from nearmetal.store import sums, verify
from nearmetal.store.listing import whole_list
from nearmetal.store.record import read_record
from nearmetal.store.rundir import RunDir


def documents(root: Path) -> list[Path]:
    return [root / "run.json", *(root / "trials").glob("*.json")]


def as_format_1(root: Path) -> None:
    """Turn a run into the first format: no seal, no checksums, one copy of the study."""
    (root / "records.sums").unlink()
    for path in documents(root):
        raw = json.loads(path.read_text())
        for key in ("sha256", "sums", "study", "parts"):
            raw.pop(key, None)
        path.write_text(json.dumps(older(raw) | {"run_format": 1}, indent=1, sort_keys=True))


def as_format_2(root: Path) -> None:
    """Turn a run into the format before lists of records and checksums of file parts."""
    (root / "records.sums").unlink()
    for path in documents(root):
        raw = json.loads(path.read_text())
        del raw["sha256"]
        raw.pop("parts", None)
        path.write_bytes(sums.sealed(older(raw) | {"run_format": 2}))


def older(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a record in the format without summaries, in which orders and outcomes had their own format number."""
    for part in {"order", "outcome"} & raw.keys():
        raw[part]["order_format"] = 1
    for cell in raw.get("cells", []):
        del cell["summary"]
    return raw


def as_format_3(root: Path) -> None:
    """Turn a run into the format before records had summaries."""
    for path in documents(root):
        raw = json.loads(path.read_text())
        del raw["sha256"]
        path.write_bytes(sums.sealed(older(raw) | {"run_format": 3}))
    records = sorted((read_record(path) for path in (root / "trials").glob("*.json")), key=lambda one: one.name)
    (root / "records.sums").write_bytes(whole_list(records))


def test_an_intact_run_is_reported_as_such(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(["verify", str(root)]) == 0
    assert capsys.readouterr().out == "r: 9 trials, 21 files (0.1 MB) match their checksums\n"


def test_changed_files_are_named_one_by_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = root / "samples" / "000002.parquet"
    samples.write_bytes(samples.read_bytes()[:-1] + b"x")
    (root / "samples" / "000004.parquet").unlink()
    record = root / "trials" / "000003.json"
    record.write_text(record.read_text().replace("veth", "vets", 1))
    assert nearmetal(["verify", str(root)]) == 1
    assert capsys.readouterr().out == (
        "r/samples/000002.parquet has changed since it was recorded: its SHA-256 differs\n"
        "r/trials/000003.json has changed since it was written: its SHA-256 differs from the one that it carries\n"
        "r/samples/000004.parquet cannot be read: No such file or directory\n"
        "r: 8 trials, 17 files (0.1 MB) match their checksums, 3 do not\n"
    )


@pytest.mark.parametrize(("part", "name"), [(0, "its directory"), (1, "latency of 8 B"), (2, "latency of 1 KiB")])
def test_a_wrong_recorded_checksum_of_a_cell_is_named(
    root: Path, part: int, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(root / "trials" / "000002.json", lambda raw: raw["parts"].__setitem__(part, "0" * 64))
    expected = f"r/samples/000002.parquet: the sum of {name} is not the one in trials/000002.json\n"
    assert nearmetal(["verify", "r"]) == 1
    assert capsys.readouterr().out.startswith(expected)
    assert nearmetal(["archive", "r", "r.nmrun"]) == 2
    assert expected in capsys.readouterr().err


def test_checksums_of_cells_missing_from_a_file_are_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(root / "trials" / "000002.json", lambda raw: raw["cells"][1].update(first_group=99))
    assert nearmetal(["verify", "r"]) == 1
    assert "r/samples/000002.parquet is not a complete sample file: " in capsys.readouterr().out


@pytest.mark.parametrize(("key", "value"), [("mean_ns", 30000.0), ("median_ns", 24900.0), ("n", 49), ("min_ns", 9)])
def test_a_summary_that_does_not_match_its_samples_is_named(
    root: Path, key: str, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(root / "trials" / "000000.json", lambda raw: raw["cells"][0]["summary"].update({key: value}))
    assert nearmetal(["verify", "r"]) == 1
    assert capsys.readouterr().out.startswith(
        f"trials/000000.json says {key} = {value:.12g} of latency of 8 B, its samples say "
    )


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no mean of such samples": lambda raw: raw["cells"][0]["summary"].update(mean_ns=-1.0),
    "a mean that is no number": lambda raw: raw["cells"][0]["summary"].update(trimmed_mean_ns=float("nan")),
    "a median without end": lambda raw: raw["cells"][0]["summary"].update(median_ns=float("inf")),
    "a spread without end": lambda raw: raw["cells"][0]["summary"].update(sd_ns=float("inf")),
    "no samples": lambda raw: raw["cells"][0]["summary"].update(n=0),
    "more samples than iterations": lambda raw: raw["cells"][0]["summary"].update(n=51),
    "a count that is no float": lambda raw: raw["outcome"]["counters"].update({"irq.LOC": 10**400}),
    "a time that is no float": lambda raw: raw["outcome"].update(elapsed_ns=10**400),
    "no sums": lambda raw: raw.update(sums=None),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_record_of_impossible_figures_is_refused(root: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(ForeignFileError):  # it cannot be listed again
        rewrite(root / "trials" / "000000.json", HOSTILE[what])
    assert nearmetal(["compare", "r"]) == 2
    assert "r/trials/000000.json is not the record of a trial: " in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["compare", "report", "show", "history"])
def test_no_verb_shows_figures_of_a_changed_file(root: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    samples = root / "samples" / "000002.parquet"
    samples.write_bytes(samples.read_bytes()[:-1] + b"x")
    words = {"history": ["add", "h.duckdb", "r"], "show": ["r", "--trial", "2"]}.get(verb, ["r"])
    assert nearmetal([verb, *words]) == 2
    assert "r/samples/000002.parquet has changed since it was recorded" in capsys.readouterr().err


def test_a_run_with_a_changed_file_is_not_continued(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = root / "samples" / "000002.parquet"
    samples.write_bytes(samples.read_bytes()[:-1] + b"x")
    assert nearmetal(["run", "--resume", "r"]) == 2
    assert "1 file is not what was recorded:\n  r/samples/000002.parquet has changed" in capsys.readouterr().err
    (root / "trials" / "000002.json").unlink()
    assert nearmetal(["run", "--resume", "r"]) == 0
    assert nearmetal(["verify", "r"]) == 0


EDITS = {
    "seed: 3 -> 4": ("seed = 3", "seed = 4"),
    'workload[latency].sizes: [8, "1 KiB"] -> [8]': ('[8, "1 KiB"]', "[8]"),
    'margin: "5 %" -> "50 %"': ("5 %", "50 %"),
    "path[macvlan].name: missing": ("[[workload]]", '[[path]]\nname = "macvlan"\n[[workload]]'),
    "no value differs, only comments": ("seed = 3", "seed = 3 # lucky"),
    "it is not valid TOML any more": ("seed = 3", "seed = "),
}


@pytest.mark.parametrize("message", EDITS)
@pytest.mark.parametrize("words", [["run", "--resume", "r"], ["compare", "r"]])
def test_an_edited_study_is_refused_and_the_edit_is_shown(
    root: Path, message: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    study = root / "study.toml"
    study.write_text(study.read_text().replace(*EDITS[message]))
    files = sorted(root.rglob("*"))
    assert nearmetal(words) == 2
    error = capsys.readouterr().err
    assert "r/study.toml is no longer the study of this run:\n  " in error
    assert message in error
    assert "hint: to measure the edited study: nearmetal run r/study.toml;" in error
    assert sorted(root.rglob("*")) == files or words[0] == "run", "nothing was written"
    assert len(RunDir.open(root).trials()) == 9


def test_runs_of_format_1_are_read_continued_and_reported_to_lack_checksums(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_format_1(root)
    assert nearmetal(["compare", "r"]) == 0
    before = capsys.readouterr().out
    assert nearmetal(["verify", "r"]) == 4
    assert (
        "r: 9 trials, 2 files (0.0 MB) match their checksums, 19 have no recorded checksum\n" in capsys.readouterr().out
    )
    (root / "trials" / "000008.json").unlink()
    assert nearmetal(["run", "--resume", "r"]) == 0, "a run of both formats"
    capsys.readouterr()
    assert nearmetal(["compare", "r"]) == 0
    assert capsys.readouterr().out == before
    assert nearmetal(["verify", "r"]) == 4
    (root / "study.toml").write_text(STUDY.replace("seed = 3", "seed = 4"))
    assert nearmetal(["run", "--resume", "r"]) == 2
    assert "runs of format 1 do not keep the original" in capsys.readouterr().err


@pytest.mark.parametrize("older_format", [as_format_2, as_format_3])
def test_runs_of_formats_2_and_3_are_read_verified_and_continued(
    root: Path, older_format: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    nearmetal(["compare", "r"])
    before = capsys.readouterr().out
    older_format(root)
    assert all(cell.summary is None for record in RunDir.open(root).trials() for cell in record.cells)
    assert nearmetal(["compare", "r"]) == 0
    assert capsys.readouterr().out == before
    assert nearmetal(["verify", "r"]) == 0
    (root / "trials" / "000008.json").unlink()
    assert nearmetal(["run", "--resume", "r"]) == 0
    assert (root / "records.sums").exists() is (older_format is as_format_3)
    capsys.readouterr()
    assert nearmetal(["compare", "r"]) == 0
    assert capsys.readouterr().out == before


@pytest.mark.parametrize("trial", [0, 4, 8])
def test_a_missing_trial_is_named_and_measured_again(
    root: Path, trial: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (f"trials/{trial:06d}.json", f"samples/{trial:06d}.parquet"):
        (root / file).unlink()
    gone = f"r/trials/{trial:06d}.json is missing, but its trial was finished"
    assert nearmetal(["verify", "r"]) == 1
    stdout = capsys.readouterr().out
    assert stdout == f"{gone}\nr: 8 trials, 19 files (0.1 MB) match their checksums, 1 trial is missing\n"
    for words in (["compare", "r"], ["report", "r"], ["archive", "r", "r.nmrun"]):
        assert nearmetal(words) == 2
        assert gone in capsys.readouterr().err
    assert nearmetal(["run", "--resume", "r"]) == 0
    assert f"the records of 1 finished trial of r ({trial:06d}) are missing" in capsys.readouterr().err
    assert nearmetal(["verify", "r"]) == 0
    assert nearmetal(["run", "--resume", "r"]) == 0
    assert "missing" not in capsys.readouterr().err


def test_a_run_without_its_records_is_not_measured_from_scratch(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy that lacks the folder of records must not count as a run without trials: its samples would be removed."""
    samples = sorted((root / "samples").iterdir())
    (root / "trials").rename("elsewhere")
    for words, code in ((["verify", "r"], 1), (["compare", "r"], 2), (["run", "--resume", "r"], 2)):
        assert nearmetal(words) == code
        captured = capsys.readouterr()
        assert "r/trials cannot be read: No such file or directory" in captured.out + captured.err
    assert sorted((root / "samples").iterdir()) == samples
    Path("elsewhere").rename(root / "trials")
    assert nearmetal(["verify", "r"]) == 0


def test_a_missing_study_is_reported_with_where_its_copy_is(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "study.toml").unlink()
    assert nearmetal(["compare", "r"]) == 2
    stderr = capsys.readouterr().err
    assert "r/study.toml cannot be read: No such file or directory" in stderr
    assert "field `study` of r/run.json has it" in stderr


def test_the_hint_for_unreadable_files_is_not_to_delete_them(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(path: Path, *_: object, **__: object) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(sums, "agrees", denied)
    monkeypatch.setattr(verify, "agrees", denied)
    monkeypatch.setattr(sums, "_seen", {})
    for words in (["compare", "r"], ["run", "--resume", "r"]):
        assert nearmetal(words) == 2
        stderr = capsys.readouterr().err
        assert "cannot be read: Permission denied" in stderr
        assert "make the run readable" in stderr
        assert "delete" not in stderr


def test_a_run_of_another_version_is_continued_only_on_request(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(root / "run.json", lambda raw: raw.update(nearmetal_version="9.9.9"))
    (root / "trials" / "000004.json").unlink()
    assert nearmetal(["run", "--resume", "r"]) == 2
    stderr = capsys.readouterr().err
    assert "r was begun by nearmetal 9.9.9, this is 0.1.0" in stderr
    assert "--allow-mixed" in stderr
    assert nearmetal(["run", "--resume", "r", "--allow-mixed"]) == 0
    capsys.readouterr()
    assert nearmetal(["compare", "r"]) != 0
    assert "nearmetal.version (workload latency): not recorded | 0.1.0" in capsys.readouterr().err
    assert nearmetal(["compare", "r", "--allow-mixed"]) == 0


def test_a_changed_list_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "records.sums"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 9
    for changed in (
        b"".join(lines[:3] + lines[4:]),
        b"".join(lines[1:]),
        b"".join([lines[1], lines[0], *lines[2:]]),
        b"".join([*lines, lines[-1]]),
        b"".join(lines).replace(b" 000005\n", b" 000015\n"),
        b"\xff" + b"".join(lines),
        b"".join(lines[:7]),
        b"".join(lines)[:-1] + b"\x0b",
        b"",
    ):
        path.write_bytes(changed)
        assert nearmetal(["verify", "r"]) == 1, changed
        assert "r/records.sums" in capsys.readouterr().out
    path.unlink()
    assert nearmetal(["compare", "r"]) == 2
    assert "r/records.sums" in capsys.readouterr().err


def test_a_crash_between_a_record_and_its_line_is_not_damage(root: Path) -> None:
    path = root / "records.sums"
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for kept in (start, start + 40, len(whole) - 1):
        path.write_bytes(whole[:kept])
        assert nearmetal(["verify", "r"]) == 0
        assert nearmetal(["run", "--resume", "r"]) == 0
        assert path.read_bytes() == whole


def test_a_trial_of_another_run_is_refused(root: Path, kept: RunCache, capsys: pytest.CaptureFixture[str]) -> None:
    other = kept.copy(Path("other"), STUDY.replace("seed = 3", "seed = 4"))
    for file in ("trials/000002.json", "samples/000002.parquet"):
        (root / file).write_bytes((other / file).read_bytes())
    for words, code in ((["verify", "r"], 1), (["compare", "r"], 2), (["run", "--resume", "r"], 2)):
        assert nearmetal(words) == code
        captured = capsys.readouterr()
        assert "r/trials/000002.json is not the record that this run committed" in captured.out + captured.err


def test_a_record_of_another_trial_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "trials" / "000001.json").rename(root / "trials" / "000041.json")
    assert nearmetal(["compare", "r"]) == 2
    assert "r/trials/000041.json is the record of another trial: 000001" in capsys.readouterr().err


def test_a_study_changed_together_with_its_document_gives_another_run(root: Path) -> None:
    edit_study(root, lambda text: text.replace("5 %", "50 %"))
    assert nearmetal(["verify", str(root)]) == 0


def test_a_file_is_hashed_once_and_again_only_after_a_change(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_TICK_NS", -(1 << 62))
    path = root / "samples" / "000002.parquet"
    recorded = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sums.read_verified(path, recorded) == path.read_bytes()
    assert sums.read_verified(path, recorded) is None, "hashed before"
    data = path.read_bytes()
    path.write_bytes(data)
    assert sums.read_verified(path, recorded) == data, "its times have changed"
    monkeypatch.setattr(sums, "_TICK_NS", 1 << 62)
    path.write_bytes(data)
    assert sums.read_verified(path, recorded) == sums.read_verified(path, recorded) == data, "too recent to be trusted"
