"""Parsers of other programs' output, given damaged recordings: they read or refuse, and never do anything else."""

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.errors import ForeignFileError
from nearmetal.workloads.figures import UNITS
from nearmetal.workloads.samples import DECODERS, one_cell
from nearmetal.workloads.tools import perftest, sockperf
from nearmetal.workloads.tools.perftest_dump import parse_dump

DATA = Path(__file__).parents[1] / "data" / "tools"

OTHER_READERS: dict[str, Callable[[bytes], object]] = {
    "written-perftest": perftest.parse_json_report,
    "sockperf-3.7-pp": sockperf.parse_summary,
    "sockperf-3.7-ul": sockperf.parse_summary,
    "sockperf-3.7-full": sockperf.parse_full_log,
    "perftest-4.5-ib_atomic": parse_dump,
}
"""By the beginnings of their files' names; all else is read by `parse` of the program's module."""
FILES = sorted(path for path in DATA.iterdir() if path.suffix != ".md")


def reader_of(path: Path) -> Callable[[bytes], object]:
    other = next((reader for prefix, reader in OTHER_READERS.items() if path.name.startswith(prefix)), None)
    program = path.name.removeprefix("written-").partition("-")[0]
    return other or import_module(f"nearmetal.workloads.tools.{program}").parse  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@settings(max_examples=30, deadline=None)
@given(where=st.floats(0, 1), length=st.integers(0, 40), put=st.binary(max_size=12))
def test_a_damaged_file_is_read_or_refused(path: Path, where: float, length: int, put: bytes) -> None:
    whole = path.read_bytes()
    at = int(where * len(whole))
    try:
        reader_of(path)(whole[:at] + put + whole[at + length :])
    except ForeignFileError:
        return


@pytest.mark.parametrize("kind", DECODERS)
@settings(max_examples=30, deadline=None)
@given(junk=st.binary(max_size=300))
def test_decoders_never_raise_anything_else(kind: str, junk: bytes) -> None:
    with pytest.raises(ForeignFileError):
        one_cell("latency", 0, DECODERS[kind](junk))


@settings(deadline=None)
@given(values=st.lists(st.integers(1, 10**9), min_size=3, max_size=50))
def test_a_dump_is_read_back_exactly(values: list[int]) -> None:
    values = [max(values) + 1, *values]  # not ascending
    text = "#bytes\n#, usec\n" + "".join(f"{i}, {ns // 1000}.{ns % 1000:03d}\n" for i, ns in enumerate(values, 1))
    assert parse_dump(b"\n" + text.encode() + b" 64  4  1.0 2.0 3.0 4.0\n").tolist() == np.maximum(1, values).tolist()


@given(name=st.sampled_from(sorted(UNITS)), figure=st.floats(1e-3, 1e6))
def test_a_figure_comes_back_from_its_duration(name: str, figure: float) -> None:
    unit = UNITS[name]
    try:
        ns = unit.to_ns(figure)
    except ForeignFileError:
        assert unit.scale / figure > 2**63 if unit.rate else unit.scale * figure > 2**63
        return
    back = unit.scale / ns if unit.rate else ns / unit.scale
    exact = unit.scale / figure if unit.rate else unit.scale * figure
    assert math.isclose(back, figure, rel_tol=1e-12 + 1 / max(1.0, exact)) or exact < 1
