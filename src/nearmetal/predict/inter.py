"""Inter-communicators of a trace: a rank's file lists its own group, the other group's files the other."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from nearmetal.errors import ForeignFileError
from nearmetal.predict.trace import Call, CommKind, Communicator, RankTrace

_Group = tuple[int, ...]


def join_groups(ranks: Sequence[RankTrace]) -> tuple[RankTrace, ...]:
    """Return the traces with inter-communicators that have both groups, that of the lower first rank first.

    The peers of their calls become ranks of these. Raise ForeignFileError for one without another group.
    """
    groups: dict[int, set[_Group]] = defaultdict(set)
    for rank in ranks:
        for comm in rank.communicators:
            if comm.kind is CommKind.INTER:
                groups[comm.uid].add(comm.members)
    pairs = {uid: tuple(sorted(found)) for uid, found in groups.items()}
    return tuple(_joined(rank, pairs) for rank in ranks) if pairs else tuple(ranks)


def _joined(rank: RankTrace, pairs: dict[int, tuple[_Group, ...]]) -> RankTrace:
    comms, begins = list(rank.communicators), dict[int, int]()
    for at, comm in enumerate(comms):
        if comm.kind is CommKind.INTER:
            comms[at], begins[at] = _join(rank.rank, comm, pairs[comm.uid])
    calls = (_among_both(rank.rank, call, begins, comms) for call in rank.calls)
    return replace(rank, communicators=tuple(comms), calls=tuple(calls)) if begins else rank


def _join(rank: int, comm: Communicator, groups: tuple[_Group, ...]) -> tuple[Communicator, int]:
    """Return the communicator of both groups, and the rank in it of the other group's first."""
    both = tuple(one for group in groups for one in group)
    if len(groups) != 2 or len(set(both)) != len(both):
        text = f"an inter-communicator of rank {rank} has {len(groups)} groups in the files of all ranks"
        raise ForeignFileError(text, hint="trace the program again, to its end")
    before = len(groups[0]) if comm.members == groups[1] else 0
    return replace(comm, members=both, my_rank=before + comm.my_rank), 0 if before else len(groups[0])


def _among_both(rank: int, call: Call, begins: dict[int, int], comms: Sequence[Communicator]) -> Call:
    if call.comm not in begins:
        return call
    peers = [one + begins[call.comm] if one >= 0 else one for one in (call.peer, call.recv_peer)]
    if max(peers) >= len(comms[call.comm].members):
        text = f"rank {rank} calls {call.kind.name.lower()} with rank {max(call.peer, call.recv_peer)} of a group"
        raise ForeignFileError(f"{text} that has fewer ranks", hint="trace the program again, to its end")
    return replace(call, peer=peers[0], recv_peer=peers[1])
