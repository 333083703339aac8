"""Settings of the receive side of a virtual function: interrupt moderation, delivery and NAPI.

`native/sim/moderation.cpp` and `native/sim/interrupt_stage.cpp` say what they do; a twin in plain Python is part of the
tests, which compare the two step by step. Times are picoseconds of the simulation, settings in the unit of the driver.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from nearmetal.errors import BadInputError

PS_PER_US = 1_000_000


class Moderation(IntEnum):
    """Rules for the next interrupt; the numbers are those of the C++ `ModerationKind`."""

    OFF = 0
    FIXED_EQE = 1
    FIXED_CQE = 2
    MLX4 = 3
    DIM_EQE = 4
    DIM_CQE = 5
    IGB_QUEUE = 6
    IGB_SHARED = 7
    IGBVF = 8
    IXGBEVF = 9

    @property
    def throttles(self) -> bool:
        """Whether it keeps a gap between interrupts instead of delaying the first."""
        return self >= Moderation.IGB_QUEUE


@dataclass(frozen=True, slots=True)
class ModerationSetting:
    """A rule and its parameters, as `ethtool -C` or the driver knows them.

    `usecs` and `frames` belong to the fixed rules; for igb, igbvf and ixgbevf `usecs` is the rx-usecs setting with
    its special values; `frames` also to mlx4. The rates (packets per second), `usecs_low`, `usecs_high` and `rings`
    belong to mlx4, `link_mbps` to igb and igbvf. `emulated` is for igb and igbvf: the device is that of QEMU 10.0
    (hw/net/igb_core.c), in which a unit of the register that the driver writes lasts 1,024 ns, not 250, and an
    interrupt that waited for the timer does not start it again.

    Raises BadInputError for settings that no driver takes, or that would never interrupt.
    """

    kind: Moderation = Moderation.OFF
    usecs: int = 0
    frames: int = 1
    rate_low: int = 400_000
    rate_high: int = 450_000
    usecs_low: int = 0
    usecs_high: int = 128
    rings: int = 1
    link_mbps: int = 1000
    emulated: bool = False

    def __post_init__(self) -> None:
        if self.kind in {Moderation.FIXED_EQE, Moderation.FIXED_CQE} and self.usecs == 0 and self.frames == 0:
            text = "usecs 0 with frames 0 would never interrupt"
            raise BadInputError(text, hint="no moderation is written as usecs 0, frames 1")
        if self.kind is Moderation.MLX4 and (
            self.usecs_low > self.usecs_high or self.rate_low >= self.rate_high or self.rings < 1
        ):
            raise BadInputError(
                f"mlx4 adaptive moderation of {self.usecs_low}..{self.usecs_high} us between {self.rate_low} and "
                f"{self.rate_high} packets/s on {self.rings} rings",
                hint="low must be below high; the driver does not check this and would wrap around",
            )
        if self.kind.throttles:
            legal = {
                Moderation.IGB_QUEUE: self.usecs in {0, 1, 3} or 10 <= self.usecs <= 10_000,
                Moderation.IGB_SHARED: self.usecs in {0, 1, 3} or 10 <= self.usecs <= 10_000,
                Moderation.IGBVF: self.usecs in {0, 2, 3} or 10 <= self.usecs <= 10_000,
                Moderation.IXGBEVF: 0 <= self.usecs <= 0xFF8 >> 2,
            }
            if not legal[self.kind]:
                text = f"{self.kind.name.lower()} does not take rx-usecs {self.usecs}"
                raise BadInputError(text, hint="see docs/explanation/prediction.md")


@dataclass(frozen=True, slots=True)
class StageSetting:
    """The receive side of one virtual function: moderation, interrupt delivery, NAPI.

    `delivery_ps` is the time from the interrupt message to the first instruction of the poll: a few hundred ns
    natively, more when a hypervisor injects it, little more when it is posted.

    The packets of a message come `packet_gap_ps` after each other (0: all at once), with `header_bytes` each, as the
    driver counts them, and `message_header_bytes` of the MPI's in all. Where packets are `acknowledged`, each poll that
    finds two packets of a message or more sends one back, and so does a message of one packet whose sender had not yet
    seen what its receiver had sent it: no answer carries that.
    """

    moderation: ModerationSetting = field(default_factory=ModerationSetting)
    delivery_ps: int = 0
    poll_ps: int = 0
    packet_ps: int = 0
    weight: int = 64
    budget: int = 300
    budget_ps: int = 8000 * PS_PER_US
    ksoftirqd_ps: int = 0
    defer_count: int = 0
    defer_ps: int = 0
    packet_gap_ps: int = 0
    header_bytes: int = 0
    message_header_bytes: int = 0
    acknowledged: bool = False
