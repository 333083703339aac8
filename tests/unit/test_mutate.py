"""What `make mutate` plants, and that no module which figures rest on is left out of it."""

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


def planted(code: str) -> list[str]:
    tree = ast.parse(code)
    found = takewhile(bool, (mutate.error(tree, number) for number in count(1)))
    return [ast.unparse(one[2]) for one in found if one]


def test_each_error_changes_one_thing_and_no_types_or_messages() -> None:
    plain, found = ast.unparse(ast.parse(CODE)), planted(CODE)
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


def test_what_is_true_or_false_is_returned_the_other_way_round() -> None:
    assert planted("def one():\n    return False") == ["def one():\n    return True"]
    assert planted("def one():\n    return True") == ["def one():\n    return False"]


def test_every_module_of_the_rooms_of_figures_has_its_tests() -> None:
    folder = mutate.source("stats").with_suffix("")
    modules = {
        f"{room}.{path.stem}"
        for room in ROOMS
        for path in (folder.parent / room).glob("*.py")
        if any(mutate.errors(ast.parse(path.read_text())))
    }
    assert modules - set(mutate.TESTS) == set()


@pytest.mark.parametrize("module", mutate.TESTS)
def test_the_files_of_a_row_exist(module: str) -> None:
    assert mutate.source(module).is_file()
    assert all((mutate.ROOT / test).exists() for test in mutate.TESTS[module])


def test_a_reason_belongs_to_a_line_that_is_still_there() -> None:
    there = {
        (module, what)
        for module in {module for module, _ in mutate.SURVIVE}
        for what in mutate.errors(ast.parse(mutate.source(module).read_text()))
    }
    assert set(mutate.SURVIVE) - there == set()
