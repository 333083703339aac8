"""The histories of `knob_histories.py` on a port of the lab, igb or igbvf, inside the lab's guest.

An order for the lab holds 64 KiB, and the guest has only Python's standard library. So `packed` gathers the player and
those files of nearmetal that the guest's image lacks; the stand-ins here for click and pydantic are just enough to call
the verbs `apply` and `rollback` with the player's arguments. All histories of a batch share one boot of the guest.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import io
import json
import lzma
import socket
import struct
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).parent
_PLAYER = ("knob_histories.py", "knob_player.py", "knob_world.py", "knob_lab.py")
START = """
import base64, io, lzma, sys, tarfile
folder = sys.argv[1]
packed = base64.b64decode(open(folder + "/packed").read())
tarfile.open(fileobj=io.BytesIO(lzma.decompress(packed))).extractall(folder + "/player")
sys.path.insert(0, folder + "/player")
import knob_lab
sys.exit(knob_lab.main())
"""
_FAR = {"ssh", "batch", "lab"}
"""Rooms that reach other machines: the player has none."""
_SIOCETHTOOL, _GET_COALESCE, _SET_COALESCE = 0x8946, 0xE, 0xF
_COALESCE_WORDS, _RX_USECS = 23, 1


def packed() -> str:
    """Return the player and the modules of nearmetal that the guest lacks, as base64 of a compressed tar archive."""
    import nearmetal
    from nearmetal.hosts.lab.closure import import_closure

    package = Path(nearmetal.__file__).parent
    wanted = {*import_closure(package, "nearmetal.cli.apply"), *import_closure(package, "nearmetal.cli.rollback")}
    wanted -= set(import_closure(package, "nearmetal.run.agent"))
    ours = {path: path.relative_to(package.parent) for path in wanted if not _FAR & {*path.relative_to(package).parts}}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, name in {**ours, **{HERE / name: Path(name) for name in _PLAYER}}.items():
            tar.add(path, str(name))
    return base64.b64encode(lzma.compress(archive.getvalue(), preset=9)).decode()


def _stand_in(name: str, **holds: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(holds)
    sys.modules[name] = module


def _unchanged(*_: object, **__: object) -> Callable[[Any], Any]:
    return lambda function: function


def _echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    print(text, end="\n" if nl else "", file=sys.stderr if err else sys.stdout, flush=True)


class _Types:
    """Stands in for pydantic's adapter of a profile's type; the player has written the profile itself."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        self._kind = self.core_schema = kind

    def validate_json(self, text: str, **_: object) -> Any:
        fields = json.loads(text)
        return self._kind(**{**fields, "interfaces": tuple(fields["interfaces"])})


def _run_verb(argv: Sequence[str]) -> int:
    """Call `apply PROFILE --confirm S` or `rollback`; errors become text and exit codes as in nearmetal.cli.main."""
    from nearmetal.cli import apply, rollback
    from nearmetal.errors import NearmetalError, QuarantinedError

    verb: Callable[[], int]
    if argv[0] == "apply":
        given: dict[str, Any] = {"probe": "", "peer": "", "storm": 0, "allow_management": True, "accept": False}
        verb = lambda: apply.command(Path(argv[1]), "local", (), confirm_s=int(argv[3]), **given)  # noqa: E731
    else:
        verb = lambda: rollback.command("local", None, options=(), script=False, force=False, forgotten=None)  # noqa: E731
    try:
        return int(verb())
    except QuarantinedError as error:
        _echo(f"QUARANTINED\n{error.render()}\n{error.undo_script}")
        return error.exit_code
    except NearmetalError as error:
        _echo(error.render(), err=True)
        return error.exit_code
    except KeyboardInterrupt:
        _echo("error: interrupted", err=True)
        return 130


def coalesce(device: str, rx_usecs: int | None = None) -> int:
    """Return a device's rx-usecs, after setting it where a value is given: by ioctl, as ethtool(8) does."""
    words = (ctypes.c_uint32 * _COALESCE_WORDS)(_GET_COALESCE)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = struct.pack("16sP", device.encode(), ctypes.addressof(words))
        fcntl.ioctl(one, _SIOCETHTOOL, request)
        if rx_usecs is not None:
            words[0], words[_RX_USECS] = _SET_COALESCE, rx_usecs
            fcntl.ioctl(one, _SIOCETHTOOL, request)
    return int(words[_RX_USECS])


class _Kind:
    """What an option takes: nothing is asked of it here."""

    def __init__(self, *_: object, **__: object) -> None: ...


def stand_in(folder: str) -> None:
    """Make the player importable with only the standard library; `folder` holds the unpacked files."""
    import nearmetal
    import nearmetal.knobs

    for package in (nearmetal, nearmetal.knobs):
        name = package.__name__.replace(".", "/")
        package.__path__.append(f"{folder}/player/{name}")
    kinds = dict.fromkeys(("Path", "IntRange", "FloatRange"), _Kind)
    _stand_in("click", command=_unchanged, argument=_unchanged, option=_unchanged, echo=_echo, **kinds)
    _stand_in("click.shell_completion", CompletionItem=_Kind)
    _stand_in("pydantic", PlainSerializer=_unchanged, TypeAdapter=_Types, ValidationError=OSError)
    _stand_in("pydantic_core", SchemaValidator=_Types)
    _stand_in("nearmetal.cli.main", run=_run_verb, FilePath=_Kind)


def main() -> int:
    """Play in the guest: `FOLDER DEVICE FIRST LAST`."""
    stand_in(sys.argv[1])
    import knob_histories
    import knob_world

    device, first, last = sys.argv[2:5]
    net = f"/sys/class/net/{device}"
    values = {
        f"nic.mtu of {device}": (f"{net}/mtu", ["1400", "1300"], "1222"),
        f"nic.rx-usecs of {device}": (f"coalesce:{device}", ["50", "70"], "90"),
        f"nic.txqueuelen of {device}": (f"{net}/tx_queue_len", ["500", "600"], "777"),
        f"nic.gro-flush-timeout-ns of {device}": (f"{net}/gro_flush_timeout", ["20000", "30000"], "77777"),
    }
    machine = "host.tcp_limit_output_bytes of machine"
    kept = {machine: knob_world.KNOBS[machine]}
    knob_world.KNOBS.clear()
    knob_world.KNOBS.update(values | kept)
    knob_world.ELSEWHERE = (
        f"mount -t sysfs sysfs /sys; ip link add {device} type veth peer name p; ip link set {device} up"
    )
    knob_histories.History.tunes = 0.0
    sys.argv[1:] = [first, "1", last]
    return knob_histories.main()
