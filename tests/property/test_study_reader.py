"""The study reader accepts or refuses any input and never does anything else."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.errors import BadInputError
from nearmetal.study.spec import Study, parse_study
from tests.unit.test_spec import GOOD

LINES = GOOD.strip().splitlines()
VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.text(max_size=20).map(repr),
    st.sampled_from(
        ["true", "[]", "{}", "[1, 'x']", "'4 KiB'", "1979-05-27", "nan", "inf", "[[]]", "99999999999999999999"]
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(BadInputError):
        assert isinstance(parse_study(text, "t"), Study)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(LINES) - 1), st.sampled_from(["drop", "double", "swap"]), VALUES), max_size=4)
)
def test_a_damaged_study_is_read_or_refused(damage: list[tuple[int, str, str]]) -> None:
    lines = list(LINES)
    for index, how, value in damage:
        line = lines[index % len(lines)]
        if how == "drop" and len(lines) > 1:
            lines.remove(line)
        elif how == "double":
            lines.append(line)
        elif "=" in line:
            lines[index % len(lines)] = f"{line.split('=')[0]}= {value}"
    with contextlib.suppress(BadInputError):
        assert isinstance(parse_study("\n".join(lines), "t"), Study)
