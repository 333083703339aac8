"""What accompanies the figures: differing facts and counters, cautions, and busy machines."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from nearmetal.results.records import FactRow, PathEntry
from nearmetal.results.series import doubted_settings, launched_of, missed_windows, slow_clocks, torn_blocks
from nearmetal.store.rundir import TrialRecord
from nearmetal.study.facts import (
    COMPUTERS,
    IMPORTED_NOTES,
    OTHERS,
    TIMER,
    of_any_interface,
)
from nearmetal.units import as_percent, by_key, counted, format_size, is_whole
from nearmetal.workloads.figures import WITH_OPERATIONS
from nearmetal.workloads.operations import OPERATIONS

UNLIKE = "nodes.unlike"
"""The names of a trial's facts in which its nodes, machines of their own, differ."""

_INTERFACE = "interface."
_APART = frozenset({"lab", "fake", "import"})
"""Kinds of host without a launcher whose own packets cross the path."""
_FEW_PACKETS = 500
"""A launch of a single message moved 229 packets at each end of a veth with Open MPI 5.0, 304 with MPICH 5.0."""
_TELLING = frozenset({"cpu.governor", "cpu.model", "kernel.release"})
_OF_A_TOOL = (
    ("retransmits, by the tool's own count", "per trial", "tool.retransmits"),
    ("datagrams lost, by the tool's own count", "per trial", "tool.lost_datagrams"),
    ("fairness between pairs (Jain's index)", "millionths", "tool.fairness_ppm"),
    ("sum of all pairs against the line rate", "millionths", "tool.line_rate_ppm"),
)
_OF_THE_SAME = (".total", ".communication")
"""Ends of the names of cells whose iterations another cell of the launch has."""
_CPU, _STEAL = "cpu.", "cpu.steal"
BUSY_SHARE = 0.10
"""Share of a trial's machines that other programs may use."""
STOLEN_SHARE = 0.02
"""Share that the hypervisor may give to others."""
_FEWEST_TICKS = 40
"""Shorter launches are not judged: a tick of 10 ms would be too much of them."""


def fact_rows(records: Sequence[TrialRecord], paths: Sequence[PathEntry]) -> tuple[FactRow, ...]:
    """Return the facts that are not the same on every path; an interface's facts are joined over the nodes."""
    by_path: dict[str, dict[str, set[str]]] = {path.label: {} for path in paths if not path.again}
    for record in records:
        known = by_path[record.order.path.name]
        for key, value in record.outcome.facts.items():
            known.setdefault(of_any_interface(key), set()).add(str(value))
    measured = [known for known in by_path.values() if known]
    rows = []
    for name in sorted({key for known in measured for key in known}):
        seen = {_joined(known.get(name)) for known in measured}
        # A path without a network has no interface; that says nothing that its name does not.
        if len(seen - {None} if name.startswith(_INTERFACE) else seen) > 1:
            rows.append(FactRow(name, "", tuple(_joined(known.get(name)) for known in by_path.values())))
    return tuple(rows)


def cautions(records: Sequence[TrialRecord], host_kind: str) -> tuple[str, ...]:
    """Return what readers must know before they believe the figures, as sentences."""
    unlike = (*unlike_machines(records), *unlike_files(records))
    own = (*timers(records), *missed_windows(records), *on_a_node(records), *unlike, *one_computer(records))
    of_launches = (*doubted_settings(records), *disturbed_launches(records), *torn_blocks(records))
    return (*own, *_of_machines(records, host_kind), *of_launches)


def cautions_of_levels(records: Sequence[TrialRecord], host_kind: str) -> tuple[str, ...]:
    """Return those of them that are not about ratios of paths, but about each figure by itself."""
    own = (*timers(records), *missed_windows(records), *on_a_node(records))
    return (*own, *_of_machines(records, host_kind), *doubted_settings(records), *disturbed_launches(records))


def _of_machines(records: Sequence[TrialRecord], host_kind: str) -> tuple[str, ...]:
    if host_kind in _APART:
        return ()
    return (*weakly_proven(records), *went_elsewhere(records), *slow_clocks(records))


def weakly_proven(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return a sentence for each workload of MPI of which launches moved no more packets than a launcher itself may."""
    weak = by_key(
        (record.order.workload.label, (record.order.path.name, min(moved.values())))
        for record in records
        if record.order.workload.kind in WITH_OPERATIONS
        and len(set(record.order.workload.placement)) > 1
        and (moved := record.outcome.proof.moved_packets)
        and min(moved.values()) < _FEW_PACKETS
    )
    return tuple(
        f"the proof that {workload} took its path is weak on {', '.join(dict.fromkeys(path for path, _ in found))}: "
        f"{min(few for _, few in found)} packets crossed it in the weakest of {counted(len(found), 'such trial')}, and "
        "some 300 may be the launcher's own; more iterations prove it"
        for workload, found in weak.items()
    )


def went_elsewhere(records: Sequence[TrialRecord]) -> Iterator[str]:
    """Yield a sentence for each path beside which another interface of a node carried half as many packets or more.

    That may be other traffic of the machine, or answers that come back by another port of the same network.
    """
    found: dict[str, tuple[float, str]] = {}
    for record in records:
        path, proof = record.order.path.name, record.outcome.proof
        for own, moved in proof.moved_packets.items():
            for name, count in proof.stray_packets.items():
                beside = name.partition(".")[0] == own.partition(".")[0] and not name.endswith(".lo")
                if beside and count >= max(_FEW_PACKETS, moved / 2):
                    said = f"{name} carried {count} packets of a launch on {path}, and {own}, the path, {moved}"
                    found[path] = max(found.get(path, (0.0, "")), (count / max(1, moved), said))
    for _, said in found.values():
        yield f"{said}: answers may come back another way, which `ip route get` on each machine shows"


def timers(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return a sentence for each cell whose figure is that of a kernel timer, with its paths."""
    seen: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for key, value in record.outcome.facts.items():
            if key.startswith(TIMER):
                named = (_with_size(key.removeprefix(TIMER)), str(value))
                seen.setdefault(named, []).append(record.order.path.label)
    return tuple(
        f"{cell} takes {name} on {', '.join(dict.fromkeys(paths))}, "
        f"in {counted(len(paths), 'trial')}: that is the period of a timer, not a property of the path"
        for (cell, name), paths in sorted(seen.items())
    )


def _with_size(cell: str) -> str:
    """Return `latency of 64 KiB` for `latency.65536`, and `barrier` for `barrier.0`."""
    operation, _, size = cell.rpartition(".")
    row = OPERATIONS.get(operation)
    if not is_whole(size) or (row and not row.has_size):
        return operation
    return f"{operation} of {format_size(int(size))}"


def unlike_machines(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return a sentence for each fact of machines that differs between paths, and for paths whose nodes differ.

    Only paths with machines of their own get here with other values: all others must agree (`store.query`).
    """
    seen: dict[str, dict[str, list[str]]] = {fact: {} for fact in _TELLING}
    unlike: dict[str, list[str]] = {}
    for record in records:
        path, facts = record.order.path.name, record.outcome.facts
        for fact in _TELLING & facts.keys():
            if (value := str(facts[fact])) != "not offered":  # a virtual machine has no governor
                seen[fact].setdefault(value, []).append(path)
        differing = [*([str(facts[UNLIKE])] if UNLIKE in facts else []), *_unlike_ends(record)]
        if differing:
            unlike.setdefault(", ".join(differing), []).append(path)
    return (
        *(
            f"{fact} is {_on_paths(values)}: a ratio of paths is not that of the network alone"
            for fact, values in sorted(seen.items())
            if len({frozenset(paths) for paths in values.values()}) > 1  # a setting may change the governor of all
        ),
        *(f"the nodes of {', '.join(dict.fromkeys(paths))} differ in {facts}" for facts, paths in unlike.items()),
    )


def _unlike_ends(record: TrialRecord) -> list[str]:
    """Return the facts in which the interfaces of an existing path differ, such as their MTU."""
    facts = record.outcome.facts.items() if record.order.path.kind == "declared" else ()
    values = by_key((name, value) for key, value in facts if (name := of_any_interface(key)) != key)
    return sorted(name for name, all_of_it in values.items() if len(set(all_of_it)) > 1)


def unlike_files(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return a sentence for each note on imported files of a workload that is not on those of every path."""
    notes = by_key(
        ((record.order.workload.label, note), record.order.path.name)
        for record in records
        for note in str(record.outcome.facts.get(IMPORTED_NOTES, "")).split("; ")
        if note
    )
    paths = by_key((record.order.workload.label, record.order.path.name) for record in records)
    return tuple(
        f"{workload}, the files of {', '.join(dict.fromkeys(of))} alone: {note}"
        for (workload, note), of in notes.items()
        if set(of) != set(paths[workload])
    )


def one_computer(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return a sentence for existing paths between machines that are fewer computers than they have names."""
    paths = dict.fromkeys(one.order.path.name for one in records if _share_a_computer(one))
    shared = "share a computer: its processors serve the ranks of both, and no cable is between"
    return (f"nodes of {', '.join(paths)} {shared}",) if paths else ()


def _share_a_computer(record: TrialRecord) -> bool:
    facts = record.outcome.facts
    computers, machines = facts.get(COMPUTERS), sum(name.startswith("machine.") for name in facts)
    return record.order.path.kind == "declared" and isinstance(computers, int) and computers < machines


def _on_paths(values: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{value} on {', '.join(dict.fromkeys(paths))}" for value, paths in values.items())


def on_a_node(records: Sequence[TrialRecord]) -> Iterator[str]:
    """Yield a sentence for each workload all of whose ranks, or some of whose pairs, were on one node of a network.

    A study that asks for such pairs is refused; older runs have them.
    """
    for label in dict.fromkeys(record.order.workload.label for record in records if _pairs_share_a_node(record)):
        yield f"pairs of ranks of {label} were on one node: their messages did not take the path"
    packed = by_key(
        (record.order.workload.label, record.order.path.name)
        for record in records
        if len(set(record.order.workload.placement)) == 1 and record.outcome.proof.moved_packets
    )
    for label, paths in packed.items():
        crossed = ", ".join(dict.fromkeys(paths))
        yield f"all ranks of {label} were on one node: no message crossed {crossed}; its figures are of that node alone"


def _pairs_share_a_node(record: TrialRecord) -> bool:
    workload = record.order.workload
    operation = OPERATIONS.get(str(workload.options.get("operation"))) if workload.kind == "engine" else None
    return operation is not None and operation.even_ranks and workload.halves_share_a_node


def _joined(values: Iterable[str] | None) -> str | None:
    return " / ".join(sorted(values)) if values is not None else None


def count_of(record: TrialRecord, pattern: str) -> int:
    """Return the sum of a trial's counters whose whole names match."""
    return _sum_of(pattern)(record.outcome.counters)


def per_iteration(record: TrialRecord, pattern: str) -> float:
    """Return the same an iteration, warm-up included; 0 where nothing was counted over."""
    iterations = _iterations(record)
    return count_of(record, pattern) / iterations if iterations else 0.0


def _sum_of(pattern: str) -> Callable[[Mapping[str, int]], int]:
    wanted = lru_cache(maxsize=4096)(re.compile(pattern).fullmatch)  # trials of a run have the same names
    return lambda counters: sum(count for name, count in counters.items() if wanted(name))


_PER_ITERATION: tuple[tuple[str, Callable[[Mapping[str, int]], int]], ...] = (
    ("context switches", _sum_of(r"sched\.context_switches")),
    ("NET_RX softirqs", _sum_of(r"softirq\.NET_RX")),
    ("NET_TX softirqs", _sum_of(r"softirq\.NET_TX")),
    ("device interrupts", _sum_of(r"irq\.\d+.*")),
    ("all interrupts", _sum_of(r"irq\.(?!TLB$).+")),  # shootdowns of TLBs are among the function calls (CAL) already
    ("packets received on the nodes", _sum_of(r"link\..+\.rx_packets")),
    ("KVM exits", _sum_of(r"kvm\.exits")),
    ("KVM exits to device registers (MMIO)", _sum_of(r"kvm\.mmio_exits")),
    ("KVM exits to I/O ports", _sum_of(r"kvm\.io_exits")),
    ("KVM exits for the host's interrupts", _sum_of(r"kvm\.irq_exits")),
    ("halts of guests", _sum_of(r"kvm\.halt_exits")),
    ("interrupts injected into guests", _sum_of(r"kvm\.irq_injections")),
)
_PER_LAUNCH: tuple[tuple[str, str, Callable[[Mapping[str, int]], int]], ...] = (
    ("moves of ranks between processors", "per launch", _sum_of(r"sched\.migrations")),
    ("TCP segments retransmitted", "per launch", _sum_of(r"tcp\..+\.RetransSegs")),
    ("TCP timeouts", "per launch", _sum_of(r"tcp\..+\.TCPTimeouts")),
    (
        "packets dropped or damaged by interfaces (by queues: not counted)",
        "per launch",
        _sum_of(r"link\..+_(dropped|errors)"),
    ),
    (
        "RDMA packets sent again, late or refused",
        "per launch",
        _sum_of(r"rdma\..+_(err|errors|discards|sequence|request)"),
    ),
    ("CPU time in interrupts and softirqs", "ticks per launch", _sum_of(r"cpu\.(irq|softirq)")),
    ("CPU time stolen by a hypervisor", "ticks per launch", _sum_of(r"cpu\.steal")),
)


def counter_rows(records: Sequence[TrialRecord], paths: Sequence[PathEntry]) -> tuple[FactRow, ...]:
    """Return counters by path: the median over launches, per iteration of each workload (with warm-up) or per launch.

    Trials of the baseline are those under both its names, as of its levels.
    Those of an iteration stand apart for each setting, too: knobs change them. What a tool counts itself is the median
    over the trials of each workload that has it: in another's it is not 0, but unknown. Workloads that share launches
    share a row, and a launch of theirs counts once.

    Counters are read around the whole launch, so start and end of the MPI job are part of them.
    """
    by_path = {
        path.label: [record for record in records if record.order.path.name == path.label]
        for path in paths
        if not path.again
    }
    kinds = {(launched_of(record), record.order.setting) for record in records}
    settings = {setting for _, setting in kinds}
    workloads = {record.order.workload.label for record in records}
    rows = [
        FactRow(
            name,
            "per iteration"
            + (f" of {workload}" if len(workloads) > 1 else "")
            + (f" under {setting}" if len(settings) > 1 else ""),
            tuple(_median_of(_of(mine, workload, setting), count, _iterations) for mine in by_path.values()),
        )
        for workload, setting in sorted(kinds)
        for name, count in _PER_ITERATION
    ]
    rows += [
        FactRow(name, unit, tuple(_median_of(_launches(mine), count, lambda _: 1) for mine in by_path.values()))
        for name, unit, count in _PER_LAUNCH
    ]
    rows += [
        FactRow(
            name,
            unit + (f" of {workload}" if len(workloads) > 1 else ""),
            tuple(_median_counter(mine, workload, key) for mine in by_path.values()),
        )
        for workload in sorted(workloads)
        for name, unit, key in _OF_A_TOOL
    ]
    return tuple(row for row in rows if any(row.values))


def _launches(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return one trial of each launch, which may have been for several workloads."""
    keys = ((one.order.block, one.order.path.label, one.order.setting, launched_of(one)) for one in records)
    return list(dict(zip(keys, records, strict=True)).values())


def _of(records: Sequence[TrialRecord], launched: str, setting: str) -> list[TrialRecord]:
    return [one for one in records if (launched_of(one), one.order.setting) == (launched, setting)]


def _median_of(
    records: Sequence[TrialRecord], count: Callable[[Mapping[str, int]], int], per: Callable[[TrialRecord], int]
) -> float | None:
    """Return the median over trials, None where no trial recorded counters."""
    figures = [count(r.outcome.counters) / per(r) for r in records if r.outcome.counters and per(r)]
    return median(figures) if figures else None


def _median_counter(records: Sequence[TrialRecord], workload: str, key: str) -> float | None:
    """Return the median over the trials of a workload that have a counter, None where none has."""
    mine = (record for record in records if record.order.workload.label == workload)
    values = [counters[key] for record in mine if key in (counters := record.outcome.counters)]
    return median(values) if values else None


def _iterations(record: TrialRecord) -> int:
    """Return how many iterations were counted over: as the tool says, where its samples leave some out."""
    cells = (cell for cell in record.cells if not cell.operation.endswith(_OF_THE_SAME))
    return record.outcome.counters.get("tool.iterations") or sum(cell.iterations for cell in cells)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Shares of the processors' time during a launch, from 0 to 1; `names` are the other programs, the busiest first.

    `others` is a lower bound: processes that came or went during the launch are not in it.
    """

    others: float
    stolen: float
    names: tuple[str, ...]

    @property
    def why(self) -> str:
        """Return what took the processors; empty where it is within the limits."""
        found = []
        if self.others > BUSY_SHARE:
            found.append(f"{', '.join(self.names)} used {as_percent(self.others)} of the processors")
        if self.stolen > STOLEN_SHARE:
            found.append(f"the hypervisor gave {as_percent(self.stolen)} of the processors' time to others")
        return " and ".join(found)


def disturbed(counters: Mapping[str, int]) -> Disturbance:
    """Return what a trial's counters show; zeros where they show nothing, or the launch was too short."""
    total = sum(count for name, count in counters.items() if name.startswith(_CPU))
    others = {name.removeprefix(OTHERS): ticks for name, ticks in counters.items() if name.startswith(OTHERS)}
    if total < _FEWEST_TICKS:
        return Disturbance(0.0, 0.0, ())
    names = tuple(sorted(others, key=lambda name: (-others[name], name)))
    return Disturbance(min(1.0, sum(others.values()) / total), counters.get(_STEAL, 0) / total, names)


def mostly_disturbed(records: Sequence[TrialRecord]) -> bool:
    """Return whether more than half of a run's launches were disturbed."""
    return 2 * sum(bool(disturbed(record.outcome.counters).why) for record in records) > len(records)


def disturbed_launches(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return a sentence on how many of a run's launches were disturbed, and how the worst was; none where none was."""
    found = [disturbed(one.outcome.counters) for one in _launches(records)]
    busy = [one for one in found if one.why]
    if not busy:
        return ()
    worst = max(busy, key=lambda one: one.others + one.stolen)
    return (f"{len(busy)} of {len(found)} launches ran on a busy machine; in the worst of them {worst.why}",)
