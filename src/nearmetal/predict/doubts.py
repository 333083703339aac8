"""What a prediction rests on that the run did not measure: the program, the MPI, processors, launches, messages."""

import re
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from nearmetal.predict.calibration import GUEST, GUEST_KINDS, LAB, RELAY_KINDS, ranks_of_a_computer
from nearmetal.predict.doubt import Doubt, told_once, worst
from nearmetal.predict.doubts_of_messages import BEYOND_SHARE, FEW, doubts_of_messages
from nearmetal.predict.models import REPLAYED_BY_NODES, VIRTUAL_ANYWAY, Machine, NamedMachine, divides_by_nodes
from nearmetal.predict.native import Placement, collectives_of
from nearmetal.predict.schedule import OpKind, Schedule
from nearmetal.predict.trace import named_calls
from nearmetal.predict.traffic import MAX_SAMPLED_RANKS, messages_of, share_of_any_source, shares_by_nodes
from nearmetal.units import as_percent, by_key, counted

PROCESSOR, SETTING = "on a processor", "under the setting"
"""How conditions (`conditions.conditions_of`) begin that tell the model of the processor, and what the setting sets."""
_EMULATED, _ANY_EMULATED = "an emulated ", "an emulated processor of the lab"
"""How conditions begin that tell a processor of the lab, and what model files of older versions told of all of them."""
ENOUGH_LAUNCHES = 3
"""So many launches of a path show that launches differ; the medians of fewer may all be slow ones."""
ALIKE = 1.1
"""Launches of one program differ by less in the number of their messages."""
RULES_OF_OPENMPI = (4, 1)
"""The version since which Open MPI chooses as collectives are replayed (`native/sim/collective_rules.cpp`)."""
NEGLIGIBLE = 0.0005
"""Calls that are a smaller share of all, and of the time, are not worth a word."""
_FLAVOURS = {"Open MPI": "openmpi", "MPICH": "mpich"}


def find_doubts(
    schedules: Sequence[Schedule], named: NamedMachine, placement: Placement, validated: Collection[str] = ()
) -> list[Doubt]:
    """Return what is doubtful about a prediction, by the share of messages or bytes, largest first.

    `validated` are the classes that have cases enough for an interval, of the user's own or of machines like these.
    """
    found = [
        *_of_launches(named),
        *of_mixed_trials(named.conditions, "trials of the path"),
        *_of_busy_machines(named),
        *([] if GUEST in validated else _of_guests(named)),
        *_of_a_relay(named),
        *_of_virtual_nodes(named),
    ]
    found += [*_of_several_programs(schedules, named.machine), *_of_processors(named, placement)]
    found += [
        *worst(_of_one_of_several(one) for one in schedules),
        *worst(_of_computing(one, named) for one in schedules),
        *worst(_of_crowd(one) for one in schedules),
        *worst(_of_mpi(one, named) for one in schedules),
        *worst(_of_older_rules(one, named) for one in schedules),
        *worst(_of_collectives_by_nodes(one, named, placement) for one in schedules),
        *worst(_of_opaque_calls(one) for one in schedules),
        *worst(_of_pauses(one) for one in schedules),
        *worst(_of_work_until_found(one) for one in schedules),
        *worst(_of_blocking(one) for one in schedules),
        *worst(_of_rounding(one) for one in schedules),
        *worst(_of_threads(one) for one in schedules),
        *worst(_of_any_source(one) for one in schedules),
        *worst(_of_scaling(one) for one in schedules),
        *worst(_of_node_groups(one, placement) for one in schedules),
        *_of_grid(schedules[0]),
        *told_once(doubts_of_messages(one, named, placement) for one in schedules),
    ]
    return sorted(found, key=lambda doubt: (-doubt.refuse, -doubt.share))


def _of_one_of_several(schedule: Schedule) -> Iterator[Doubt]:
    """Say that programs which ran after the traced one in its launch are in no figure."""
    if schedule.first_of_several:
        text = "the traced launch ran several MPI programs one after another, and only the first is predicted"
        yield Doubt(text, "trace each in a launch of its own, and predict each", 1.0)


def _of_mpi(schedule: Schedule, named: NamedMachine) -> Iterator[Doubt]:
    flavour = next((word for name, word in _FLAVOURS.items() if name in schedule.mpi), "")
    version = re.search(r"\d+(?:\.\d+)+", schedule.mpi)
    traced = f"{flavour} {version[0]}" if flavour and version else flavour or " ".join(schedule.mpi.split())[:40]
    measured = named.mpi or named.machine.collectives
    known = measured.split(" ")
    if not traced or (traced.split(" ")[0] == known[0] and (len(known) == 1 or traced == measured)):
        return
    same = traced.split(" ")[0] == known[0]
    text = f"the program was traced with {traced}, the paths were measured with {measured}"
    text += "" if same else ", whose collectives, eager limits and processor times are used"
    yield Doubt(text, "trace the program with the run's MPI, or measure with the program's", 0.5 if same else 1)


def _of_older_rules(schedule: Schedule, named: NamedMachine) -> Iterator[Doubt]:
    """Say that collectives are played by rules that the run's MPI does not have."""
    version = re.match(r"openmpi (\d+)\.(\d+)", named.mpi)
    if version is None or (int(version[1]), int(version[2])) >= RULES_OF_OPENMPI:
        return
    if not any(op.kind is OpKind.COLLECTIVE for program in schedule.programs for op in program.ops):
        return
    text = f"{named.mpi} chooses algorithms for collectives by older rules than those of Open MPI 4.1, which are "
    text += "replayed"
    hint = "measure the program's collectives on as many ranks in the same run, or all of it with Open MPI 4.1 or later"
    yield Doubt(text, hint, 0.5)


def _of_collectives_by_nodes(schedule: Schedule, named: NamedMachine, placement: Placement) -> Iterator[Doubt]:
    """Say which collectives the run's MPI divides by nodes in a way that is not replayed."""
    if not divides_by_nodes(named.mpi):
        return
    shares = shares_by_nodes(schedule, named.machine, placement.domain_of, collectives_of(named.machine, placement))
    if (share := sum(shares.values())) >= FEW:
        text = f"{as_percent(share)} of MPI calls are collectives ({', '.join(sorted(shares))}) that {named.mpi} "
        text += "divides by nodes, where nodes have several ranks: they are replayed undivided, with other messages "
        text += "between nodes"
        hint = "measure `barrier`, `allreduce` and `allgather` with the program's placement in the same run"
        if divides_by_nodes(named.mpi, REPLAYED_BY_NODES):
            hint = "the model file is of an older version, which did not replay that: give the run itself to --on"
        yield Doubt(text, hint, share)


def _of_computing(schedule: Schedule, named: NamedMachine) -> Iterator[Doubt]:
    """Say that a trace computes by the clock of another processor, unless the user has given its speed."""
    measured = dict(named.conditions).get(PROCESSOR, "")
    as_traced = {1.0, schedule.traced_ranks / schedule.ranks, schedule.compute_scale}
    if not schedule.mpi or named.machine.compute_scale not in as_traced or same_condition(schedule.processor, measured):
        return
    if schedule.processor and measured:
        text = f"the trace was taken on {schedule.processor}, the paths were measured on {measured}"
    elif named.host == "lab":
        text = "the trace does not say on which processor it was taken, the paths were measured in the emulated lab"
    else:
        return
    text += ": computing is assumed to take as long there, although the two differ in clock or instructions"
    hint = "trace the program where the paths are measured (options = { trace = true }), or pass --compute-scale"
    yield Doubt(text, hint, 1.0)


def _of_crowd(schedule: Schedule) -> Iterator[Doubt]:
    """Say that computing was timed while ranks waited for each other's processors."""
    if schedule.crowd:
        text = f"{schedule.crowd} ranks of a node were traced on fewer processors: their computing includes waiting "
        text += "for one"
        hint = "trace with --processor-time, which leaves that out"
        if schedule.calling_threads > 1:  # the profiler cannot follow a gap from thread to thread
            hint = "trace with as many processors as ranks"
        yield Doubt(text, hint, 1.0)


def _of_launches(named: NamedMachine) -> Iterator[Doubt]:
    launches = len(named.launches)
    if named.machine.inter.fit is not None and launches < ENOUGH_LAUNCHES:
        text = f"only {launches} launch{'es' * (launches != 1)} measured the whole path; launches differ by more than "
        text += "their iterations do"
        yield Doubt(text, f"finish the run (run --resume), or measure {ENOUGH_LAUNCHES} blocks", 1.0)


def _of_busy_machines(named: NamedMachine) -> Iterator[Doubt]:
    if named.busy:
        text = f"most trials of the path were disturbed: {named.busy}"
        hint = "measure again while nothing else runs there; `nearmetal report` shows what ran"
        yield Doubt(text, hint, 1.0, about="busy machines")


def of_mixed_trials(conditions: Sequence[tuple[str, str]], what: str) -> Iterator[Doubt]:
    """Say in what trials differ that are taken together, as in a run that was continued later."""
    found = by_key(("on" if how == PROCESSOR else how, words or "as found") for how, words in conditions)
    hint = "measure all of them again, alike and on the machine as it is now"
    for how, words in found.items():
        if len(words) > 1:
            yield Doubt(f"{what} ran {how} {' and '.join(words)}: their times are mixed", hint, 1.0)


def _of_several_programs(schedules: Sequence[Schedule], machine: Machine) -> Iterator[Doubt]:
    """Say that the traces are of several programs: replayed in turn, they give the time of none."""
    commands = sorted({" ".join(one.command) for one in schedules if one.command})
    builds = sorted({one.build if "+" in one.build else one.build[:12] for one in schedules if one.build})
    processors = sorted({one.processor for one in schedules if one.processor})
    kinds = {"command lines": commands, "builds of one program": builds, "models of processors": processors}
    what, told = next(((what, told) for what, told in kinds.items() if len(told) > 1), ("", []))
    if not told:
        return
    sent = [messages_of(one, machine, MAX_SAMPLED_RANKS) for one in schedules]
    counts = [int(one.count.sum()) for one in sent]
    text = f"the traces are of {len(told)} {what} ({told[0]!r:.60}, {told[1]!r:.60})"
    text += f" with {min(counts)} to {max(counts)} messages: their times are mixed"
    yield Doubt(text, "give launches of one program on like machines", 1.0, refuse=max(counts) > ALIKE * min(counts))


def _of_opaque_calls(schedule: Schedule) -> Iterator[Doubt]:
    """Say which calls take as long on every path as when traced; if they are much of the time, that is the answer."""
    share, time_share, waits = schedule.opaque_share, schedule.opaque_time_share, schedule.opaque_wait_share
    if max(share, time_share, waits) >= NEGLIGIBLE or (share and not time_share):
        text = f"{as_percent(share, 1)} of MPI calls" if share else "requests of calls that the profiler does not know"
        text += f" and {as_percent(time_share, 1)} of the time" if time_share else ""
        text += f" are not in the trace ({named_calls(schedule.opaque_names)})" if share else " are not in the trace"
        text += ": they are taken as computing, as long as traced on every path"
        if waits >= NEGLIGIBLE:
            text += f". Up to {as_percent(waits, 1)} of the time are waits for their requests and others at once, "
            text += "replayed as for the others alone"
        refuse = time_share + waits >= BEYOND_SHARE
        yield Doubt(text, "measure the program itself on each path", max(share, time_share, waits), refuse=refuse)


def _of_pauses(schedule: Schedule) -> Iterator[Doubt]:
    if (share := schedule.paused_share) >= FEW:
        text = f"{as_percent(share)} of the ranks' time passed in pauses of less than 2 us between polls that found "
        text += "nothing: it is taken for waiting, even if the program computes there"
        yield Doubt(text, "compute for longer between polls, or compare it with launches: --validate RUN", share)


def _of_work_until_found(schedule: Schedule) -> Iterator[Doubt]:
    if (share := schedule.worked_share) >= FEW:
        text = f"{as_percent(share)} of the ranks' time was computing after polls that found nothing: it is replayed "
        text += "as long as traced, although a program that computes until a message comes does so for less time on a "
        text += "faster path, and for more on a slower one"
        yield Doubt(text, "compare it with launches of the program: --validate RUN", share)


def _of_blocking(schedule: Schedule) -> Iterator[Doubt]:
    if (share := schedule.blocked_share) >= FEW:
        text = f"{as_percent(share)} of the ranks' time passed outside MPI while they slept, or waited for files, "
        text += "threads of their own or a hypervisor: processor time leaves that out, so the program takes longer"
        yield Doubt(text, "trace with as many processors as ranks, without --processor-time", share)


def _of_rounding(schedule: Schedule) -> Iterator[Doubt]:
    if share := schedule.rounded_share:
        text = f"{as_percent(share)} of MPI calls have rounded sizes in the trace, up to a fifth less than was sent, "
        text += "because the program makes too many distinct calls"
        yield Doubt(text, "trace fewer steps of the program", share)


def _of_threads(schedule: Schedule) -> Iterator[Doubt]:
    """Say that threads which wait for messages at the same time wait one after the other in a replay."""
    if schedule.calling_threads > 1:
        text = f"{schedule.calling_threads} threads of a rank call MPI: a replay runs their calls one after another, "
        text += "in the order in which they ended when traced"
        yield Doubt(text, "measure the program itself on each path", 1.0)


def _of_any_source(schedule: Schedule) -> Iterator[Doubt]:
    """Say that who comes first decides what a program does next, where a receive takes messages of several ranks."""
    if (share := min(1.0, share_of_any_source(schedule) + schedule.first_come_share)) >= FEW:
        text = f"{as_percent(share)} of receives take the message of whichever rank comes first: what the program does "
        text += "next is replayed as traced, although on another path other ranks may come first (as workers that ask "
        text += "for work do)"
        yield Doubt(text, "compare it with launches of the program: --validate RUN", share)


def _of_grid(schedule: Schedule) -> Iterator[Doubt]:
    if schedule.given_dims:
        grids = ["x".join(map(str, dims)) for dims in (schedule.given_dims, schedule.programs[0].dims)]
        text = f"the pattern's grid of {grids[0]} does not have {schedule.ranks} ranks: a grid of {grids[1]} is used"
        yield Doubt(text, f"write ranks = {schedule.ranks} and dims into the pattern", 1.0)


def _of_scaling(schedule: Schedule) -> Iterator[Doubt]:
    if not schedule.traced_ranks:
        return
    if schedule.traced_before:
        text = f"the traces have {schedule.traced_before} and {schedule.traced_ranks} ranks, not {schedule.ranks}: "
        text += "sizes of messages and computing are assumed to change on as they do between those"
        text += f" (computing: {schedule.compute_scale:.2f} times that on {schedule.traced_ranks} ranks)"
    else:
        text = f"the trace has {schedule.traced_ranks} ranks, not {schedule.ranks}: the program is assumed to make as "
        text += "many iterations, with messages of the same sizes"
    yield Doubt(text, f"trace the program on {schedule.ranks} ranks", 1.0)


def _of_node_groups(schedule: Schedule, placement: Placement) -> Iterator[Doubt]:
    """Say that the program would make other communicators of its nodes' ranks than it made where it was traced."""
    for group in schedule.node_groups:
        parent, members = np.array(group.parent), np.array(group.members)
        on = placement.domain_of[parent]
        there = parent[on == placement.domain_of[members[0]]]
        if not (np.array_equal(members, there) if group.whole else np.isin(members, there).all()):
            here = int(np.isin(members, there).sum())
            text = "when traced, MPI_Comm_split_type made a communicator of "
            text += f"{counted(len(members), 'rank')} of {'a node' if group.whole else 'a part of a node'}; here "
            text += (
                f"{here} of these and {len(there) - here} others are on rank {members[0]}'s node, but it is replayed "
            )
            text += "with the ranks that it had"
            yield Doubt(text, "trace the program with its ranks placed as you predict them", 1.0)
            return


def _of_processors(named: NamedMachine, placement: Placement) -> Iterator[Doubt]:
    cores, ranks = named.machine.cores, ranks_of_a_computer(named, placement)
    if cores is not None and ranks > cores.count:
        text = f"{ranks} ranks of a computer share {counted(cores.count, 'processor')}: the cost of waiting for a turn "
        text += "is assumed. With two ranks on one processor, eight programs took 12 % less to 27 % more than "
        text += "predicted in the lab, and 13 % less to 27 % more in namespaces"
        yield Doubt(text, "compare it with launches of a program of yours: --validate RUN", 1.0)
    if cores is None and named.host and ranks != 1:
        text = f"the run does not say how many processors a node has: assumed to be enough for its {ranks} ranks"
        yield Doubt(text, "give the processors of each host with --cores", 0.0)


def _of_guests(named: NamedMachine) -> Iterator[Doubt]:
    if named.kind not in GUEST_KINDS:
        return
    text, path = "" if named.host == LAB else "no validated case has guests: ", named.machine.inter
    own = "compare it with launches of a program of yours: --validate RUN"
    if path.works() or path.copy_fs_per_byte:
        text += "in the lab, eight programs in guests took 14 % less to 25 % more than predicted"
        if path.send_work_ps and path.trailing_ps:
            yield Doubt(text, own, 1.0)
            return
        text += ", although it was measured what messages take of guests that compute"
        beside = "measure `one_way` and `after_exchange` too: they show that"
        yield Doubt(text, own if named.machine.stage else beside, 1.0)
    else:
        text += "of four programs held out in the lab since, on guests that were not streamed both ways, three took 15 "
        text += "to 24 % longer than predicted"
        yield Doubt(text, "measure `bibw` too: it shows what messages take of guests that compute", 1.0)


def _of_a_relay(named: NamedMachine) -> Iterator[Doubt]:
    if (named.kind or named.path) in RELAY_KINDS:
        text = "a process relays every message of this path and takes turns with the ranks: eight programs took 16 % "
        text += "less to 5 % more than predicted in namespaces, and seven 0 to 17 % less in the lab"
        yield Doubt(text, "compare it with launches of a program of yours: --validate RUN", 1.0)


def _of_virtual_nodes(named: NamedMachine) -> Iterator[Doubt]:
    told = named.machine.cores is not None and named.machine.cores.shared_by_node
    if named.virtual and named.host not in VIRTUAL_ANYWAY and not told:
        text = "the nodes are virtual machines, which cannot see whether they share processors: assumed to share none"
        yield Doubt(text, "give the number of guests per host with --vms-per-host", 0.0)


def same_condition(one: str, other: str) -> bool:
    """Return whether two words of conditions agree, as far as both state something."""
    return one == other or (_ANY_EMULATED in {one, other} and one.startswith(_EMULATED) and other.startswith(_EMULATED))
