"""A trial in the lab, from letting its machines run to what they left: one machine, or several in one virtual time."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nearmetal.errors import TrialError
from nearmetal.hosts.lab import wire
from nearmetal.hosts.lab.qmp import EmulatorGoneError

if TYPE_CHECKING:
    from nearmetal.hosts.lab.vm import Vm

_STEP_S = 0.5
PATIENCE = 8.0
"""How many times its processor time a boot or a trial may take where other programs take turns with it."""
_STOPS = {"SHUTDOWN", "GUEST_PANICKED"}
_WHOLE_LINE_S = 0.02
_GRACE_S = 5.0
"""How long those that the wire ends may be ahead of the machine that it ends them for."""
_LOOK_S = 0.02


def carry_out(vms: Sequence[Vm], *, timeout_s: float) -> Iterator[dict[str, bytes]]:
    """Let the machines run until the first switches off, and yield the files of each of its launches.

    Raises TrialError with a console's tail, after the launches that ended before, as `first_stop` does, when another
    machine stops before it, and when it panics or leaves no whole answer.
    """
    try:
        stopped, _ = first_stop(vms, "the trial", timeout_s)
    except TrialError:
        with contextlib.suppress(TrialError):
            yield from vms[0].answers()
        raise
    if stopped is not vms[0]:
        raise TrialError(stopped.told("the lab's guest stopped before the trial had ended"))
    yield from stopped.answers()


def first_stop(vms: Sequence[Vm], what: str, timeout_s: float) -> tuple[Vm, str]:
    """Let the machines run until one stops, and return it with the name of the event that says why.

    Raises TrialError with a console's tail when they exceed `timeout_s` of processor time each, or `PATIENCE` times
    that of wall time, and when an emulator ends. A guest never idles on the wall's clock, so a machine that is busy
    with other things costs no trial. Raises UnavailableError when a machine's folder is full.
    """
    spent_s = sum(vm.processor_s() for vm in vms)
    limit_s = timeout_s * len(vms)
    deadline_s = time.monotonic() + PATIENCE * limit_s
    for vm in vms:  # a machine that waits for its peers answers nobody
        vm.control.send("cont")
    while True:
        if stop := _look(vms, min(deadline_s, time.monotonic() + _STEP_S)):
            return stop
        for vm in vms:
            vm.refuse_full()
        if time.monotonic() >= deadline_s:
            raise _late(vms, what, f"{PATIENCE * limit_s:.0f} s of wall time")
        if sum(vm.processor_s() for vm in vms) - spent_s >= limit_s:
            raise _late(vms, what, f"{limit_s:.0f} s of processor time")


def _look(vms: Sequence[Vm], deadline_s: float) -> tuple[Vm, str] | None:
    """Return a machine that stops before `deadline_s`; raise TrialError when an emulator ended."""
    waits = not any(vm.control.has_more for vm in vms)
    ready, _, _ = select.select([vm.control for vm in vms], (), (), deadline_s - time.monotonic() if waits else 0)
    for vm in vms:
        if vm.control in ready or vm.control.has_more:
            try:
                while event := vm.control.wait_event(time.monotonic() + _WHOLE_LINE_S):
                    if event in _STOPS:
                        return vm, event
            except EmulatorGoneError as error:
                raise _gone(vms, vm, error) from error
    return None


def _gone(vms: Sequence[Vm], first: Vm, error: EmulatorGoneError) -> TrialError:
    """Return the error for the machine that ended by itself: those that end because a peer did come second."""
    deadline_s = time.monotonic() + _GRACE_S
    while not (causes := [vm for vm in vms if vm.status not in {None, wire.EXIT_STATUS}]):
        if time.monotonic() >= deadline_s or all(vm.status is not None for vm in vms):
            break
        time.sleep(_LOOK_S)
    return next(iter(causes), first).gone(error)


def _late(vms: Sequence[Vm], what: str, limit: str) -> TrialError:
    return TrialError(
        vms[0].told(f"{what} exceeded its limit of {limit}"),
        hint="look for a hang on the guest's console; a long trial needs a larger time limit",
    )
