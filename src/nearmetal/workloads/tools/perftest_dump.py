"""perftest -U: one value an iteration, up to many millions of lines `number, microseconds`.

A value has six significant digits (`%g`), so it is exact to a ns below a millisecond, and rounded to a ns here; from a
millisecond on perftest itself has rounded it to 10 ns and more. The columns are found by the CSV reader of Arrow, which
reads blocks of lines on all processors.
"""

from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from nearmetal.units import NS_PER_US
from nearmetal.workloads.tools.lines import refuse
from nearmetal.workloads.tools.perftest import DUMP_HEAD

PROGRAM = "perftest -U"

_HEAD = DUMP_HEAD.encode()
_MOST_US = 1e12
_BLOCK_BYTES = 1 << 20  # stays in the cache: twice as fast as blocks of 8 MiB


def parse_dump(data: bytes) -> NDArray[np.int64]:
    """Return the ns of every iteration in order; raise ForeignFileError for anything else.

    With `-H` the values are sorted, which a summary cannot undo: such a file is refused.
    """
    values = _values(data)
    if values.size > 2 and bool((values[1:] >= values[:-1]).all()) and values[0] < values[-1]:
        raise refuse(PROGRAM, f"its {values.size} values are sorted: they were written with -H, not -U")
    return values


def _values(data: bytes) -> NDArray[np.int64]:
    start = data.find(b"\n" + _HEAD)
    if start < 0:
        raise refuse(PROGRAM, f"there is no line {DUMP_HEAD!r}")
    begin = data.find(b"\n", start + len(_HEAD)) + 1
    end = _end_of_values(data, begin)
    if end <= begin:
        raise refuse(PROGRAM, "there are no values below their heading")
    try:
        table = pyarrow.csv.read_csv(
            cast("IO[bytes]", pa.BufferReader(pa.py_buffer(memoryview(data)[begin:end]))),
            read_options=pyarrow.csv.ReadOptions(column_names=["number", "us"], block_size=_BLOCK_BYTES),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={"number": pa.int64(), "us": pa.float64()}, null_values=[], strings_can_be_null=False
            ),
        )
    except pa.ArrowException as error:
        raise refuse(PROGRAM, f"a line is not a value: {error}") from error
    numbers, us = (np.asarray(table.column(name).to_numpy()) for name in ("number", "us"))
    if not np.array_equal(numbers, np.arange(1, numbers.size + 1)):
        raise refuse(PROGRAM, "its values are not numbered one after another")
    if not bool(np.isfinite(us).all()) or us.min() < 0 or us.max() > _MOST_US:
        raise refuse(PROGRAM, "a value is not a duration")
    return np.asarray(np.maximum(1, np.rint(us * NS_PER_US)), np.int64)


def _end_of_values(data: bytes, begin: int) -> int:
    """Return where the last value's line ends; what follows starts with a blank or a `#`, or is nothing.

    The numbers say how many values there are, so the end is sought from behind: the summary is short.
    """
    end = len(data)
    while end > begin:
        line_start = max(begin, data.rfind(b"\n", begin, end - 1) + 1)
        head, comma, _ = data[line_start:end].partition(b",")
        if comma and head.isdigit():
            return end
        end = line_start
    return end
