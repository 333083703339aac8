"""A machine other than the measured one: guests on a host, processors, switches, interrupts, speed of its processors.

    nearmetal predict job.trace --on runs/mine --machine cluster.toml

A small TOML file; every key is an option of `nearmetal predict` and `place` too, which wins over the file:

    vms_per_host = 4                # guests on each host; they share its port and its processors
    cores = 32                      # processors of each host
    compute_scale = 0.8             # times of the trace's computing: below 1 for a faster processor
    topology = "fat-tree:16:4"      # flat, fat-tree:NODES_A_LEAF:LEAVES_A_GROUP or dragonfly:...
    hop = "300 ns"                  # each switch beyond the first
    interrupts = "igbvf:usecs=50"   # a rule of moderation that the samples do not contain, and its parameters
    delivery = "2 us"               # from the interrupt to the driver's first instruction
    stands_for = "default"          # the setting that it stands for, measured under another (`--as`)
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from nearmetal.errors import BadInputError
from nearmetal.predict.doubt import Doubt
from nearmetal.predict.doubts import SETTING
from nearmetal.predict.models import (
    PS_PER_NS,
    VIRTUAL_ANYWAY,
    Cores,
    Machine,
    NamedMachine,
    Network,
    PathModel,
    Topology,
)
from nearmetal.predict.moderation import PS_PER_US, Moderation, ModerationSetting, StageSetting
from nearmetal.predict.native import Placement
from nearmetal.predict.wire import BETWEEN_BYTES, HEADER_BYTES, PACKET_BYTES
from nearmetal.study.spec import read_table, read_toml
from nearmetal.units import counted, is_whole, parse_duration_ns

_MOST = (1 << 31) - 1
_FS_PER_PS = 1000
_PATH = "over"
_UNMODERATED = re.compile(r"\brx[-_]usecs = 0(,|$)")
_MODERATED_PORT = re.compile(r", rx_usecs = \d+")
"""A path's option for the ports beneath it, in the words of `conditions.conditions_of`."""

_Count = Annotated[int, Field(strict=True, ge=1, le=_MOST)] | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs from the measured machine; the module says what each key means. None and "": as measured."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    vms_per_host: _Count = None
    cores: _Count = None
    compute_scale: Annotated[float, Field(strict=True, gt=0, le=1000, allow_inf_nan=False)] = 1.0
    topology: str = ""
    hop: str = ""
    interrupts: str = ""
    delivery: str = ""
    stands_for: str = ""

    def __post_init__(self) -> None:
        switches = self.topology.partition(":")[0] in {"fat-tree", "dragonfly"}
        no_switches = not switches and self.topology in {"", "flat"}
        for option, has_no_effect, other in (
            ("--topology", switches and not self.hop, "--hop, the time of each switch beyond the first"),
            ("--hop", self.hop and no_switches, "--topology, such as fat-tree:16:4"),
            ("--delivery", self.delivery and not self.interrupts, "--interrupts"),
            ("--as", self.stands_for and not self.interrupts, "--interrupts"),
        ):
            if has_no_effect:
                raise BadInputError(f"{option} has no effect without {other}", hint="give both, or neither")

    def placement(self, ranks: int, per_node: int, named: NamedMachine) -> Placement:
        """Return consecutive ranks on each node, and consecutive nodes on each host.

        Bare metal has no guests: there a host is one node, where the run shows how messages travel inside one.
        """
        guests = self.vms_per_host or 1
        return Placement.block(ranks, per_node * guests, guests if self._has_guests(named) else 1)

    def apply(self, named: NamedMachine) -> NamedMachine:
        """Return the machine, and those of its launches, as changed."""
        if self.stands_for:
            others = ((how, words) for how, words in named.conditions if how != SETTING)
            still = tuple((how, _MODERATED_PORT.sub("", words) if how == _PATH else words) for how, words in others)
            named = replace(named, setting=self.stands_for, conditions=still)
        return replace(
            named,
            machine=self._changed(named.machine, named),
            launches=tuple(self._changed(one, named) for one in named.launches),
        )

    def doubts(self, named: NamedMachine) -> Iterator[Doubt]:
        """Say what the changes make doubtful about figures of that machine."""
        cores = named.machine.cores
        if (self.vms_per_host or self.cores) and cores and cores.one_computer:
            text = f"the paths were measured on nodes that share {counted(cores.count, 'processor')} of one computer"
            text += ": their times include waiting for a processor, which may not occur on the target machine"
            yield Doubt(text, "measure on nodes with processors of their own", 1.0)
        if not self.cores and cores and (guests := self._guests_measured(named)) > 1:
            text = f"the nodes are virtual machines of {counted(cores.count, 'processor')}, and how many a host has is "
            text += f"not known: taken as {guests * cores.count} for {guests} guests"
            yield Doubt(text, "give the processors of each host: --cores", 1.0)
        if self.hop:
            text = f"switches are taken from {self.topology} with {self.hop} for each beyond the first: they were not "
            text += "measured, and messages are assumed not to wait for each other in them"
            yield Doubt(text, "compare it with launches on as many nodes: --validate RUN", 1.0)
        if self.stands_for:
            text = f"{self.stands_for} is {named.setting} with {self.interrupts}, not fitted from samples of its own"
            yield Doubt(text, "compare it with launches under it: --validate RUN", 1.0)
        unmoderated = any(how in (SETTING, _PATH) and _UNMODERATED.search(words) for how, words in named.conditions)
        if self.interrupts and named.machine.inter.fit is not None and not unmoderated:
            text = "the interrupt stage is added to the interrupts that the samples already contain"
            yield Doubt(text, "measure a setting without moderation, and predict on that", 1.0)
        if self.interrupts and "emulated" not in self.interrupts and self._stage(named).moderation.emulated:
            text = "the paths were measured in QEMU 10.0, whose moderation lasts four times as long as hardware's"
            text += ", and that is replayed"
            yield Doubt(text, "add emulated=0 to the rule for hardware", 1.0)
        if self.interrupts and not self._stage(named).packet_gap_ps:
            text = "all packets of a message are assumed to arrive at once, because the run lacks the rate of the path"
            yield Doubt(text, "measure the operation `bw` too", 1.0)

    def _changed(self, machine: Machine, named: NamedMachine) -> Machine:
        if self.topology or self.hop or self.interrupts or self.vms_per_host or self.cores:
            machine = replace(machine, measured=())  # collectives were measured without the change
        if self.topology or self.hop:
            machine = replace(machine, network=self._network())
        if self.interrupts:
            machine = replace(machine, stage=self._stage(named), packet_bytes=machine.packet_bytes or PACKET_BYTES)
            machine = replace(machine, inter=_fewer_interrupts(machine.inter))
        if self.vms_per_host or self.cores:
            count = self.cores or (machine.cores.count if machine.cores else 0) * self._guests_measured(named)
            if count == 0:
                text = f"the run does not say how many processors a host has ({named.host or 'an older model file'})"
                raise BadInputError(text, hint="give it with --cores")
            lead_ps = machine.cores.lead_ps if machine.cores and count == machine.cores.count == 1 else None
            machine = replace(machine, cores=Cores(count, shared_by_node=self._has_guests(named), lead_ps=lead_ps))
        return replace(machine, compute_scale=machine.compute_scale * self.compute_scale)

    def _has_guests(self, named: NamedMachine) -> bool:
        """Return whether the nodes of a path are guests that share a host."""
        return (self.vms_per_host or 1) > 1 and not (named.bare and named.machine.intra is not None)

    def _guests_measured(self, named: NamedMachine) -> int:
        """Return how many times the processors of a node a host has: those of a guest are not all that its host has."""
        return (self.vms_per_host or 1) if named.virtual and named.host not in VIRTUAL_ANYWAY else 1

    def _stage(self, named: NamedMachine) -> StageSetting:
        """Return the receive side: packets of TCP, on the lab's wire or at the link's rate, or as fast as streams."""
        rule, told = parse_moderation(self.interrupts), dict(named.conditions)
        if rule.kind in _REGISTERS and "emulated" not in self.interrupts:
            rule = replace(rule, emulated=_is_emulated(told.get("in QEMU", "?" if named.host == "lab" else "")))
        wire = re.search(r"rate_mbit = ([\d.]+)", told.get("on the wire", ""))  # of the lab: it may be slower
        link = min(rule.link_mbps, float(wire[1]) if wire else rule.link_mbps) if rule.kind in _REGISTERS else 0
        slope_fs = named.machine.inter.segments[-1].fs_per_byte
        return StageSetting(
            rule,
            delivery_ps=_duration_ps("--delivery", self.delivery) if self.delivery else 0,
            packet_gap_ps=(PACKET_BYTES + HEADER_BYTES + BETWEEN_BYTES)
            * (round(8 * PS_PER_US / link) if link else slope_fs // _FS_PER_PS),
            header_bytes=HEADER_BYTES,
            message_header_bytes=_MPI_HEADER_BYTES.get(named.mpi.partition(" ")[0], 0),
            acknowledged=True,
        )

    def _network(self) -> Network:
        name, *counts = self.topology.split(":")
        known = {topology.name.lower().replace("_", "-"): topology for topology in Topology}
        kind = known.get(name or "flat")
        needed = 0 if kind is Topology.FLAT else 2
        if kind is None or len(counts) != needed or not all(is_whole(one, _MOST) and int(one) for one in counts):
            raise BadInputError(
                f"{self.topology!r} is not a topology",
                hint="flat, or fat-tree or dragonfly with nodes per leaf, leaves per group: fat-tree:16:4 with --hop",
            )
        leaf, group = map(int, counts or (1, 1))
        return Network(kind, leaf, group, _duration_ps("--hop", self.hop or "0 ns"))


def _duration_ps(option: str, text: str) -> int:
    try:
        return parse_duration_ns(text) * PS_PER_NS
    except BadInputError as error:
        raise BadInputError(f"{option}: {error.message}", hint=error.hint) from error


def _fewer_interrupts(path: PathModel) -> PathModel:
    """Return a path whose messages take nothing of a computing process and are copied as in its fastest streams.

    An interrupt that waits finds many packets, and acknowledgements among them; the process copies them afterwards.
    """
    path = replace(path, crossing_ps=(), trailing_ps=(), send_work_ps=(), receive_work_ps=())
    if not path.work_ps:
        return path
    copy_fs = path.moderated_copy_fs_per_byte or path.copy_fs_per_byte
    single_bytes, single_fs = path.single_copy
    return replace(path, work_ps=(), copy_fs_per_byte=copy_fs, single_copy=(single_bytes, min(single_fs, copy_fs)))


def _moderation_of(named: NamedMachine) -> list[tuple[str, str]]:
    """Return the conditions that say how the ports of a path were moderated."""
    return [(how, words) for how, words in named.conditions if how in (SETTING, _PATH)]


def learn_copying(named: NamedMachine, moderated: Sequence[NamedMachine]) -> NamedMachine:
    """Return a machine that, by a rule of moderation, copies as quickly as its path did in another run.

    Each interrupt finds more packets under moderation, which may save work. A run whose settings include it tells that
    by itself. Raises BadInputError where the other run does not tell, and where it would change nothing.
    """
    if not named.machine.inter.work_ps:
        text = f"--moderated has no effect on {named.name}: how long processors work for a byte is not known there"
        raise BadInputError(text, hint="it is known of nodes with a processor and a wire of their own, as in the lab")
    there = [one for one in moderated if (one.path, one.progress) == (named.path, named.progress)]
    if not there:
        has = f"it has {', '.join(sorted({f'{one.path} ({one.progress})' for one in moderated}))}"
        raise BadInputError(f"--moderated: the run has no path {named.path} ({named.progress})", hint=has)
    for what in ("kind", "mpi", "host", "virtual"):
        here, others = getattr(named, what), {getattr(one, what) for one in there}
        if others != {here}:
            text = f"--moderated: path {named.path} is not the same there: {what} {here!r} here, {others.pop()!r} there"
            raise BadInputError(text, hint="measure it there as here, but for the moderation")
    if named.conditions and all(_moderation_of(one) == _moderation_of(named) for one in there):
        text = f"--moderated: path {named.path} was measured there under the same setting as here"
        raise BadInputError(text, hint="name the run with moderation, and with --on the one without")
    told_fs = [one.machine.inter.copy_fs_per_byte for one in there if one.machine.inter.copy_fs_per_byte]
    if not told_fs:
        text = f"--moderated: no streams of path {named.path} were measured there in both directions"
        raise BadInputError(text, hint="measure the operations `bw` and `bibw`")

    def learnt(machine: Machine) -> Machine:
        own_fs = machine.inter.moderated_copy_fs_per_byte or machine.inter.copy_fs_per_byte
        return replace(machine, inter=replace(machine.inter, moderated_copy_fs_per_byte=min(own_fs, *told_fs)))

    return replace(named, machine=learnt(named.machine), launches=tuple(map(learnt, named.launches)))


_REGISTERS = (Moderation.IGB_QUEUE, Moderation.IGB_SHARED, Moderation.IGBVF)
"""Rules of drivers whose device may be QEMU's, of at most 1 Gbit/s."""
_MPI_HEADER_BYTES = {"openmpi": 24}
"""Before each message; of others it is not known."""
_MLX4 = frozenset({"rate_low", "rate_high", "usecs_low", "usecs_high", "rings"})
_PARAMETERS: dict[Moderation, tuple[frozenset[str], frozenset[str]]] = {
    Moderation.OFF: (frozenset(), frozenset()),
    **{rule: (frozenset({"usecs", "frames"}), frozenset()) for rule in (Moderation.FIXED_EQE, Moderation.FIXED_CQE)},
    Moderation.MLX4: (frozenset({"frames"}), _MLX4),
    **{rule: (frozenset(), frozenset()) for rule in (Moderation.DIM_EQE, Moderation.DIM_CQE)},
    **{rule: (frozenset({"usecs"}), frozenset({"link_mbps", "emulated"})) for rule in _REGISTERS},
    Moderation.IXGBEVF: (frozenset({"usecs"}), frozenset()),
}
"""What a rule needs and what else it takes; without `frames` the first completion would interrupt, whatever `usecs`."""


def parse_moderation(text: str) -> ModerationSetting:
    """Read `igbvf:usecs=50` or `fixed-eqe:usecs=20,frames=32`; raise BadInputError for what no driver knows."""
    name, _, rest = text.partition(":")
    rules = {rule.name.lower().replace("_", "-"): rule for rule in Moderation}
    parts = [part.partition("=")[::2] for part in rest.split(",") if part]
    given = dict(parts)
    if name not in rules or len(given) < len(parts) or not all(is_whole(value, _MOST) for value in given.values()):
        message = f"{text!r} is not a rule of moderation"
        raise BadInputError(message, hint=f"one of {', '.join(rules)}, such as fixed-eqe:usecs=20,frames=32")
    needed, further = _PARAMETERS[rules[name]]
    if not needed <= given.keys() <= needed | further:
        takes = f"needs {', '.join(sorted(needed))}" if needed else "takes no parameters"
        takes += f" and takes {', '.join(sorted(further))}" if further else ""
        told = f", not {', '.join(sorted(given))}" if given else ""
        spelled = f"{name}{':' * bool(needed)}{','.join(f'{one}=N' for one in sorted(needed))}"
        hint = f"write --interrupts {spelled}; docs/explanation/prediction.md lists the rules"
        raise BadInputError(f"the rule {name} {takes}{told}", hint=hint)
    values = {key: int(value) for key, value in given.items()}
    emulated = values.pop("emulated", 0)
    if emulated > 1 or values.get("link_mbps") == 0:
        raise BadInputError(f"{text!r} fits no device", hint="emulated is 0 or 1, and link_mbps from 1 up")
    return ModerationSetting(rules[name], emulated=bool(emulated), **values)


def _is_emulated(version: str) -> bool:
    """Return whether registers of moderation count as in QEMU 10.0; raise BadInputError where that is not known."""
    if version and not version.startswith("10.0."):
        raise BadInputError(
            f"it is not known how long moderation lasts in QEMU {version}, on which the run was made",
            hint="add emulated=1 to the rule for moderation as in QEMU 10.0, or emulated=0 as in hardware",
        )
    return bool(version)


def read_changes(path: Path | None, **options: float | str | None) -> Changes:
    """Return the keys of a machine file, overridden by options that are not None; raise BadInputError for others."""
    hint = f"a machine file can set {', '.join(one.name for one in fields(Changes))}"
    table = read_toml(path, "a machine file", hint) if path else {}
    if path and not table:
        raise BadInputError(f"{path} sets nothing that differs from the measured machine", hint=hint)
    table |= {key: value for key, value in options.items() if value is not None}
    return read_table(Changes, table, str(path or "the machine"), hint)
