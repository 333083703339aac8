"""Every shipped output file, truncated at every byte: an error, a mark, or the same figures; never other numbers.

Long files are truncated at every third byte in the middle, where rows are alike and no number is shorter than three
characters.
"""

from pathlib import Path

import pytest

from nearmetal.errors import ForeignFileError
from nearmetal.workloads.samples import DECODERS, one_cell, read_foreign
from nearmetal.workloads.tools.tool import Foreign

SAMPLES = Path(__file__).parents[1] / "data" / "tools"
NOT_ADOPTED = {"README.md", "iperf3-3.12-error.json"}
DECODED_ONLY = ("netperf", "qperf")
"""What is read as a workload's output, and not imported."""
OPERATION = {"stream": "tcp_stream", "rr": "tcp_round_trip"}

READ = read_foreign.__wrapped__  # type: ignore[attr-defined]
"""Reads without a limit of time: the thread that watches it took as long as reading."""

END_BYTES = 2000
"""Of a long file's begin and end, each byte is a cut."""

Figures = dict[tuple[str, str, str, int, int], tuple[int, list[int]]]


def figures(found: tuple[Foreign, ...]) -> Figures:
    """Return every imported value by program, workload, operation, size and its index among these."""
    kept: Figures = {}
    for one in found:
        for cell in one.cells:
            key = (one.program, one.workload, cell.operation, cell.message_bytes)
            number = sum(known[:4] == key for known in kept)
            kept[*key, number] = (one.ranks, cell.ns.ravel().tolist())
    return kept


def cuts(data: bytes) -> list[int]:
    return [at for at in range(len(data)) if at % 3 == 0 or at < END_BYTES or at > len(data) - END_BYTES]


def marked(found: tuple[Foreign, ...]) -> bool:
    return any(lack.startswith("may be cut short: ") for one in found for lack in one.lacks)


ADOPTED = sorted({one.name for one in SAMPLES.iterdir() if not one.name.startswith(DECODED_ONLY)} - set(NOT_ADOPTED))


@pytest.mark.parametrize("name", ADOPTED)
def test_no_truncation_gives_another_number(name: str) -> None:
    data = (SAMPLES / name).read_bytes()
    whole = figures(READ(data))
    for length in cuts(data):
        try:
            found = READ(data[:length])
        except ForeignFileError:
            continue
        cut = figures(found)
        assert cut.items() <= whole.items(), f"{name} cut at {length} gives other figures"
        assert cut == whole or marked(found), f"{name} cut at {length} silently loses figures"


@pytest.mark.parametrize("name", sorted(one.name for one in SAMPLES.iterdir() if one.name.startswith(DECODED_ONLY)))
def test_no_truncation_of_a_workloads_output_gives_another_number(name: str) -> None:
    program = name.partition("-")[0]
    operation = OPERATION.get(name.removesuffix(".txt").rpartition("_")[2], "tcp_one_way")
    data = (SAMPLES / name).read_bytes()
    try:
        whole = one_cell(operation, 0, DECODERS[program](data)).ns[0].tolist()
    except ForeignFileError:
        whole = []  # several results, but a launch has one
    for length in cuts(data):
        try:
            cut = one_cell(operation, 0, DECODERS[program](data[:length])).ns[0].tolist()
        except ForeignFileError:
            continue
        assert cut == whole or not whole, f"{name} cut at {length} gives {cut}, not {whole}"


@pytest.mark.parametrize("name", ["imb-2021.11.txt", "perftest-4.5-ib_send_bw.txt"])
def test_a_complete_file_has_no_mark(name: str) -> None:
    assert not marked(read_foreign((SAMPLES / name).read_bytes()))


def test_a_truncated_number_is_reported_with_how_to_repair_the_file() -> None:
    data = (SAMPLES / "written-omb-5.9-bw.txt").read_bytes()
    with pytest.raises(ForeignFileError, match="its last line has no newline: '1  ") as caught:
        read_foreign(data[: data.index(b"2.97") + 1])
    assert "echo >> FILE" in caught.value.hint
