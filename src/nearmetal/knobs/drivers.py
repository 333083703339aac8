"""What drivers take, round, reset and misreport, as data; checked before anything is written.

`SOURCES` names where each was read. A driver that is not named here has only the limits that the machine itself
reports.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from nearmetal.errors import BadInputError

Rounding = Literal["none", "power of two", "power of two up", "power of two down", "up", "down", "cap"]
"""`power of two` is no rounding: the driver refuses every other number."""


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
        """Return whether the driver takes the value, rounded or not."""
        if value in self.also:
            return True
        if self.rounding == "cap":
            return value >= self.lowest
        if self.rounding == "power of two" and value & (value - 1):
            return False
        return self.lowest <= value <= self.highest and (self.rounding != "none" or value % self.step == 0)

    def reads_back(self, value: int) -> int:
        """Return what reads back after the value was written."""
        if self.becomes and value in self.becomes:
            return self.becomes[value]
        if value in self.also:
            return value
        rounded = {
            "power of two up": 1 << max(value - 1, 0).bit_length(),
            "power of two down": 1 << max(value.bit_length() - 1, 0),
            "up": value + -value % self.step,
            "down": value - value % self.step,
            "cap": min(value, self.highest),
        }
        return rounded.get(self.rounding, value)

    def about(self, unit: str = "") -> str:
        """Return the range for people."""
        extra = "".join(f"{value}, " for value in sorted(self.also))
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        steps = ", powers of two" if self.rounding == "power of two" else steps
        return f"{extra}{self.lowest} to {self.highest} {unit}".rstrip() + steps


VIRTIO_PLAIN = "virtio_net without NOTF_COAL"
"""What `guards.identify` calls a virtio NIC that has no coalescing."""


def _each(names: tuple[str, ...], one: Range) -> dict[str, Range]:
    return {f"nic.{name}": one for name in names}


_USECS = ("rx-usecs", "tx-usecs")
_FRAMES = ("rx-frames", "tx-frames")
_RINGS = ("ring-rx", "ring-tx")
_MLX4_AUTO = "65535 means auto and reads back as the default"
_CUT = "kept in 16 bits; more is silently truncated"
_ITR = Range(0, 8160, step=2, rounding="up", reason="the device counts in steps of 2 us")
_COMBINED = Range(0, 0, reason="queues both receive and transmit: set channels-combined")
_SHARED = Range(0, 0, reason="receive and transmit share an interrupt: set rx-usecs")
_SEPARATE = Range(0, 0, reason="the driver has separate rx and tx channels")

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
        "nic.channels-combined": _SEPARATE,
    },
    "mlx5_core": {
        **_each(_USECS, Range(0, 4095, reason="the device holds 12 bits")),
        **_each(_FRAMES, Range(0, 65535)),
        "nic.ring-rx": Range(16, 8192, rounding="power of two up"),
        "nic.ring-tx": Range(64, 8192, rounding="power of two up"),
        **_each(("channels-rx", "channels-tx"), _COMBINED),
    },
    "igb": {
        "nic.rx-usecs": Range(10, 10000, frozenset({0, 1, 3}), reason="1 and 3 are its dynamic modes"),
        "nic.tx-usecs": _SHARED,
    },
    "igbvf": {
        # igbvf_set_coalesce: off is the shortest throttle that the device's clock needs, and reads back as 1.
        "nic.rx-usecs": Range(
            10, 10000, frozenset({0, 2, 3}), becomes={0: 1}, reason="2 and 3 are its dynamic modes, 0 reads back as 1"
        ),
        "nic.tx-usecs": _SHARED,
    },
    "ixgbevf": {
        "nic.rx-usecs": Range(2, 1022, frozenset({0, 1}), reason="1 is its dynamic mode"),
        "nic.tx-usecs": _SHARED,
    },
    # IXGBE_MAX_EITR (0xFF8) in units of a quarter microsecond.
    "ixgbe": {
        "nic.rx-usecs": Range(
            2, 1022, frozenset({0, 1}), reason="1 is its dynamic mode; a step across 10 us restarts the port"
        ),
        "nic.tx-usecs": _SHARED,
        **_each(_RINGS, Range(64, 32768, step=8, rounding="up")),
        **_each(("channels-rx", "channels-tx"), _COMBINED),
    },
    "i40e": {
        **_each(_USECS, _ITR),
        "nic.rx-usecs-high": Range(
            0, 236, step=4, rounding="down", reason="the interrupt rate limit, in steps of 4 us"
        ),
        "nic.tx-usecs-high": Range(0, 0, reason="follows rx-usecs-high: set that"),
        "nic.tx-frames-irq": Range(1, 65535, reason="0 is silently ignored"),
        **_each(_RINGS, Range(64, 8160, step=32, rounding="up")),
        **_each(("channels-rx", "channels-tx"), _COMBINED),
    },
    "ice": {
        **_each(_USECS, Range(0, 8160, reason="ICE_ITR_MAX")),
        "nic.rx-usecs-high": Range(
            4, 236, frozenset({0}), reason="the interrupt rate limit, at least 8 us on slow links"
        ),
        **_each(_RINGS, Range(64, 8160, step=32, rounding="up")),
    },
    # bnxt_set_coalesce checks nothing.
    "bnxt_en": {
        **_each((*_USECS, "rx-usecs-irq", "tx-usecs-irq", "tx-frames", "tx-frames-irq"), Range(0, 65535, reason=_CUT)),
        **_each(("rx-frames", "rx-frames-irq"), Range(0, 32767, reason=f"doubled and {_CUT}")),
        "nic.ring-tx": Range(19, 65535, reason="a frame with the maximum number of fragments must fit"),
    },
    "gve": {
        **_each(_USECS, Range(0, 8190, reason="only the queue format DQO has moderation; GVE_MAX_ITR_INTERVAL_DQO")),
        **_each(_RINGS, Range(1, 65536, rounding="power of two", reason="if the device allows changes at all")),
        "nic.channels-combined": _SEPARATE,
    },
    "iavf": {
        **_each(_USECS, _ITR),
        **_each(_RINGS, Range(64, 4096, step=32, rounding="up")),
        **_each(("channels-rx", "channels-tx"), _COMBINED),
    },
    # ENA_ETH_IO_INTR_REG_RX_INTR_DELAY_MASK: 15 bits; ena_set_coalesce checks nothing.
    "ena": {
        **_each(
            _USECS,
            Range(0, 32767, reason="15 bits; more is silently truncated; rounds down to the device's resolution"),
        ),
        **_each(_RINGS, Range(256, 16384, rounding="power of two down", reason="less becomes 256")),
        **_each(("channels-rx", "channels-tx"), _COMBINED),
    },
    "mana": {
        "nic.ring-rx": Range(128, 8192, rounding="power of two up"),
        "nic.ring-tx": Range(128, 16384, rounding="power of two up"),
        **_each(("channels-rx", "channels-tx"), _COMBINED),
    },
    "virtio_net": {},
    VIRTIO_PLAIN: {
        **_each(_USECS, Range(0, 0, reason="the device does not offer VIRTIO_NET_F_NOTF_COAL")),
        "nic.rx-frames": Range(1, 1, reason="the device does not offer VIRTIO_NET_F_NOTF_COAL"),
        "nic.tx-frames": Range(0, 1, reason="the device does not offer VIRTIO_NET_F_NOTF_COAL"),
    },
    # rx_batched is capped at NAPI_POLL_WEIGHT.
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
                f"{direction}-usecs and {direction}-frames would both be 0, so no interrupt would ever come; "
                "frames 1 turns moderation off"
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


def _limit_needs_fixed(values: Mapping[str, str]) -> str:
    modes = [mode for mode in ("adaptive-rx", "adaptive-tx") if values.get(f"nic.{mode}") == "on"]
    if modes and "nic.rx-usecs-high" in values.get("", "").split():
        return f"the driver refuses rx-usecs-high while {' and '.join(modes)} is on: turn it off as well"
    return ""


MODES = {"igb": {"1", "3"}, "igbvf": {"2", "3"}, "ixgbe": {"1"}, "ixgbevf": {"1"}}
"""Values of nic.rx-usecs with which drivers adapt to the load themselves, although adaptive-rx reads back as off."""

_ANY: frozenset[str] = frozenset()
OWNED = frozenset({"iavf", "i40e", "ice", "virtio_net"})
"""Drivers that refuse new usecs while the adaptive mode of that direction is on."""

FRAMELESS = frozenset({"igb", "igbvf", "ixgbe", "ixgbevf", "i40e", "ice", "iavf", "ena", "gve"})
"""Drivers that count no frames (supported_coalesce_params): an ethtool over ioctl prints theirs as 0."""

RULES: tuple[Rule, ...] = (
    Rule(_ANY, _both_zero("rx")),
    Rule(_ANY, _both_zero("tx")),
    Rule(_ANY, _window("rx-usecs-low", "rx-usecs-high")),
    Rule(_ANY, _window("tx-usecs-low", "tx-usecs-high")),
    Rule(_ANY, _window("pkt-rate-low", "pkt-rate-high")),
    Rule(OWNED, _adaptive_owns("rx")),
    Rule(OWNED, _adaptive_owns("tx")),
    Rule(frozenset({"ice"}), _limit_needs_fixed),
)

_DIM = "while adaptive-{0} is on, {0}-usecs reads back as written, but adaptive moderation overrides it"
OVERWRITTEN: dict[str, dict[str, str]] = {
    "mlx4_en": {"rx": "while adaptive-rx is on, rx-usecs reads back as written, but each statistics tick overrides it"},
    "mlx5_core": {way: f"while adaptive-{way} is on, the driver silently drops {way}-usecs" for way in ("rx", "tx")},
    "bnxt_en": {"rx": _DIM.format("rx")},
    "ena": {"rx": _DIM.format("rx")},
}
"""Drivers and directions in which the adaptive mode owns usecs without saying so: turn it off in the same setting."""

_MODERATION = tuple(f"nic.{name}" for name in ("adaptive-rx", "adaptive-tx", *_USECS))
RESETS: dict[str, dict[str, tuple[str, ...]]] = {
    # i40e_reconfig_rss_queues and iavf_reinit_interrupt_scheme make new rings, which begin adaptive and at 50 us.
    "i40e": {"nic.channels-combined": _MODERATION},
    "iavf": {"nic.channels-combined": _MODERATION},
}
"""What a driver resets beside what the knob disturbs everywhere: such a knob is written first, then what it resets."""

# ixgbe_reinit_locked and ixgbe_down/ixgbe_up end in ixgbe_setup_reta, which makes the table anew.
DISTURBS: dict[str, dict[str, tuple[str, ...]]] = {
    "ixgbe": dict.fromkeys(
        (
            *("nic.mtu", "nic.ring-rx", "nic.ring-tx", "nic.pause-autoneg", "nic.pause-rx", "nic.pause-tx"),
            *("nic.lro", "nic.rx-checksum", "nic.rx-usecs"),
        ),
        ("nic.rss-equal", "nic.rss-table-parts"),
    ),
}
"""What a driver may change with a knob beside what that disturbs everywhere: it is saved, and put back afterwards."""

_ODD = "an odd value reads back as written; the device counts in steps of 2 us"
_QUEUE_0 = "the value read is that of queue 0; other queues may differ"
_IXGBE_1 = "rx-usecs 1 is adaptive although adaptive-rx reads back as off"
MISREPORTED: dict[str, dict[str, str]] = {
    "igbvf": {
        "nic.rx-usecs": "after an interface down/up the device drifts to 122 us while rx-usecs reads back unchanged; "
        "only the interrupt rate shows it"
    },
    "ixgbe": {
        "nic.adaptive-rx": _IXGBE_1,
        "nic.lro": "reads back as on although the device does not merge frames at rx-usecs 0 and 2 to 6",
    },
    "ixgbevf": {"nic.adaptive-rx": _IXGBE_1},
    "ice": {f"nic.{name}": _ODD for name in _USECS},
    "gve": {f"nic.{name}": _ODD for name in _USECS},
    "mlx5_core": {"nic.rx-usecs": "values of single queues are separate: the device-wide reading does not show them"},
    "i40e": {"nic.rx-usecs": _QUEUE_0},
    "iavf": {"nic.rx-usecs": _QUEUE_0},
    "ena": {"nic.rx-usecs": "some instance types accept the value without effect (amzn/amzn-drivers#159)"},
}
"""Read-backs that do not prove anything, and why."""

SOURCES: dict[str, str] = {
    "mlx4_en": "mellanox/mlx4/en_ethtool.c: mlx4_en_set_coalesce, mlx4_en_set_ringparam, mlx4_en_set_channels",
    "mlx5_core": "mellanox/mlx5/core/en_ethtool.c: mlx5e_ethtool_set_coalesce, mlx5e_ethtool_set_ringparam",
    "igb": "intel/igb/igb_ethtool.c: igb_set_coalesce",
    "igbvf": "intel/igbvf/ethtool.c: igbvf_set_coalesce",
    "ixgbevf": "intel/ixgbevf/ethtool.c: ixgbevf_set_coalesce",
    "ixgbe": "intel/ixgbe/ixgbe_ethtool.c: ixgbe_set_coalesce, ixgbe_update_rsc, ixgbe_set_ringparam; ixgbe_main.c: "
    "ixgbe_setup_reta",
    "i40e": "intel/i40e/i40e_ethtool.c: __i40e_set_coalesce, i40e_set_ringparam; i40e_main.c: i40e_reconfig_rss_queues",
    "ice": "intel/ice/ice_ethtool.c: ice_set_rc_coalesce, ice_set_ringparam; ice_lib.c: ice_vsi_rebuild_set_coalesce",
    "bnxt_en": "broadcom/bnxt/bnxt_ethtool.c: bnxt_set_coalesce, bnxt_set_ringparam; bnxt_dim.c: bnxt_dim_work",
    "gve": "google/gve/gve_ethtool.c: gve_set_coalesce, gve_validate_req_ring_size, gve_set_channels; gve_dqo.h",
    "iavf": "intel/iavf/iavf_ethtool.c: iavf_set_itr_per_queue, iavf_set_ringparam, iavf_set_channels; iavf_main.c: "
    "iavf_reinit_interrupt_scheme",
    "ena": "amazon/ena/ena_ethtool.c: ena_set_coalesce, ena_set_ringparam; ena_netdev.c: ena_dim_work",
    "mana": "microsoft/mana/mana_ethtool.c: mana_set_ringparam, mana_set_channels; there is no set_coalesce",
    "virtio_net": "../virtio_net.c: virtnet_set_coalesce",
    VIRTIO_PLAIN: "../virtio_net.c: virtnet_coal_params_supported",
    "tun": "../tun.c: tun_set_coalesce",
}
"""File and functions that were read of each driver, of Linux 6.12.117, below `drivers/net/ethernet`."""


def check(driver: str, present: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise BadInputError with the driver's reasons when a setting is illegal; `present` are the other values.

    Both map knob names to values as the kernel prints them; knobs that the device lacks are absent.
    """
    reasons = [reason for name, value in wanted.items() if (reason := range_refusal(driver, name, value))]
    for queue in dict.fromkeys(map(queue_of, wanted)):
        reasons += _rule_breaks(driver, _of_queue(present, queue), _of_queue(wanted, queue))
    if reasons:
        raise BadInputError(
            f"{driver or 'the device'} does not accept this setting: " + "; ".join(reasons),
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
    """Return whether a step from one state of the device to the next breaks no rule anew; orders single writes."""
    return not _broken(driver, after) - _broken(driver, before)


def resets(driver: str, name: str) -> tuple[str, ...]:
    """Return the knobs that a driver resets when this one is written."""
    return RESETS.get(driver, {}).get(name, ())


def shares_interrupt(driver: str) -> bool:
    """Return whether what is sent has no moderation of its own on that driver."""
    return _range(driver, "nic.tx-usecs") is _SHARED


def reads_back(driver: str, name: str, value: str) -> str:
    """Return what a value reads back as on that driver."""
    one = _range(driver, name)
    return str(one.reads_back(int(value))) if one else value


def taken_for(driver: str, name: str, value: str) -> str:
    """Return the value that is written to read this one back; empty where that is the same."""
    one = _range(driver, name)
    if one is None or not one.becomes or not value.isdecimal() or one.takes(int(value)):
        return ""
    return next((str(written) for written, read in one.becomes.items() if str(read) == value), "")


def range_about(driver: str, name: str, unit: str, highest: int | None = None) -> str:
    """Return the driver's range for people, or an empty text; `highest` is what the machine itself takes at most."""
    one = _range(driver, name)
    return replace(one, highest=one.highest if highest is None else highest).about(unit) if one else ""


def readback_doubt(driver: str, name: str) -> str:
    """Return why a read-back of this knob proves nothing on this driver, or an empty text."""
    return MISREPORTED.get(driver, {}).get(name, "")


def range_refusal(driver: str, name: str, value: str) -> str:
    """Return why a driver does not take a value of one knob, or an empty text."""
    one = _range(driver, name)
    if one is None or one.takes(int(value)):
        return ""
    return f"{name} {value} is not among {one.about()}" + (f" ({one.reason})" if one.reason else "")


def _rule_breaks(driver: str, present: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    # The empty name carries which knobs are written, for rules about writes rather than about states.
    values = {**present, **wanted, "": " ".join(wanted)}
    found = _broken(driver, values) - _broken(driver, present)
    for way, reason in OVERWRITTEN.get(driver, {}).items():
        if f"nic.{way}-usecs" in wanted and values.get(f"nic.adaptive-{way}") == "on":
            found.add(reason)
    return sorted(found)


def _broken(driver: str, values: Mapping[str, str]) -> set[str]:
    if driver in FRAMELESS:
        values = {name: value for name, value in values.items() if name not in {f"nic.{one}" for one in _FRAMES}}
    reasons = {rule.breaks(values) for rule in RULES if not rule.drivers or driver in rule.drivers}
    return reasons - {""}
