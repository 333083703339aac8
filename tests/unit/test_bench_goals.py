"""How benches exit: `make bench` tells a missed goal, and by how much, from a bench that crashed."""

from __future__ import annotations

import ast
import importlib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.support.goals import MISSED, ended, short_of, worst

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def test_no_bench_says_that_it_exits_with_1_for_a_missed_goal() -> None:
    told = re.compile(r"(status is|exits with|exit code) 1\b", re.IGNORECASE)
    assert [bench.name for bench in BENCHES if told.search(bench.read_text())] == []


def test_every_bench_exits_by_what_it_returns() -> None:
    """One that left everything out ended with 0, as if its goal were met."""
    assert [one.name for one in BENCHES if "sys.exit(main(" not in one.read_text()] == []


def test_a_bench_over_ssh_has_a_cache_for_the_far_machines() -> None:
    """In the suite conftest.py sets it."""
    far = [one.read_text() for one in BENCHES if "import far_machines" in one.read_text()]
    assert far
    assert all('os.environ["NEARMETAL_FAR_CACHE"] = ' in text for text in far)


def test_a_part_that_broke_is_no_missed_goal() -> None:
    assert [worst([0, 0]), worst([0, MISSED]), worst([1, MISSED]), worst([0, -9])] == [0, MISSED, 1, 1]


@pytest.mark.parametrize(
    "bench", [one for one in BENCHES if re.search("GOAL|LIMIT|TARGET", one.read_text())], ids=lambda one: one.name
)
def test_a_bench_with_a_goal_exits_by_it(bench: Path) -> None:
    """Exit status 1 is that of a traceback."""
    text = bench.read_text()
    assert "support.goals import" in text
    assert not re.search(r"return (0|1|MISSED) if (?!report)|return int\(.*(>|any|all)|sys.exit\([a-z_]+ [<>]", text)


def _missing(tree: ast.Module) -> Iterator[str]:
    """Yield what a program takes from modules of nearmetal that they do not have."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nearmetal":
            whole = importlib.import_module(node.module or "")
            for one in node.names:
                if hasattr(whole, "__path__") and find_spec(f"{node.module}.{one.name}"):
                    modules[one.asname or one.name] = importlib.import_module(f"{node.module}.{one.name}")
                elif not hasattr(whole, one.name):
                    yield f"{node.module}.{one.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if not hasattr(module, node.attr):
                yield f"{module.__name__}.{node.attr}"


def test_benches_take_from_the_package_what_is_there() -> None:
    """Nothing runs them but `make bench`: one went on to import what had moved to another module."""
    files = sorted(BENCHES[0].parent.rglob("*.py"))
    assert {file.name: list(_missing(ast.parse(file.read_text()))) for file in files} == {one.name: [] for one in files}


def test_a_name_that_moved_away_is_found() -> None:
    text = "from nearmetal.knobs import session\nfrom nearmetal.units import nothing_of_it\nsession.begin\nsession.far"
    assert list(_missing(ast.parse(text))) == ["nearmetal.units.nothing_of_it", "nearmetal.knobs.session.far"]
