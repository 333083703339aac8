from collections.abc import Sequence

from numpy import int64, uint32
from numpy.typing import NDArray

class ModerationSetting:
    kind: int
    usecs: int
    frames: int
    rate_low: int
    rate_high: int
    usecs_low: int
    usecs_high: int
    rings: int
    link_mbps: int
    emulated: bool
    def __init__(self) -> None: ...

class StageSetting:
    moderation: ModerationSetting
    delivery_ps: int
    delivery_tail: int
    poll_ps: int
    packet_ps: int
    weight: int
    budget: int
    budget_ps: int
    ksoftirqd_ps: int
    defer_count: int
    defer_ps: int
    packet_gap_ps: int
    header_bytes: int
    message_header_bytes: int
    acknowledged: bool
    def __init__(self) -> None: ...

class Machine:
    port_fs_per_byte: int
    port_gap_ps: int
    topology: int
    nodes_per_leaf: int
    leaves_per_group: int
    hop_ps: int
    has_stage: bool
    stage: StageSetting
    packet_bytes: int
    srq_buffers: int
    srq_low: int
    srq_refill_ps: int
    srq_retry_ps: int
    blocking: bool
    spin_ps: int
    wakeup_ps: int
    wakeup_tail: int
    async_progress: bool
    reduce_fs_per_byte: int
    compute_scale: float
    cores: int
    one_computer: bool
    share_by_domain: bool
    uneven_share: float
    way_is_work: bool
    slice_ps: int
    switch_ps: int
    lead_ps: int
    look_ps: int
    collectives: int
    by_nodes: bool
    def add_segment(
        self,
        pair: int,
        up_to_bytes: int,
        latency_ps: int,
        send_overhead_ps: int,
        recv_overhead_ps: int,
        gap_ps: int,
        latency_fs_per_byte: int,
        fs_per_byte: int,
        tail: int = 0,
        overhead_fs_per_byte: int = 0,
    ) -> None: ...
    def set_path(self, pair: int, eager_up_to_bytes: int, copy_fs_per_byte: int, fetched: bool, /) -> None: ...
    def set_single_copy(self, pair: int, up_to_bytes: int, fs_per_byte: int, /) -> None: ...
    def add_cold_point(self, pair: int, computed_ps: int, extra_ps: int, /) -> None: ...
    def add_send_work_point(self, pair: int, message_bytes: int, ps: int, /) -> None: ...
    def add_receive_work_point(self, pair: int, message_bytes: int, ps: int, /) -> None: ...
    def add_crossing_point(self, pair: int, message_bytes: int, ps: int, /) -> None: ...
    def add_trailing_point(self, pair: int, message_bytes: int, ps: int, /) -> None: ...
    def add_work_point(self, pair: int, message_bytes: int, ps: int, /) -> None: ...
    def add_collective_point(self, collective: int, size_bytes: int, table: int, /) -> None: ...

class Program:
    code: list[int]
    gaps: list[int]
    slot_sets: Sequence[Sequence[int]]
    size_lists: Sequence[Sequence[int]]
    dims: Sequence[int]
    periods: Sequence[int]
    slots: int
    def __init__(self) -> None: ...
    def add_comm(
        self,
        context: int,
        members: Sequence[int],
        my_rank: int,
        stride: int,
        size: int,
        dims: Sequence[int],
        periods: Sequence[int],
    ) -> int: ...
    def add_op(
        self,
        kind: int,
        flags: int = 0,
        comm: int = 0,
        rule: int = 0,
        peer: int = -1,
        tag: int = 0,
        bytes: int = 0,  # noqa: A002
        recv_rule: int = 0,
        recv_peer: int = -1,
        recv_tag: int = 0,
        slot: int = 0,
        slots: int = 0,
        collective: int = 0,
        sizes: int = ...,
        recv_sizes: int = ...,
    ) -> int: ...

class Stuck:
    rank: int
    op: int
    peer: int
    tag: int
    bytes: int

class Result:
    outcome: int
    makespan_ps: int
    messages: int
    inter_messages: int
    bytes: int
    inter_bytes: int
    events: int
    interrupts: int
    collectives_as_measured: int
    compute_ps: int
    overhead_ps: int
    finish_ps: list[int]
    def marks(self) -> NDArray[int64]: ...
    stuck: list[Stuck]
    stuck_count: int

class Job:
    machine: Machine
    ranks: int
    def __init__(self) -> None: ...
    def add_program(self, program: Program, /) -> int: ...
    def set_program_of(self, program_of: NDArray[uint32], /) -> None: ...
    def place(self, host_of: NDArray[uint32], domain_of: NDArray[uint32], /) -> None: ...
    def add_order(self, value_ps: NDArray[int64]) -> int: ...
    def add_table(self, probability: list[int], value_ps: list[int]) -> int: ...
    def seal(self) -> None: ...

def simulate(
    job: Job,
    seed: int,
    first_replica: int,
    replicas: int,
    threads: int,
    keep: bool,
    max_steps: int = ...,
    max_bytes: int = ...,
) -> list[Result]: ...
def run_stage(
    setting: StageSetting,
    time_ps: NDArray[int64],
    frames: NDArray[uint32],
    bytes: NDArray[int64],  # noqa: A002
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]: ...
def expand_collective(
    choice: int,
    collective: int,
    size: int,
    rank: int,
    root: int,
    bytes: int,  # noqa: A002
    vector: bool = False,
    sizes: Sequence[int] = (),
    recv_sizes: Sequence[int] = (),
    dims: Sequence[int] = (),
    periods: Sequence[int] = (),
    nonblocking: bool = False,
    nodes: Sequence[int] = (),
) -> list[tuple[int, int, int, bool]]: ...
def philox(counter: list[int], key: int) -> list[int]: ...
