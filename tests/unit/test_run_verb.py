"""What the verb `run` says beside its tables."""

from __future__ import annotations

from types import SimpleNamespace

from nearmetal.cli.progress import _Left
from nearmetal.cli.run import virtual_time_ns


def test_only_launches_in_the_lab_have_virtual_time() -> None:
    inside = SimpleNamespace(outcome=SimpleNamespace(elapsed_ns=7, facts={"lab.virtual_time": True}))
    outside = SimpleNamespace(outcome=SimpleNamespace(elapsed_ns=100, facts={}))
    assert virtual_time_ns([inside, inside, outside]) == 14  # type: ignore[list-item]
    assert virtual_time_ns([outside]) == 0  # type: ignore[list-item]


def test_the_time_left_comes_from_the_blocks_of_this_call() -> None:
    left = _Left(most_blocks=10)
    assert left.words(4, 1000.0) == "", "a run that goes on knows nothing of the earlier call's pace"
    assert left.words(5, 1120.0) == ", about 10 min left at most"
    assert left.words(9, 1400.0) == ", about 80 s left at most"
    assert _Left(3).words(0, 0.0) == ""
    quick = _Left(3)
    quick.words(0, 0.0)
    assert quick.words(1, 5.0) == "", "seconds are not worth a word"
