"""What drivers take, round, reset and lie about, as data; checked before anything is written.

Source: Linux 6.12.117, the `ethtool_ops` of each driver (`drivers/net/ethernet/mellanox/mlx4/en_ethtool.c`,
`.../mlx5/core/en_ethtool.c`, `intel/igb/igb_ethtool.c`, `intel/igbvf/ethtool.c`, `intel/ixgbevf/ethtool.c`,
`intel/iavf/iavf_ethtool.c`, `drivers/net/virtio_net.c`, `drivers/net/tun.c`), and of mainline at other versions the
`set_coalesce` of ixgbe, i40e, ice (`intel/*/*_ethtool.c`), bnxt_en (`broadcom/bnxt/bnxt_ethtool.c`) and gve
(`google/gve/gve_ethtool.c`, `gve_dqo.h`). mana has no moderation to set in 6.12. A driver that is not named here has no
limits but those that the machine itself tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nearmetal.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Rounding = Literal["none", "power of two up", "down", "cap"]


@dataclass(frozen=True, slots=True)
class Range:
    """What one driver takes for one knob.

    Values from `lowest` to `highest` in multiples of `step`, and those in `also`. `rounding` says what the driver
    makes of others in the range; `cap` means that values above `highest` become it. `becomes` maps values that
    read back as another.
    """

    lowest: int
    highest: int
    also: frozenset[int] = frozenset()
    step: int = 1
    rounding: Rounding = "none"
    becomes: Mapping[int, int] | None = None
    reason: str = ""

    def takes(self, value: int) -> bool:
        """Tell whether the driver takes the value, rounded or not."""
        if value in self.also:
            return True
        if self.rounding == "cap":
            return value >= self.lowest
        return self.lowest <= value <= self.highest and (self.rounding != "none" or value % self.step == 0)

    def reads_back(self, value: int) -> int:
        """Return what reads back after the value was written."""
        if self.becomes and value in self.becomes:
            return self.becomes[value]
        if value in self.also:
            return value
        if self.rounding == "power of two up":
            return 1 << max(value - 1, 0).bit_length()
        if self.rounding == "down":
            return value - value % self.step
        return min(value, self.highest) if self.rounding == "cap" else value

    def about(self) -> str:
        """Return the range for people."""
        extra = "".join(f"{value}, " for value in sorted(self.also))
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        return f"{extra}{self.lowest} to {self.highest}{steps}"


VIRTIO_PLAIN = "virtio_net without NOTF_COAL"
"""What `guards.identify` calls a virtio NIC that has no coalescing."""


def _each(names: tuple[str, ...], one: Range) -> dict[str, Range]:
    return {f"nic.{name}": one for name in names}


_USECS = ("rx-usecs", "tx-usecs")
_FRAMES = ("rx-frames", "tx-frames")
_MLX4_AUTO = "65535 means auto and reads back as the default"

RANGES: dict[str, dict[str, Range]] = {
    "mlx4_en": {
        "nic.rx-usecs": Range(0, 65535, becomes={65535: 16}, reason=_MLX4_AUTO),
        "nic.rx-frames": Range(0, 65535, becomes={65535: 44}, reason=_MLX4_AUTO),
        **_each(("tx-usecs", "tx-frames"), Range(0, 65535)),
        "nic.tx-frames-irq": Range(1, 65535, reason="the driver refuses an interrupt budget of 0"),
        "nic.ring-rx": Range(256, 8192, rounding="power of two up"),
        "nic.ring-tx": Range(64, 8192, rounding="power of two up"),
        "nic.channels-rx": Range(1, 128),
        "nic.channels-tx": Range(1, 32),
        "nic.channels-combined": Range(0, 0, reason="the driver has separate rx and tx channels"),
    },
    "mlx5_core": {
        **_each(_USECS, Range(0, 4095, reason="the device holds 12 bits")),
        **_each(_FRAMES, Range(0, 65535)),
    },
    "igb": {
        "nic.rx-usecs": Range(10, 10000, frozenset({0, 1, 3}), reason="1 and 3 are its dynamic modes"),
        "nic.tx-usecs": Range(0, 0, reason="receive and transmit share an interrupt, set rx-usecs"),
    },
    "igbvf": {
        # igbvf_set_coalesce: off is the shortest throttle that the device's clock needs, and reads back as 1.
        "nic.rx-usecs": Range(
            10, 10000, frozenset({0, 2, 3}), becomes={0: 1}, reason="2 and 3 are its dynamic modes, 0 reads back as 1"
        ),
        "nic.tx-usecs": Range(0, 0, reason="receive and transmit share an interrupt, set rx-usecs"),
    },
    "ixgbevf": {
        "nic.rx-usecs": Range(2, 1022, frozenset({0, 1}), reason="1 is its dynamic mode"),
        "nic.tx-usecs": Range(0, 0, reason="receive and transmit share an interrupt, set rx-usecs"),
    },
    # ixgbe_set_coalesce: IXGBE_MAX_EITR (0xFF8) in units of a quarter microsecond.
    "ixgbe": {
        "nic.rx-usecs": Range(2, 1022, frozenset({0, 1}), reason="1 is its dynamic mode"),
        "nic.tx-usecs": Range(0, 0, reason="receive and transmit share an interrupt, set rx-usecs"),
    },
    # __i40e_set_coalesce: I40E_MAX_ITR, ITR_REG_ALIGN; rx-usecs-high is the interrupt rate limit of I40E_MAX_INTRL.
    "i40e": {
        **_each(_USECS, Range(0, 8160, step=2, rounding="down", reason="the device counts in steps of 2 us")),
        "nic.rx-usecs-high": Range(
            0, 236, step=4, rounding="down", reason="the interrupt rate limit, in steps of 4 us"
        ),
    },
    "ice": _each(_USECS, Range(0, 8160, reason="ICE_ITR_MAX")),
    # bnxt_set_coalesce checks nothing: what does not fit into the 16 bits that it keeps is cut off in silence.
    "bnxt_en": {
        **_each(_USECS, Range(0, 65535, reason="kept in 16 bits, more is cut off in silence")),
        "nic.rx-frames": Range(0, 32767, reason="doubled and kept in 16 bits, more is cut off in silence"),
        "nic.tx-frames": Range(0, 65535, reason="kept in 16 bits, more is cut off in silence"),
    },
    "gve": _each(_USECS, Range(0, 8190, reason="queue format DQO alone has moderation; GVE_MAX_ITR_INTERVAL_DQO")),
    "iavf": _each(_USECS, Range(0, 8160, step=2, rounding="down", reason="the device counts in steps of 2 us")),
    "virtio_net": {},
    VIRTIO_PLAIN: {
        **_each(_USECS, Range(0, 0, reason="the device does not offer VIRTIO_NET_F_NOTF_COAL")),
        "nic.rx-frames": Range(1, 1, reason="the device does not offer VIRTIO_NET_F_NOTF_COAL"),
        "nic.tx-frames": Range(0, 1, reason="the device does not offer VIRTIO_NET_F_NOTF_COAL"),
    },
    # tun_set_coalesce: rx_batched is capped at NAPI_POLL_WEIGHT.
    "tun": {"nic.rx-frames": Range(0, 64, rounding="cap")},
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on several values at once; `breaks` returns the reason, or an empty text."""

    drivers: frozenset[str]
    breaks: Callable[[Mapping[str, str]], str]


def _both_zero(direction: str) -> Callable[[Mapping[str, str]], str]:
    def breaks(values: Mapping[str, str]) -> str:
        pair = (values.get(f"nic.{direction}-usecs"), values.get(f"nic.{direction}-frames"))
        if pair == ("0", "0"):
            return (
                f"{direction}-usecs and {direction}-frames would both be 0: no interrupt would come; frames 1 means off"
            )
        return ""

    return breaks


def _window(low: str, high: str) -> Callable[[Mapping[str, str]], str]:
    def breaks(values: Mapping[str, str]) -> str:
        lower, upper = values.get(f"nic.{low}"), values.get(f"nic.{high}")
        if lower is None or upper is None or int(lower) < int(upper) or (lower, upper) == ("0", "0"):
            return ""
        return f"{low} {lower} is not below {high} {upper}: drivers compute wrapped delays or divide by zero"

    return breaks


def _adaptive_owns(direction: str) -> Callable[[Mapping[str, str]], str]:
    def breaks(values: Mapping[str, str]) -> str:
        wanted = f"nic.{direction}-usecs" in values.get("", "").split()
        if wanted and values.get(f"nic.adaptive-{direction}") == "on":
            return f"the driver refuses {direction}-usecs while adaptive-{direction} is on: turn it off as well"
        return ""

    return breaks


_ANY: frozenset[str] = frozenset()
OWNED = frozenset({"iavf", "i40e", "ice", "virtio_net"})
"""Drivers that refuse new usecs while the adaptive mode of that direction is on."""

RULES: tuple[Rule, ...] = (
    Rule(_ANY, _both_zero("rx")),
    Rule(_ANY, _both_zero("tx")),
    Rule(_ANY, _window("rx-usecs-low", "rx-usecs-high")),
    Rule(_ANY, _window("tx-usecs-low", "tx-usecs-high")),
    Rule(_ANY, _window("pkt-rate-low", "pkt-rate-high")),
    Rule(OWNED, _adaptive_owns("rx")),
    Rule(OWNED, _adaptive_owns("tx")),
)

OVERWRITTEN: dict[str, str] = {
    "mlx4_en": "while adaptive-rx is on, rx-usecs reads back as written but every statistics tick overrules it",
}
"""Drivers on which adaptive-rx silently owns rx-usecs."""

LIES: dict[str, dict[str, str]] = {
    "igbvf": {
        "nic.rx-usecs": "after an interface down/up the device walks to 122 us while rx-usecs reads back unchanged; "
        "only the interrupt rate tells"
    },
    "ixgbe": {"nic.adaptive-rx": "rx-usecs 1 is adaptive although adaptive-rx reads off"},
    "ixgbevf": {"nic.adaptive-rx": "rx-usecs 1 is adaptive although adaptive-rx reads off"},
    "ice": {"nic.rx-usecs": "an odd value reads back as written; the device counts in steps of 2 us"},
    "mlx5_core": {"nic.rx-usecs": "values of single queues are private: the device-wide reading does not show them"},
    # ena_get_coalesce (amazon/ena/ena_ethtool.c) leaves rx-usecs out while the adaptive mode is on.
    "ena": {
        "nic.rx-usecs": "some instance types accept the value without effect (amzn/amzn-drivers#159), and it reads 0 "
        "while adaptive-rx is on"
    },
}
"""Read-backs that do not prove anything, and why."""


def check(driver: str, present: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise BadInputError with the driver's reasons when a setting is illegal; `present` are the other values.

    Both map knob names to values as the kernel prints them; knobs that the device lacks are absent.
    """
    reasons = [*_range_breaks(driver, wanted)]
    for queue in dict.fromkeys(map(queue_of, wanted)):
        reasons += _rule_breaks(driver, _of_queue(present, queue), _of_queue(wanted, queue))
    if reasons:
        raise BadInputError(
            f"{driver or 'the device'} does not take this setting: " + "; ".join(reasons),
            hint="nothing was written",
        )


def queue_of(name: str) -> str:
    """Return `.queue3` for the knob of one queue, an empty text for one of the whole device."""
    return "".join(name.partition(".queue")[1:])


def _of_queue(values: Mapping[str, str], queue: str) -> dict[str, str]:
    """Return the values of one queue, or of the whole device, under the names of the whole device."""
    return {name.removesuffix(queue): value for name, value in values.items() if queue_of(name) == queue}


def _range(driver: str, name: str) -> Range | None:
    return RANGES.get(driver, {}).get(name.removesuffix(queue_of(name)))


def legal(driver: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Tell whether a step from one state of the device to the next breaks no rule anew; orders single writes."""
    return not _broken(driver, after) - _broken(driver, before)


def reads_back(driver: str, name: str, value: str) -> str:
    """Return what a value reads back as on that driver."""
    one = _range(driver, name)
    return str(one.reads_back(int(value))) if one else value


def range_about(driver: str, name: str) -> str:
    """Return the driver's range for people, or an empty text."""
    one = _range(driver, name)
    return one.about() if one else ""


def readback_doubt(driver: str, name: str) -> str:
    """Return why a read-back of this knob proves nothing on this driver, or an empty text."""
    return LIES.get(driver, {}).get(name, "")


def range_refusal(driver: str, name: str, value: str) -> str:
    """Return why a driver does not take a value of one knob, or an empty text."""
    one = _range(driver, name)
    if one is None or one.takes(int(value)):
        return ""
    return f"{name} {value} is not among {one.about()}" + (f" ({one.reason})" if one.reason else "")


def _range_breaks(driver: str, wanted: Mapping[str, str]) -> list[str]:
    return [reason for name, value in wanted.items() if (reason := range_refusal(driver, name, value))]


def _rule_breaks(driver: str, present: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    # The empty name carries which knobs are written, for rules about writes rather than about states.
    values = {**present, **wanted, "": " ".join(wanted)}
    found = _broken(driver, values) - _broken(driver, present)
    if driver in OVERWRITTEN and "nic.rx-usecs" in wanted and values.get("nic.adaptive-rx") == "on":
        found.add(OVERWRITTEN[driver])
    return sorted(found)


def _broken(driver: str, values: Mapping[str, str]) -> set[str]:
    reasons = {rule.breaks(values) for rule in RULES if not rule.drivers or driver in rule.drivers}
    return reasons - {""}
