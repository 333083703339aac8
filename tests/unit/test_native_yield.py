"""How a rank waits whose MPI can only yield: native/common/yield.c, observed through its sleeping system calls."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nearmetal import process
from tests.compiled import compile_to

ROOT = Path(__file__).parents[2]
CALLS = 50


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc here")
    built = tmp_path_factory.mktemp("yield") / "yields"
    sources = (ROOT / "native/common/yield.c", ROOT / "tests/native/yields.c")
    flags = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow", "-Wpedantic", "-Werror")
    compile_to(built, [compiler, *flags, *map(str, sources)])
    return str(built)


def sleeps(program: str, asked: str, watches: str, ranks_here: str = "1") -> tuple[int, int, int]:
    """Return how many calls slept, how many waited for an event, and for how many ns at most."""
    environment = {"NEARMETAL_YIELD": asked, "OMPI_COMM_WORLD_LOCAL_SIZE": ranks_here}
    naps, waits, longest_ns = process.run([program, watches], env=environment, timeout_s=600, check=True).text.split()
    return int(naps), int(waits), int(longest_ns)


def test_a_rank_yields_by_default(program: str) -> None:
    assert sleeps(program, "", "none") == sleeps(program, "", "quiet") == (0, 0, 0)


def test_a_rank_sleeps_between_polls(program: str) -> None:
    assert sleeps(program, "sleep", "none") == sleeps(program, "sleep", "ready") == (CALLS, 0, 0)


def test_a_rank_waits_for_events_and_also_polls_memory_if_other_ranks_are_on_its_node(program: str) -> None:
    assert sleeps(program, "events", "quiet", ranks_here="1") == (0, CALLS, 1_000_000)
    assert sleeps(program, "events", "quiet", ranks_here="2") == (0, CALLS, 1)
    assert sleeps(program, "events", "first") == (0, CALLS, 1_000_000)
    assert sleeps(program, "events", "none") == (CALLS, 0, 0), "without an epoll there is nothing to wait on"


def test_a_rank_does_not_wait_after_a_successful_poll(program: str) -> None:
    assert sleeps(program, "events", "ready") == (0, 0, 0)
    assert sleeps(program, "events", "once")[:2] == (0, CALLS - 1)
