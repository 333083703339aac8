"""Hostile files: nesting, size and time are limited, and one bad run does not hide the others."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nearmetal import limits, reading
from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.facts.ftrace import read_trace
from nearmetal.facts.guests import parse_domain
from nearmetal.knobs.knob import parse_cpus
from nearmetal.predict.trace_file import decode_rank
from nearmetal.reading import MAX_DEPTH, parse_json, read_bytes, timed
from nearmetal.serve.catalogue import Catalogue
from nearmetal.store.archive import archive, unarchive
from nearmetal.store.bundle import read_bundle, write_bundle
from nearmetal.store.record import TrialRecord
from nearmetal.study.changes import changes
from nearmetal.study.spec import parse_study, parse_toml
from nearmetal.typed import read_typed
from nearmetal.units import decimal, parse_duration_ns, parse_size_bytes, to_whole, whole
from nearmetal.workloads.fabric_file import read_fabric_file
from nearmetal.workloads.sample_file import read_sample_file
from nearmetal.workloads.samples import read_foreign
from tests.fake_runs import make_run

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parents[1] / "data" / "tools"
STUDY = """
format = 1
name = "small"
baseline = "a"
host = { kind = "fake" }
path = [{ name = "a", kind = "fake" }, { name = "b", kind = "fake" }]
workload = [{ name = "latency", kind = "engine", operation = "latency", sizes = ["8 B"] }]
"""
NUMBERS = ("nan", "inf", "-inf", "1e999", "1_0", "\u0661", "0x10", "", "9" * 400, "1e1000", "--1", "1.2.3")


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.text(), st.lists))
def test_valid_json_is_read(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert (
        parse_json(
            json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
        )
        == value
    )


@pytest.mark.parametrize("opens", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 200_000])
def test_json_that_nests_too_deep_is_refused(opens: str, depth: int) -> None:
    closes = {"[": "]", '{"a":': "}", '[{"a":': "}]"}[opens]
    with pytest.raises(ValueError, match="nests deeper"):
        parse_json(opens * depth + "1" + closes * depth)
    with pytest.raises(ValueError, match=r"Expecting value|nests deeper"):
        parse_json(opens * depth)


def test_nesting_around_strings_with_brackets_is_counted() -> None:
    with pytest.raises(ValueError, match="nests deeper"):
        parse_json('["]",' * (MAX_DEPTH + 1) + "1" + ',"["]' * (MAX_DEPTH + 1))


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    text = json.dumps({"a": "[" * 1000, "b": ['\\"[[[', "}" * 99]})
    assert parse_json(text)["a"] == "[" * 1000
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)


def test_whole_numbers_of_hundreds_of_digits_are_refused() -> None:
    assert parse_json(f"[{2**64}, 0.{'3' * 40}]") == [2**64, float("0." + "3" * 40)]
    assert parse_json('"' + "7" * 100 + '"') == "7" * 100
    for text in ("9" * 400, "-" + "9" * 21, ("9" * 21).encode("utf-16")):
        with pytest.raises(ValueError, match="digits"):
            parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "[" * 65 + "]" * 65,
        "a" + ".a" * 64 + " = 1",
        "[a" + " . a" * 64 + "]",
        "a = {a" + ".'a.a'" * 64 + " = 1}",
        'b = """a\\""" # """\n"a"' + '."a\\""' * 64 + " = 1",
        "[a" + ".a" * 40 + "]\na" + ".a" * 40 + " = 1",
    ],
)
def test_toml_that_nests_too_deep_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it nests deeper than 64 levels"):
        parse_toml(text)


@pytest.mark.parametrize(
    "value",
    [
        "1 # {}",
        '"{}"',
        "'{}'",
        '"\\"{}"',
        "QQQ '{}\n{} QQQQ".replace("Q", "'"),
        '"""\n\\"""{}\n{}"" """""',
        '"#" # "{}',
    ],
)
def test_dots_in_strings_and_comments_do_not_count_as_nesting(value: str) -> None:
    text = "a = " + value.replace("{}", "a." * 100)
    assert parse_toml(text) == tomllib.loads(text)


def test_an_edit_that_nests_too_deep_is_reported() -> None:
    expected = ["it is not valid TOML any more: it nests deeper than 64 levels"]
    assert changes("a = 1", "a" + ".a" * 3000 + " = 1") == expected


def test_a_study_of_many_errors_names_a_dozen() -> None:
    with pytest.raises(BadInputError) as caught:
        parse_study("".join(f"key{number} = 1\n" for number in range(2000)), "long.toml")
    first, *lines = caught.value.message.split("\n")
    assert first == "long.toml has 2004 errors:"
    assert lines[-2:] == [lines[11], "  and 1,992 more"]
    assert len(lines) == 13


@pytest.mark.parametrize(
    ("wrong", "errors"),
    [
        ("path = [{items}]\nworkload = [{items}]", "2 errors"),
        ("{paths}workload = [{{ name = 'w', sizes = [{items}] }}]", "1 error"),
        ("{paths}workload = [{{ name = 'w', placement = [{items}] }}]", "1 error"),
        ("{paths}workload = [{{ name = 'w', options = {{ a = [{items}] }} }}]", "1 error"),
        ("{paths}workload = [{{ name = 'w', options = {{ {keys} }} }}]", "1 error"),
        ("{good}host = {{ node = [{items}], libvirt = [{items}] }}", "2 errors"),
        ("{good}host = {{ options = {{ {keys} }} }}", "1 error"),
        ("{good}tune = {{ knobs = {{ {keys} }}, classes = [{items}] }}", "2 errors"),
        ("{good}tune = {{ knobs = {{ a = [{items}] }}, limits = {{ {keys} }} }}", "2 errors"),
        ("{good}tune = {{ knobs = {{ a = [1] }}, weights = {{ {keys} }} }}", "1 error"),
        ("{good}setting = [{{ name = 's', knobs = {{ {keys} }} }}]", "1 error"),
    ],
)
def test_thousands_of_wrong_entries_are_not_reported_one_by_one(wrong: str, errors: str) -> None:
    """Each error takes microseconds to format but only a few bytes to cause."""
    keys = ", ".join(f"k{number} = {{}}" for number in range(1000))
    paths = "path = [{ name = 'p' }]\n"
    text = wrong.format(paths=paths, good=f"{paths}workload = [{{ name = 'w' }}]\n", items="{}," * 1000, keys=keys)
    with pytest.raises(BadInputError) as caught:
        parse_study(f'name = "a"\nbaseline = "p"\n{text}', "many.toml")
    assert caught.value.message.startswith(f"many.toml has {errors}:")


@pytest.mark.parametrize("wrong", ['"cells": [{items}]', '"parts": [{items}]', '"order": {{"knobs": {{{keys}}}}}'])
def test_a_record_of_thousands_of_wrong_entries_is_read_up_to_the_first(wrong: str) -> None:
    keys = ", ".join(f'"k{number}": {{}}' for number in range(1000))
    text = wrong.format(items=", ".join(["{}"] * 1000), keys=keys)
    with pytest.raises(ValueError, match="Field required") as caught:
        read_typed(TrialRecord, f"{{{text}}}")
    assert isinstance(caught.value.__cause__, ValidationError)
    assert caught.value.__cause__.error_count() < 20


def test_duplicate_names_are_found_in_linear_time() -> None:
    """Each of thousands of entries was searched for in all the others."""
    paths = ", ".join(f"{{ name = 'p{number % 100}' }}" for number in range(256))
    with pytest.raises(BadInputError, match="two of them have the name 'p0'"):
        parse_study(f"name = 'a'\nbaseline = 'p0'\npath = [{paths}]\nworkload = [{{ name = 'w' }}]", "twice.toml")


def test_a_file_beyond_the_limit_is_refused_and_the_limit_can_be_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * 101)
    monkeypatch.setenv("NEARMETAL_MAX_FILE", "100")
    with pytest.raises(ForeignFileError, match="more than 100 bytes") as seen:
        read_bytes(path)
    assert "NEARMETAL_MAX_FILE=200" in seen.value.hint
    monkeypatch.setenv("NEARMETAL_MAX_FILE", "101")
    assert read_bytes(path) == b"x" * 101
    with pytest.raises(ForeignFileError):
        read_bytes(Path("/dev/zero"))


@timed
def endless(seen: list[int]) -> None:
    """Read for ever, as a reader that skips every damaged line would."""
    while True:
        with contextlib.suppress(Exception):
            seen.append(len(seen))
            seen.clear()


def test_an_endless_reader_is_stopped_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARMETAL_MAX_TIME", "5")
    before = threading.active_count()
    for _ in range(20):
        with pytest.raises(ForeignFileError, match="more than 5 ms of processor time") as seen:
            endless([])
        assert seen.value.hint.endswith("NEARMETAL_MAX_TIME=10")
    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(endless, []) for _ in range(6)]:
            assert isinstance(one.exception(), ForeignFileError)
    assert threading.active_count() <= before


def test_a_nested_reader_shares_the_time_limit_of_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Watch:
        def __init__(self, most_ms: int) -> None:
            made.append(most_ms)

        def stop(self) -> None:
            made.append(0)

    monkeypatch.setattr(reading, "_Watch", Watch)
    assert timed(lambda: parse_toml("a = 1"))() == {"a": 1}
    assert made == [limits.TIME.default, 0]
    with pytest.raises(ValueError, match="at line 1 column 5"):
        timed(lambda: parse_toml("a = "))()
    assert made == [limits.TIME.default, 0] * 2


@pytest.mark.parametrize(
    "read",
    [
        decode_rank,
        parse_domain,
        parse_toml,
        read_bundle,
        read_fabric_file,
        read_foreign,
        read_sample_file,
        read_trace,
        lambda *_: parse_json("[" + "0," * (1 << 15) + "0]"),
    ],
)
def test_readers_of_text_traces_samples_and_archives_are_timed(
    read: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_Watch", _Asked)
    with pytest.raises(_Asked.Error):
        read("", "", "")


def test_the_index_of_an_archive_and_each_of_its_files_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(make_run(tmp_path / "run", STUDY), tmp_path / "run.nmrun")
    made: list[int] = []

    class Watch:
        def __init__(self, most_ms: int) -> None:
            made.append(most_ms)

        def stop(self) -> None: ...

    monkeypatch.setattr(reading, "_Watch", Watch)
    files = unarchive(tmp_path / "run.nmrun", tmp_path / "back")
    assert len(made) == 2 + files, "the directory of the file, its list, and each file"


class _Asked:
    """Raised when a watch is started."""

    class Error(Exception): ...

    def __init__(self, most_ms: int) -> None:
        raise self.Error


def test_every_limit_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "threat-model.md").read_text()
    for limit in (one for one in vars(limits).values() if isinstance(one, limits.Limit)):
        power = limit.default.bit_length() - 1
        shown = (f"{limit.default:,}", f"2^{power}" if limit.default == 1 << power else "10^10")
        assert any(f"`{limit.variable}` | {one} |" in page for one in shown), limit.variable


@pytest.mark.parametrize("text", NUMBERS)
def test_text_that_is_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|range"):
        decimal(text)
    with pytest.raises(ValueError, match="whole number"):
        whole(text)
    for read in (parse_duration_ns, parse_size_bytes):
        with pytest.raises(BadInputError):
            read(f"{text} s" if read is parse_duration_ns else f"{text} B")


def test_durations_and_sizes_beyond_64_bits_are_refused() -> None:
    for value in (2.0**63, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="out of range"):
            to_whole(value)
    with pytest.raises(BadInputError, match="out of range"):
        parse_duration_ns("9999999999999 h")
    assert (decimal(" 1.5e-3"), decimal(".5"), decimal("5."), to_whole(1.5)) == (0.0015, 0.5, 5.0, 2)


@pytest.mark.parametrize("text", ["0-99999999999", "99999999999", "0-", "1-x", "", "0,,1", "\u0661"])
def test_a_list_of_processors_is_limited_to_possible_numbers(text: str) -> None:
    with pytest.raises(ValueError, match=r"processor|whole number"):
        parse_cpus(text)


# ---------------------------------------------------------------- foreign programs

IMB = (DATA / "imb-2021.11.txt").read_bytes()


def test_an_impossible_number_of_processes_is_refused() -> None:

    hostile = re.sub(rb"#processes = \d+", b"#processes = 99999999999", IMB)
    assert hostile != IMB
    with pytest.raises(ForeignFileError, match="number of processes"):
        read_foreign(hostile)


@pytest.mark.parametrize(
    "text",
    [
        b" RDMA_Write Latency Test\n #bytes #iterations t_min[usec] t_max[usec] t_typical[usec]\n 2 1000 1 2\n",
        b" Send BW Test\n #bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]\n 2 1000 1\n",
        b"# OSU MPI Latency Test v5.6\n# Size  Latency (us)\n1  1e300\n",
        b"# OSU MPI Bandwidth Test v5.6\n# Size  Bandwidth (MB/s)\n1  1e-300\n",
        b"# OSU MPI Latency Test v5.6\n# Size  Latency (us)\n1  " + b"9" * 400 + b"\n",
    ],
)
def test_excessive_figures_and_rows_are_refused(text: bytes) -> None:
    with pytest.raises(ForeignFileError):
        read_foreign(text)


SLOW = {
    "omb": (b"# OSU MPI Latency Test ", b" ", b"x\n# Size  Latency (us)\n"),
    "hpcc": (b"of Summary section.\n", b"Begin of Summary section.", b""),
    "imb": (b"# Benchmarking PingPong\n# #processes = 2\n #bytes #repetitions t", b" ", b"x\n"),
    "npb": (b" CG Benchmark Completed.\n Class", b" ", b"x\n"),
    "npb-value": (b" CG Benchmark Completed.\n Class = ", b"x ", b"\n"),
    "perftest": (b"#bytes\n#, usec\n", b"\n", b""),
    "perftest-title": (b"#bytes #, usec", b"\n", b"RDMA_"),
    "nuttcp": (b"rate_Mbps= ", b"a", b"\n"),
    "nuttcp-ends": (b"rate_Mbps=", b"tx_cpu=", b""),
    "sockperf": (b"sockperf: [Total Run] ", b"; SentMessages=", b""),
}


_LONG = 1 << 19
"""At this length a reader whose time grows with its square meets the limit of every reader, two minutes of processor
time; one in proportion takes less than a second."""


def refused_for_its_time(data: bytes) -> bool:
    try:
        read_foreign(data)
    except ForeignFileError as error:
        return "processor time" in error.message
    return False


@pytest.mark.parametrize("name", SLOW)
def test_readers_finish_long_files_in_time(name: str) -> None:
    head, unit, tail = SLOW[name]
    assert not refused_for_its_time(head + unit * (_LONG // len(unit)) + tail)


def test_whitespace_in_perftest_json_is_read_in_one_pass() -> None:
    report = (DATA / "written-perftest-6.2-send_lat.json").read_bytes()
    assert not refused_for_its_time(report.replace(b":", b":" + b" " * _LONG, 1))


# ---------------------------------------------------------------- stored files


def test_an_archive_that_unpacks_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(8):
            archive.writestr(f"trace/cpu{number}", bytes(1 << 16))
    assert len(read_bundle(path, 8 << 16)) == 8
    with pytest.raises(ForeignFileError, match="unpacks to more than"):
        read_bundle(path, (8 << 16) - 1)


def test_a_bundle_round_trips_and_is_reproducible(tmp_path: Path) -> None:
    files = {"trace/cpu1": b"one" * 1000, "trace/cpu0": b"", "clock": b"\x00\xff"}
    for path, order in (("a.zip", files), ("b.zip", dict(reversed(files.items())))):
        write_bundle(tmp_path / path, order)
        assert read_bundle(tmp_path / path) == files
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_trace_of_too_many_events_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    files = read_bundle(Path(__file__).parents[1] / "golden" / "waterfall-v1.zip")
    events = read_trace(files)
    assert events
    monkeypatch.setenv(limits.TRACE_VALUES.variable, str(len(events)))
    with pytest.raises(ForeignFileError, match="values") as seen:
        read_trace(files)
    assert limits.TRACE_VALUES.variable in seen.value.hint


def test_long_layouts_of_a_trace_are_read_in_time() -> None:
    read_trace({"trace/formats": b"event: a/b\nID: 1\n" + b"\tfield:" * (_LONG // 4)})


def test_one_hostile_run_does_not_hide_the_others(tmp_path: Path) -> None:
    make_run(tmp_path / "good", STUDY)
    for name, text in {"deep": "[" * 100_000, "long": "9" * 5000, "brackets": "{" * 70 + "}" * 70}.items():
        (tmp_path / name / "trials").mkdir(parents=True)
        (tmp_path / name / "run.json").write_text(text)
    make_run(tmp_path / "keys", STUDY)
    (tmp_path / "keys/study.toml").write_text("a" + ".a" * 1000 + " = 1")
    found = {one.name: one for one in Catalogue(tmp_path).entries()}
    assert found["good"].info is not None
    assert all(found[name].info is None and found[name].problem for name in ("deep", "long", "brackets", "keys"))
