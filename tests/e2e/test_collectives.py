"""Collectives of the real Open MPI: their messages, as it counts them itself, are those of a replay."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from nearmetal import process
from nearmetal.predict import _sim
from nearmetal.predict.models import MPIS
from nearmetal.predict.schedule import Collective
from tests.mpi_bench import LAUNCH_TIMEOUT_S, REPOSITORY, STRICT
from tests.mpi_bench import mpi_of as installed_mpi

pytestmark = [pytest.mark.mpi, pytest.mark.xdist_group("mpi")]

NO_COUNTERS = 77
Sent = dict[int, tuple[int, int]]
"""Messages and their bytes, by destination."""
NOT_MODELLED = {
    # Trees of other widths, and butterflies (native/sim/collective_rules.cpp).
    (6, "bcast", False): {8, 128},
    (6, "allreduce", False): {32768},
    (6, "reduce_scatter", False): {8, 128, 2048, 32768},
    (4, "reduce_scatter", False): {8, 128},
}


def played(name: str, ranks: int, rank: int, size: int, *, nonblocking: bool) -> Sent:
    of = int(Collective[name.upper()])
    sent: defaultdict[int, list[int]] = defaultdict(list)
    size = 0 if name == "barrier" else size
    for to, volume, _, _ in _sim.expand_collective(
        MPIS.index("openmpi"), of, ranks, rank, 0, size, nonblocking=nonblocking
    ):
        if to >= 0:
            sent[to].append(volume)
    return {to: (len(volumes), sum(volumes)) for to, volumes in sent.items()}


@pytest.mark.parametrize("ranks", [4, 6])
def test_collectives_are_replayed_as_the_messages_that_open_mpi_counts(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halves of an allreduce went to the farthest rank, which is on another node, and non-blocking ones as blocking."""
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    mpi = installed_mpi("openmpi")
    if mpi.major < 5:
        pytest.skip(f"{mpi.label} chooses by older rules")
    program = tmp_path / "count_collectives"
    source = REPOSITORY / "tests" / "native" / "count_collectives.c"
    process.run([mpi.mpicc, *STRICT, str(source), "-o", str(program)], timeout_s=LAUNCH_TIMEOUT_S, check=True)
    # Of the components that several nodes would use, those for point-to-point messages and collectives.
    chosen = {"pml_monitoring_enable": "1", "pml": "ob1,monitoring", "coll": "^sm,han,adapt"}
    counting = [word for name, value in chosen.items() for word in ("--mca", name, value)]
    argv = [mpi.mpirun, "--oversubscribe", "-n", str(ranks), *counting, str(program)]
    finished = process.run(argv, timeout_s=LAUNCH_TIMEOUT_S)
    if finished.exit_status == NO_COUNTERS:
        pytest.skip(f"{mpi.label} does not count messages")
    assert finished.ok, finished.complaint()
    differ: defaultdict[tuple[int, str, bool], set[int]] = defaultdict(set)
    lines = [line.split() for line in finished.text.splitlines()]
    for name, nonblocking, bytes_, rank, *counts in lines:
        pairs = (tuple(map(int, one.split(":"))) for one in counts)
        real = {to: pair for to, pair in enumerate(pairs) if pair[0] and to != int(rank)}
        if real != played(name, ranks, int(rank), int(bytes_), nonblocking=nonblocking == "1"):
            differ[ranks, name, nonblocking == "1"].add(int(bytes_))
    assert len(lines) == 11 * 2 * 4 * ranks
    assert differ == {key: sizes for key, sizes in NOT_MODELLED.items() if key[0] == ranks}
