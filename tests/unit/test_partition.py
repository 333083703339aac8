"""Where ranks go: blocks of grids, parts of the graph of who talks to whom, and swaps that the simulator judges."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import sparse

from nearmetal.errors import BadInputError
from nearmetal.predict.place import (
    Judge,
    Slots,
    block_shape,
    geometric,
    in_order,
    partition,
    recommend,
    round_robin,
)
from nearmetal.predict.schedule import Comm, Program, Schedule
from nearmetal.predict.traffic import inter_share, messages_of, traffic
from tests.unit.test_place import MACHINE, halo, hosts

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from nearmetal.predict.place import Hosts


def test_a_block_of_sixteen_partitions_a_cube_with_a_known_cut() -> None:
    schedule = halo(512, (8, 8, 8))
    sent = messages_of(schedule, MACHINE)
    blocks = geometric((8, 8, 8), hosts(32, 16))
    assert blocks is not None
    assert block_shape((8, 8, 8), 16) in {(2, 2, 4), (2, 4, 2), (4, 2, 2)}
    assert inter_share(sent, blocks) == pytest.approx(0.41667, abs=1e-4)
    assert inter_share(sent, in_order(512, hosts(32, 16))) == pytest.approx(0.5, abs=1e-4)  # two whole rows
    assert np.bincount(blocks).tolist() == [16] * 32


def test_no_block_fits_a_prime_grid() -> None:
    assert geometric((7, 5), hosts(9, 4)) is None
    assert block_shape((6, 6), 4) == (2, 2)


@pytest.mark.parametrize("fill", [in_order, round_robin])
def test_more_ranks_than_slots_are_refused(fill: Callable[[int, Slots], Hosts]) -> None:
    assert np.bincount(fill(8, hosts(2, 4))).tolist() == [4, 4]
    with pytest.raises(BadInputError, match="9"):
        fill(9, hosts(2, 4))


@pytest.mark.parametrize(
    ("names", "counts", "message"),
    [
        (("a", "b"), (1,), r"2 hosts with slots \[1\]"),
        ((), (), r"0 hosts with slots \[\]"),
        (("a", "b"), (1, 0), r"2 hosts with slots \[1, 0\]"),
        (("a", "a"), (1, 1), "a host is named twice"),
    ],
)
def test_every_host_has_a_name_and_a_slot(names: tuple[str, ...], counts: tuple[int, ...], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        Slots(names, counts)


def test_ranks_are_dealt_to_hosts_that_have_slots_left() -> None:
    slots = Slots(("a", "b", "c"), (2, 1, 3))
    assert in_order(5, slots).tolist() == [0, 0, 1, 2, 2]
    assert round_robin(6, slots).tolist() == [0, 1, 2, 0, 2, 2]


@pytest.mark.parametrize(
    ("dims", "ranks", "shape"),
    [
        ((4,), 4, (4,)),
        ((4,), 1, (1,)),
        ((3,), 2, None),
        ((2, 8), 4, (2, 2)),
        ((2, 4), 2, (2, 1)),  # a block as wide as the grid has no surface across
        ((4, 8), 8, (4, 2)),
        ((4, 4, 4), 8, (1, 2, 4)),
    ],
)
def test_a_block_has_the_least_surface(dims: tuple[int, ...], ranks: int, shape: tuple[int, ...] | None) -> None:
    assert block_shape(dims, ranks) == shape


def test_a_grid_is_cut_into_a_block_for_each_host() -> None:
    def cut(dims: tuple[int, ...], slots: Slots) -> list[int] | None:
        found = geometric(dims, slots)
        return None if found is None else found.tolist()

    assert cut((2, 8), hosts(4, 4)) == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert cut((2, 2), hosts(1, 4)) == cut((2, 2), hosts(2, 8)) == [0] * 4
    assert cut((2, 2), Slots(("a", "b"), (1, 3))) is None
    with pytest.raises(BadInputError, match="8 ranks on 4 slots of 2 hosts"):
        geometric((2, 4), hosts(2, 2))


def test_a_partition_has_exact_sizes_and_a_small_cut() -> None:
    schedule = halo(64, (8, 8))
    sent = messages_of(schedule, MACHINE)
    graph = traffic(sent, 64)
    slots = Slots(("a", "b", "c", "d"), (16, 20, 12, 16))
    host_of = partition(graph, slots, 0)
    assert np.bincount(host_of).tolist() == [16, 20, 12, 16]
    assert inter_share(sent, host_of) < inter_share(sent, round_robin(64, slots)) / 2


PAIRS = sparse.csr_array(np.array([[0, 9, 1, 0], [0, 0, 0, 2], [0, 0, 0, 8], [0, 0, 0, 0]], dtype=float))
"""Traffic of four ranks, of which two pairs belong together."""


def metis(parts: list[int], asked: list[dict[str, object]]) -> SimpleNamespace:
    """Return a stand-in for pymetis that keeps what it is asked and answers with the parts."""

    def part_graph(n: int, adjacency: tuple[list[int], list[int]], **of: list[float]) -> tuple[int, list[int]]:
        asked.append({"n": n, "starts": adjacency[0], "to": adjacency[1]} | of)
        return 0, parts

    return SimpleNamespace(CSRAdjacency=lambda *lists: lists, part_graph=part_graph)


@pytest.mark.parametrize("counts", [(2, 2), (2, 2, 2), (2, 3, 1)])
def test_metis_is_asked_for_hosts_that_get_ranks(monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...]) -> None:
    """It refuses a part of no ranks, and `place` ended in `Caught an unknown exception!` where slots were to spare."""
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("nearmetal.predict.place.importlib.import_module", lambda _: metis([0, 0, 1, 1], asked))
    slots = Slots(tuple("abc"[: len(counts)]), counts)
    assert partition(PAIRS, slots, 0).tolist() == [0, 0, 1, 1]
    (of,) = asked
    assert (of["n"], of["tpwgts"]) == (2, [0.5, 0.5])
    assert (of["starts"], of["to"]) == ([0, 2, 4, 6, 8], [1, 2, 0, 3, 0, 3, 1, 2])
    assert of["eweights"] == [10_000, 1111, 10_000, 2222, 1111, 8888, 2222, 8888]


@pytest.mark.parametrize("ranks", [3, 4])
def test_metis_itself_takes_what_it_is_asked(ranks: int) -> None:
    pytest.importorskip("pymetis")
    graph = sparse.csr_array(PAIRS[:ranks, :ranks])
    for counts in ((2, 2), (2, 2, 2), (1, 3), (4,)):
        slots = Slots(tuple("abc"[: len(counts)]), counts)
        assert np.array_equal(np.bincount(partition(graph, slots, 0)), np.bincount(in_order(ranks, slots)))


@pytest.mark.parametrize(
    ("parts", "best"), [([0, 0, 1, 1], [[0, 0, 1, 1]]), ([0, 1, 0, 1], [[0, 0, 1, 1], [0, 1, 1, 0], [1, 0, 0, 1]])]
)
def test_swaps_lessen_the_cut_or_are_not_made(
    monkeypatch: pytest.MonkeyPatch, parts: list[int], best: list[list[int]]
) -> None:
    """Of a ring in two halves every swap leaves the cut as it is, or adds to it."""
    ring = sparse.csr_array(np.roll(np.eye(4), 1, axis=1) / 10)
    monkeypatch.setattr("nearmetal.predict.place.importlib.import_module", lambda _: metis(parts, []))
    assert partition(ring, hosts(2, 2), 0).tolist() in best


def test_no_edge_is_lost_beside_a_heavy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("nearmetal.predict.place.importlib.import_module", lambda _: metis([0, 0, 1], asked))
    partition(sparse.csr_array(np.array([[0, 1e9, 1], [0, 0, 0], [0, 0, 0]])), hosts(2, 2), 0)
    assert asked[0]["eweights"] == [10_000, 1, 10_000, 1]


def test_parts_of_other_sizes_than_the_slots_are_evened_out_where_it_costs_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """METIS keeps sizes to about a thirtieth; of three on a host, rank 2 is tied to it least."""
    graph = sparse.csr_array(np.array([[0, 5, 3, 0], [0, 0, 4, 0], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=float))
    monkeypatch.setattr("nearmetal.predict.place.importlib.import_module", lambda _: metis([0, 0, 0, 1], []))
    assert partition(graph, hosts(2, 2), 0).tolist() == [0, 0, 1, 1]


def test_a_partition_without_metis_keeps_together_what_talks_most(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("nearmetal.predict.place.importlib.import_module", lacking)
    assert partition(PAIRS, hosts(2, 2), 0).tolist() == [0, 0, 1, 1]
    crossed = sparse.csr_array(PAIRS.toarray()[np.ix_([0, 2, 1, 3], [0, 2, 1, 3])])
    assert partition(crossed, hosts(3, 2), 0).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("seed", range(6))
def test_the_search_goes_on_where_a_host_has_a_single_rank(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """It ended at the first message to the lone rank, beside which there is none to swap."""
    judged: list[Hosts] = []

    def as_long(_: Judge, host_of: Hosts) -> NDArray[np.int64]:
        judged.append(host_of)
        return np.array([1000])

    monkeypatch.setattr(Judge, "makespan_ns", as_long)
    judge = Judge((halo(4, (4,)),), (MACHINE,), seed=seed)
    found = recommend(judge, Slots(("a", "b"), (1, 3)), tries=12)
    start, swaps = judged[len(found)], judged[len(found) + 1 :]
    assert len(swaps) == 12
    for swapped in swaps:
        changed = np.flatnonzero(swapped != start)
        assert changed.size == 2
        assert swapped[changed].tolist() == start[changed[::-1]].tolist()
    assert "improved" not in {one.method for one in found}, "none was faster"


def test_swaps_are_judged_by_fewer_replicas_and_kept_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each placement takes a nanosecond less than the one before, so that every swap begins with the last one."""
    judged: list[tuple[int, Hosts]] = []

    def faster_each_time(judge: Judge, host_of: Hosts) -> NDArray[np.int64]:
        judged.append((judge.replicas, host_of))
        return np.array([900, 1000 - len(judged), 1100])

    monkeypatch.setattr(Judge, "makespan_ns", faster_each_time)
    found = recommend(Judge((halo(8, (8,)),), (MACHINE,), replicas=30), hosts(4, 2), tries=5)
    first = len(found) - 1  # all but the improved one are judged before
    assert [replicas for replicas, _ in judged] == [30] * first + [20] * 6 + [30]
    swaps = [host_of for _, host_of in judged[first : first + 6]]
    assert [int((one != other).sum()) for one, other in itertools.pairwise(swaps)] == [2] * 5
    assert (found[0].method, found[0].host_of.tolist()) == ("improved", swaps[-1].tolist())
    assert found[0].median_ns == 1000 - len(judged)


def test_blocks_of_a_grid_are_judged_where_it_has_as_many_points_as_ranks() -> None:
    def methods(*dims: int) -> set[str]:
        found = recommend(Judge((halo(16, (2, 8)),), (MACHINE,), replicas=1), hosts(4, 4), dims=dims, tries=0)
        return {one.method for one in found} - {"partition"}

    assert methods() == methods(2, 8) == {"in-order", "round-robin", "geometric"}
    assert methods(3, 5) == {"in-order", "round-robin"}


def test_nothing_is_searched_for_without_tries_or_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Hosts] = []

    def as_long(_: Judge, host_of: Hosts) -> NDArray[np.int64]:
        judged.append(host_of)
        return np.array([1000])

    monkeypatch.setattr(Judge, "makespan_ns", as_long)
    assert len(recommend(Judge((halo(8, (8,)),), (MACHINE,)), hosts(2, 4), tries=0)) == len(judged)
    judged.clear()
    alone = Schedule(4, (Program((), (), (Comm(0, size=4),)),))
    found = recommend(Judge((alone,), (MACHINE,)), hosts(2, 2), tries=3)
    assert [one.method for one in found] == ["in-order", "round-robin"]
    assert len(judged) == 3, "both, and one of them once more to compare swaps with"
