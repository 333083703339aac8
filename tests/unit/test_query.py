"""Which trials stand for their combination, and in what they may not differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearmetal.store.query import MixedError, disagreements, refuse_mixed, valid
from nearmetal.store.rundir import TrialRecord
from nearmetal.study.order import Order, Outcome, PathOrder, Scalar, TrialStatus, WorkloadOrder


def trial(
    number: int,
    facts: dict[str, Scalar] | None = None,
    *,
    path: str = "veth",
    workload: str = "latency",
    placement: tuple[int, ...] = (0, 1),
    attempt: int = 1,
    good: bool = True,
) -> TrialRecord:
    order = Order(number, 0, PathOrder(path, path), WorkloadOrder(workload, "engine", placement=placement))
    outcome = Outcome(TrialStatus.VALID if good else TrialStatus.FAILED, facts=facts or {})
    return TrialRecord(order, outcome, attempt, "2026-01-01T00:00:00+00:00", ())


def mixed(*records: TrialRecord) -> list[str]:
    return [str(one) for one in disagreements(records)]


def test_the_last_valid_attempt_stands_for_a_trial_in_the_order_of_the_plan() -> None:
    records = [trial(2), trial(0, good=False), trial(0, attempt=2), trial(1), trial(1, attempt=2), trial(3, good=False)]
    assert [(one.order.trial, one.attempt) for one in valid(records)] == [(0, 2), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("fact", "where"),
    [
        ("kernel.release", ""),
        ("guest.vcpus", ""),
        ("n0.eth0.driver", " (path veth)"),
        ("engine.build", " (workload latency)"),
    ],
)
def test_a_fact_of_two_values_is_named_with_where_it_must_agree(fact: str, where: str) -> None:
    found = mixed(trial(0, {fact: "b"}), trial(1, {fact: "a"}), trial(2, {fact: "b"}))
    assert found == [f"{fact}{where}: b | a"], "in the order in which they were met"
    assert mixed(trial(0, {fact: "a"}), trial(1, {fact: "a"})) == []


def test_facts_may_differ_between_what_is_not_of_one_kind() -> None:
    assert mixed(trial(0, {"n0.eth0.driver": "igb"}), trial(1, {"n0.eth0.driver": "igbvf"}, path="vf")) == []
    assert mixed(trial(0, {"osu.version": "7"}), trial(1, {"osu.version": "8"}, workload="osu")) == []
    assert mixed(trial(0, {"cpu.governor": "powersave"}), trial(1, {"cpu.governor": "performance"})) == []


def test_machines_must_agree_on_each_path_alone_where_paths_have_their_own() -> None:
    def on(number: int, path: str, kernel: str) -> TrialRecord:
        return trial(number, {"machine.0": f"of {path}", "kernel.release": kernel}, path=path)

    bare = [on(0, "bare", "6.12"), on(1, "bare-again", "6.12")]
    assert mixed(*bare, on(2, "guest", "6.1")) == [], "guests seldom run the kernel of their hosts"
    assert mixed(*bare, on(2, "guest", "6.1"), on(3, "bare-again", "6.13")) == [
        "kernel.release (path bare): 6.12 | 6.13"
    ]
    allocations = [
        replace(one, order=replace(one.order, path=PathOrder(label, "declared")))
        for label, one in (("a", trial(0, {"cpu.model": "x"})), ("b", trial(1, {"cpu.model": "y"})))
    ]
    assert mixed(*allocations) == [], "nodes of a batch system, whose names change"


def test_a_fact_that_one_trial_lacks_is_not_recorded_unless_it_had_fewer_nodes() -> None:
    fact: dict[str, Scalar] = {"n2.eth0.driver": "igb"}
    three = (0, 1, 2)
    assert mixed(trial(0, fact, placement=three), trial(1, placement=three)) == [
        "n2.eth0.driver (path veth): igb | not recorded"
    ]
    assert mixed(trial(0, fact, placement=three), trial(1)) == []


def test_trials_that_differ_are_refused_with_a_line_for_each_fact() -> None:
    refuse_mixed([])
    one = disagreements([trial(0, {"kernel.release": "6.1"}), trial(1, {"kernel.release": "6.2"})])
    with pytest.raises(MixedError) as raised:
        refuse_mixed(one)
    assert raised.value.message == (
        "1 fact differs between trials that are to be compared:\n  kernel.release: 6.1 | 6.2"
    )
    assert "--allow-mixed" in raised.value.hint
    with pytest.raises(MixedError, match="2 facts differ"):
        refuse_mixed([*one, *one])
