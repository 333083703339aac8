"""The mutants of `make mutate`, and that it covers every module on which figures depend."""

from __future__ import annotations

import ast
from itertools import count, takewhile

import pytest

from tests import mutate

CODE = """
def less(a: int = 3, *rest):
    note(a)
    if not rest and a < 2:
        raise ValueError(f"{a + 1}")
    return a - len(rest)
"""
ROOMS = ("stats", "results", "store")


def mutants_of(code: str) -> list[str]:
    tree = ast.parse(code)
    found = takewhile(bool, (mutate.error(tree, number) for number in count(1)))
    return [ast.unparse(one[2]) for one in found if one]


def test_each_mutant_changes_one_thing_but_no_types_or_messages() -> None:
    plain, found = ast.unparse(ast.parse(CODE)), mutants_of(CODE)
    changes = [
        ("note(a)", "pass"),
        ("not rest and a < 2", "not rest or a < 2"),
        ("not rest", "rest"),
        ("a < 2", "a <= 2"),
        ("a < 2", "a < 3"),
        ("return a - len(rest)", "return None"),
        ("a - len", "a + len"),
    ]
    assert found == [plain.replace(old, new, 1) for old, new in changes]
    assert len(list(mutate.errors(ast.parse(CODE)))) == len(changes)


def test_boolean_returns_are_negated() -> None:
    assert mutants_of("def one():\n    return False") == ["def one():\n    return True"]
    assert mutants_of("def one():\n    return True") == ["def one():\n    return False"]


def test_every_module_that_computes_figures_has_tests() -> None:
    folder = mutate.source("stats").with_suffix("")
    modules = {
        f"{room}.{path.stem}"
        for room in ROOMS
        for path in (folder.parent / room).glob("*.py")
        if any(mutate.errors(ast.parse(path.read_text())))
    }
    assert modules - set(mutate.TESTS) == set()


@pytest.mark.parametrize("module", mutate.TESTS)
def test_the_test_files_of_each_row_exist(module: str) -> None:
    assert mutate.source(module).is_file()
    assert all((mutate.ROOT / test).exists() for test in mutate.TESTS[module])


def test_every_reason_matches_an_existing_line() -> None:
    there = {
        (module, what)
        for module in {module for module, _ in mutate.SURVIVE}
        for what in mutate.errors(ast.parse(mutate.source(module).read_text()))
    }
    assert set(mutate.SURVIVE) - there == set()
