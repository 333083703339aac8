"""A trial's record on disk and the list of a run's records: what is written and what is refused."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_runs import STUDY, make_run
from nearmetal.errors import ForeignFileError
from nearmetal.store import record
from nearmetal.store.listing import LIST, chain_of, gone, line_after, read_list, replaced, whole_list
from nearmetal.store.record import TrialRecord, encode, read_record, trial_name
from nearmetal.store.sums import hint_damaged, resume_command, sealed

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield a run that no test changes."""
    return make_run(tmp_path_factory.mktemp("kept") / "run", STUDY)


@pytest.fixture
def changed(kept: Path, tmp_path: Path) -> Callable[..., Path]:
    """Yield a function that changes the first record, and seals it again on request."""

    def make(change: Change, *, seal: bool = True, name: str = "000000.json") -> Path:
        raw = json.loads((kept / "trials" / "000000.json").read_bytes())
        del raw["sha256"]
        change(raw)
        path = tmp_path / name
        path.write_bytes(sealed(raw) if seal else json.dumps(raw, indent=1).encode())
        return path

    return make


def nothing(raw: dict[str, Any]) -> None:
    del raw


def refused(path: Path) -> tuple[str, str]:
    with pytest.raises(ForeignFileError) as caught:
        read_record(path)
    assert str(path) in caught.value.message
    return caught.value.message.replace(str(path), "IT"), caught.value.hint


def records(root: Path) -> list[TrialRecord]:
    return [read_record(path) for path in sorted((root / "trials").glob("*.json"))]


def test_a_record_identifies_its_trial(kept: Path) -> None:
    found = read_record(kept / "trials" / "000004.json")
    order = found.order
    assert found.valid
    assert found.name == "000004"
    assert found.keys == {
        "trial": 4,
        "attempt": 1,
        "block": 1,
        "path": order.path.label,
        "workload": "latency",
        "setting": "as-found",
    }
    assert [trial_name(4, attempt) for attempt in (1, 2, 3)] == ["000004", "000004.2", "000004.3"]


def test_a_record_round_trips(kept: Path) -> None:
    path = kept / "trials" / "000000.json"
    found = read_record(path)
    assert encode(found) == path.read_bytes()
    raw = json.loads(path.read_bytes())
    assert raw["run_format"] == 4
    assert raw["sha256"] == found.seal
    assert "files" not in raw["outcome"]
    assert found.sums == raw["sums"]
    assert list(raw["sums"]) == ["samples/000000.parquet"]
    assert len(found.parts) == 3


def test_file_paths_contain_the_name_of_the_trial() -> None:
    assert {kind: place("000001.2") for kind, place in record.PLACES.items()} == {
        "samples": "samples/000001.2.parquet",
        "traces": "traces/000001.2.zip",
        "mpi": "mpi/000001.2.zip",
        "fabric": "fabric/000001.2.zip",
    }


@pytest.mark.parametrize("kind", ["traces", "mpi", "fabric"])
def test_every_kind_of_file_may_have_a_checksum(changed: Callable[..., Path], kind: str) -> None:
    place = f"{kind}/000000.zip"
    assert place in (read_record(changed(lambda raw: raw["sums"].update({place: "0" * 64}))).sums or {})


def of_summary(key: str, value: object, cell: int = 0) -> Change:
    return lambda raw: raw["cells"][cell]["summary"].update({key: value})


def test_a_file_of_another_trial_is_refused(changed: Callable[..., Path]) -> None:
    path = changed(lambda raw: raw["sums"].update({"samples/000001.parquet": "0" * 64, "zzz": "0" * 64}))
    assert refused(path) == ("IT names a file that does not belong to its trial: 'samples/000001.parquet'", "")


def test_a_record_under_another_name_is_refused(changed: Callable[..., Path]) -> None:
    assert refused(changed(nothing, name="000001.json")) == (
        "IT is the record of another trial: 000000",
        "restore its name",
    )
    assert refused(changed(nothing, name="000000.2.json"))[1] == "restore its name"
    assert read_record(changed(lambda raw: raw.update(attempt=2, sums={}), name="000000.2.json")).attempt == 2


def test_a_current_record_has_checksums(changed: Callable[..., Path]) -> None:
    message, hint = refused(changed(lambda raw: raw.update(sums=None)))
    assert message == "IT is not the record of a trial: it lists no checksums of its files"
    assert hint.startswith(
        "restore it from a backup, or delete it and measure the trial again: nearmetal run --resume "
    )


def test_a_record_has_a_checksum_for_each_part_or_none(changed: Callable[..., Path]) -> None:
    message, _ = refused(changed(lambda raw: raw["parts"].pop()))
    assert message == "IT has 2 sums of the parts of 2 cells"
    assert refused(changed(lambda raw: raw["parts"].append("0" * 64)))[0] == "IT has 4 sums of the parts of 2 cells"
    assert read_record(changed(lambda raw: raw.update(parts=[]))).parts == ()


def summary_of(path: Path, cell: int = 0) -> Any:
    return read_record(path).cells[cell].summary


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("n", [1, 50], [0, 51]),
        ("min_ns", [0], [-1]),
        ("mean_ns", [], [0.0, 1e12]),
        ("trimmed_mean_ns", [], [0.0, 1e12]),
    ],
)
def test_a_summary_must_be_possible_for_its_cell(
    changed: Callable[..., Path], key: str, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        assert getattr(summary_of(changed(of_summary(key, value))), key) == value
    for value in bad:
        for cell in (0, 1):
            message, _ = refused(changed(of_summary(key, value, cell)))
            assert message == "IT is not the record of a trial: a summary does not fit the samples of its cell"


def even(raw: dict[str, Any], **more: object) -> None:
    """Make a summary of equal samples of 1,000 ns."""
    raw["cells"][0]["summary"].update(
        dict.fromkeys(("min_ns", "median_ns", "max_ns", "mean_ns", "trimmed_mean_ns"), 1000) | more
    )


@pytest.mark.parametrize(
    ("more", "sane"),
    [
        ({}, True),
        ({"min_ns": 1001}, False),
        ({"max_ns": 999}, False),
        ({"median_ns": 999}, False),
        ({"median_ns": 1001}, False),
        ({"mean_ns": 999.0}, True),  # 0.1 % beyond, for rounding
        ({"mean_ns": 998.9}, False),
        ({"mean_ns": 1000.9}, True),
        ({"trimmed_mean_ns": 1001.1}, False),
        ({"trimmed_mean_ns": 998.9}, False),
    ],
)
def test_the_figures_of_a_summary_must_be_ordered(
    changed: Callable[..., Path], more: dict[str, Any], sane: bool
) -> None:
    path = changed(lambda raw: even(raw, **more))
    if sane:
        assert summary_of(path).min_ns == 1000
    else:
        assert "a summary does not fit the samples" in refused(path)[0]


@pytest.mark.parametrize(("centre_ns", "sane"), [(1.0, True), (0.0, False), (-5.0, False)])
def test_a_mode_of_a_summary_must_have_a_duration(changed: Callable[..., Path], centre_ns: float, sane: bool) -> None:
    ends = {"low_ns": 1.0, "high_ns": 9.0, "share": 0.5}
    modes = {"order": "mixed", "modes": [{"centre_ns": one, **ends} for one in (3.0, centre_ns)]}

    def change(raw: dict[str, Any]) -> None:
        known = raw["cells"][0]["summary"]
        known["modes"] = modes

    path = changed(change)
    if sane:
        assert [one.centre_ns for one in summary_of(path).modes.modes] == [3.0, centre_ns]
    else:
        assert "a summary does not fit the samples" in refused(path)[0]


def test_a_cell_may_lack_a_summary(changed: Callable[..., Path]) -> None:
    assert summary_of(changed(lambda raw: raw["cells"][0].update(summary=None))) is None


def test_an_invalid_record_is_refused_with_the_reason(tmp_path: Path, changed: Callable[..., Path]) -> None:
    assert refused(tmp_path / "000000.json")[0] == "IT cannot be read: No such file or directory"
    for text in ("", "{", "[]", "7", "null", '{"run_format": 1}', '{"run_format": 2, "order": 7}'):
        (tmp_path / "000000.json").write_text(text)
        assert refused(tmp_path / "000000.json")[0]
    assert "attempt" in refused(changed(lambda raw: raw.pop("attempt")))[0]
    assert "run_format" not in refused(changed(lambda raw: raw.pop("attempt")))[0]


# ---- older formats


def older(raw: dict[str, Any], version: int) -> None:
    raw["run_format"] = version
    for part in ("order", "outcome"):
        raw[part]["order_format"] = record.ORDER_FORMAT
    for cell in raw["cells"]:
        del cell["summary"]
    if version < 3:
        del raw["parts"]


@pytest.mark.parametrize("version", [2, 3])
def test_an_older_record_is_read_unchanged(changed: Callable[..., Path], version: int) -> None:
    path = changed(lambda raw: older(raw, version))
    found = read_record(path)
    assert found.seal == json.loads(path.read_bytes())["sha256"]
    assert len(found.parts) == (0 if version < 3 else 3)
    assert {cell.summary for cell in found.cells} == {None}
    assert found.sums


def test_a_record_of_the_first_format_has_no_seal_and_no_sums(changed: Callable[..., Path]) -> None:
    def first(raw: dict[str, Any]) -> None:
        older(raw, 1)
        del raw["sums"]

    found = read_record(changed(first, seal=False))
    assert (found.sums, found.parts, found.seal) == (None, (), "")
    assert "has changed since it was written" in refused(changed(first))[0]  # sealed, although this format has no seals
    assert "has changed since it was written" in refused(changed(lambda raw: older(raw, 2), seal=False))[0]


def test_an_older_record_needs_no_checksums(changed: Callable[..., Path]) -> None:
    def without(raw: dict[str, Any]) -> None:
        older(raw, 3)
        raw["sums"] = None

    assert refused(changed(without)) == ("IT lists no checksums of its files", "restore it from a backup")


@pytest.mark.parametrize("part", ["order", "outcome"])
def test_an_order_of_another_format_is_refused(changed: Callable[..., Path], part: str) -> None:
    def other(raw: dict[str, Any]) -> None:
        older(raw, 3)
        raw[part]["order_format"] = record.ORDER_FORMAT + 1

    assert refused(changed(other))[0] == f"IT is not the record of a trial: its {part} is of another format"


@pytest.mark.parametrize("version", [0, 5, "3", None, True, 2.0])
def test_an_unknown_format_is_refused(changed: Callable[..., Path], version: object) -> None:
    def other(raw: dict[str, Any]) -> None:
        older(raw, 3)
        raw["run_format"] = version

    assert refused(changed(other))[0] == "IT is of a format that this nearmetal does not know (it knows 1 to 4)"


# ---- the list


def test_the_list_has_exactly_these_bytes(kept: Path) -> None:
    first, second = records(kept)[:2]
    rest = f" {first.seal} 000000\n"
    chain = hashlib.sha256(rest.encode()).hexdigest()
    assert line_after("", first) == chain + rest
    assert chain_of(chain + rest) == chain
    after = f" {second.seal} 000001\n"
    both = chain + rest + hashlib.sha256((chain + after).encode()).hexdigest() + after
    assert whole_list([first, second]) == both.encode()
    assert whole_list([]) == b""


def test_a_list_names_the_seal_of_each_record(kept: Path) -> None:
    every = records(kept)
    assert whole_list(every) == (kept / LIST).read_bytes()
    assert read_list(kept / LIST) == {one.name: one.seal for one in every}


def test_a_line_torn_by_a_crash_is_skipped(kept: Path, tmp_path: Path) -> None:
    whole = (kept / LIST).read_bytes()
    (tmp_path / LIST).write_bytes(whole[:-30])
    assert list(read_list(tmp_path / LIST)) == [f"{number:06d}" for number in range(8)]
    (tmp_path / LIST).write_bytes(whole + b"0a f.1")
    assert len(read_list(tmp_path / LIST)) == 9


@pytest.mark.parametrize("torn", [b"x", b"0Z", b"{"])
def test_an_ending_that_no_crash_can_leave_is_refused(kept: Path, tmp_path: Path, torn: bytes) -> None:
    (tmp_path / LIST).write_bytes((kept / LIST).read_bytes() + torn)
    with pytest.raises(ForeignFileError, match=f"it ends with '{re.escape(torn.decode())}'"):
        read_list(tmp_path / LIST)


def test_a_list_with_a_moved_changed_duplicate_or_missing_line_is_refused(kept: Path, tmp_path: Path) -> None:
    lines = (kept / LIST).read_bytes().splitlines(keepends=True)
    name = lines[3].replace(b" 000003", b" 000013")
    for damaged, number in (
        ([*lines[:2], *lines[3:]], 3),
        ([*lines[:2], lines[3], lines[2], *lines[4:]], 3),
        ([*lines[:3], name, *lines[4:]], 4),
        (lines[1:], 1),
    ):
        (tmp_path / LIST).write_bytes(b"".join(damaged))
        with pytest.raises(ForeignFileError, match=f"line {number} does not continue the chain") as caught:
            read_list(tmp_path / LIST)
        assert caught.value.hint == "restore it from a backup"
    first = records(kept)[0]
    (tmp_path / LIST).write_bytes(whole_list([first, first]))
    with pytest.raises(ForeignFileError, match="line 2 does not continue the chain"):
        read_list(tmp_path / LIST)


def test_a_list_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignFileError, match=r"records\.sums cannot be read: No such file"):
        read_list(tmp_path / LIST)
    (tmp_path / LIST).write_bytes(b"\xff")
    with pytest.raises(ForeignFileError, match="ascii"):
        read_list(tmp_path / LIST)


def test_missing_or_replaced_records_are_named(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "000002.json").touch()  # of a trial that ended after the records were read
    first, second = records(kept)[:2]
    known = {first.name: first, second.name: second}
    listed = {"000000": first.seal, "000001": "another", "000002": "c", "000003": "d"}
    assert gone(tmp_path, listed, known) == [f"{tmp_path}/trials/000003.json is missing, but its trial was finished"]
    assert gone(tmp_path, {}, known) == []
    expected = [f"{tmp_path}/trials/000001.json is not the record that this run committed"]
    assert replaced(tmp_path, listed, known) == expected
    assert replaced(tmp_path, {"000000": first.seal}, known) == []


def test_a_search_is_resumed_only_by_tune(tmp_path: Path) -> None:
    assert resume_command(tmp_path) == f"nearmetal run --resume {tmp_path}"
    (tmp_path / "search.json").touch()
    assert hint_damaged(tmp_path).endswith(f"measure the trial again: nearmetal tune --resume {tmp_path}")
