"""Measure what virtualization costs a parallel program's network, explain it, close it, predict it.

In a notebook: `import nearmetal as nm`, then `nm.open_run("runs/first")` (docs/reference/python.md). The import itself
costs nothing: what it offers is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearmetal.api.comparison import Comparison
    from nearmetal.api.frame import Frame
    from nearmetal.api.run import Run, open_run, open_runs, run_study
    from nearmetal.errors import NearmetalError

__version__ = "0.1.0"

__all__ = ["Comparison", "Frame", "NearmetalError", "Run", "__version__", "open_run", "open_runs", "run_study"]

_HOMES = {
    "Comparison": "nearmetal.api.comparison",
    "Frame": "nearmetal.api.frame",
    "NearmetalError": "nearmetal.errors",
    "Run": "nearmetal.api.run",
    "open_run": "nearmetal.api.run",
    "open_runs": "nearmetal.api.run",
    "run_study": "nearmetal.api.run",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'nearmetal' has no attribute {name!r}")
    import importlib  # noqa: PLC0415 (only when something is asked for)

    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
