import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nearmetal
from nearmetal.errors import BadInputError
from nearmetal.units import (
    as_percent,
    format_duration,
    format_size,
    format_wait,
    parse_duration_ns,
    parse_share,
    parse_size_bytes,
    rounded,
)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("1 ns", 1), ("12us", 12_000), ("250 ms", 250_000_000), ("1.5 s", 1_500_000_000), ("2 min", 120 * 10**9)],
)
def test_durations_are_read(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize("text", ["", "5", "5 parsecs", "-1 s", "1 s 2", "s", "1e3 s"])
def test_other_durations_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_duration_ns(text)
    assert "250 ms" in caught.value.hint


@given(st.integers(0, 2**40))
def test_a_formatted_size_reads_back_as_itself(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("4 KB", "write '4 KiB' for a power of 1024"),
        ("1mb", "write '1 MiB' for a power of 1024"),
        ("64 kib", "upper and lower case count: did you mean '64 KiB'?"),
        ("64k", "upper and lower case count: did you mean '64 K'?"),
        ("8 b", "upper and lower case count: did you mean '8 B'?"),
    ],
)
def test_ambiguous_units_are_refused(text: str, hint: str) -> None:
    with pytest.raises(BadInputError) as refused:
        parse_size_bytes(text)
    assert refused.value.hint == hint


def test_a_duration_counts_upper_and_lower_case() -> None:
    """`60 MS` was 60 milliseconds; in the study of a measured run it still is."""
    with pytest.raises(BadInputError) as refused:
        parse_duration_ns("60 MS")
    assert refused.value.hint == "upper and lower case count: did you mean '60 ms'?"
    assert parse_duration_ns("60 MS", measured=True) == 60_000_000
    assert parse_size_bytes("1.3 kib", measured=True) == 1331


@pytest.mark.parametrize("text", ["65536", "64K", "64 KiB", "64 K", "65536 B"])
def test_a_size_has_one_grammar(text: str) -> None:
    assert parse_size_bytes(text) == 65536


@pytest.mark.parametrize("text", ["1.3 KiB", "0.1 B", "0.0000000001 GiB"])
def test_a_size_of_parts_of_a_byte_is_refused(text: str) -> None:
    """They were rounded, the last to a size of 0 B."""
    with pytest.raises(BadInputError, match="no whole number of B"):
        parse_size_bytes(text)
    assert parse_size_bytes("1.5 KiB") == 1536


def test_a_duration_is_not_rounded_to_nothing() -> None:
    with pytest.raises(BadInputError, match=r"it is 0\.4 ns, below 1"):
        parse_duration_ns("0.4 ns")
    assert (parse_duration_ns("1.5 ns"), parse_duration_ns("0 s")) == (2, 0)


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), (" 5 % ", 0.05), ("0.05", 0.05), ("5e-1 %", 0.005)])
def test_shares_are_read(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["1_0 %", "\N{ARABIC-INDIC DIGIT FIVE} %", "5 %%", "nan", "inf %", "", "%"])
def test_what_only_python_reads_is_no_share(text: str) -> None:
    """`'1_0 %'` was 10 %."""
    with pytest.raises(ValueError, match="is not a number"):
        parse_share(text)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(12345.6, 3, "12346"), (999.6, 3, "1000"), (0.12345, 3, "0.123"), (99.4, 2, "99"), (123.0, 2, "123")],
)
def test_figures_are_rounded_without_an_exponent(value: float, digits: int, text: str) -> None:
    assert rounded(value, digits) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_234, "1.23 us"),
        (5_000_000, "5 ms"),
        (999_700_000, "1 s"),
        (999_400_000, "999 ms"),
        (61_500_000_000, "61.5 s"),
        (3_723_400_000_000, "3723 s"),
    ],
)
def test_durations_are_shown_in_a_suitable_unit(ns: int, text: str) -> None:
    assert format_duration(ns) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (9.94, "9.94 s"),
        (9.95, "10 s"),
        (64.8, "65 s"),
        (119.9, "120 s"),
        (120.0, "2 min"),
        (7140.0, "119 min"),
        (7200.0, "2 h"),
    ],
)
def test_waiting_times_are_rounded_sensibly(seconds: float, text: str) -> None:
    assert format_wait(seconds * 1e9) == text


def test_shares_are_written_in_one_form() -> None:
    """Half of the outputs said `5 %`, half `5%`."""
    assert (as_percent(0.71), as_percent(0.0049, 1), as_percent(-0.1, 1, "+")) == ("71 %", "0.5 %", "-10.0 %")
    assert (as_percent(-0.0004, 1, "+"), as_percent(-0.001)) == ("+0.0 %", "0 %"), "zero has no side"
    source = Path(nearmetal.__file__).parent
    others = [path.name for path in source.rglob("*.py") if re.search(r"\.\d%\}|\}%", path.read_text())]
    assert others == ["units.py"]
