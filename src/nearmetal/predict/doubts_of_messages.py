"""Doubts about messages: their sizes, the pairs of ranks that they join, and what delays them on their way."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nearmetal.predict.doubt import Doubt
from nearmetal.predict.in_a_row import share_in_a_row
from nearmetal.predict.models import (
    INTRA_KIND,
    SMALL_BYTES,
    UNBOUNDED,
    Machine,
    MeasuredCollective,
    NamedMachine,
    PathModel,
)
from nearmetal.predict.native import Placement, collectives_of
from nearmetal.predict.schedule import Schedule
from nearmetal.predict.segments import Sizes, far_from_its_protocol
from nearmetal.predict.trace import DoCall, walk
from nearmetal.predict.traffic import MAX_SAMPLED_RANKS, as_measured, messages_of
from nearmetal.predict.wire import PACKET_BYTES
from nearmetal.units import as_percent, format_size

BEYOND_FACTOR, BEYOND_SHARE = 2.0, 0.10
"""A prediction is refused where this share of messages or bytes is this many times larger than the largest measured."""
WIDE_FACTOR = 8.5
"""Measured sizes that are further apart leave the sizes between them unknown (8 B, 64 B, 512 B ... do not)."""
MANY_PACKETS_BYTES = 10 * PACKET_BYTES
"""Larger messages wait on their way, for acknowledgements or until the port has reported packets as sent."""
FEW = 0.01
"""A smaller share of a program's messages does not matter."""
FIRST = 0.0005
"""Opening a connection takes as long as hundreds of messages: a smaller share of first ones does not matter."""
SURELY_EAGER_BYTES = 4096
"""No MPI that is known lets the sender of a message up to here wait for its receiver."""
MOST_NODES = 4
"""Nodes of the largest launches that predictions were compared with (docs/explanation/prediction-lab.md)."""
INSIDE = "inside a node"


def doubts_of_messages(schedule: Schedule, named: NamedMachine, placement: Placement) -> Iterator[Doubt]:
    """Say what is doubtful about the messages of one launch: between whom they are, and of which sizes."""
    measured = collectives_of(named.machine, placement)
    sent = messages_of(schedule, named.machine, MAX_SAMPLED_RANKS, measured, placement.domain_of)
    own = sent.source == sent.target
    same = (placement.domain_of[sent.source] == placement.domain_of[sent.target]) & ~own
    beside = (placement.host_of[sent.source] == placement.host_of[sent.target]) & ~own & ~same
    total = max(1, int(sent.count.sum()))
    machine = named.machine

    def share(chosen: NDArray[np.bool_]) -> float:
        return float(sent.count[chosen].sum()) / total

    if machine.intra is None and own.any():
        text = f"{as_percent(share(own))} of messages go from a rank to itself: "
        text += "assumed to take as long as a copy in memory"
        yield Doubt(text, "measure the path `shm` in the same run", share(own))
    cores = machine.cores.count if machine.cores else 0
    if machine.intra is not None and machine.intra.one_processor and cores != 1 and same.any():
        text = f"{as_percent(share(same))} of messages stay inside a node of {cores or 'more'} processors, but were "
        text += "measured between ranks that shared one: their times include waiting for it"
        yield Doubt(text, "measure `shm` on nodes with as many processors", share(same))
    if named.kind == INTRA_KIND and (apart := ~own & ~same).any():
        text = f"{as_percent(share(apart))} of messages go between nodes, but {named.path} was measured inside one"
        yield Doubt(text, "name the paths between nodes with --path", share(apart), refuse=True)
    if machine.host is None and beside.any():
        where, hint = "between guests of one host", "measure a path between two guests of one host"
        if named.bare:
            where, hint = "inside a host, which on bare metal is one node", "measure the path `shm` in the same run"
        text = f"{as_percent(share(beside))} of messages are {where}: assumed to take as long as between hosts"
        yield Doubt(text, hint, share(beside))
    apart = ~own & ~same if machine.host is None else ~own & ~same & ~beside
    yield from _of_many_nodes(named, placement, share(apart))
    yield from _of_pairs(named, placement, share(apart))
    if machine.stage is not None:
        yield from _of_the_rule(share(apart))
        yield from _of_many_packets(share(apart & (sent.message_bytes > MANY_PACKETS_BYTES)))
    yield from _of_a_timer(named, sent.message_bytes[apart], sent.count[apart], total)
    yield from _of_messages_in_a_row(schedule, named, placement)
    yield from _of_measured_collectives(schedule, measured)
    for where, path, chosen in (
        ("between nodes", machine.inter, apart),
        ("between guests of a host", machine.host, beside),
        (INSIDE, machine.intra, same),
    ):
        if path is not None and chosen.any():
            yield from of_sizes(where, path, sent.message_bytes[chosen], sent.count[chosen], total)
            yield from _of_streaming(where, path, share(chosen))
            yield from _of_crossing(named, path, share(chosen))
            yield from _of_known_timers(where, path, sent.message_bytes[chosen], sent.count[chosen], total)
            yield from _of_eager(named, path, where, sent.message_bytes[chosen], sent.count[chosen])


def of_connections(schedule: Schedule, machine: Machine, placement: Placement) -> Iterator[Doubt]:
    """Say that the first message between two ranks opens a connection, where a program sends few after it."""
    node_of, measured = placement.domain_of, collectives_of(machine, placement)
    sent = messages_of(schedule, machine, MAX_SAMPLED_RANKS, measured, node_of)
    pairs = np.sort(np.stack((sent.source, sent.target)), axis=0)[:, node_of[sent.source] != node_of[sent.target]]
    share = np.unique(pairs, axis=1).shape[1] / max(1, int(sent.count.sum()))
    if share >= FIRST:
        text = f"{as_percent(share, 2)} of messages are the first between two ranks of different nodes: they open a "
        text += "connection, for which the prediction has no time"
        yield Doubt(text, "compare it with launches of the program (--validate RUN), or predict more iterations", share)


def _of_the_rule(share: float) -> Iterator[Doubt]:
    if share:
        text = "interrupt moderation is simulated by a rule, not measured: in the lab predictions of seven programs "
        text += "were 19 % too fast to 29 % too slow, of the middle case 4 % off"
        yield Doubt(text, "compare it with launches of a program of yours: --validate RUN", share)


def _of_many_packets(share: float) -> Iterator[Doubt]:
    if share:
        text = f"{as_percent(share)} of messages are larger than {MANY_PACKETS_BYTES:,} B: on their way TCP waits for "
        text += "interrupts, which moderation delays. The interrupt stage does not model that: such ping-pongs were "
        text += "off by up to 60 %"
        yield Doubt(text, "measure the setting itself at these sizes", share)


def _of_messages_in_a_row(schedule: Schedule, named: NamedMachine, placement: Placement) -> Iterator[Doubt]:
    """Say that TCP may hold small messages back until the port reports earlier ones as sent, or the peer answers.

    No ping-pong meets that. A rank that computes meanwhile makes the receiver wait for all that was held.
    """
    if not named.held or (share := share_in_a_row(schedule, placement)) < FEW:
        return
    text = f"{as_percent(share)} of messages between nodes follow another one before an answer. In the run's streams "
    text += (
        "TCP held such messages back (autocorking), for an unknown time: two programs took 10 to 17 % longer because "
    )
    text += "of it"
    hint = 'measure, and run the program, with the knob "host.tcp_autocorking" = 0 (sysctl net.ipv4.tcp_autocorking=0)'
    yield Doubt(text, hint, share)


def _of_measured_collectives(schedule: Schedule, measured: Sequence[MeasuredCollective]) -> Iterator[Doubt]:
    """Say which collectives take a time on the line between two measured sizes that are far apart."""
    sizes: dict[str, Sizes] = {one.collective: np.array([size for size, _ in one.times_ps]) for one in measured}
    total, far = 0, Counter[str]()
    for program in schedule.programs:
        for op, times in ((program.ops[step.index], n) for step, n in walk(program.steps) if isinstance(step, DoCall)):
            total += times
            if as_measured(program, op, schedule, measured):
                known = sizes[op.collective.name.lower()]
                low, high = known[known <= op.message_bytes].max(), known[known >= op.message_bytes].min()
                if high > WIDE_FACTOR * max(low, SMALL_BYTES):
                    ends = f"{format_size(int(low))} and {format_size(int(high))}"
                    far[f"{op.collective.name.lower()} between {ends}"] += times
    if (share := sum(far.values()) / max(1, total)) >= FEW:
        text = f"{as_percent(share)} of MPI calls are collectives of sizes far from every measured one, on the line "
        text += f"through both: {', '.join(sorted(far))}"
        yield Doubt(text, "measure these collectives at sizes in between", share)


def _of_a_timer(named: NamedMachine, sizes: Sizes, counts: Sizes, total: int) -> Iterator[Doubt]:
    """Yield a doubt where times fall into two modes, as they do where messages meet a timer or just miss it."""
    segments = named.machine.inter.segments
    segment_of = np.searchsorted([segment.up_to_bytes for segment in segments], sizes)
    met: list[tuple[int, int]] = []
    for at in np.unique(segment_of):
        size = int(sizes[segment_of == at].max())
        if segments[at].meets_timer(size):
            met.append((int(counts[segment_of == at].sum()), size))
    if not met:
        return
    text = f"a tenth of the messages of {format_size(max(met)[1])} took less than half the usual time: the others "
    if named.host == "local":  # namespaces have no card whose interrupts are moderated
        text += "waited for a processor or a timer of the kernel, which a program does at other times than a ping-pong"
        hint = "measure the path on processors that nothing else uses, one for each rank"
    else:
        text += "met a timer, such as that of interrupt moderation, which a program meets at other times than a "
        text += "ping-pong"
        hint = "predict from a setting without moderation and the rule of the driver: --setting OTHER --interrupts "
        hint += f"igbvf:usecs=3 --as {named.setting} (igb-queue:usecs=3 on the port itself)"
    yield Doubt(text, hint, sum(count for count, _ in met) / total)


def _of_known_timers(where: str, path: PathModel, sizes: Sizes, counts: Sizes, total: int) -> Iterator[Doubt]:
    """Say that the ping-pong of sizes that the program sends shows a timer of the kernel, and not the path."""
    measured, names = np.array(path.measured_bytes, dtype=np.int64), dict(path.timers)
    if not names:
        return
    ratios = np.abs(np.log(np.maximum(sizes, 1))[:, None] - np.log(np.maximum(measured, 1))[None, :])
    nearest = measured[ratios.argmin(axis=1)]
    chosen = np.isin(nearest, list(names))
    if not chosen.any():
        return
    share, size = float(counts[chosen].sum()) / total, int(nearest[chosen][counts[chosen].argmax()])
    text = (
        f"{as_percent(share)} of messages {where} take the time of a ping-pong that shows a timer, not the path, in a "
    )
    text += f"launch or more: of {format_size(size)}, {names[size]}"
    yield Doubt(text, "measure the path so that no timer decides it: a processor of its own for each rank", share)


def _of_streaming(where: str, path: PathModel, share: float) -> Iterator[Doubt]:
    """Yield a doubt where messages take no processor time and no gap because none were sent in a row."""
    if path.fit is not None and not any(one.send_overhead_ps or one.gap_ps for one in path.segments):
        text = f"no one-way stream of messages was measured {where}: sending and receiving are assumed to need no "
        text += "processor time there, and messages in a row to follow each other at once"
        yield Doubt(text, f"measure the operations `bw` and `bibw` {'on `shm` ' if where == INSIDE else ''}too", share)


def _of_crossing(named: NamedMachine, path: PathModel, share: float) -> Iterator[Doubt]:
    """Say that no exchange showed what messages cost that no ping-pong has (`fit_run`, which needs two processors)."""
    if path is not named.machine.inter or named.kind == INTRA_KIND or named.machine.stage is not None:
        return
    if path.fit is not None and not path.one_processor and not path.crossing_ps:
        text = "no exchange of messages was measured between nodes: messages that cross, and those of ranks that have "
        text += "computed, are assumed to take no longer than those of a ping-pong"
        yield Doubt(text, "measure the operation `exchange` too, as the shipped study predict-lab does", share)


def of_sizes(
    where: str, path: PathModel, sizes: NDArray[np.int64], counts: NDArray[np.int64], total: int
) -> Iterator[Doubt]:
    """Say which messages are far from every size that the path was measured at."""
    measured = np.array(path.measured_bytes, dtype=np.int64)
    if measured.size == 0:
        if path.fit is not None:
            text = "the model file does not say which sizes were measured"
            yield Doubt(text, "fit the run again: `--on RUN --save-model FILE`", float(counts.sum()) / total)
        return
    volume = np.maximum(sizes, 1) * counts

    def shares(chosen: NDArray[np.bool_]) -> tuple[float, float]:
        return float(counts[chosen].sum()) / float(counts.sum()), float(volume[chosen].sum()) / float(volume.sum())

    def told(chosen: NDArray[np.bool_], what: str, more: Sizes | None = None, *, refuse: bool = False) -> Doubt:
        of_messages, of_bytes = shares(chosen)
        text = f"{as_percent(of_messages)} of messages and {as_percent(of_bytes)} of bytes {where} are {what}"
        hint = f"measure {_sizes_to_measure(measured if more is None else np.union1d(measured, more), sizes)}"
        return Doubt(text, hint, max(of_messages, of_bytes), refuse=refuse)

    least, largest = int(measured[0]), int(measured[-1])
    if (beyond := sizes > largest).any():
        most = int(sizes[beyond].max())
        what = f"larger than the largest measured: up to {format_size(most)} against {format_size(largest)}"
        far = max(shares(sizes > BEYOND_FACTOR * largest))
        yield told(beyond, f"{what}, {most / largest:.1f} times", refuse=far >= BEYOND_SHARE)
    if (below := least > WIDE_FACTOR * np.maximum(sizes, SMALL_BYTES)).any():
        what = f"far smaller than the smallest measured: down to {format_size(int(sizes.min()))}"
        yield told(below, f"{what} against {format_size(least)}")
    at = np.searchsorted(measured, sizes)
    low, high = measured[np.maximum(at - 1, 0)], measured[np.minimum(at, measured.size - 1)]
    wide = high > WIDE_FACTOR * np.maximum(low, SMALL_BYTES)
    if (between := (at > 0) & (at < measured.size) & (sizes != high) & wide).any():
        gaps = sorted(set(zip(low[between].tolist(), high[between].tolist(), strict=True)))
        ends = ", and ".join(f"between {format_size(small)} and {format_size(large)}" for small, large in gaps)
        yield told(between, f"far from every measured size: {ends}")
    limit = path.eager_up_to_bytes
    if (alone := far_from_its_protocol(measured, sizes, BEYOND_FACTOR, limit) & ~between).any():
        low, high = measured[measured <= limit][-1], measured[measured > limit][0]
        what = f"far from every measured size of their protocol (eager up to {format_size(limit)}): "
        what += f"between {format_size(int(low))} and {format_size(int(high))}"
        yield told(alone, what, np.array([sizes[alone].min(), sizes[alone].max()]))


def _sizes_to_measure(measured: NDArray[np.int64], used: NDArray[np.int64]) -> str:
    """Return the sizes that a study would need, as it spells them: the measured, and powers of 2 around and between."""
    top = int(used.max())
    least = max(SMALL_BYTES // 8, int(used.min()))
    beyond = [1 << (top - 1).bit_length()] if top > measured[-1] else []
    beyond += [1 << (least.bit_length() - 1)] if int(measured[0]) > WIDE_FACTOR * max(least, SMALL_BYTES) else []
    wanted = sorted({*map(int, measured), *beyond})
    at = 1
    while at < len(wanted):
        low, high = max(wanted[at - 1], SMALL_BYTES), wanted[at]
        if high > WIDE_FACTOR * low and ((used > wanted[at - 1]) & (used < high)).any():
            wanted.insert(at, 1 << (low * high).bit_length() // 2)
        else:
            at += 1
    spelled = (f'"{format_size(size)}"' if size >= 1024 and size % 1024 == 0 else str(size) for size in wanted)
    return f"sizes = [{', '.join(spelled)}]"


def _of_eager(named: NamedMachine, path: PathModel, where: str, sizes: Sizes, counts: Sizes) -> Iterator[Doubt]:
    """Say that large messages are taken not to wait for their receiver, where it is not known which do."""
    share = float(counts[sizes > SURELY_EAGER_BYTES].sum()) / max(1.0, float(counts.sum()))
    if path.fit is not None and path.eager_up_to_bytes == UNBOUNDED and share >= FEW:
        mpi = named.mpi or "the run's MPI"
        text = f"{as_percent(share)} of messages {where} are larger than {format_size(SURELY_EAGER_BYTES)}, and the "
        text += f"size above which a sender waits for its receiver in {mpi} is not known: no sender is assumed to wait"
        yield Doubt(text, "give the MPI's eager limit, such as --eager '64 KiB'", share)


def _of_many_nodes(named: NamedMachine, placement: Placement, share: float) -> Iterator[Doubt]:
    """Say that more nodes exchange messages than in any launch that a prediction was compared with."""
    nodes = np.unique(placement.domain_of).size
    if nodes > MOST_NODES and share and named.machine.inter.fit is not None:
        text = f"the program runs on {nodes} nodes, but paths are measured between two, and predictions were compared "
        text += f"with launches on at most {MOST_NODES}: messages of other nodes are assumed to hold none up on its way"
        yield Doubt(text, "compare it with launches on as many nodes: --validate RUN", share)


def _of_pairs(named: NamedMachine, placement: Placement, share: float) -> Iterator[Doubt]:
    """Say that more ranks of a node share its port than streamed when it was measured."""
    most = int(np.bincount(placement.host_of).max())
    if 0 < named.pairs < most and named.machine.port_fs_per_byte and share:
        text = f"up to {most} ranks of a node share its port, but only {named.pairs} at once did when it was measured: "
        text += "all together are assumed to be no faster than those"
        hint = f"measure `message_rate` with placement = [{', '.join('0' * most + '1' * most)}]"
        yield Doubt(text, hint, share)
