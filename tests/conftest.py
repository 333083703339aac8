"""Settings of every test, and the folder in which far machines keep their programs.

No example has a deadline, and continuous integration draws the same examples each time.
"""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import sys
import tempfile

import pytest
from hypothesis import settings

settings.register_profile("nearmetal", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("nearmetal")

# Tests start hundreds of programs of ours; without compiled modules each start takes half a CPU second longer.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # nor does each worker then rewrite the assertions of every test at its start

# The threads of OpenBLAS spin for some 50 ms in each program that imports numpy, and have nothing to do.
os.environ["OPENBLAS_NUM_THREADS"] = "1"


def _synced(descriptor: int) -> None:
    """Leave the syncing out, milliseconds each: what is written outlives a process without it.

    Power losses have tests of their own, whose programs sync (tests/fault/test_lost_disk.py).
    """
    os.fstat(descriptor)


os.fsync = _synced  # type: ignore[assignment]


def pytest_collection_finish() -> None:
    """Keep what was collected, 300,000 objects, out of every later search for garbage."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Name the cache of a run's far machines, who make it when they need it; workers of pytest-xdist inherit it."""
    if not hasattr(config, "workerinput"):
        # pytest-xdist 3.8 names a test's group there; pytest 9.2 reads it no more, and each worker opens the lab anew.
        if config.getoption("dist", default="no") == "loadgroup" and not hasattr(pytest.Item, "_nodeid"):
            raise pytest.UsageError(f"pytest {pytest.__version__} ignores groups: install packaging/requirements.lock")
        folder = f"{tempfile.gettempdir()}/far-cache-{secrets.token_hex(8)}"
        os.environ["NEARMETAL_FAR_CACHE"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
