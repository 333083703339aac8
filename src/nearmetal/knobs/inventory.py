"""Every knob of a host: its value, its range, what supports it, and why it is not there where it is not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nearmetal.hosts.host import Shell
from nearmetal.knobs import coalesce, drivers, mpi
from nearmetal.knobs.access import CommandOutputs, Reading
from nearmetal.knobs.guards import identify
from nearmetal.knobs.knob import Knob, Target, WholeNumber, joined, targets_of
from nearmetal.knobs.nic import known_as, listing
from nearmetal.knobs.table import FAMILIES, find


@dataclass(frozen=True, slots=True)
class KnobRow:
    """One knob on one target; `value` is None where `reason` says why, `doubt` warns of empty read-backs.

    `driver` is that of the interface, `support` the program or file through which the knob is set.
    """

    family: str
    knob: str
    target: str
    value: str | None
    takes: str
    driver: str
    support: str
    reason: str
    doubt: str
    about: str


def rows(shell: Shell, interfaces: Sequence[Target]) -> Iterator[KnobRow]:
    """Yield every knob on every target, in the order of the table; MPI knobs last, without a target."""
    driver = {target: identify(shell, target).driver for target in interfaces}
    printed = CommandOutputs(shell)
    for family, knobs in FAMILIES.items():
        for knob in (one for one in knobs if one.name == known_as(one.name)):
            for target in targets_of(knob, [*interfaces, Target("")]):
                yield _row(shell, family, knob, target, driver.get(target, ""), printed=printed)
        if knobs is coalesce.KNOBS:
            for target in interfaces:
                yield from _queue_rows(shell, target, driver[target], printed)
    for one in mpi.KNOBS:
        offered = ", ".join(one.renders)
        yield KnobRow(
            "MPI", one.name, "launch", None, one.kind.about(), "", offered, "set for each launch", "", one.about
        )


def _row(shell: Shell, family: str, knob: Knob, target: Target, driver: str, *, printed: CommandOutputs) -> KnobRow:
    reading = knob.read(shell, target, printed)
    there = reading.value is not None
    doubt = drivers.readback_doubt(driver, knob.name) if there else ""
    support = _support(shell, knob, target) if there else ""
    takes = _takes(knob, reading, driver)
    return KnobRow(
        family, knob.name, str(target), reading.value, takes, driver, support, reading.reason, doubt, knob.about
    )


def _support(shell: Shell, knob: Knob, target: Target) -> str:
    """Return `ethtool -C` and the like; a file of many stands for all of them."""
    access = knob.accesses(shell, target)[0]
    return access.path or " ".join(word for word in access.change[:2] if word != target.interface)


def _queue_rows(shell: Shell, target: Target, driver: str, printed: CommandOutputs) -> Iterator[KnobRow]:
    """Yield the knobs of single queues, one row for all queues of an interface: `nic.rx-usecs.queueN`."""
    names = listing(shell, target.node, f"/sys/class/net/{target.interface}/queues")
    queues = [name for name in names if name.startswith("rx-")]
    for parameter in coalesce.OF_A_QUEUE:
        knobs = [find(f"nic.{parameter}.queue{number}") for number in range(len(queues) or 1)]
        first = _row(shell, "coalescing", knobs[0], target, driver, printed=printed)
        value = first.value
        if value is not None:
            value = joined([knob.read(shell, target, printed) for knob in knobs]).value
        takes = f"{first.takes}; N is 0 to {len(knobs) - 1}"
        about = first.about.replace("queue 0", "queue N")
        yield replace(first, knob=f"nic.{parameter}.queueN", value=value, takes=takes, about=about)


def _takes(knob: Knob, reading: Reading, driver: str) -> str:
    """Return what the machine takes, else the driver up to the machine's limit, else what the knob takes anywhere."""
    if reading.choices:
        return " | ".join(reading.choices)
    unit = knob.kind.unit if isinstance(knob.kind, WholeNumber) else ""
    if reading.highest is not None and reading.lowest is not None:
        return WholeNumber(reading.lowest, reading.highest, unit).about()
    if told := drivers.range_about(driver, knob.name, unit, reading.highest):
        return told
    return knob.kind.about() if reading.highest is None else WholeNumber(0, reading.highest, unit).about()
