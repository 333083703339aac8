"""Messages sent in a row to the same rank: TCP may hold them back, and a prediction reports it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nearmetal.cli.main import run as cli
from nearmetal.predict.fit_run import fit_records
from nearmetal.predict.in_a_row import share_in_a_row
from nearmetal.predict.models import Machine
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, Op, OpKind, Peer, Schedule
from nearmetal.predict.trace import DoCall, Repeat
from nearmetal.store.rundir import RunDir
from tests.trace_recorder import expand
from tests.unit.simulated import program, recv, send
from tests.unit.test_predict_odd import output_of
from tests.unit.test_predict_verbs import measured, model_of

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.predict.trace import Step

BARRIER = Op(OpKind.COLLECTIVE, collective=Collective.BARRIER)
ANY = recv(-1)
SWAP = Op(OpKind.SENDRECV, peer=1, recv_peer=1)
SENDING = [send(1)]


@pytest.mark.parametrize(
    ("ops", "share"),
    [
        ([send(1), recv(1)] * 3, 0),
        ([send(1)] * 3, 2 / 3),
        ([send(1), send(2)] * 2, 1 / 2),  # each follows one to its own rank
        ([send(1), recv(2), send(1)], 1 / 2),
        ([send(1), BARRIER, send(1)], 0),
        ([send(1), ANY, send(1)], 0),
        ([SWAP] * 3, 0),
        ([send(1), SWAP], 1 / 2),
        ([send(3)] * 3, 0),  # on the same node
        ([recv(1)], 0),
    ],
)
def test_a_message_follows_another_before_a_reply(ops: list[Op], share: float) -> None:
    idle = program([], ranks=4)
    schedule = Schedule(4, (program(ops, ranks=4), idle, idle, idle))
    nodes = Placement(*[Placement.block(4, 1).host_of % 3] * 2)
    assert share_in_a_row(schedule, nodes) == pytest.approx(share)


def test_a_peer_rule_is_resolved_to_its_rank() -> None:
    """In a pattern all ranks run one program: the middle rank is taken."""
    ring = Op(OpKind.SEND, rule=Peer.SHIFT, peer=1)
    schedule = Schedule(4, (program([ring, ring], ranks=4),))
    assert share_in_a_row(schedule, Placement.block(4, 1)) == 1 / 2
    assert share_in_a_row(schedule, Placement.block(4, 4)) == 0


def test_every_rank_counts_with_every_peer() -> None:
    idle = program([], ranks=3)
    both = Schedule(3, (program([send(1)], ranks=3), program([send(0)] * 3, ranks=3), idle))
    assert share_in_a_row(both, Placement.block(3, 1)) == 2 / 4


def test_the_middle_rank_stands_for_all_of_a_pattern() -> None:
    """It has a neighbour on either side in every grid."""
    shares = [
        share_in_a_row(Schedule(5, (program([send(to)] * 2, ranks=5),)), Placement.block(5, 1)) for to in range(5)
    ]
    assert shares == [1 / 2, 1 / 2, 0, 1 / 2, 1 / 2]  # the middle one sends nothing to itself over the path


def test_of_very_many_ranks_some_are_looked_at_from_the_first_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.predict.in_a_row.MAX_SAMPLED_RANKS", 2)
    sends = [[send(3)], [send(3)] * 2, [send(3)] * 4, [], []]
    schedule = Schedule(5, tuple(program(ops, ranks=5) for ops in sends))
    assert share_in_a_row(schedule, Placement.block(5, 1)) == 3 / 5  # of ranks 0, 2 and 4


STEPS = st.recursive(
    st.lists(st.integers(0, 5).map(DoCall), min_size=1, max_size=4).map(tuple),
    lambda inner: st.tuples(inner, st.integers(1, 4), inner).map(lambda of: (*of[0], Repeat(of[1], of[2]))),
    max_leaves=5,
)


@given(STEPS)
@example((DoCall(0), Repeat(1, (DoCall(3),)), DoCall(0)))
@example((Repeat(2, (DoCall(1), Repeat(2, (DoCall(0),)))),))
@example((Repeat(2, (DoCall(0), Repeat(2, (DoCall(1),)))),))
def test_loops_count_as_if_unrolled(steps: tuple[Step, ...]) -> None:
    ops = [send(1), recv(1), send(2), BARRIER, ANY, SWAP]
    idle = program([], ranks=3)
    written = list(expand(steps))
    whole, flat = (Schedule(3, (program(ops, list(one), ranks=3), idle, idle)) for one in (steps, written))
    assert share_in_a_row(whole, Placement.block(3, 1)) == share_in_a_row(flat, Placement.block(3, 1))
    unanswered, sent, follow = set[int](), 0, 0
    for step in written:
        op = ops[step.index]
        if op.kind in {OpKind.SEND, OpKind.SENDRECV}:
            sent, follow = sent + 1, follow + (op.peer in unanswered)
            unanswered.add(op.peer)
        if op.kind is OpKind.COLLECTIVE or op is ANY:
            unanswered.clear()
        elif op.kind is not OpKind.SEND:
            unanswered.discard(1)
    assert share_in_a_row(whole, Placement.block(3, 1)) == pytest.approx(follow / max(1, sent))


def test_streams_show_whether_tcp_holds_messages_back(tmp_path: Path) -> None:
    study = 'name = "held"\nbaseline = "veth"\nhost = { kind = "fake" }\npath = [{ name = "veth" }]\n'
    for name in ("latency", "bw", "bibw"):
        study += f'[[workload]]\nname = "{name}"\nsizes = [8, 1024]\niterations = 30\n'
    (tmp_path / "s.toml").write_text(study + "[trials]\nmin_blocks = 3\nmax_blocks = 3\n")
    assert cli(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "run")]) == 0
    run = RunDir.open(tmp_path / "run")
    # A hundredth of what a launch streams, 30 windows of 64 messages of two sizes each way, is 38.4 messages one way.
    for operation, count, held in (
        *(("bw", 116, True), ("bw", 115, False)),  # of all three streams, of which `bibw` counts twice
        *(("bibw", 116, True), ("bibw", 115, False), ("latency", 1000, False)),
    ):
        counters = {"tcp.n0.TCPAutoCorking": count, "tcp.n0.RetransSegs": 1000}
        records = [
            replace(one, outcome=replace(one.outcome, counters=counters if one.cells[0].operation == operation else {}))
            for one in run.trials()
        ]
        assert [one.held for one in fit_records(run, records).machines] == [held]


def test_messages_that_tcp_may_hold_back_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LU sends one plane after another: in the lab it took 10 to 15 % longer than without autocorking."""
    for ops, held, doubted in ((SENDING * 4, True, True), (SENDING * 4, False, False), (SENDING, True, False)):
        there = Schedule(2, (program(ops), program([recv(0)] * len(ops))))
        _, err = output_of(monkeypatch, there, model_of(tmp_path, Machine(None, measured(5, 8, 1024)), held=held))
        assert ("75 % of messages between nodes follow another one before an answer" in err) is doubted
        assert ("host.tcp_autocorking" in err) is doubted
