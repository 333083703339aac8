"""Interrupt coalescing: `ethtool -c`, and `ethtool -Q` for one queue.

The interrupt rule is that of the ethtool ABI (`include/uapi/linux/ethtool.h`, struct ethtool_coalesce): usecs after
the first completion, or at the frames-th, whichever is first; usecs = frames = 0 is illegal. A change of a mode
makes several drivers reset their values (mlx5 `mlx5e_ethtool_set_coalesce`), hence modes are written first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import BLANKS, Access, CommandOutputs, Pick
from nearmetal.knobs.knob import SWITCH, Knob, Stage, Target, WholeNumber
from nearmetal.knobs.nic import SWITCH_WORD, ethtool, labelled, nic_knob

_USECS = WholeNumber(0, 65535, "us")
_FRAMES = WholeNumber(0, 65535, "frames")
_RATE = WholeNumber(0, 2**32 - 1, "packets/s")


def _values(direction: str) -> tuple[str, ...]:
    return (f"nic.{direction}-usecs", f"nic.{direction}-frames")


def _mode(name: str, line: str, about: str, disturbs: tuple[str, ...]) -> Knob:
    label = line.partition(":")[0]
    pick = Pick(line, label=label)
    return nic_knob(name, about, Stage.MODE, SWITCH, ethtool("-c", pick, ("-C", name)), disturbs=disturbs)


def _value(name: str, kind: WholeNumber, about: str) -> Knob:
    label = name.replace("frames-", "frames?-")
    return nic_knob(name, about, Stage.VALUE, kind, ethtool("-c", labelled(label), ("-C", name)))


def _values_while(suffix: str, when: str) -> list[Knob]:
    """Return the knobs such as `rx-usecs-irq` of values that hold at times."""
    kinds = {"rx-usecs": _USECS, "rx-frames": _FRAMES, "tx-usecs": _USECS, "tx-frames": _FRAMES}
    return [_value(f"{name}-{suffix}", kind, f"{name} {when}") for name, kind in kinds.items()]


_REST = f"{BLANKS}[a-zA-Z]+:{BLANKS}[a-z/]+{BLANKS}"
_SECOND = f"RX:{BLANKS}[a-z/]+{BLANKS}TX:{BLANKS}{SWITCH_WORD}{BLANKS}"

KNOBS = (
    _mode(
        "adaptive-rx",
        f"Adaptive RX:{BLANKS}{SWITCH_WORD}{_REST}",
        "the driver adapts rx-usecs to the load: saves CPU, adds latency",
        _values("rx"),
    ),
    _mode("adaptive-tx", f"Adaptive {_SECOND}", "the driver adapts tx-usecs to the load", _values("tx")),
    _mode(
        "cqe-mode-rx",
        f"CQE mode RX:{BLANKS}{SWITCH_WORD}{_REST}",
        "each completion restarts the timer: a steady stream then raises interrupts by rx-frames only",
        _values("rx"),
    ),
    _mode("cqe-mode-tx", f"CQE mode {_SECOND}", "each completion restarts the transmit timer", _values("tx")),
    _value("rx-usecs", _USECS, "the longest that a received frame waits for its interrupt: a lower bound of latency"),
    _value("rx-frames", _FRAMES, "received frames that end the wait at once; 1 means one interrupt per frame"),
    _value("tx-usecs", _USECS, "the longest that a sent frame waits for its completion interrupt"),
    _value("tx-frames", _FRAMES, "sent frames that end the wait at once"),
    *_values_while("irq", "while an interrupt is being served"),
    *_values_while("low", "of adaptive moderation below pkt-rate-low"),
    *_values_while("high", "of adaptive moderation above pkt-rate-high"),
    _value("pkt-rate-low", _RATE, "packet rate at and below which the low values apply"),
    _value("pkt-rate-high", _RATE, "packet rate at and above which the high values apply"),
    _value("sample-interval", WholeNumber(0, 2**32 - 1, "s"), "how often adaptive moderation samples the rate"),
)

OF_A_QUEUE = ("rx-usecs", "rx-frames", "tx-usecs", "tx-frames", "adaptive-rx", "adaptive-tx")
"""What can be set for one queue alone."""

_ADAPTED = re.compile(r"nic\.([rt]x)-(?:usecs|frames)(\.queue\d+)?")


def adapts(name: str, present: Mapping[str, str]) -> bool:
    """Return whether the driver itself changes a knob's value, by what the knobs of its interface are."""
    found = _ADAPTED.fullmatch(name)
    return found is not None and present.get(f"nic.adaptive-{found[1]}{found[2] or ''}") == "on"


_QUEUE_NAME = re.compile(rf"nic\.({'|'.join(OF_A_QUEUE)})\.queue(\d{{1,4}})")


def _whole(parameter: str) -> Knob:
    return next(knob for knob in KNOBS if knob.name == f"nic.{parameter}")


def queue_knob(name: str) -> Knob | None:
    """Return the knob of one queue, such as `nic.rx-usecs.queue3`, or None for any other name."""
    found = _QUEUE_NAME.fullmatch(name)
    if not found:
        return None
    parameter, queue = found[1], int(found[2])
    whole = _whole(parameter)

    def locate(shell: Shell, target: Target) -> tuple[Access, ...]:
        (device_wide,) = whole.accesses(shell, target)
        one = ("ethtool", "-Q", target.interface, "queue_mask", hex(1 << queue))
        show = (*one, "--show-coalesce")
        change = (*one, "--coalesce", parameter, "{}")
        return (Access(target.node, show, device_wide.pick, change=change),)

    disturbs = tuple(f"{value}.queue{queue}" for value in whole.disturbs)
    return nic_knob(
        f"{parameter}.queue{queue}",
        f"{whole.about}; queue {queue} only",
        whole.stage,
        whole.kind,
        locate,
        disturbs=disturbs,
    )


# ---- queues that have values of their own: what is written for the whole device overwrites them

_LINE = re.compile(r"^([a-z-]+):[ \t]*(\S+)", re.MULTILINE)
_QUEUE_HEAD = re.compile(r"^Queue: (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class OwnValues:
    """In what the queues of a device differ from the whole.

    `knobs` are those of all its queues for each parameter in which one differs, `others` are parameters in which queues
    differ and that have no such knob.
    """

    knobs: tuple[Knob, ...] = ()
    others: tuple[str, ...] = ()


def own_values(shell: Shell, outputs: CommandOutputs, target: Target) -> OwnValues:
    """Return in what the queues of a device differ from it; nothing where its driver has no values of queues.

    Usecs and frames of a queue that adapts are the driver's.
    """
    shown, _ = outputs.of(target.node, ("ethtool", "-Q", target.interface, "--show-coalesce"))
    _, *parts = _QUEUE_HEAD.split(shown)
    queues = dict(zip(parts[::2], parts[1::2], strict=True))
    knobs: list[Knob] = []
    for parameter in OF_A_QUEUE if queues else ():
        (access,) = _whole(parameter).accesses(shell, target)
        (mode,) = _whole(f"adaptive-{'rx' if 'rx' in parameter else 'tx'}").accesses(shell, target)
        (whole,) = outputs.read_all((access,))
        set_ones = [text for text in queues.values() if mode == access or mode.pick.find(text) != "on"]
        if {access.pick.find(text) for text in set_ones} - {whole.value, None}:
            knobs += filter(None, (queue_knob(f"nic.{parameter}.queue{number}") for number in queues))
    lines = [set(_LINE.findall(text)) for text in queues.values()] or [set()]
    differing = {name for name, _ in set.union(*lines) - set.intersection(*lines)}
    return OwnValues(tuple(knobs), tuple(sorted(differing - {*OF_A_QUEUE})))
