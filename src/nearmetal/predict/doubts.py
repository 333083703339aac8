"""What a prediction rests on that the run did not measure: sizes of messages, kinds of pairs, the MPI, the processors.

A prediction beyond what was measured is refused where it would decide the answer, else each doubt is told with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError
from nearmetal.predict.calibration import GUEST_KINDS, ranks_of_a_computer
from nearmetal.predict.in_a_row import share_in_a_row
from nearmetal.predict.models import (
    INTRA_KIND,
    SMALL_BYTES,
    UNBOUNDED,
    VIRTUAL_ANYWAY,
    Machine,
    NamedMachine,
    PathModel,
)
from nearmetal.predict.native import Placement, collectives_of
from nearmetal.predict.schedule import OpKind, Schedule
from nearmetal.predict.trace import named_calls
from nearmetal.predict.traffic import MAX_SAMPLED_RANKS, messages_of, share_of_any_source
from nearmetal.predict.wire import PACKET_BYTES
from nearmetal.units import counted, format_size

BEYOND_FACTOR, BEYOND_SHARE = 2.0, 0.10
"""A prediction is refused where this share of messages or bytes is this many times larger than the largest measured."""
WIDE_FACTOR = 8.5
"""Measured sizes that are further apart leave the sizes between them unknown (8 B, 64 B, 512 B ... do not)."""
PROCESSOR, SETTING = "on a processor", "under the setting"
"""How conditions (`fit_run.conditions_of`) begin that tell the model of the processor, and what the setting sets."""
_EMULATED, _ANY_EMULATED = "an emulated ", "an emulated processor of the lab"
"""How conditions begin that tell a processor of the lab, and what model files of older versions told of all of them."""
MANY_PACKETS_BYTES = 10 * PACKET_BYTES
"""Larger messages wait on their way, for acknowledgements or until the port has reported packets as sent."""
ENOUGH_LAUNCHES = 3
"""So many launches of a path show that launches differ; the medians of fewer may all be slow ones."""
FEW = 0.01
"""A smaller share of a program's messages does not matter."""
ALIKE = 1.1
"""Launches of one program differ by less in the number of their messages."""
RULES_OF_OPENMPI = (4, 1)
"""The version since which Open MPI chooses as collectives are replayed (`native/sim/collective_rules.cpp`)."""
SURELY_EAGER_BYTES = 4096
"""No MPI that is known lets the sender of a message up to here wait for its receiver."""
Sizes = NDArray[np.int64]
_FIGURE = re.compile(r"\d[\d.,]*(?: [KMGT]?i?B\b)?")
"""What two sentences that say the same of several launches differ in."""
_FLAVOURS = {"Open MPI": "openmpi", "MPICH": "mpich"}


@dataclass(frozen=True, slots=True)
class Doubt:
    """One thing that was not measured: the share of the program (0..1) that it concerns, and what would mend it.

    `refuse` says that the prediction would be decided by it.
    """

    said: str
    hint: str
    share: float
    refuse: bool = False


def find_doubts(schedules: Sequence[Schedule], named: NamedMachine, placement: Placement) -> list[Doubt]:
    """Return what is doubtful about a prediction, by the share of messages or bytes, largest first."""
    found = [
        *_of_launches(named),
        *of_mixed_trials(named.conditions, "trials of the path"),
        *_of_guests(named),
        *_of_virtual_nodes(named),
    ]
    found += [*_of_several_programs(schedules, named.machine), *_of_processors(named, placement)]
    found += [
        *_worst(_of_computing(one, named) for one in schedules),
        *_worst(_of_crowd(one) for one in schedules),
        *_worst(_of_mpi(one, named) for one in schedules),
        *_worst(_of_older_rules(one, named) for one in schedules),
        *_worst(_of_opaque_calls(one) for one in schedules),
        *_worst(_of_rounding(one) for one in schedules),
        *_worst(_of_any_source(one) for one in schedules),
        *_worst(_of_scaling(one) for one in schedules),
        *_of_grid(schedules[0]),
        *told_once(_of_traffic(one, named, placement) for one in schedules),
    ]
    return sorted(found, key=lambda doubt: (-doubt.refuse, -doubt.share))


def _of_traffic(schedule: Schedule, named: NamedMachine, placement: Placement) -> list[Doubt]:
    """Return what is doubtful about the messages of one launch: between whom they are, and of which sizes."""
    found: list[Doubt] = []
    sent = messages_of(schedule, named.machine, MAX_SAMPLED_RANKS, collectives_of(named.machine, placement))
    own = sent.source == sent.target
    same = (placement.domain_of[sent.source] == placement.domain_of[sent.target]) & ~own
    beside = (placement.host_of[sent.source] == placement.host_of[sent.target]) & ~own & ~same
    total = max(1, int(sent.count.sum()))
    machine = named.machine

    def share(chosen: NDArray[np.bool_]) -> float:
        return float(sent.count[chosen].sum()) / total

    if machine.intra is None and own.any():
        said = f"{share(own):.0%} of messages are of ranks to themselves: taken as a copy in memory, which is assumed"
        found.append(Doubt(said, "measure the path `shm` in the same run", share(own)))
    cores = machine.cores.count if machine.cores else 0
    if machine.intra is not None and machine.intra.one_processor and cores != 1 and same.any():
        said = f"{share(same):.0%} of messages are inside a node of {cores or 'more'} processors: they were measured "
        said += "between ranks that shared one, and contain its turns"
        found.append(Doubt(said, "measure `shm` on nodes with as many processors", share(same)))
    if named.kind == INTRA_KIND and (apart := ~own & ~same).any():
        said = f"{share(apart):.0%} of messages are between nodes: {named.path} was measured inside one"
        found.append(Doubt(said, "name the paths between nodes with --path", share(apart), refuse=True))
    if machine.host is None and beside.any():
        where, hint = "between guests of one host", "measure a path between two guests of one host"
        if named.bare:
            where, hint = "inside a host, which on bare metal is one node", "measure the path `shm` in the same run"
        found.append(Doubt(f"{share(beside):.0%} of messages are {where}: taken as between hosts", hint, share(beside)))
    apart = ~own & ~same if machine.host is None else ~own & ~same & ~beside
    found += _of_pairs(named, placement, share(apart))
    if machine.stage is not None:
        found += _of_the_rule(share(apart)) + _of_many_packets(share(apart & (sent.message_bytes > MANY_PACKETS_BYTES)))
    found += [*_of_a_timer(named, share(apart)), *_of_streaming(machine.inter, share(apart))]
    found += _of_messages_in_a_row(schedule, named, placement)
    for where, path, chosen in (
        ("between nodes", machine.inter, apart),
        ("between guests of a host", machine.host, beside),
        ("inside a node", machine.intra, same),
    ):
        if path is not None and chosen.any():
            found += _of_sizes(where, path, sent.message_bytes[chosen], sent.count[chosen], total)
            found += _of_eager(named, path, where, sent.message_bytes[chosen], sent.count[chosen])
    return found


def told_once(found: Iterable[Sequence[Doubt]]) -> list[Doubt]:
    """Return each doubt of several launches, or placements, once: where it is refused, else where it concerns most."""
    worst: dict[str, Doubt] = {}
    for doubt in (doubt for several in found for doubt in several):
        about = _FIGURE.sub("", doubt.said)
        known = worst.get(about, doubt)
        worst[about] = max(known, doubt, key=lambda one: (one.refuse, one.share))
    return list(worst.values())


def _worst(found: Iterable[Sequence[Doubt]]) -> list[Doubt]:
    """Return the doubt of the launch that it concerns most; the others' say the same in other figures."""
    told = [doubt for several in found for doubt in several]
    return [max(told, key=lambda doubt: doubt.share)] if told else []


def refuse_beyond(doubts: Sequence[Doubt], label: str) -> None:
    """Raise BadInputError where what was not measured would decide the prediction."""
    for doubt in doubts:
        if doubt.refuse:
            raise BadInputError(
                f"{label}: {doubt.said}", hint=f"{doubt.hint}; or predict all the same with --extrapolate"
            )


def _of_the_rule(share: float) -> list[Doubt]:
    if not share:
        return []
    said = "moderation is added by a rule, not measured: two programs that were held out came out 4 % too fast to 20 % "
    said += "too slow"
    return [Doubt(said, "hold it against launches of a program of yours: --validate RUN", share)]


def _of_many_packets(share: float) -> list[Doubt]:
    if not share:
        return []
    said = f"{share:.0%} of messages are larger than {MANY_PACKETS_BYTES:,} B: TCP waits for interrupts on their way. "
    said += "Moderation delays those, which the interrupt stage does not know: such ping-pongs were off by up to 60 %"
    return [Doubt(said, "measure the setting itself at these sizes", share)]


def _of_messages_in_a_row(schedule: Schedule, named: NamedMachine, placement: Placement) -> list[Doubt]:
    """Return that TCP may hold small messages back until the port reports earlier ones as sent, or the peer answers.

    No ping-pong meets that. A rank that computes meanwhile makes the receiver wait for all that was held.
    """
    if not named.held or (share := share_in_a_row(schedule, placement)) < FEW:
        return []
    said = f"{share:.0%} of messages between nodes follow another before an answer. TCP held such messages back in the "
    said += "run's streams (autocorking), for how long is not known: two programs took 10 to 17 % longer for it"
    hint = 'measure, and run the program, with the knob "host.tcp_autocorking" = 0 (sysctl net.ipv4.tcp_autocorking=0)'
    return [Doubt(said, hint, share)]


def _of_a_timer(named: NamedMachine, share: float) -> list[Doubt]:
    """Return a doubt where times fall into two modes, as they do where messages meet a timer or just miss it."""
    for segment in named.machine.inter.segments:
        residual, size = segment.residual, segment.up_to_bytes
        if residual is None or share == 0 or size == UNBOUNDED:
            continue
        fast_ps = float(np.interp(0.1, residual.probabilities, residual.values_ps))
        if fast_ps < -segment.one_way_ps(size) / 2:
            said = (
                f"a tenth of messages of {format_size(size)} took less than half of the usual time: the others met a "
            )
            said += "timer, such as that of interrupt moderation, which a program meets at other times than a ping-pong"
            hint = "predict from a setting without moderation and the rule of the driver: --setting OTHER --interrupts "
            hint += f"igbvf:usecs=3 --as {named.setting} (igb-queue:usecs=3 on the port itself)"
            return [Doubt(said, hint, share)]
    return []


def _of_streaming(path: PathModel, share: float) -> list[Doubt]:
    """Return a doubt where messages take no processor time and no gap because none were sent in a row."""
    if path.fit is None or share == 0 or any(one.send_overhead_ps or one.gap_ps for one in path.segments):
        return []
    said = "no stream of messages was measured: sending and receiving are taken to need no processor time, and messages"
    said += " in a row to follow each other at once"
    return [Doubt(said, "measure the operations `bw` and `bibw` too", share)]


def _of_sizes(
    where: str, path: PathModel, sizes: NDArray[np.int64], counts: NDArray[np.int64], total: int
) -> list[Doubt]:
    measured = np.array(path.measured_bytes, dtype=np.int64)
    if measured.size == 0:
        if path.fit is None:
            return []
        said = "the model file does not tell which sizes were measured"
        return [Doubt(said, "fit the run again: `--on RUN --save-model FILE`", float(counts.sum()) / total)]
    volume = np.maximum(sizes, 1) * counts

    def shares(chosen: NDArray[np.bool_]) -> tuple[float, float]:
        return float(counts[chosen].sum()) / float(counts.sum()), float(volume[chosen].sum()) / float(volume.sum())

    def told(chosen: NDArray[np.bool_], what: str, *, refuse: bool = False) -> Doubt:
        of_messages, of_bytes = shares(chosen)
        said = f"{of_messages:.0%} of messages and {of_bytes:.0%} of bytes {where} are {what}"
        hint = f"measure {_sizes_to_measure(measured, sizes)}"
        return Doubt(said, hint, max(of_messages, of_bytes), refuse=refuse)

    found: list[Doubt] = []
    least, largest = int(measured[0]), int(measured[-1])
    if (beyond := sizes > largest).any():
        most = int(sizes[beyond].max())
        what = f"larger than the largest measured: up to {format_size(most)} against {format_size(largest)}"
        far = max(shares(sizes > BEYOND_FACTOR * largest))
        found.append(told(beyond, f"{what}, {most / largest:.1f} times", refuse=far >= BEYOND_SHARE))
    if (below := least > WIDE_FACTOR * np.maximum(sizes, SMALL_BYTES)).any():
        what = f"far smaller than the smallest measured: down to {format_size(int(sizes.min()))}"
        found.append(told(below, f"{what} against {format_size(least)}"))
    at = np.searchsorted(measured, sizes)
    low, high = measured[np.maximum(at - 1, 0)], measured[np.minimum(at, measured.size - 1)]
    wide = high > WIDE_FACTOR * np.maximum(low, SMALL_BYTES)
    if (between := (at > 0) & (at < measured.size) & (sizes != high) & wide).any():
        widest = int(np.argmax(np.where(between, high / np.maximum(low, 1), 0)))
        ends = f"between {format_size(int(low[widest]))} and {format_size(int(high[widest]))}"
        found.append(told(between, f"far from every measured size, as {ends}"))
    return found


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


def _of_mpi(schedule: Schedule, named: NamedMachine) -> list[Doubt]:
    flavour = next((word for name, word in _FLAVOURS.items() if name in schedule.mpi), "")
    version = re.search(r"\d+(?:\.\d+)+", schedule.mpi)
    traced = f"{flavour} {version[0]}" if flavour and version else flavour or " ".join(schedule.mpi.split())[:40]
    measured = named.mpi or named.machine.collectives
    known = measured.split(" ")
    if not traced or (traced.split(" ")[0] == known[0] and (len(known) == 1 or traced == measured)):
        return []
    same = traced.split(" ")[0] == known[0]
    said = f"the trace is of {traced}, the paths were measured with {measured}"
    said += "" if same else ": its collectives, eager limits and processor time are taken for the program's"
    return [Doubt(said, "trace the program with the MPI of the run, or measure with the program's", 0.5 if same else 1)]


def _of_older_rules(schedule: Schedule, named: NamedMachine) -> list[Doubt]:
    """Return that collectives are played by rules that the run's MPI does not have."""
    version = re.match(r"openmpi (\d+)\.(\d+)", named.mpi)
    if version is None or (int(version[1]), int(version[2])) >= RULES_OF_OPENMPI:
        return []
    if not any(op.kind is OpKind.COLLECTIVE for program in schedule.programs for op in program.ops):
        return []
    said = f"{named.mpi} chooses the algorithms of collectives by other rules than Open MPI 4.1, whose are replayed"
    hint = "measure the program's collectives on as many ranks in the same run, or all of it with Open MPI 4.1 or later"
    return [Doubt(said, hint, 0.5)]


def same_condition(one: str, other: str) -> bool:
    """Return whether two words of conditions tell the same, as far as either tells it."""
    return one == other or (_ANY_EMULATED in {one, other} and one.startswith(_EMULATED) and other.startswith(_EMULATED))


def _of_computing(schedule: Schedule, named: NamedMachine) -> list[Doubt]:
    """Return that a trace computes by the clock of another processor, unless the user has said how fast that is."""
    measured = dict(named.conditions).get(PROCESSOR, "")
    as_traced = {1.0, schedule.traced_ranks / schedule.ranks, schedule.compute_scale}
    if not schedule.mpi or named.machine.compute_scale not in as_traced or same_condition(schedule.processor, measured):
        return []
    if schedule.processor and measured:
        said = f"the trace was taken on {schedule.processor}, the paths were measured on {measured}"
    elif named.host == "lab":
        said = "the trace does not tell on which processor it was taken, the paths were measured in the emulated lab"
    else:
        return []
    said += ": computing is taken to last as long there, though the two differ in clocks or instructions"
    hint = "trace the program where the paths are measured (options = { trace = true }), or say --compute-scale"
    return [Doubt(said, hint, 1.0)]


def _of_crowd(schedule: Schedule) -> list[Doubt]:
    """Return that computing was timed while ranks waited for each other's processors."""
    if not schedule.crowd:
        return []
    said = f"{schedule.crowd} ranks of a node were traced on fewer processors: their computing contains waiting for one"
    return [Doubt(said, "trace with --processor-time, which leaves that out", 1.0)]


def _of_launches(named: NamedMachine) -> list[Doubt]:
    launches = len(named.launches)
    if named.machine.inter.fit is None or launches >= ENOUGH_LAUNCHES:
        return []
    said = f"launches that measured all of the path: {launches}. Launches differ by more than their iterations do"
    return [Doubt(said, f"finish the run (run --resume), or measure {ENOUGH_LAUNCHES} blocks", 1.0)]


def of_mixed_trials(conditions: Sequence[tuple[str, str]], what: str) -> list[Doubt]:
    """Return in what trials differ that are taken together, as in a run that was continued later."""
    found: dict[str, list[str]] = {}
    for how, words in conditions:
        found.setdefault("on" if how == PROCESSOR else how, []).append(words or "as found")
    hint = "measure the study anew, on the machine as it is now"
    return [
        Doubt(f"{what} were run {how} {' and '.join(words)}: their times are mixed", hint, 1.0)
        for how, words in found.items()
        if len(words) > 1
    ]


def _of_several_programs(schedules: Sequence[Schedule], machine: Machine) -> list[Doubt]:
    """Return that the traces are of several programs: replayed in turn, they give the time of none."""
    commands = sorted({" ".join(one.command) for one in schedules if one.command})
    builds = sorted({one.build[:12] for one in schedules if one.build})
    if max(len(commands), len(builds)) < 2:
        return []
    what, told = ("command lines", commands) if len(commands) > 1 else ("builds of one program", builds)
    sent = [messages_of(one, machine, MAX_SAMPLED_RANKS) for one in schedules]
    counts = [int(one.count.sum()) for one in sent]
    said = f"the traces are of {len(told)} {what} ({told[0]!r:.60}, {told[1]!r:.60})"
    said += f" with {min(counts)} to {max(counts)} messages: their times are mixed"
    return [Doubt(said, "give the launches of one program only", 1.0, refuse=max(counts) > ALIKE * min(counts))]


def _of_opaque_calls(schedule: Schedule) -> list[Doubt]:
    if not schedule.opaque_share:
        return []
    share = schedule.opaque_share
    said = f"{share:.1%} of MPI calls are not in the trace ({named_calls(schedule.opaque_names)}): they are taken as "
    said += "computing, as long as traced on every path"
    return [Doubt(said, "measure the program itself on each path", share)]


def _of_rounding(schedule: Schedule) -> list[Doubt]:
    if not (share := schedule.rounded_share):
        return []
    said = f"{share:.0%} of MPI calls are in the trace with rounded sizes, up to a fifth less than was sent, for the "
    said += "program makes too many distinct calls"
    return [Doubt(said, "trace fewer steps of the program", share)]


def _of_any_source(schedule: Schedule) -> list[Doubt]:
    """Return that who comes first decides what a program does next, where a receive takes messages of several ranks."""
    if (share := share_of_any_source(schedule)) < FEW:
        return []
    said = f"{share:.0%} of receives take the message of whichever rank comes first: what the program then does is "
    said += "replayed as traced, though on another path others may come first, as workers that ask for work"
    return [Doubt(said, "hold it against launches of the program: --validate RUN", share)]


def _of_grid(schedule: Schedule) -> list[Doubt]:
    if not schedule.given_dims:
        return []
    grids = ["x".join(map(str, dims)) for dims in (schedule.given_dims, schedule.programs[0].dims)]
    said = f"the pattern's grid of {grids[0]} is of other ranks than {schedule.ranks}: taken as {grids[1]}"
    return [Doubt(said, f"write ranks = {schedule.ranks} and its dims into the pattern", 1.0)]


def _of_eager(named: NamedMachine, path: PathModel, where: str, sizes: Sizes, counts: Sizes) -> list[Doubt]:
    """Return that large messages are taken not to wait for their receiver, where it is not known which do."""
    share = float(counts[sizes > SURELY_EAGER_BYTES].sum()) / max(1.0, float(counts.sum()))
    if path.fit is None or path.eager_up_to_bytes != UNBOUNDED or share < FEW:
        return []
    mpi = named.mpi or "the run's MPI"
    said = f"{share:.0%} of messages {where} are larger than {format_size(SURELY_EAGER_BYTES)}, and from which size on "
    said += f"{mpi} lets a sender wait for its receiver is not known: never, as taken"
    return [Doubt(said, "give the eager limit of the MPI, such as --eager '64 KiB'", share)]


def _of_scaling(schedule: Schedule) -> list[Doubt]:
    if not schedule.traced_ranks:
        return []
    if schedule.traced_before:
        said = (
            f"the traces are of {schedule.traced_before} and {schedule.traced_ranks} ranks, not of {schedule.ranks}: "
        )
        said += "sizes of messages and computing are taken to go on as between those"
        said += f" (computing {schedule.compute_scale:.2f} times that on {schedule.traced_ranks})"
        return [Doubt(said, "trace the program on as many ranks", 1.0)]
    said = f"the trace is of {schedule.traced_ranks} ranks, not of {schedule.ranks}: taken to make as many iterations"
    said += ", with messages of the same sizes"
    return [Doubt(said, "trace the program on as many ranks", 1.0)]


def _of_pairs(named: NamedMachine, placement: Placement, share: float) -> list[Doubt]:
    """Return that more ranks of a node share its port than streamed when it was measured."""
    most = int(np.bincount(placement.host_of).max())
    if not 0 < named.pairs < most or not named.machine.port_fs_per_byte or not share:
        return []
    said = f"up to {most} ranks of a node share its port, which {named.pairs} at once did when it was measured"
    said += ": all together are taken as no faster than those"
    hint = f"measure `message_rate` with placement = [{', '.join('0' * most + '1' * most)}]"
    return [Doubt(said, hint, share)]


def _of_processors(named: NamedMachine, placement: Placement) -> list[Doubt]:
    cores, ranks = named.machine.cores, ranks_of_a_computer(named, placement)
    if cores is not None and ranks > cores.count:
        said = f"{ranks} ranks of a computer share {counted(cores.count, 'processor')}: what waiting for a turn costs "
        said += "is assumed. "
        said += "With two ranks on one, eight programs took 7 % less to 11 % more in the lab than predicted, in "
        said += "namespaces 17 % less to 73 % more"
        return [Doubt(said, "hold it against launches of a program of yours: --validate RUN", 1.0)]
    if cores is not None or not named.host or ranks == 1:
        return []
    said = f"the run does not tell how many processors a node has: taken as enough for its {ranks} ranks"
    return [Doubt(said, "give the processors of each host: --cores", 0.0)]


def _of_guests(named: NamedMachine) -> list[Doubt]:
    if named.kind not in GUEST_KINDS:
        return []
    said = "the validated cases have no guests: "
    if named.machine.inter.works() or named.machine.inter.copy_fs_per_byte:
        said += "six programs held out in the lab since took 10 % less to 3 % more than predicted"
        return [Doubt(said, "hold it against launches of a program of yours: --validate RUN", 1.0)]
    said += (
        "of four held out in the lab since on guests that were not streamed both ways, three took 15 to 24 % longer "
    )
    said += "than predicted"
    return [Doubt(said, "measure `bibw` too, which tells what messages take of guests that compute", 1.0)]


def _of_virtual_nodes(named: NamedMachine) -> list[Doubt]:
    told = named.machine.cores is not None and named.machine.cores.shared_by_node
    if not named.virtual or named.host in VIRTUAL_ANYWAY or told:
        return []
    said = "the nodes are virtual machines, which cannot see whether they share processors: taken as not sharing any"
    return [Doubt(said, "give the number of guests per host: --vms-per-host", 0.0)]
