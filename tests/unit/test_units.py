import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import BadInputError
from nearmetal.units import format_duration, format_size, format_wait, parse_duration_ns, parse_size_bytes


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


def test_decimal_size_units_are_refused() -> None:
    with pytest.raises(BadInputError):
        parse_size_bytes("4 KB")


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
