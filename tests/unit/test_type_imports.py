"""Types are imported with everything else, unless only a type would load a module (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import nearmetal
from nearmetal.hosts.lab.closure import module_file

PACKAGE = Path(nearmetal.__file__).parent
GUARDED = [path for path in PACKAGE.rglob("*.py") if "if TYPE_CHECKING:" in path.read_text()]


def named(body: list[ast.stmt]) -> set[str]:
    """Return the modules that statements import."""
    found = {alias.name for one in body if isinstance(one, ast.Import) for alias in one.names}
    for one in body:
        if isinstance(one, ast.ImportFrom) and one.module:
            found |= {f"{one.module}.{alias.name}" for alias in one.names if is_ours(f"{one.module}.{alias.name}")}
            found.add(one.module)
    return found


def is_ours(module: str) -> bool:
    return module.startswith("nearmetal.") and module_file(PACKAGE, module) is not None


@functools.cache
def read(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return what a file imports when loaded, and what only for types."""
    body = ast.parse(path.read_text()).body
    guards = [one for one in body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"]
    return frozenset(named(body)), frozenset().union(*(named(one.body) for one in guards))


def loaded_with(path: Path) -> set[str]:
    """Return every module that loading a file loads."""
    seen: set[str] = set()
    waiting = set(read(path)[0])
    while waiting:
        module = waiting.pop()
        seen.add(module)
        if is_ours(module) and (file := module_file(PACKAGE, module)):
            waiting |= read(file)[0] - seen
    return seen


@pytest.mark.parametrize("path", GUARDED, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_loaded_anyway_are_imported_normally(path: Path) -> None:
    ours = {name for name in read(path)[1] if not any(other.startswith(f"{name}.") for other in read(path)[1])}
    assert sorted(ours & (loaded_with(path) | {"collections.abc", "pathlib", "typing"})) == []
