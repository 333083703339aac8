"""What the fuzzer found worth keeping, fed to every reader again; `make fuzz` searches on."""

from __future__ import annotations

import pytest

from tests.fuzz_readers import CORPUS, NAMES, inputs, reader

NATIVE = ("simulator", "bench-arguments", "fabric-arguments")  # tests/unit/test_native_sanitized.py feeds these


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_takes_every_input_that_was_kept(name: str) -> None:
    feed = reader(name)
    kept = [path.read_bytes() for path in inputs(name)]
    assert kept
    for data in kept:
        feed(data)
        feed(data[: len(data) // 2])
        feed(data[::-1])


def test_every_reader_has_inputs_of_its_own() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*NAMES, *NATIVE}
