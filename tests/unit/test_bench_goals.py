"""How benches exit: `make bench` tells a missed goal, and by how much, from a bench that crashed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.support.goals import MISSED, ended, short_of

BENCHES = sorted((Path(__file__).parents[2] / "bench").glob("*.py"))


@pytest.mark.parametrize(
    ("found", "goal", "least", "expected"),
    [
        (300.0, 150.0, False, ["a page: 300 ms, goal at most 150 ms (2.00 times)"]),
        (150.0, 150.0, False, []),
        (1.5, 1.8, True, ["a page: 1.5 ms, goal at least 1.8 ms (0.83 times)"]),
        (1.8, 1.8, True, []),
        (1.0, 0.0, False, ["a page: 1 ms, goal at most 0 ms"]),
    ],
)
def test_a_missed_goal_is_reported_with_the_shortfall(
    found: float, goal: float, least: bool, expected: list[str]
) -> None:
    assert short_of("a page", found, goal, " ms", least=least) == expected


def test_a_bench_succeeds_or_names_the_missed_goals(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended([]) == 0
    assert capsys.readouterr().out == "every goal is met\n"
    assert ended(["a: 2, goal at most 1", "b"]) == MISSED
    assert capsys.readouterr().out == "missed: a: 2, goal at most 1\nmissed: b\n"


@pytest.mark.parametrize(
    "bench", [one for one in BENCHES if re.search("GOAL|LIMIT|TARGET", one.read_text())], ids=lambda one: one.name
)
def test_a_bench_with_a_goal_exits_by_it(bench: Path) -> None:
    """Exit status 1 is that of a traceback."""
    text = bench.read_text()
    assert "support.goals import" in text
    assert not re.search(r"return (0|1|MISSED) if (?!report)|return int\(.*(>|any|all)|sys.exit\([a-z_]+ [<>]", text)
