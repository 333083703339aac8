"""The fuzzing corpus, replayed for every reader; `make fuzz` extends it."""

from __future__ import annotations

import pytest

from tests.fuzz_readers import CORPUS, NAMES, inputs, reader

NATIVE = ("simulator", "bench-arguments", "fabric-arguments")  # tests/unit/test_native_sanitized.py feeds these


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_handles_every_input_of_its_corpus(name: str) -> None:
    feed = reader(name)
    kept = [path.read_bytes() for path in inputs(name)]
    assert kept
    for data in kept:
        feed(data)
        feed(data[: len(data) // 2])
        feed(data[::-1])


def test_every_reader_has_a_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*NAMES, *NATIVE}
