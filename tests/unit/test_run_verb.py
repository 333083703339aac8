"""What the verb `run` says beside its tables."""

from __future__ import annotations

from types import SimpleNamespace

from nearmetal.cli.run import virtual_time_ns


def test_only_launches_in_the_lab_have_virtual_time() -> None:
    inside = SimpleNamespace(outcome=SimpleNamespace(elapsed_ns=7, facts={"lab.virtual_time": True}))
    outside = SimpleNamespace(outcome=SimpleNamespace(elapsed_ns=100, facts={}))
    assert virtual_time_ns([inside, inside, outside]) == 14  # type: ignore[list-item]
    assert virtual_time_ns([outside]) == 0  # type: ignore[list-item]
