"""systemd.link(5), systemd 250 or later: one file an interface, applied by udev when the interface appears."""

from collections.abc import Iterator

from nearmetal.tune.export.common import Exported, banner, caution, left_out
from nearmetal.tune.profile import Profile

_TSO, _TSO6 = "TCPSegmentationOffload", "TCP6SegmentationOffload"
"""The knob, as `ethtool -K tso`, is of both versions of IP; here each has a key."""


def _names() -> Iterator[tuple[str, str, str]]:
    """Yield (knob, key, suffix of the value)."""
    for short, long in (("rx", "Rx"), ("tx", "Tx")):
        yield f"adaptive-{short}", f"UseAdaptive{long}Coalesce", ""
        for knob, part in (("", ""), ("-irq", "Irq"), ("-low", "Low"), ("-high", "High")):
            yield f"{short}-usecs{knob}", f"{long}Coalesce{part}Sec", "us"
            yield f"{short}-frames{knob}", f"{long}MaxCoalesced{part}Frames", ""
        yield f"ring-{short}", f"{long}BufferSize", ""
        yield f"channels-{short}", f"{long}Channels", ""
        yield f"pause-{short}", f"{long}FlowControl", ""
    yield "pkt-rate-low", "CoalescePacketRateLow", ""
    yield "pkt-rate-high", "CoalescePacketRateHigh", ""
    yield "sample-interval", "CoalescePacketRateSampleIntervalSec", "s"
    yield "channels-combined", "CombinedChannels", ""
    yield "pause-autoneg", "AutoNegotiationFlowControl", ""
    yield "mtu", "MTUBytes", ""
    yield "txqueuelen", "TransmitQueueLength", ""
    yield "rx-checksum", "ReceiveChecksumOffload", ""
    yield "tx-checksum", "TransmitChecksumOffload", ""
    yield "tso", _TSO, ""
    yield "gso", "GenericSegmentationOffload", ""
    yield "gro", "GenericReceiveOffload", ""
    yield "rx-gro-hw", "GenericReceiveOffloadHardware", ""
    yield "lro", "LargeReceiveOffload", ""


_WORDS = {"on": "yes", "off": "no"}
KEYS = {f"nic.{knob}": (key, suffix) for knob, key, suffix in _names()}
_MOST_INTERVAL_S = 4294
"""It keeps microseconds in 32 bits."""

# A file that matches replaces the distribution's default (99-default.link), so what that sets must be repeated: without
# the last line a VF that has no address of its own gets another one at each boot.
_KEEP = """NamePolicy=keep kernel database onboard slot path
AlternativeNamesPolicy=database onboard slot path
MACAddressPolicy=persistent
"""


def export(profile: Profile) -> Exported:
    """Return `10-nearmetal-INTERFACE.link` for every interface."""
    refused = {knob for knob, value in profile.setting.items() if _ignored(knob, value)}
    written = {
        KEYS[knob][0]: f"{_WORDS.get(value, value)}{KEYS[knob][1]}"
        for knob, value in profile.setting.items()
        if knob in KEYS and knob not in refused
    }
    if tso := written.get(_TSO):
        written[_TSO6] = tso
    lines = "".join(f"{key}={value}\n" for key, value in written.items())
    head = banner(profile) + caution(profile)
    files = {
        f"10-nearmetal-{interface}.link": f"{head}[Match]\nOriginalName={interface}\n\n[Link]\n{_KEEP}{lines}"
        for interface in profile.interfaces
        if lines
    }
    where = "/etc/systemd/network; then `udevadm control --reload` and `udevadm trigger --action=move` or a reboot"
    missed = left_out(profile, KEYS, "systemd.link has no key for it")
    missed |= {knob: f"systemd.link takes no {profile.setting[knob]} for {KEYS[knob][0]}" for knob in sorted(refused)}
    return Exported(files, where, missed)


def _ignored(knob: str, value: str) -> bool:
    """Return whether systemd passes over the line (config_parse_ring_buffer_or_channel, config_parse_coalesce_sec)."""
    if knob == "nic.sample-interval":
        return not 0 < int(value) <= _MOST_INTERVAL_S
    return knob.startswith("nic.channels-") and value == "0"
