"""The order for one trial, and what came of it: plain records that travel as JSON.

An order holds everything that a host needs to carry a trial out, so the same order serves this machine, an
emulated lab that reads it from a device, and a host far away. This module imports only the standard library,
because it also runs inside the lab's small guest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal

from nearmetal.errors import BadInputError, ForeignFileError, NearmetalError
from nearmetal.reading import parse_json
from nearmetal.study.facts import BETWEEN, SHARED

ORDER_FORMAT = 1

TRACE_FOLDER = "trace/"
"""What the names of a kernel trace's files in an outcome begin with."""
TRACE_OPTION = "waterfall"
"""The option of a workload that asks for a kernel trace."""
PACE = "pace_us"
"""The option of a workload whose iterations do not follow each other back to back: its longest pause."""
PROFILE_FOLDER = "mpi/"
"""What the names of an MPI program's trace files in an outcome begin with."""
PROFILE_OPTION = "trace"
"""The option of an application that asks for a trace of its MPI calls."""
FABRIC_FOLDER = "fabric/"
"""What the names of a whole fabric's files in an outcome begin with."""

Scalar = str | int | float | bool
Progress = Literal["polling", "blocking"]


class TrialStatus(StrEnum):
    """How a trial ended; `failed` trials keep their reason and are never part of a comparison."""

    VALID = "valid"
    FAILED = "failed"


AGAIN = "-again"
"""The suffix of the baseline's second label: the A/A pair that states the noise floor."""


def name_of(label: str) -> str:
    """Return the name in its study of the path that trials carry out under `label`."""
    return label.removesuffix(AGAIN)


def is_again(label: str) -> bool:
    """Return whether `label` is the second of a baseline."""
    return label.endswith(AGAIN)


def labels_of(baseline: str) -> tuple[str, str]:
    """Return the labels under which a block carries out the path that is the baseline."""
    return baseline, baseline + AGAIN


@dataclass(frozen=True, slots=True)
class PathOrder:
    """Which data path: `kind` is the recipe, `options` its parameters, `label` one of its labels (`labels_of`)."""

    label: str
    kind: str
    options: dict[str, Scalar] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The path's name in the study, whichever of its labels this is."""
        return name_of(self.label)

    @property
    def again(self) -> bool:
        """Whether it is a baseline under its second label."""
        return is_again(self.label)


@dataclass(frozen=True, slots=True)
class WorkloadOrder:
    """Which program to measure.

    `label` is its name in the study, `kind` the entry in the workload table, `options` what that kind
    understands (for the engine: operation, sizes, iterations ...). `placement[r]` is the node of rank r.
    """

    label: str
    kind: str
    options: dict[str, Scalar | list[Scalar]] = field(default_factory=dict)
    placement: tuple[int, ...] = (0, 1)
    progress: Progress = "polling"

    def invalid(self, why: str, hint: str = "") -> BadInputError:
        """Return the error for a workload that cannot be as it was ordered."""
        return BadInputError(f"workload {self.label!r}: {why}", hint=hint)

    @property
    def halves_share_a_node(self) -> bool:
        """Return whether some rank k of the first half is on the node of rank k + n/2, where ranks are on several."""
        half = len(self.placement) // 2
        pairs = zip(self.placement[:half], self.placement[half:], strict=False)
        return len(set(self.placement)) > 1 and any(first == second for first, second in pairs)

    def number(self, option: str, default: int = 0) -> int:
        """Return an option that is one number; raise BadInputError when it is something else."""
        value = self.options.get(option, default)
        if isinstance(value, list | str | bool) or not float(value).is_integer():
            raise self.invalid(f"option {option!r} must be a whole number, not {value!r}")
        return int(value)

    def numbers(self, option: str) -> list[int]:
        """Return an option that is a list of numbers, empty when it is not given."""
        values = self.options.get(option, [])
        if not isinstance(values, list):
            raise self.invalid(f"option {option!r} is a list, not {values!r}")
        if odd := [value for value in values if not isinstance(value, int) or isinstance(value, bool)]:
            raise self.invalid(f"option {option!r} is a list of whole numbers, and {odd[0]!r} is none")
        return [int(value) for value in values]

    def switch(self, option: str, default: bool = False) -> bool:
        """Return an option that is true or false; raise BadInputError when it is something else."""
        value = self.options.get(option, default)
        if not isinstance(value, bool):
            raise self.invalid(f"option {option!r} is true or false, not {value!r}", hint=f"write {option} = true")
        return value


@dataclass(frozen=True, slots=True)
class Order:
    """One trial to carry out: one launch of one workload on one path under one setting.

    `look` asks which of some knobs and values the path has, and `watch` is what the watchdog looks at besides the time
    while knobs are set: `probe`, an address, and `storm`, a number of interrupts a second.
    """

    trial: int
    block: int
    path: PathOrder
    workload: WorkloadOrder
    setting: str = "as-found"
    knobs: dict[str, Scalar] = field(default_factory=dict)
    look: dict[str, list[Scalar]] = field(default_factory=dict)
    watch: dict[str, Scalar] = field(default_factory=dict)
    mpi: str = "openmpi"
    seed: int = 0
    timeout_s: float = 60.0

    @property
    def nodes(self) -> int:
        """Return how many nodes the placement needs."""
        return max(self.workload.placement, default=-1) + 1

    def to_json(self) -> str:
        """Return the order as one JSON object with its format number."""
        return json.dumps({"order_format": ORDER_FORMAT, **asdict(self)}, sort_keys=True)

    @property
    def of_launch(self) -> tuple[Order, ...]:
        """Return the trials that its launch is for: this one alone."""
        return (self,)

    @staticmethod
    def from_json(text: str) -> Order:
        """Read what `to_json` wrote; raise ForeignFileError for anything else."""
        raw = _object(text, "order", ORDER_FORMAT)
        try:
            then = raw.pop("then", None)
            order = _read_order(raw)
            return SharedOrder(**_fields(order), then=tuple(map(_read_order, then))) if then else order
        except (TypeError, KeyError) as error:
            raise ForeignFileError(f"an order lacks or misnames a field: {error}") from error


def _read_order(raw: dict[str, Any]) -> Order:
    workload = WorkloadOrder(**{**raw["workload"], "placement": tuple(raw["workload"]["placement"])})
    return Order(**{**raw, "path": PathOrder(**raw["path"]), "workload": workload})


@dataclass(frozen=True, slots=True)
class SharedOrder(Order):
    """The first of several trials that one launch carries out one after another, with those that follow it.

    They differ in their workloads, seeds and numbers alone. Files of trial k of the launch end in `.k`, from 1 on, and
    `timeout_s` is that of the launch: of all its trials.
    """

    then: tuple[Order, ...] = ()

    @staticmethod
    def of(orders: Sequence[Order]) -> SharedOrder:
        """Return the order of a launch for all of these."""
        shared = SharedOrder(**_fields(orders[0]), then=tuple(orders[1:]))
        return replace(shared, timeout_s=sum(order.timeout_s for order in orders))

    @property
    def of_launch(self) -> tuple[Order, ...]:
        """Return the trials that its launch is for, each as it would be alone."""
        return (Order(**{**_fields(self), "timeout_s": self.then[0].timeout_s}), *self.then)


def _fields(order: Order) -> dict[str, Any]:
    return {field.name: getattr(order, field.name) for field in fields(Order)}


def numbered(name: str, trial: int) -> str:
    """Return the name of a file of trial `trial` (from 0) of a launch."""
    return f"{name}.{trial}" if trial else name


@dataclass(frozen=True, slots=True)
class Proof:
    """The evidence that a trial's traffic took its path.

    `moved_packets[interface]` counts packets on the path's own interfaces during the workload, `stray_packets`
    those on every other interface of the nodes.
    """

    moved_packets: dict[str, int] = field(default_factory=dict)
    stray_packets: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an order.

    `counters` are differences over the workload (interrupts, softirqs, retransmits ...), flat names to integers.
    `facts` describe the machine as the trial found it. `said` is what the workload printed, and `files` the raw files
    that it left, by name. `timed_out` says that the launch ran into its time limit, which is worth one more attempt on
    a busy machine.
    """

    status: TrialStatus
    reason: str = ""
    hint: str = ""
    launch_argv: tuple[str, ...] = ()
    elapsed_ns: int = 0
    facts: dict[str, Scalar] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    proof: Proof = field(default_factory=Proof)
    said: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    timed_out: bool = False

    def of_each(self, order: Order) -> list[tuple[Order, Outcome]]:
        """Return the trials of an order's launch: each has its own files, and all else is of the launch."""
        trials = order.of_launch
        if len(trials) == 1:
            return [(order, self)]
        facts = {**self.facts, SHARED: BETWEEN.join(one.workload.label for one in trials)}
        files: list[dict[str, bytes]] = [{} for _ in trials]
        for name, data in self.files.items():
            stem, _, number = name.rpartition(".")
            which = int(number) if number.isdecimal() and int(number) < len(trials) else 0
            files[which][stem if which else name] = data
        return [(one, replace(self, facts=facts, files=mine)) for one, mine in zip(trials, files, strict=True)]

    @staticmethod
    def of_error(error: NearmetalError, hint: str = "") -> Outcome:
        """Return the outcome of an order that an error ended; `hint` is for errors without one."""
        return Outcome(TrialStatus.FAILED, reason=error.message, hint=error.hint or hint)

    def left(self, folder: str) -> bool:
        """Return whether it left files whose names begin with a folder's, such as `TRACE_FOLDER`."""
        return any(name.startswith(folder) for name in self.files)

    def to_json(self) -> str:
        """Return everything but the files as one JSON object; the files travel separately."""
        record = asdict(self)
        del record["files"]
        return json.dumps({"order_format": ORDER_FORMAT, **record}, sort_keys=True)

    @staticmethod
    def from_json(text: str, files: dict[str, bytes]) -> Outcome:
        """Read what `to_json` wrote; raise ForeignFileError for anything else."""
        raw = _object(text, "outcome", ORDER_FORMAT)
        try:
            return Outcome(
                **{
                    **raw,
                    "status": TrialStatus(raw["status"]),
                    "launch_argv": tuple(raw["launch_argv"]),
                    "proof": Proof(**raw["proof"]),
                    "files": files,
                }
            )
        except (TypeError, KeyError, ValueError) as error:
            raise ForeignFileError(f"an outcome lacks or misnames a field: {error}") from error


def upgraded_outcome(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome that was kept before there was `timed_out`: such a one says it in words alone."""
    return {"timed_out": raw.get("reason", "").startswith("the launch did not end"), **raw}


def _object(text: str, what: str, version: int) -> dict[str, Any]:
    try:
        raw = parse_json(text)
    except ValueError as error:
        raise ForeignFileError(f"this is not an {what}: {error}") from error
    if not isinstance(raw, dict) or raw.pop("order_format", None) != version:
        message = f"this is not an {what} of format {version}"
        raise ForeignFileError(message, hint="both sides must run the same version of nearmetal")
    return raw
