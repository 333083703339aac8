"""A machine for knobs, kept in a directory so that it survives the death of the process that sets them.

Files of sysfs and procfs are files below the directory; `ethtool -c`, `-C`, `-k`, `-K`, `-i` and `ip link` answer for
NICs whose state is one JSON file each. It behaves like the kernel where that matters for knobs: an unlisted parameter
is refused, a change of adaptive-rx resets the values, and drivers round.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nearmetal.errors import NearmetalError
from nearmetal.process import Finished

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

BOOT_ID = "/proc/sys/kernel/random/boot_id"
WHERE = {
    "/etc/machine-id": "machine-1\n",
    "/proc/sys/kernel/hostname": "host-1\n",
    BOOT_ID: "boot-1\n",
    "/proc/self/ns/net": "net:[1]\n",
    "/proc/self/ns/mnt": "mnt:[1]\n",
    "/proc/uptime": "0.00 0.00\n",
}
"""What the machine answers when it is asked where a value is, in that order."""
NIC_DEFAULTS = {
    "driver": "mlx5_core",
    "adaptive-rx": "on",
    "adaptive-tx": "n/a",
    "rx-usecs": "16",
    "rx-frames": "32",
    "tx-usecs": "16",
    "tx-frames": "32",
    "gro": "on",
    "lro": "off [fixed]",
    "mtu": "1500",
}
_PRINTED = {"gro": "generic-receive-offload", "lro": "large-receive-offload"}


class AnswerError(Exception):
    """The error of a program on the machine."""


class KnobMachine:
    """A `Shell` over the directory; `before_write(what)` is called before every write and may raise or kill."""

    def __init__(self, root: Path, before_write: Callable[[str], None] | None = None) -> None:
        self.root = root
        self.writes: list[str] = []
        self._before_write = before_write or (lambda _what: None)

    @staticmethod
    def make(root: Path, nics: Mapping[str, Mapping[str, str]], files: Mapping[str, str]) -> KnobMachine:
        """Make a machine with NICs and files."""
        for path, text in {**WHERE, **files}.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        for name, parameters in nics.items():
            (root / f"{name}.nic").write_text(json.dumps({**NIC_DEFAULTS, **parameters}))
        return KnobMachine(root)

    @property
    def scratch(self) -> str:
        return str(self.root)

    @property
    def agent(self) -> str:
        raise AssertionError("knobs use no nodes, agents or helpers")

    def add_node(self, name: str) -> None:
        raise AssertionError("knobs use no nodes, agents or helpers")

    def give_interface(self, interface: str, node: str, name: str) -> None:
        raise AssertionError("knobs use no nodes, agents or helpers")

    def start(self, argv: Sequence[str], *, node: str = "") -> object:
        raise AssertionError("knobs use no nodes, agents or helpers")

    def state(self) -> dict[str, str]:
        """Return all values that can be set, for comparisons."""
        return {
            str(path.relative_to(self.root)): path.read_text()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and not path.name.endswith((".journal", ".new", ".undo.sh", "lock"))
        }

    def nic(self, name: str) -> dict[str, str]:
        state: dict[str, str] = json.loads((self.root / f"{name}.nic").read_text())
        return state

    def set_nic(self, name: str, **parameters: str) -> None:
        state = {**self.nic(name), **{key.replace("_", "-"): value for key, value in parameters.items()}}
        (self.root / f"{name}.nic").write_text(json.dumps(state))

    def read(self, path: str, *, node: str = "") -> bytes:
        try:
            return (self.root / path.lstrip("/")).read_bytes()
        except OSError as error:
            raise NearmetalError(f"cannot read {path}: {error.strerror}") from error

    def write(self, path: str, data: bytes, *, node: str = "") -> None:
        place = self.root / path.lstrip("/")
        if not place.exists():
            raise NearmetalError(f"cannot write {path}: No such file or directory")
        try:
            self._announce(path)
        except AnswerError as answer:
            raise NearmetalError(f"cannot write {path}: {answer}") from answer
        place.write_bytes(data)

    def run(
        self,
        argv: Sequence[str],
        *,
        node: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 20.0,
        check: bool = True,
    ) -> Finished:
        try:
            out, status, err = self._answer(list(argv)), 0, ""
        except AnswerError as answer:
            out, status, err = "", 1, str(answer)
        if check and status:
            raise NearmetalError(err)
        return Finished(tuple(argv), status, out.encode(), err.encode(), 1)

    def _answer(self, argv: list[str]) -> str:  # noqa: C901, PLR0911, PLR0912 - one case a program
        match argv:
            case ["cat", "--", path]:
                return self._cat(path)
            case ["cat", "--", index, _] if index.endswith("/ifindex"):
                return "3\n"
            case ["grep", "-sH", "", *paths]:
                present = [path for path in paths if (self.root / path.lstrip("/")).is_file()]
                return "".join(f"{path}:{line}\n" for path in present for line in self._cat(path).splitlines())
            case ["ls", "--", folder]:
                place = self.root / folder.lstrip("/")
                return "\n".join(sorted(entry.name for entry in place.iterdir())) if place.is_dir() else ""
            case ["ethtool", option, device] if (self.root / f"{device}.recorded").exists():
                return self._recorded(option, device)
            case ["ethtool", "-l", device] if "channels-combined" in self._known(device):
                return f"Current hardware settings:\nCombined: {self._known(device)['channels-combined']}\n"
            case ["ethtool", "-i", device]:
                return f"driver: {self._known(device)['driver']}\nbus-info: 0000:00:03.0\n"
            case ["ethtool", "-c", device]:
                return _show_coalesce(device, self._known(device))
            case ["ethtool", "-k", device]:
                nic = self._known(device)
                return "".join(f"{printed}: {nic[name]}\n" for name, printed in _PRINTED.items())
            case ["ethtool", "-C" | "-K", device, parameter, value]:
                return self._change(device, parameter, value)
            case ["ethtool", "-L", device, parameter, value]:
                return self._change(device, f"channels-{parameter}", value)
            case ["ip", "-d", "-o", "link", "show", "dev", device] | ["ip", "-o", "link", "show", "dev", device]:
                nic = self._known(device)
                return f"3: {device}: <UP> mtu {nic['mtu']} qdisc mq qlen 1000\\ link/ether minmtu 68 maxmtu 9000 x\n"
            case ["ip", "link", "set", "dev", device, "mtu", value]:
                return self._change(device, "mtu", value)
            case ["ip", "-o", *_]:
                return self._cat("/routes") if (self.root / "routes").exists() else ""
            case ["sh", "-c", script, *_] if "comm" in script:
                return self._cat("/processes") if (self.root / "processes").exists() else ""
            case ["readlink", "/proc/self/ns/net"]:
                return "net:[1]\n"
            case ["sh", "-c", script, *_] if "machine-id" in script:
                return "".join(self._cat(path) for path in WHERE)
            case _:
                raise AnswerError(f"{argv[0]}: no such program")

    def _cat(self, path: str) -> str:
        place = self.root / path.lstrip("/")
        if not place.is_file():
            raise AnswerError(f"cat: {path}: No such file or directory")
        return place.read_text()

    def _known(self, device: str) -> dict[str, str]:
        if not (self.root / f"{device}.nic").exists():
            raise AnswerError("netlink error: No such device")
        return self.nic(device)

    def _recorded(self, option: str, device: str) -> str:
        """Return what ethtool printed of a NIC: the part of its file below `$ ethtool OPTION`."""
        text = (self.root / f"{device}.recorded").read_text()
        output = text.partition(f"$ ethtool {option} ")[2].partition("\n$ ")[0].partition("\n")[2]
        if not output or output.startswith("netlink error"):
            raise AnswerError(output.strip() or "netlink error: Operation not supported")
        return output

    def _change(self, device: str, parameter: str, value: str) -> str:
        nic = self._known(device)
        self._announce(f"{device} {parameter}")
        if nic.get(parameter, "n/a") == "n/a":
            raise AnswerError("netlink error: Operation not supported")
        if parameter == "adaptive-rx" and nic["adaptive-rx"] != value:
            nic |= {"rx-usecs": "3", "rx-frames": "64"}
        if nic["driver"] == "iavf" and parameter == "channels-combined":
            nic |= {"rx-usecs": "50", "adaptive-rx": "on"}
        if nic["driver"] == "tun" and parameter == "rx-frames":
            value = str(min(int(value), 64))
        if nic["driver"] == "liar" and parameter == "rx-usecs":
            value = nic["rx-usecs"]
        (self.root / f"{device}.nic").write_text(json.dumps({**nic, parameter: value}))
        return ""

    def _announce(self, what: str) -> None:
        self._before_write(what)
        self.writes.append(what)


def _show_coalesce(device: str, nic: Mapping[str, str]) -> str:
    """Return what ethtool 6.1 prints."""
    values = "".join(f"{name}: {nic[name]}\n" for name in ("rx-usecs", "rx-frames", "tx-usecs", "tx-frames"))
    return (
        f"Coalesce parameters for {device}:\nAdaptive RX: {nic['adaptive-rx']}  TX: {nic['adaptive-tx']}\n"
        f"pkt-rate-low: n/a\npkt-rate-high: n/a\n\n{values}\nrx-usecs-low: n/a\nrx-frame-low: n/a\n\n"
        "CQE mode RX: n/a  TX: n/a\n\n"
    )
