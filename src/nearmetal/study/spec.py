"""The study file: TOML read into frozen models, every error at once, each with its place and a hint.

The schema is these classes; docs/reference/study.md is generated from them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import rtoml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from nearmetal.errors import BadInputError, listed, meant
from nearmetal.reading import TOO_DEEP, check_depth, read_text, timed
from nearmetal.study.fields import AGAIN as AGAIN  # noqa: PLC0414 (of the names in a study, which this file is about)
from nearmetal.study.fields import (
    MOST,
    Address,
    DurationNs,
    Interface,
    Keyed,
    Name,
    Nodes,
    Pace,
    Share,
    Sizes,
    Texts,
    User,
    ValueOrValues,
    Values,
    Weights,
    few_keys,
    listed_of,
)
from nearmetal.study.order import Progress
from nearmetal.typed import adapter
from nearmetal.units import NS_PER_S, counted

_T = TypeVar("_T")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class NodeSpec(_Model):
    """One machine of an ssh host: a bare host or a guest."""

    name: Name = Field(description="Its name in this study; paths name their machines by it.")
    address: Address = Field("", description="Where ssh finds it; the name when left out.")
    reach: Address = Field("", description="How the machines find each other; `address` when left out.")
    user: User = Field("", description="User to log in as; ssh's own choice when left out.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="The port of its sshd; 0: ssh's own choice.")
    jump: str = Field(
        "", description="Jump hosts on the way, `user@host:port`, separated by commas; ssh's own when left out."
    )
    connect_timeout_s: Annotated[float, Field(ge=0)] = Field(
        0, description="Time for one connection to it; 0: the host's option of that name."
    )
    interface: Interface = Field("", description="Its interface on the measured path.")


if TYPE_CHECKING:
    NodeSpecs = list[NodeSpec]
else:
    NodeSpecs = listed_of(NodeSpec)


class HostSpec(_Model):
    """Where trials are carried out."""

    kind: str = Field("local", description="A kind of [host](hosts-and-paths.md).")
    node: NodeSpecs = Field(default_factory=list, description="For `ssh` and `kubectl`: the machines or pods.")
    hosts_file: str = Field("", description="For `ssh`: a TOML file with further `[[node]]` tables.")
    libvirt: Texts = Field(
        default_factory=list,
        description="URIs of the libvirts that run the guests, such as `qemu:///system` or `qemu+ssh://hv1/system`: "
        "the guests' configuration is recorded with every trial, and confounders give a warning before the first.",
    )
    options: Keyed = Field(default_factory=dict, description="What that kind of host understands.")


class MpiSpec(_Model):
    """Which MPI launches the engine."""

    flavour: str = Field("openmpi", description="`openmpi` or `mpich`.")


class PathSpec(_Model):
    """One data path to measure."""

    name: Name = Field(description="Its name in tables and reports.")
    kind: str = Field("", description="The recipe; the name when left out.")
    options: Keyed = Field(default_factory=dict, description="Parameters of the recipe.")

    @property
    def recipe(self) -> str:
        """Return the kind of path."""
        return self.kind or self.name


class WorkloadSpec(_Model):
    """One workload: by default an operation of nearmetal's own engine."""

    name: Name = Field(description="Its name in tables and reports.")
    kind: str = Field("engine", description="The kind of workload; `engine` is nearmetal's own.")
    operation: str = Field("", description="For `engine`: the operation; the name when left out.")
    sizes: Sizes = Field(default_factory=list, description="Message sizes, such as `8` or `'64 KiB'`.")
    iterations: Annotated[int, Field(ge=1, le=100_000_000)] = Field(1000, description="Measured iterations a size.")
    warmup: Annotated[int, Field(ge=0, le=10_000_000)] = Field(100, description="Iterations before, kept but marked.")
    placement: Nodes | Literal["spread", "packed"] = Field(
        "spread", description="Node of each rank; `spread`: round robin over two nodes; `packed`: all in one."
    )
    ranks: Annotated[int, Field(ge=1, le=65536)] = Field(2, description="Ranks, where placement is a word.")
    progress: Progress = Field("polling", description="How waiting ranks wait: `polling` or `blocking`.")
    pace: Pace = Field(
        "back-to-back",
        description="For `engine`: `back-to-back`, or `random`: a seeded pause before each iteration, so that it is in "
        "step with no timer.",
    )
    pace_range: DurationNs | None = Field(
        None,
        description="The longest pause of `random`, such as `'500 us'`; left out, the longest moderation that the "
        "study knows, at least 500 us.",
    )
    options: Annotated[dict[str, ValueOrValues], BeforeValidator(few_keys)] = Field(
        default_factory=dict, description="Further options of that kind."
    )

    @property
    def placed(self) -> tuple[int, ...]:
        """Return the node of every rank."""
        if self.placement == "spread":
            return tuple(rank % 2 for rank in range(self.ranks))
        if self.placement == "packed":
            return (0,) * self.ranks
        return tuple(self.placement)

    @model_validator(mode="after")
    def _pace_of_the_engine(self) -> Self:
        if self.pace == "random" and self.kind != "engine":
            raise ValueError(f"pace = 'random' is for kind = 'engine'; {self.kind!r} paces its messages itself")
        if self.pace_range is not None and self.pace != "random":
            raise ValueError("pace_range is for pace = 'random'")
        return self

    @model_validator(mode="after")
    def _sizes_given_once(self) -> Self:
        if len(set(self.sizes)) != len(self.sizes):
            raise ValueError("a message size is given twice")
        return self


class SettingSpec(_Model):
    """Knob values that hold together during a trial."""

    name: Name = Field(description="Its name in tables and reports.")
    knobs: Keyed = Field(default_factory=dict, description="Knob name to value.")


class TrialsSpec(_Model):
    """How many trials, and when to stop."""

    min_blocks: Annotated[int, Field(ge=3, le=10_000)] = Field(5, description="Blocks before the first look.")
    max_blocks: Annotated[int, Field(ge=3, le=10_000)] = Field(16, description="The cap.")
    precision: Share | None = Field(None, description="Stop when the ratio's half-width is as narrow as this.")
    floor: Share | None = Field(
        None, description="Go on while a cell's noise floor is above this; parts of a program do not count."
    )
    timeout: DurationNs = Field(60 * NS_PER_S, description="For one trial, such as `'60 s'`.")
    probe: str = Field(
        "", description="An address; while knobs are set, the watchdog puts them back when it stops answering."
    )
    storm: Annotated[int, Field(ge=0)] = Field(
        0, description="Interrupts a second of a machine above which the watchdog puts knobs back; 0 is off."
    )

    @model_validator(mode="after")
    def _cap_not_below_start(self) -> Self:
        if self.max_blocks < self.min_blocks:
            raise ValueError(f"max_blocks ({self.max_blocks}) is below min_blocks ({self.min_blocks})")
        return self


class TuneClass(_Model):
    """One class of workloads, which gets a search and a profile of its own."""

    name: Name = Field(description="Such as `latency-bound`, `bandwidth-bound` or `collective`.")
    workloads: Texts = Field(default_factory=list, description="The workloads that it measures; all if left out.")
    weights: Weights = Field(default_factory=dict, description="As in `[tune]`; those of `[tune]` when left out.")


class TuneSpec(_Model):
    """What `nearmetal tune` searches."""

    path: str = Field("", description="The path to tune; the first that is not the baseline when left out.")
    knobs: Annotated[dict[str, Values], BeforeValidator(few_keys)] = Field(
        min_length=1, description="Knob name to the values to try."
    )
    method: Literal["race", "grid", "one-at-a-time", "optuna-tpe", "optuna-random"] = Field(
        "race", description="How to search."
    )
    weights: Weights = Field(
        default_factory=lambda: {"*/mean": 1.0},
        description="Weight of cells by pattern; a cell is `WORKLOAD/OPERATION/SIZE/mean`, `.../median`, `.../p99`, "
        "`WORKLOAD/interrupts-per-s` or `WORKLOAD/cpu-share`.",
    )
    limits: Annotated[dict[str, Share], BeforeValidator(few_keys)] = Field(
        default_factory=dict,
        description="Cells by pattern, and how much worse than present they may get.",
    )
    max_trials: Annotated[int, Field(ge=10, le=1_000_000)] = Field(400, description="The search ends after these.")
    workload_class: Name = Field(
        "latency-bound", description="What the profile is for: one setting does not serve every workload."
    )
    classes: list[TuneClass] = Field(
        default_factory=list,
        max_length=MOST,
        description="Classes, tuned one after another; `workload_class` alone if left out.",
    )
    interfaces: Texts = Field(default_factory=list, description="Interfaces that the profile will name.")

    @property
    def searches(self) -> list[TuneClass]:
        """Return the classes with their weights."""
        named = self.classes or [TuneClass(name=self.workload_class)]
        return [one.model_copy(update={"weights": one.weights or self.weights}) for one in named]


class Study(_Model):
    """What to compare."""

    format: Literal[1] = Field(1, description="The format of this file.")
    name: Name = Field(description="A short name; it names the run directory.")
    title: str = Field("", description="One line for people, shown on the report.")
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = Field(1, description="Decides the order of trials.")
    baseline: str = Field(description="The path that the others are compared with.")
    margin: Share = Field(0.05, description="What still counts as equal in mean and median, such as `'5 %'`.")
    tail_margin: Share = Field(0.10, description="What still counts as equal in the p99.")
    rarest_mode: Share = Field(
        0.2,
        description="`near-metal` needs launches enough to have met a slow mode of this share: 14 for `'20 %'`, "
        "5 for `'50 %'`.",
    )
    host: HostSpec = Field(default_factory=HostSpec)
    mpi: MpiSpec = Field(default_factory=MpiSpec)
    path: list[PathSpec] = Field(min_length=1, max_length=MOST, description="The data paths.")
    workload: list[WorkloadSpec] = Field(min_length=1, max_length=MOST, description="The workloads.")
    setting: list[SettingSpec] = Field(
        default_factory=lambda: [SettingSpec(name="as-found")],
        min_length=1,
        max_length=MOST,
        description="The settings.",
    )
    trials: TrialsSpec = Field(default_factory=TrialsSpec)
    tune: TuneSpec | None = Field(None, description="What `nearmetal tune` searches.")

    @field_validator("path", "workload", "setting")
    @classmethod
    def _names_differ(cls, entries: list[PathSpec | WorkloadSpec | SettingSpec]) -> list[object]:
        counts = Counter(entry.name for entry in entries)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise ValueError(f"two of them have the name {twice[0]!r}; names must be unique")
        return list(entries)

    @model_validator(mode="after")
    def _baseline_is_a_path(self) -> Self:
        if self.baseline not in [p.name for p in self.path]:
            raise ValueError(f"the baseline {self.baseline!r} is not the name of a path")
        return self

    @model_validator(mode="after")
    def _classes_name_workloads(self) -> Self:
        known = [w.name for w in self.workload]
        for one in self.tune.classes if self.tune else []:
            if unknown := sorted(set(one.workloads) - set(known)):
                raise ValueError(f"tune.classes: {one.name!r} names the workload {unknown[0]!r}; known: {known}")
        return self


@timed
def parse_toml(text: str) -> dict[str, Any]:
    """Return what a TOML text holds; raise ValueError for anything else, and for one that nests too deep.

    Not by tomllib: that takes up to 1.6 s of processor time a MB, and time in the square of the parts of `a.a.a`.
    """
    try:
        held = rtoml.loads(text, none_value=None)
    except rtoml.TomlParsingError as error:
        if "recursion" in str(error):  # its own limit, which is above ours
            raise ValueError(TOO_DEEP) from error
        raise
    check_depth(held)
    return held


def parse_study(text: str, source: str) -> Study:
    """Read the text of a study; `source` names it in errors. Raise BadInputError that lists every error."""
    try:
        raw = parse_toml(text)
    except ValueError as error:
        raise BadInputError(
            f"{source} is not TOML: {error}", hint="docs/reference/study.md shows what a study looks like"
        ) from error
    try:
        return Study.model_validate(raw, context={"left": MOST})
    except ValidationError as error:
        count = counted(error.error_count(), "error")
        raise BadInputError(
            f"{source} has {count}:\n  {_lines(error)}", hint="docs/reference/study.md describes every key"
        ) from error


class _HostsFile(_Model):
    node: NodeSpecs


def read_nodes(path: Path) -> list[NodeSpec]:
    """Read a hosts file, `[[node]]` tables alone; raise BadInputError that lists every error."""
    raw = read_toml(path, "a hosts file", "it has [[node]] tables")
    try:
        return _HostsFile.model_validate(raw, context={"left": MOST}).node
    except ValidationError as error:
        raise BadInputError(f"the hosts file {path} is wrong:\n  {_lines(error)}") from error


def read_toml(path: Path, what: str, hint: str) -> dict[str, Any]:
    """Read a TOML file; raise BadInputError that it is not what it should be where that is impossible."""
    try:
        return parse_toml(read_text(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"{path} is not {what}: {why}", hint=hint) from error


def read_table(kind: type[_T], table: object, source: str, hint: str) -> _T:
    """Return a table of a TOML file as a record; raise BadInputError that lists every error."""
    known: Any = kind
    try:
        made: _T = adapter(known).validate_python(table)
    except ValidationError as error:
        raise BadInputError(f"{source}: {_lines(error, [one.name for one in fields(known)])}", hint=hint) from error
    return made


def digest(text: str) -> str:
    """Return the SHA-256 of a study's text: its identity in a run."""
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(error: ValidationError, keys: Sequence[str] = ()) -> str:
    """Return each error in a line; `keys` are those of a table that is no study."""
    return "\n  ".join(listed(error.errors(include_url=False), lambda one: _line(one, keys)))


def _line(detail: ErrorDetails, keys: Sequence[str]) -> str:
    """Return `path[2].kind: what is wrong (hint)`."""
    place = ""
    for step in detail["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else str(step)
    if detail["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"{place}: unknown key{_did_you_mean(detail, keys)}"
    if detail["type"] == "missing":
        return f"{place}: missing"
    message = detail["msg"].removeprefix("Value error, ")
    value = detail["input"]
    shown = f" (it is {value!r})" if isinstance(value, str | int | float) and detail["type"] != "value_error" else ""
    return f"{place or ('the table' if keys else 'the study')}: {message[:1].lower()}{message[1:]}{shown}"


def _did_you_mean(detail: ErrorDetails, keys: Sequence[str]) -> str:
    *parents, key = [step for step in detail["loc"] if isinstance(step, str)]
    return f"; {meant(str(key), keys or _known_keys(parents))}"


def _known_keys(parents: list[str]) -> list[str]:
    models: dict[str, type[_Model]] = {
        "host": HostSpec,
        "node": NodeSpec,
        "mpi": MpiSpec,
        "path": PathSpec,
        "workload": WorkloadSpec,
        "setting": SettingSpec,
        "trials": TrialsSpec,
        "tune": TuneSpec,
        "classes": TuneClass,
    }
    model = models[parents[-1]] if parents else Study
    return list(model.model_fields)
