"""Files once written by an engine must stay readable."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearmetal.workloads.sample_file import read_sample_file
from tests.engine_files import encode_sample_file, iteration_values

GOLDEN = Path(__file__).with_name("engine-v1.nmb")


def test_version_1_is_still_read() -> None:
    file = read_sample_file(GOLDEN.read_bytes())
    header = file.header
    assert (header.engine, header.operation, header.kind, header.ranks) == ("nmbench", "allreduce", "collective", 3)
    assert (header.sizes_bytes, header.warmup, header.iterations) == ((1, 1024), (2, 1), (5, 3))
    assert header.datatypes == ("uint8", "float32")
    assert (header.sync, header.check_rounds, header.check_failures) == ("window", 8, (0, 0))
    assert header.sync_window_ns == SYNC_WINDOW_NS
    assert header.mpi_library.startswith("Open MPI v5.0.11")
    small, large = file.cells
    assert small.begin_ns.dtype == np.int64
    assert small.flags.tolist() == [[1, 1, 0, 0, 0, 0, 0]] * 3
    assert iteration_values(small).tolist() == SMALL_NS
    assert iteration_values(large).tolist() == LARGE_NS


def test_version_1_is_still_written() -> None:
    data = GOLDEN.read_bytes()
    file = read_sample_file(data)
    assert encode_sample_file(file.header, file.cells) == data


SYNC_WINDOW_NS = (33413, 56063)
SMALL_NS = [4051, 3925, 3946, 3896, 4724]
LARGE_NS = [13208, 12275, 15735]
