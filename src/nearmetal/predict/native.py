"""Schedules and machines as the C++ simulator takes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError
from nearmetal.predict import _sim
from nearmetal.predict.models import (
    MPIS,
    UNBOUNDED,
    Distribution,
    Machine,
    MeasuredCollective,
    PathModel,
    Recorded,
    Segment,
)
from nearmetal.predict.moderation import ModerationSetting, StageSetting
from nearmetal.predict.schedule import Collective, Op, Program, Schedule, encode_steps

_ONE = 1 << 32
_MOST_RANKS = (1 << 31) - 1
TO_ONESELF = PathModel((Segment(UNBOUNDED, 0, 200_000, 200_000, 0, 100_000, 100_000),))
"""Assumed for messages of a rank to itself where no path inside a node was measured: 0.4 us and a copy at 10 GB/s."""


def to_oneself(intra: PathModel | None) -> PathModel:
    """Return the path of messages of a rank to itself: inside a node, without the waits for another rank's turn.

    Where both ends shared a processor, what a message took beyond their work for it, if that is known, was such a wait.
    Above the eager limit there is also the work for a request and two answers.
    """
    if intra is None or not intra.one_processor or not any(one.send_overhead_ps for one in intra.segments):
        return intra or TO_ONESELF
    small = intra.segments[0]

    def work(one: Segment) -> Segment:
        asks = one.up_to_bytes > intra.eager_up_to_bytes
        return replace(
            one,
            latency_ps=0,
            latency_fs_per_byte=0,
            residual=None,
            send_overhead_ps=one.send_overhead_ps + asks * small.send_overhead_ps,
            recv_overhead_ps=one.recv_overhead_ps + 2 * asks * small.recv_overhead_ps,
        )

    return replace(intra, segments=tuple(map(work, intra.segments)), eager_up_to_bytes=UNBOUNDED, fetched=False)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where ranks run: `host_of[r]` is the node of rank r, `domain_of[r]` its guest or virtual function.

    Domains are numbered over all hosts; ranks of one domain share memory, a receive ring and its interrupts.
    """

    host_of: NDArray[np.uint32]
    domain_of: NDArray[np.uint32]

    @classmethod
    def block(cls, ranks: int, ranks_per_host: int, domains_per_host: int = 1) -> Placement:
        """Return consecutive ranks on each host, and consecutive shares of them in each domain."""
        if not 1 <= domains_per_host <= ranks_per_host <= _MOST_RANKS or ranks_per_host % domains_per_host:
            text = f"{ranks_per_host} ranks on a host cannot be split over {domains_per_host} domains"
            raise BadInputError(text, hint=f"each must have the same number, at most {_MOST_RANKS}")
        rank = np.arange(ranks, dtype=np.uint32)
        share = np.uint32(ranks_per_host // domains_per_host)
        return cls(rank // np.uint32(ranks_per_host), rank // share)

    @classmethod
    def of_hosts(cls, host_of: NDArray[np.uint32]) -> Placement:
        """Return a placement with one domain a host."""
        host = np.ascontiguousarray(host_of, np.uint32)
        return cls(host, host)


def native_moderation(setting: ModerationSetting) -> _sim.ModerationSetting:
    """Return the rule for the simulator."""
    native = _sim.ModerationSetting()
    for name in (one.name for one in fields(setting)):
        setattr(native, name, getattr(setting, name))
    return native


def native_stage(setting: StageSetting, delivery_tail: int = 0) -> _sim.StageSetting:
    """Return the stage for the simulator; `delivery_tail` is 1 + the table of what delivery varies by."""
    native = _sim.StageSetting()
    native.moderation = native_moderation(setting.moderation)
    for name in (one.name for one in fields(setting) if one.name != "moderation"):
        setattr(native, name, getattr(setting, name))
    native.delivery_tail = delivery_tail
    return native


def native_table(distribution: Distribution) -> tuple[list[int], list[int]]:
    """Return probabilities in units of 2^-32, strictly rising, and their values."""
    points: dict[int, int] = {}
    for probability, value in zip(distribution.probabilities, distribution.values_ps, strict=True):
        points[min(int(probability * _ONE), _ONE - 1)] = value
    return list(points), list(points.values())


def native_job(schedule: Schedule, machine: Machine, placement: Placement) -> _sim.Job:
    """Return a sealed job.

    Raise BadInputError when the placement is not one of the schedule's ranks, or a program is not well-formed.
    """
    if len(placement.host_of) != schedule.ranks or len(placement.domain_of) != schedule.ranks:
        text = f"the placement has {len(placement.host_of)} ranks, the program {schedule.ranks}"
        raise BadInputError(text, hint="give every rank a host")
    if machine.intra is None and len(np.unique(placement.domain_of)) < schedule.ranks:
        raise BadInputError(
            "the placement puts ranks into one node, and the model has no path for that",
            hint="measure the path `shm` in the same run, under every setting, or place one rank on each node",
        )
    try:
        return _sealed(schedule, machine, placement)
    except (ValueError, TypeError, OverflowError) as error:
        why = "a number is out of range" if isinstance(error, TypeError) else str(error)
        text = f"the simulator refuses {schedule.name or 'the program'}: {why}"
        raise BadInputError(text, hint="the trace or the model file is damaged; trace or fit again") from error


def collectives_of(machine: Machine, placement: Placement) -> tuple[MeasuredCollective, ...]:
    """Return the measured collectives that hold for a placement: as many ranks, which share nodes in the same way."""
    here = [one for one in machine.measured if len(one.nodes) == len(placement.host_of)]
    if not here:
        return ()
    hosts, domains = renumbered(placement.host_of), renumbered(placement.domain_of)
    return tuple(one for one in here if renumbered(one.nodes) == hosts == domains)


def renumbered(nodes: Iterable[int]) -> tuple[int, ...]:
    """Return the node of each rank with nodes numbered as ranks meet them, as in every order of the same nodes."""
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(int(node), len(seen)) for node in nodes)


def _sealed(schedule: Schedule, machine: Machine, placement: Placement) -> _sim.Job:
    job = _sim.Job()
    job.ranks = schedule.ranks
    first = [
        job.add_order(gap.values_ps()) if isinstance(gap, Recorded) else job.add_table(*native_table(gap))
        for gap in schedule.gaps
    ]
    job.machine = _machine(job, machine)
    for measured in collectives_of(machine, placement):
        for message_bytes, times_ps in measured.times_ps:
            table = job.add_table(*native_table(times_ps))
            job.machine.add_collective_point(Collective[measured.collective.upper()], message_bytes, table)
    own = {id(program): program for program in schedule.programs}  # ranks of a scaled trace share those traced
    for program in own.values():
        job.add_program(_program(program, first))
    if not schedule.shared:
        number = {at: index for index, at in enumerate(own)}
        job.set_program_of(np.array([number[id(program)] for program in schedule.programs], dtype=np.uint32))
    job.place(placement.host_of, placement.domain_of)
    job.seal()
    return job


def _machine(job: _sim.Job, machine: Machine) -> _sim.Machine:
    native = job.machine
    own = to_oneself(machine.intra)
    for pair, path in enumerate((machine.intra or own, machine.host or machine.inter, machine.inter, own)):
        _path(job, native, pair, path)
    native.port_fs_per_byte, native.port_gap_ps = machine.port_fs_per_byte, machine.port_gap_ps
    network = machine.network
    native.topology, native.hop_ps = int(network.topology), network.hop_ps
    native.nodes_per_leaf, native.leaves_per_group = network.nodes_per_leaf, network.leaves_per_group
    if machine.stage is not None:
        delivery = 1 + job.add_table(*native_table(machine.stage_delivery)) if machine.stage_delivery else 0
        native.has_stage, native.stage = True, native_stage(machine.stage, delivery)
    native.packet_bytes = machine.packet_bytes
    if machine.receive_queue is not None:
        queue = machine.receive_queue
        native.srq_buffers, native.srq_low = queue.buffers, queue.low
        native.srq_refill_ps, native.srq_retry_ps = queue.refill_ps, queue.retry_ps
    progress = machine.progress
    native.blocking, native.spin_ps, native.wakeup_ps = progress.blocking, progress.spin_ps, progress.wakeup_ps
    native.async_progress = progress.asynchronous
    native.reduce_fs_per_byte, native.compute_scale = machine.reduce_fs_per_byte, machine.compute_scale
    if machine.cores is not None:
        native.cores, native.one_computer = machine.cores.count, machine.cores.one_computer
        native.share_by_domain = machine.cores.shared_by_node
        native.uneven_share, native.way_is_work = machine.cores.uneven_share, machine.cores.way_is_work
        native.slice_ps, native.switch_ps = machine.cores.slice_ps, machine.cores.switch_ps
        native.look_ps = machine.cores.look_ps
        if machine.cores.lead_ps is not None:
            native.lead_ps = machine.cores.lead_ps
    native.collectives, native.by_nodes = MPIS.index(machine.collectives), machine.by_nodes
    return native


def _path(job: _sim.Job, native: _sim.Machine, pair: int, path: PathModel) -> None:
    for segment in path.segments:
        tail = 1 + job.add_table(*native_table(segment.residual)) if segment.residual else 0
        native.add_segment(
            pair,
            segment.up_to_bytes,
            segment.latency_ps,
            segment.send_overhead_ps,
            segment.recv_overhead_ps,
            segment.gap_ps,
            segment.latency_fs_per_byte,
            segment.fs_per_byte,
            tail,
            segment.overhead_fs_per_byte,
        )
    native.set_path(pair, path.eager_up_to_bytes, path.copy_fs_per_byte, path.fetched)
    native.set_single_copy(pair, *path.single_copy)
    for computed_ps, extra_ps in path.cold:
        native.add_cold_point(pair, computed_ps, extra_ps)
    for message_bytes, ps in path.works():
        native.add_work_point(pair, message_bytes, ps)
    for message_bytes, ps in path.send_work_ps:
        native.add_send_work_point(pair, message_bytes, ps)
    for message_bytes, ps in path.receive_work_ps:
        native.add_receive_work_point(pair, message_bytes, ps)
    for message_bytes, ps in path.crossing_ps:
        native.add_crossing_point(pair, message_bytes, ps)
    for message_bytes, ps in path.trailing_ps:
        native.add_trailing_point(pair, message_bytes, ps)


def _program(program: Program, tables: list[int]) -> _sim.Program:
    native = _sim.Program()
    for comm in program.comms:
        native.add_comm(comm.context, comm.members, comm.my_rank, comm.stride, comm.size, comm.dims, comm.periods)
    for op in program.ops:
        _op(native, op)
    native.gaps = [tables[gap] for gap in program.gaps]
    native.slot_sets, native.size_lists = program.slot_sets, program.size_lists
    native.dims, native.periods, native.slots = program.dims, program.periods, program.slots
    native.code = encode_steps(program.steps)
    return native


def _op(native: _sim.Program, op: Op) -> None:
    native.add_op(
        int(op.kind),
        flags=int(op.nonblocking) | int(op.synchronous) << 1 | int(op.vector) << 2,
        comm=op.comm,
        rule=int(op.rule),
        peer=op.peer,
        tag=op.tag,
        bytes=op.message_bytes,
        recv_rule=int(op.recv_rule),
        recv_peer=op.recv_peer,
        recv_tag=op.recv_tag,
        slot=op.slot,
        slots=op.slots,
        collective=int(op.collective),
        sizes=op.sizes,
        recv_sizes=op.recv_sizes,
    )
