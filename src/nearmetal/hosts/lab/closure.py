"""Which of nearmetal's own files a module needs, the imports of its sources followed to the end, and their byte code.

What the lab's guest runs is found, not listed, so only a change of what it runs makes the image another one.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Mapping
from pathlib import Path

from nearmetal import process, scratch
from nearmetal.errors import NearmetalError

PACKAGE = "nearmetal"
_COMPILE_TIMEOUT_S = 300.0


def import_closure(package: Path, module: str) -> tuple[Path, ...]:
    """Return the files of the package at `package` that `module` imports, directly or not, and its own.

    The shell script of a module has its name and folder and goes with it. Imports under `if TYPE_CHECKING` do not
    count. Raises NearmetalError when a module has no file.
    """
    found: dict[str, Path] = {}
    queue = [module]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        path = module_file(package, name)
        if path is None:
            raise NearmetalError(f"there is no source for {name} in {package}", hint="the installation is damaged")
        found[name] = path
        parents = name.split(".")[:-1]
        queue += [".".join(parents[: depth + 1]) for depth in range(len(parents))]
        queue += [wanted for wanted in imports(path.read_text()) if module_file(package, wanted) is not None]
    scripts = [path.with_suffix(".sh") for path in found.values() if path.with_suffix(".sh").is_file()]
    return tuple(sorted({*found.values(), *scripts}))


def module_file(package: Path, module: str) -> Path | None:
    """Return the file of a module of the package, or None when the name is not a module."""
    base = package.joinpath(*module.split(".")[1:])
    candidates = (base / "__init__.py", base.with_suffix(".py"))
    return next((path for path in candidates if path.is_file()), None)


@functools.lru_cache(maxsize=1024)
def imports(source: str) -> tuple[str, ...]:
    """Return the names of the package's modules that a source imports; a name may turn out to be no module."""
    found: list[str] = []
    left: list[ast.AST] = [ast.parse(source)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            left += [inner for part in _PARTS for inner in getattr(node, part, ())]
    return tuple(name for name in found if name.split(".")[0] == PACKAGE)


_PARTS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements stand within others; no expression holds an import."""


def byte_code(sources: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what this Python compiles of its source files, by path: files that are never compared with their source.

    An isolated process makes the same bytes every time: what is in memory already decides some of them. (Sets are
    written in a fixed order since Python 3.11.)
    """
    with scratch.folder("nearmetal-root") as work:
        for path, source in sources.items():
            place = work / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source)
        argv = [sys.executable, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
        paths = ["-s", str(work), "-p", "/", str(work)]
        process.run([*argv, *paths], timeout_s=_COMPILE_TIMEOUT_S, check=True)
        return {str(path.relative_to(work)): path.read_bytes() for path in sorted(work.rglob("*.pyc"))}
