"""A NetworkManager keyfile (nm-settings-keyfile(5)): one connection an interface."""

import uuid

from nearmetal.knobs import nic
from nearmetal.tune.export.common import Exported, banner, caution, left_out
from nearmetal.tune.profile import Profile

_BOTH = ("usecs", "frames", "usecs-irq", "frames-irq", "usecs-low", "frames-low", "usecs-high", "frames-high")
_COALESCE = ("adaptive-rx", "adaptive-tx", "pkt-rate-low", "pkt-rate-high", "sample-interval")
_AS_NAMED = ("ring-rx", "ring-tx")
_CHANNELS = ("nic.channels-rx", "nic.channels-tx", "nic.channels-combined")
_PAUSE = ("pause-autoneg", "pause-rx", "pause-tx")
_DIRECTIONS = ("nic.pause-rx", "nic.pause-tx")
_FEATURES = {"rx-checksum": "rx", "tx-checksum": "tx"}
_NAMESPACE = uuid.UUID("6f1a2f3e-6a54-5be1-9a75-1d6f43f4b2a1")

KEYS: dict[str, str] = {
    **{f"nic.{way}-{part}": f"coalesce-{way}-{part}" for way in ("rx", "tx") for part in _BOTH},
    **{f"nic.{name}": f"coalesce-{name}" for name in _COALESCE},
    **{f"nic.{name}": name for name in (*_AS_NAMED, *_PAUSE)},
    **{name: name.removeprefix("nic.") for name in _CHANNELS},
    **{knob.name: f"feature-{_FEATURES.get(knob.name[4:], knob.name[4:])}" for knob in nic.OFFLOADS},
}


def export(profile: Profile) -> Exported:
    """Return `nearmetal-INTERFACE.nmconnection` for every interface."""
    # With a pair of these it takes nothing of the file at all.
    refused = _DIRECTIONS if profile.setting.get("nic.pause-autoneg") == "on" else ()
    taken = {knob: key for knob, key in KEYS.items() if knob not in refused}
    lines = [f"{taken[knob]}={_value(knob, value)}" for knob, value in profile.setting.items() if knob in taken]
    mtu = profile.setting.get("nic.mtu")
    files = {}
    for interface in profile.interfaces if lines or mtu else ():
        identity = uuid.uuid5(_NAMESPACE, f"{profile.name}/{interface}")
        ethernet = f"\n[ethernet]\nmtu={mtu}\n" if mtu else ""
        ethtool = "\n[ethtool]\n" + "\n".join(lines) + "\n" if lines else ""
        files[f"nearmetal-{interface}.nmconnection"] = (
            f"{banner(profile)}{caution(profile)}[connection]\nid=nearmetal-{interface}\nuuid={identity}\n"
            f"type=ethernet\ninterface-name={interface}\n{ethernet}{ethtool}"
        )
    where = (
        "/etc/NetworkManager/system-connections, mode 600; where an interface has a connection already, copy the"
        " [ethtool] and [ethernet] parts into that one"
    )
    if any(knob in _CHANNELS for knob in profile.setting):
        where += "; channels need NetworkManager 1.46 or later, older ones ignore them without a word"
    missed = left_out(profile, {**KEYS, "nic.mtu": ""}, "NetworkManager has no setting for it")
    for knob in profile.setting.keys() & {*refused}:
        missed[knob] = "NetworkManager sets it only where pause frames are not negotiated"
    return Exported(files, where, missed)


def _value(knob: str, value: str) -> str:
    """Return a switch in the form of its setting: features and pause are booleans, coalescing takes numbers."""
    if knob.startswith("nic.adaptive-"):
        return {"on": "1", "off": "0"}[value]
    return {"on": "true", "off": "false"}.get(value, value)
