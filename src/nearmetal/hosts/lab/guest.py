"""The lab's guest side: freeze when ready, take the order, answer, switch off. Standard library only.

Everything up to the freeze is in the snapshot, so a trial starts with its code loaded. What follows runs on the
guest's own clock and talks to nothing outside, so the same order gives the same bytes.
"""

import gc
import os
import random
import signal
import termios
import time
import traceback
import tty
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from nearmetal.errors import NearmetalError
from nearmetal.hosts import plain_files
from nearmetal.hosts.lab import frames
from nearmetal.hosts.lab.frames import NodeId
from nearmetal.hosts.lab.machine import FREEZE_PORT, ORDER_ITEM
from nearmetal.study.order import Order, Outcome, TrialStatus

ANSWER_DEVICE = "/dev/ttyS1"
OUTCOME_NAME = "outcome.json"
_ORDER_FILE = f"/sys/firmware/qemu_fw_cfg/by_name/{ORDER_ITEM}/raw"
_LAUNCH_SPREAD_NS = 20_000_000
_LIMIT_FACTOR = 3


def serve(
    carry_out: Callable[[Sequence[Order], NodeId, Callable[[Order], None]], Iterator[Outcome]],
    stand: Callable[[], None],
) -> None:
    """Freeze; then, in every machine that is restored from the snapshot, run its orders and switch off.

    `carry_out` calls what it is given with each order before it begins. The first launch that fails is the last.
    On request a machine calls `stand` and freezes again, for machines that find its guest.
    """
    text, node_id = _restored()
    if text == frames.STAND_GUEST:
        stand()
        text, node_id = _restored()
    try:
        orders = [Order.from_json(line) for line in text.decode().splitlines()]
        for outcome in carry_out(orders, node_id, lambda order: _deal(order, node_id)):
            signal.setitimer(signal.ITIMER_REAL, 0)
            tell(outcome)
            if outcome.status is not TrialStatus.VALID:
                break
    except NearmetalError as error:
        tell(Outcome.of_error(error))
    except Exception:  # noqa: BLE001 - the traceback is the answer; it cannot be reported otherwise
        tell(Outcome(TrialStatus.FAILED, reason=f"nearmetal failed inside the lab:\n{traceback.format_exc()}"))
    switch_off()


def _restored() -> tuple[bytes, NodeId]:
    """Freeze, and return what a machine that is restored from the snapshot is to do."""
    gc.collect()
    gc.freeze()
    freeze()
    return take_order()


def _deal(order: Order, node_id: NodeId) -> None:
    """Set a launch's random state and its time limit."""
    differ(order.seed, node_id.node)
    if node_id.node == 0:  # the others end with it
        limit_virtual_time(order.timeout_s * _LIMIT_FACTOR)


def tell(outcome: Outcome) -> None:
    """Send an outcome out."""
    answer({OUTCOME_NAME: outcome.to_json().encode(), **{f"files/{k}": v for k, v in outcome.files.items()}})


def freeze() -> None:
    """Ask the emulator to stop this machine; return when it runs again, possibly as another machine."""
    port = os.open("/dev/port", os.O_WRONLY)
    try:
        os.pwrite(port, b"\x01", FREEZE_PORT)
    finally:
        os.close(port)


def take_order() -> tuple[bytes, NodeId]:
    """Read the order, and which node this is, from the emulator's configuration device.

    Raises ForeignFileError when it holds none.
    """
    descriptor = os.open(_ORDER_FILE, os.O_RDONLY)
    try:
        header = os.pread(descriptor, frames.ORDER_HEADER_BYTES, 0)
        # The device is read byte by byte from its start every time: ask once, and for no more than there is.
        whole = frames.ORDER_HEADER_BYTES + frames.order_length(header)
        area = b""
        while len(area) < whole:
            area += os.pread(descriptor, whole - len(area), len(area))
        return frames.unpack_order(area)
    finally:
        os.close(descriptor)


def differ(seed: int, node: int = 0) -> None:
    """Make this machine differ from others by its seed alone, as launches on a real machine differ.

    The kernel's random numbers (address layout, initial sequence numbers, hash keys) follow from the seed and the node,
    and the moment of the launch within the timer's period from the seed.
    """
    plain_files.reseed(seed.to_bytes(15, "little", signed=True) + bytes((node,)))
    time.sleep(random.Random(seed).randrange(_LAUNCH_SPREAD_NS) / 1e9)


def limit_virtual_time(limit_s: float) -> None:
    """Fail and switch off when this machine's own clock passes the limit, whatever runs then.

    Nothing is cleaned up first: what hangs may be the kernel, and this machine ends anyway.
    """

    def over(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        reason = f"the trial exceeded its limit of {limit_s:g} s of virtual time"
        tell(Outcome(TrialStatus.FAILED, reason=reason))
        switch_off()

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit_s)


def answer(files: dict[str, bytes]) -> None:
    """Write the answer to the serial line and wait until it is out."""
    descriptor = os.open(ANSWER_DEVICE, os.O_WRONLY | os.O_NOCTTY)
    try:
        tty.setraw(descriptor)
        for frame in frames.pack_files(files):
            written = 0
            while written < len(frame):
                written += os.write(descriptor, frame[written:])
        termios.tcdrain(descriptor)
    finally:
        os.close(descriptor)


def switch_off() -> None:
    """Reset this machine at once, which ends it: a tidy shutdown would wait for drivers, and one may hang."""
    Path("/proc/sysrq-trigger").write_text("b")
    while True:
        time.sleep(1)
