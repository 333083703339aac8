"""Settings of all tests, and the folder in which far machines keep their programs.

Hypothesis examples have no deadline, and continuous integration draws the same examples each time.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from nearmetal.workloads import build

settings.register_profile("nearmetal", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("nearmetal")

# Tests start hundreds of our programs; without compiled modules each start takes half a CPU second longer.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # nor does each worker then rewrite the assertions of every test at its start

# The threads of OpenBLAS spin uselessly for some 50 ms in each program that imports numpy, and UCX for 20 ms in each
# rank, to notice when memory goes that is registered at a device: there is none.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "UCX_MEM_EVENTS": "n"}

# Programs that need an MPI are built once, with warnings as errors (tests/unit/test_native_strict.py).
build._FLAGS = (*build._FLAGS, "-Werror")

gc.disable()  # until the tests are collected, a fifth of the time that takes


def _synced(descriptor: int) -> None:
    """Skip syncing, which takes milliseconds each time: written data outlive a process without it.

    Power losses have tests of their own, whose programs do sync (tests/fault/test_lost_disk.py).
    """
    os.fstat(descriptor)


os.fsync = _synced  # type: ignore[assignment]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Load a worker's share of the test files first, so that the other workers read its rewritten assertions.

    In a fresh clone all workers of pytest-xdist would otherwise rewrite the assertions of all files at the same time.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    number, among = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    given = [Path(one.partition("::")[0]).resolve() for one in session.config.args]
    files = sorted(file for one in given for file in (one.rglob("test_*.py") if one.is_dir() else [one]))
    for file in files[number::among]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection will report the error
            importlib.import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist names the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that share what a module or folder makes once to one worker: each worker would make it again."""
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("xdist_group"):
            continue
        used = [defined[-1] for defined in item._fixtureinfo.name2fixturedefs.values() if defined[-1].baseid]
        folders = [one.baseid for one in used if one.scope == "session"]
        if folders or any(one.scope == "module" for one in used):
            item.add_marker(pytest.mark.xdist_group(folders[0] if folders else item.nodeid.partition("::")[0]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the 300,000 collected objects from every garbage collection: one alone takes half a second a worker."""
    collected = yield
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # tests make few cycles: thirty times as many searches found next to nothing
    gc.enable()
    return collected


def pytest_configure(config: pytest.Config) -> None:
    """Set the folders of far machines' programs and of journals, which are made on demand.

    Workers of pytest-xdist share the programs. Each has its own journals: the runs of two would warn of each other.
    """
    if not hasattr(config, "workerinput"):
        # pytest-xdist 3.8 puts a test's group there; pytest 9.2 ignores it, so each worker would open the lab again.
        if config.getoption("dist", default="no") == "loadgroup" and not hasattr(pytest.Item, "_nodeid"):
            raise pytest.UsageError(f"pytest {pytest.__version__} ignores groups: install packaging/requirements.lock")
        made = f"{tempfile.gettempdir()}/far-cache-{secrets.token_hex(8)}"
        os.environ["NEARMETAL_FAR_CACHE"] = made
        config.add_cleanup(lambda: shutil.rmtree(made, ignore_errors=True))
    worker = getattr(config, "workerinput", {}).get("workerid", "main")
    state = f"{os.environ['NEARMETAL_FAR_CACHE']}-state-{worker}"
    os.environ |= {"XDG_STATE_HOME": state}
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give each test a machine of its own to note open sessions on: some are left open, and the next would see them."""
    own = hashlib.sha256(item.nodeid.encode()).hexdigest()[:16]
    os.environ["NEARMETAL_MACHINE_STATE"] = f"{os.environ['XDG_STATE_HOME']}/machine-{own}"
