"""Collectives of the real Open MPI and MPICH: their messages, as these count or send them, are those of a replay.

Undivided among the ranks of a node, or among nodes of one rank each, and divided where several nodes have several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal import process
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.paths.table import PATHS
from nearmetal.predict import _sim
from nearmetal.predict.models import MPIS, MpiName
from nearmetal.predict.schedule import Collective
from nearmetal.process import Finished
from nearmetal.study.order import PathOrder
from nearmetal.workloads.mpi.mpi import Job, Mpi, MpiLaunch
from nearmetal.workloads.mpi.table import launch
from tests.compiled import compile_to
from tests.mpi_bench import LAUNCH_TIMEOUT_S, REPOSITORY, STRICT, job_here
from tests.mpi_bench import mpi_of as installed_mpi

pytestmark = [pytest.mark.mpi, pytest.mark.xdist_group("mpi")]

NO_COUNTERS = 77
Sent = dict[int, tuple[int, int]]
"""Messages and their bytes, by destination."""
SIZES = (8, 16, 64, 256, 2048, 3072, 12288, 32768, 131072, 262144, 524288, 1048576)
SIZES_BY_NODES = (8, 1024, 4096, 65536, 1048576)
COLLECTIVES = 17
EXACT, OF_A_MASK = 0.01, 0.2
"""Parts of a message that do not divide evenly (a mask has 65 words) are replayed as of one size."""
IN_PIECES = {("allgatherv", nonblocking) for nonblocking in (False, True)}
"""Open MPI exchanges between neighbours on an even number of ranks, MPICH hands large blocks on in pieces of 32 KiB."""
WITH_SEGMENTS = {"reduce_scatter"}
"""Of 1 MiB it is a reduction in segments, divided by nodes, and a scatter."""
BUTTERFLIES = {5: {64, 12288}, 6: {64, 12288}, 7: {64, 12288}, 9: {64}}
"""Sizes at which ranks that are no power of two reduce and scatter otherwise (docs/explanation/prediction.md)."""


Played = Callable[[str, int, int, bool], Sent]
"""What a replay sends: by name, rank, bytes, and whether it is non-blocking."""


def played_on(nodes: tuple[int, ...], root: int = 0, mpi: MpiName = "openmpi") -> Played:
    """Return what replays send among ranks on these nodes; with MPICH, to other nodes."""

    def played(name: str, rank: int, size: int, nonblocking: bool) -> Sent:
        of, vector = int(Collective[name.removesuffix("v").upper()]), name.endswith("v")
        size, sizes, back = lists_of(name, rank, 0 if name == "barrier" else size, len(nodes), root)
        sent: defaultdict[int, list[int]] = defaultdict(list)
        for to, volume, _, _ in _sim.expand_collective(
            *(MPIS.index(mpi), of, len(nodes), rank, root, size, vector, sizes, back),
            nonblocking=nonblocking,
            nodes=nodes,
        ):
            if to >= 0 and (mpi == "openmpi" or nodes[to] != nodes[rank]):
                sent[to].append(volume)
        return {to: (len(volumes), sum(volumes)) for to, volumes in sent.items()}

    return played


def lists_of(name: str, rank: int, size: int, ranks: int, root: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return bytes, and those for and from each rank, of a variant with lists: as tests/native/count_collectives.c."""
    parts = tuple(size if one % 2 or size < 16 else size // 16 * 8 for one in range(ranks))
    mean = -(-sum(parts) // ranks)
    if name in {"gatherv", "scatterv"}:
        known = parts if rank == root else ()
        of_rank = mean if rank == root else parts[rank]
        return (of_rank, (), known) if name == "gatherv" else (of_rank, known, ())
    if name == "alltoallv":
        return mean, parts, (parts[rank],) * ranks
    return (mean, (), parts) if name.endswith("v") else (size, (), ())


def built(flavour: str, folder: Path, *options: str) -> tuple[Mpi, str]:
    """Return an MPI and the program that counts its messages."""
    mpi = installed_mpi(flavour)
    if mpi.major < 5:
        pytest.skip(f"{mpi.label} chooses by older rules")
    program = folder / "count_collectives"
    source = REPOSITORY / "tests" / "native" / "count_collectives.c"
    compile_to(program, [mpi.mpicc, *STRICT, *options, str(source), "-ldl"])
    return mpi, str(program)


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mpi, str]:
    return built("openmpi", tmp_path_factory.mktemp("openmpi"))


@pytest.fixture(scope="module")
def counter_of_mpich(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mpi, str]:
    return built("mpich", tmp_path_factory.mktemp("mpich"), "-DCOUNT_UCP", "-rdynamic")


def launching(command: MpiLaunch) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in command.env.items()), *command.argv]


def counting(command: MpiLaunch, **also: str) -> list[str]:
    """Return the words that launch a program whose Open MPI counts."""
    chosen = {"pml_monitoring_enable": "1", **also}
    words = [word for name, value in chosen.items() for word in ("--mca", name, value)]
    launcher, *own = ["ob1,monitoring" if word == "ob1" else word for word in command.argv]
    return launching(replace(command, argv=(launcher, *words, *own)))


def differences(finished: Finished, played: Played) -> tuple[int, dict[tuple[str, bool], set[int]]]:
    """Return how many lines the program printed, and the sizes at which a collective sends other messages."""
    if finished.exit_status == NO_COUNTERS:
        pytest.skip("this Open MPI does not count messages")
    assert finished.ok, finished.complaint()
    differ: defaultdict[tuple[str, bool], set[int]] = defaultdict(set)
    lines = [line.split() for line in finished.text.splitlines()]
    for name, nonblocking, bytes_, rank, *counts in lines:
        pairs = (tuple(map(int, one.split(":"))) for one in counts)
        real = {to: pair for to, pair in enumerate(pairs) if pair[0] and to != int(rank)}
        tolerated = OF_A_MASK if name == "new_communicator" else EXACT
        if not alike(real, played(name, int(rank), int(bytes_), nonblocking == "1"), tolerated):
            differ[name, nonblocking == "1"].add(int(bytes_))
    return len(lines), differ


def alike(real: Sent, replayed: Sent, tolerated: float) -> bool:
    """Return whether as many messages go to the same ranks, with as many bytes."""
    return {to: messages for to, (messages, _) in real.items()} == {
        to: one for to, (one, _) in replayed.items()
    } and all(abs(replayed[to][1] - volume) <= tolerated * volume for to, (_, volume) in real.items())


RANKS = pytest.mark.parametrize(
    ("ranks", "root"), [(2, 0), (3, 1), (4, 3), (5, 1), (6, 3), (7, 6), (8, 2), (9, 1), (16, 5)]
)


@RANKS
def test_collectives_are_replayed_as_the_messages_that_open_mpi_counts(
    ranks: int, root: int, counter: tuple[Mpi, str]
) -> None:
    """Trees had other widths, large gathers no requests, and 5 ranks sent a tenth less in a large allreduce."""
    mpi, program = counter
    command = launch(mpi, job_here(mpi, (program, str(root), *map(str, SIZES)), ranks=ranks))
    # Of the components that several nodes would use, those for point-to-point messages and collectives.
    finished = process.run(counting(command, coll="^sm,han,adapt"), timeout_s=LAUNCH_TIMEOUT_S)
    lines, differ = differences(finished, played_on((0,) * ranks, root))
    assert lines == COLLECTIVES * 2 * len(SIZES) * ranks
    differ = {key: sizes for key, sizes in differ.items() if key not in IN_PIECES or ranks % 2}
    assert differ == ({("reduce_scatter", False): BUTTERFLIES[ranks]} if ranks in BUTTERFLIES else {})


@RANKS
def test_collectives_are_replayed_as_the_messages_that_mpich_sends(
    ranks: int, root: int, counter_of_mpich: tuple[Mpi, str]
) -> None:
    """A large reduce went to the root whole, and an allreduce of 16 B to 2 KiB to all ranks at each distance."""
    mpi, program = counter_of_mpich
    command = launch(mpi, job_here(mpi, (program, str(root), *map(str, SIZES)), ranks=ranks))
    argv = launching(replace(command, env={**command.env, "MPIR_CVAR_NOLOCAL": "1"}))  # as if each had a node
    lines, differ = differences(
        process.run(argv, timeout_s=LAUNCH_TIMEOUT_S), played_on(tuple(range(ranks)), root, "mpich")
    )
    assert lines == COLLECTIVES * 2 * len(SIZES) * ranks
    # A new communicator that is asked for without waiting tries again where those before were not freed.
    assert set(differ) <= {("new_communicator", True), *IN_PIECES}


@pytest.mark.netns
@pytest.mark.parametrize(
    ("nodes", "root", "unlike"),
    [
        ((0, 1, 2, 3), 1, set()),
        ((0, 0, 1, 1), 0, WITH_SEGMENTS),
        ((0, 0, 1, 1), 3, WITH_SEGMENTS),
        ((0, 1, 0, 1), 2, WITH_SEGMENTS),
        ((0, 0, 0, 0, 1, 1, 1, 1), 6, WITH_SEGMENTS),
        ((0, 0, 1, 1, 2, 2, 3, 3), 0, WITH_SEGMENTS),
        ((0, 0, 1), 0, WITH_SEGMENTS),
        ((0, 0, 0, 1, 1), 1, WITH_SEGMENTS),
        ((0, 0, 1, 1, 2), 3, WITH_SEGMENTS),
    ],
)
def test_collectives_are_divided_by_nodes_as_open_mpi_divides_them(
    nodes: tuple[int, ...], root: int, unlike: set[str], counter: tuple[Mpi, str], shell: NamespaceShell
) -> None:
    """They were replayed as among the ranks of one node: an allreduce of two nodes with twice the messages between.

    Where nodes have one rank each an allgather lacked a small allreduce before it, and where they have different
    numbers of ranks most lacked what leaders ask each other first.
    """
    mpi, program = counter
    finished = run_on(shell, mpi, nodes, (program, str(root)), counting)
    lines, differ = differences(finished, played_on(nodes, root))
    assert lines == COLLECTIVES * 2 * len(SIZES_BY_NODES) * len(nodes)
    assert set(differ) <= {(name, False) for name in unlike} | IN_PIECES


@pytest.mark.netns
@pytest.mark.parametrize(
    ("nodes", "root"),
    [
        ((0, 1, 2, 3), 1),
        ((0, 0, 1, 1), 0),
        ((0, 1, 0, 1), 2),
        ((0, 0, 0, 0, 1, 1, 1, 1), 6),
        ((0, 0, 1, 1, 2, 2, 3, 3), 7),
        ((0, 0, 1, 1, 2, 2), 3),
        ((0, 0, 1), 1),
    ],
)
def test_collectives_are_divided_by_nodes_as_mpich_divides_them(
    nodes: tuple[int, ...], root: int, counter_of_mpich: tuple[Mpi, str], shell: NamespaceShell
) -> None:
    """What goes between nodes is that of MPICH, also of broadcasts and reductions that do not block, and of scans."""
    mpi, program = counter_of_mpich
    finished = run_on(shell, mpi, nodes, (program, str(root)), launching)
    lines, differ = differences(finished, played_on(nodes, root, "mpich"))
    assert lines == COLLECTIVES * 2 * len(SIZES_BY_NODES) * len(nodes)
    assert set(differ) <= {("new_communicator", True), *IN_PIECES}
    assert any(" 1:8" in line for line in finished.text.splitlines())  # it counts


def run_on(
    shell: NamespaceShell,
    mpi: Mpi,
    nodes: tuple[int, ...],
    program: tuple[str, ...],
    words: Callable[[MpiLaunch], Sequence[str]],
) -> Finished:
    """Run a program that counts on these nodes of one bridge."""
    names = [f"n{node}" for node in sorted(set(nodes))]
    for name in names:
        shell.add_node(name)
    ends = PATHS["bridge"].up(shell, PathOrder("bridge", "bridge"), names)
    job = Job(
        nodes=tuple(f"n{node}" for node in nodes),
        program=(*program, *map(str, SIZES_BY_NODES)),
        remote_shell=shell.agent,
        interface=ends.ends[0].interface,
        subnet=ends.subnet,
        oversubscribed=True,
        progress="blocking",
    )
    return shell.run(words(launch(mpi, job)), node="n0", timeout_s=LAUNCH_TIMEOUT_S, check=False)
