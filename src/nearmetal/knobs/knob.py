"""What a knob is: one thing that can be set, with what it takes and what it disturbs.

A knob locates its accesses on a target; most have one, a knob over many vectors or processors has several. All
knobs are read, written and verified by the same code (`nearmetal.knobs.session`), and
`tests/contract/test_knobs.py` holds what every knob must do.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol

from nearmetal.errors import BadInputError
from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import Access, CommandOutputs, Reading
from nearmetal.study.order import Scalar
from nearmetal.units import ranges, whole

Scope = Literal["interface", "node", "machine"]
"""What one value of a knob belongs to."""


class Stage(IntEnum):
    """The order of writes: a later stage is disturbed by an earlier one, never the other way round."""

    MODE = 0
    VALUE = 1
    SHAPE = 2
    STEERING = 3
    AFFINITY = 4
    HOST = 5


@dataclass(frozen=True, slots=True)
class Target:
    """Where a knob is turned; `interface` is empty for knobs of a node or a machine."""

    node: str
    interface: str = ""

    def __str__(self) -> str:
        """Return the name for people and for facts."""
        return "/".join(part for part in (self.node, self.interface) if part) or "machine"


@dataclass(frozen=True, slots=True)
class Step:
    """One write: an access and the value for it."""

    access: Access
    value: str


class Kind(Protocol):
    """What values a knob takes."""

    def canon(self, value: Scalar) -> str:
        """Return the value as the kernel prints it; raise ValueError that says what is taken."""

    def about(self) -> str:
        """Return the range for people."""


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number within bounds."""

    lowest: int = 0
    highest: int = 2**32 - 1
    unit: str = ""

    def canon(self, value: Scalar) -> str:
        """Return the decimal form."""
        text = str(value).strip()
        digits = text.removeprefix("-")
        if isinstance(value, bool) or not digits.isdecimal() or not self.lowest <= int(text) <= self.highest:
            raise ValueError(f"takes a whole number, {self.about()}")
        return str(int(text))

    def about(self) -> str:
        """Return the bounds and the unit."""
        return f"{self.lowest} to {self.highest}" + (f" {self.unit}" if self.unit else "")


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words; without a list, any word that the machine offers."""

    choices: tuple[str, ...] = ()

    def canon(self, value: Scalar) -> str:
        """Return the word; true and false mean on and off where those are offered."""
        text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value).strip()
        if not text or len(text.split()) != 1 or (self.choices and text not in self.choices):
            raise ValueError(f"takes {self.about()}")
        return text

    def about(self) -> str:
        """Return the words."""
        return " | ".join(self.choices) or "one of the values that the machine lists"


SWITCH = OneOf(("on", "off"))
FLAG = WholeNumber(0, 1)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Several whole numbers that never fall, such as `4096 131072 6291456`."""

    count: int
    unit: str = ""

    def canon(self, value: Scalar) -> str:
        """Return the numbers with single blanks."""
        words = str(value).split()
        if len(words) != self.count or not all(word.isdecimal() for word in words):
            raise ValueError(f"takes {self.about()}")
        if (numbers := [int(word) for word in words]) != sorted(numbers):
            raise ValueError(f"takes {self.about()} in ascending order")
        return " ".join(map(str, numbers))

    def about(self) -> str:
        """Return how many."""
        return f"{self.count} whole numbers" + (f" of {self.unit}" if self.unit else "")


@dataclass(frozen=True, slots=True)
class CpuList:
    """Processors as the kernel lists them, such as `0-3,8`."""

    def canon(self, value: Scalar) -> str:
        """Return the list in the kernel's shortest form."""
        try:
            return ranges(parse_cpus(str(value)))
        except ValueError as error:
            raise ValueError(f"takes {self.about()}") from error

    def about(self) -> str:
        """Return the form."""
        return "a list of processors such as 0-3,8"


MOST_CPUS = 1 << 16
"""A number that no processor has: Linux knows 8192 at most."""


def parse_cpus(text: str) -> list[int]:
    """Read `0-3,8`; raise ValueError for anything else."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        found = range(whole(first, MOST_CPUS), whole(last if dash else first, MOST_CPUS) + 1)
        if not found:
            raise ValueError(f"{part!r} names no processor")
        cpus.update(found)
    return sorted(cpus)


def allowed_in(status: str) -> str:
    """Return the list of processors that a text of /proc/PID/status allows, empty where it does not say."""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    return found[1] if found else ""


Locate = Callable[["Shell", Target], tuple[Access, ...]]


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing that can be set; unless a subclass says otherwise, every access takes the same value.

    `name` is the word in the study file (`nic.rx-usecs`, `host.busy_read`), `about` one line for people: what it does
    to latency, bandwidth or CPU. One value belongs to a `scope`, `stage` says when it is written, `kind` what values
    it takes anywhere; the machine may take fewer. `accesses` finds where its values are on a target. The kernel may
    reset the values of the knobs in `disturbs` when this one is written.
    """

    name: str
    about: str
    scope: Scope
    stage: Stage
    kind: Kind
    accesses: Locate
    disturbs: tuple[str, ...] = ()

    def steps(self, shell: Shell, target: Target, value: str) -> tuple[Step, ...]:
        """Return the writes that set it."""
        return tuple(Step(access, value) for access in self.accesses(shell, target))

    def read(self, shell: Shell, target: Target, printed: CommandOutputs | None = None) -> Reading:
        """Return its present value, or why it has none there; several accesses that differ are joined with `;`.

        What commands have `printed` before is not asked for again.
        """
        return joined((printed or CommandOutputs(shell)).read_all(self.accesses(shell, target)))

    def told(self, shell: Shell, target: Target, values: Mapping[str, str]) -> Sequence[str]:
        """Return what those values of its accesses, by key, are of it, as `read` would say it: themselves."""
        del shell, target
        return list(values.values())


def joined(readings: list[Reading]) -> Reading:
    """Return several readings as one: the common value, or all of them joined with `;`."""
    if not readings:
        return Reading(None, "this host has nothing of this kind")
    missing = next((reading for reading in readings if reading.value is None), None)
    if missing:
        return missing
    values = [reading.value or "" for reading in readings]
    same = len(set(values)) == 1
    first = readings[0]
    return Reading(values[0] if same else ";".join(values), "", first.lowest, first.highest, first.choices)


def targets_of(knob: Knob, places: Sequence[Target]) -> list[Target]:
    """Return where a knob applies, given the interfaces and nodes of a setting; no node stands for the machine."""
    if knob.scope == "interface":
        return list(dict.fromkeys(target for target in places if target.interface))
    nodes = list(dict.fromkeys(Target(target.node) for target in places))
    return nodes if knob.scope == "node" else nodes or [Target("")]


class _Valued(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...


def canon(knob: _Valued, value: Scalar) -> str:
    """Return a value as its knob writes it; raise BadInputError when the knob does not take it anywhere."""
    try:
        return knob.kind.canon(value)
    except ValueError as error:
        raise BadInputError(
            f"{knob.name} = {value!r}: {knob.name} {error}", hint=f"`nearmetal knobs` shows what {knob.name} takes here"
        ) from error


def check_limits(knob: Knob, value: str, reading: Reading, target: Target) -> None:
    """Raise BadInputError when the machine itself says that it does not take the value."""
    if reading.choices and value not in reading.choices:
        raise BadInputError(f"{knob.name} on {target} takes {' '.join(reading.choices)}, not {value}")
    if reading.lowest is None and reading.highest is None:
        return
    lowest = reading.lowest if reading.lowest is not None else 0
    highest = reading.highest if reading.highest is not None else int(value)
    if not lowest <= int(value) <= highest:
        raise BadInputError(f"{knob.name} on {target} takes {lowest} to {highest}, not {value}")
