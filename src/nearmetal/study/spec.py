"""The study file: TOML read into frozen models, every error at once, each with its place and a hint.

The schema is these classes; docs/reference/study.md is generated from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import rtoml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from nearmetal.errors import BadInputError, meant
from nearmetal.reading import TOO_DEEP, check_depth, read_text, timed
from nearmetal.study.fields import (
    AS_FOUND,
    MOST,
    Address,
    DurationNs,
    FormatOne,
    Interface,
    Keyed,
    Name,
    Number,
    Pace,
    Placement,
    Share,
    Sizes,
    Texts,
    User,
    ValueOrValues,
    Values,
    Weights,
    Whole,
    few_keys,
    listed_of,
    names_differ,
    said,
)
from nearmetal.study.order import Progress
from nearmetal.typed import adapter
from nearmetal.units import NS_PER_S, counted

MOST_BLOCKS = 10_000

_T = TypeVar("_T")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class NodeSpec(_Model):
    """One machine of an ssh host: a bare host or a guest."""

    name: Name
    """Its name in this study; paths refer to their machines by it."""
    address: Address = ""
    """Its address for ssh; default: the name."""
    reach: Address = ""
    """Its address for the other machines; default: `address`."""
    user: User = ""
    """User to log in as; default: ssh's own choice."""
    port: Annotated[Whole, Field(ge=0, le=65535)] = 0
    """The port of its sshd; 0: ssh's own choice."""
    jump: str = ""
    """Jump hosts on the way, `user@host:port`, separated by commas; default: ssh's own."""
    connect_timeout_s: Annotated[Number, Field(ge=0)] = 0
    """Timeout for a connection to it; 0: the host's option of that name."""
    interface: Interface = ""
    """Its interface on the measured path."""


if TYPE_CHECKING:
    NodeSpecs = list[NodeSpec]
else:
    NodeSpecs = listed_of(NodeSpec)


class HostSpec(_Model):
    """Where trials run."""

    kind: str = "local"
    """A kind of [host](hosts-and-paths.md)."""
    node: NodeSpecs = Field(default_factory=list)
    """For `ssh` and `kubectl`: the machines or pods."""
    hosts_file: str = ""
    """For `ssh`: a TOML file with further `[[node]]` tables; the run keeps a copy."""
    libvirt: Texts = Field(default_factory=list)
    """URIs of the libvirts that run the guests, such as `qemu:///system` or `qemu+ssh://hv1/system`: the guests'
    configuration is recorded with every trial, and confounders cause a warning before the first."""
    options: Keyed = Field(default_factory=dict)
    """[Options](hosts-and-paths.md) of that kind of host."""

    _names_differ = field_validator("node")(names_differ)


class MpiSpec(_Model):
    """Which MPI launches the engine."""

    flavour: str = "openmpi"
    """`openmpi` or `mpich`."""


class PathSpec(_Model):
    """One data path to measure."""

    name: Name
    """Its name in tables and reports."""
    kind: str = ""
    """The kind of [path](hosts-and-paths.md#paths); default: the name."""
    options: Keyed = Field(default_factory=dict)
    """Options of that kind of path."""

    @property
    def recipe(self) -> str:
        """Return the kind of path."""
        return self.kind or self.name


class WorkloadSpec(_Model):
    """One workload: by default an operation of nearmetal's own engine."""

    name: Name
    """Its name in tables and reports."""
    kind: str = "engine"
    """The kind of workload; `engine` is nearmetal's own."""
    operation: str = ""
    """For `engine`: the operation; default: the name."""
    sizes: Sizes = Field(default_factory=list)
    """Message sizes, such as `8` or `'64 KiB'`."""
    iterations: Annotated[Whole, Field(ge=1, le=100_000_000)] = 1000
    """Measured iterations per size."""
    warmup: Annotated[Whole, Field(ge=0, le=10_000_000)] = 100
    """Warm-up iterations before them, kept but marked."""
    placement: Placement = "spread"
    """Node of each rank; `spread`: round robin over two nodes; `packed`: all on one, so that nothing crosses a path."""
    ranks: Annotated[Whole, Field(ge=1, le=65536)] = 2
    """Number of ranks, if placement is a word."""
    progress: Progress = "polling"
    """How waiting ranks wait: `polling` or `blocking`."""
    pace: Pace = "back-to-back"
    """For `engine`: `back-to-back`, or `random`: a seeded pause before each iteration, so that no iteration is in step
    with a timer."""
    pace_range: DurationNs | None = None
    """The longest pause of `random`, such as `'500 us'`; default: the longest interrupt moderation known to the study,
    but at least 500 us."""
    options: Annotated[dict[str, ValueOrValues], BeforeValidator(few_keys)] = Field(default_factory=dict)
    """Further options of that kind."""

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
        if twice := [size for at, size in enumerate(self.sizes) if size in self.sizes[:at]]:
            raise ValueError(f"a message size is given twice: {twice[0]} bytes")
        return self


class SettingSpec(_Model):
    """Knob values that hold together during a trial."""

    name: Name
    """Its name in tables and reports."""
    knobs: Keyed = Field(default_factory=dict)
    """Maps knob names to values."""


class TrialsSpec(_Model):
    """How many trials, and when to stop."""

    min_blocks: Annotated[Whole, Field(ge=3, le=MOST_BLOCKS)] = 5
    """Blocks before the first check whether to stop."""
    max_blocks: Annotated[Whole, Field(ge=3, le=MOST_BLOCKS)] = 16
    """The most blocks."""
    precision: Share | None = None
    """Stop when the relative half-width of the ratio's interval is at most this."""
    floor: Share | None = None
    """Continue while a cell's noise floor is above this; parts of a program do not count."""
    share_launches: bool = False
    """Measure workloads of `engine` with the same ranks, placement and progress in one launch, in the study's order, so
    that MPI starts once for all. Their trials then have the launch's counters in common."""
    timeout: DurationNs = 60 * NS_PER_S
    """Timeout of one trial, such as `'60 s'`."""
    probe: str = ""
    """An address; while knobs are set, the watchdog restores them if it stops answering."""
    storm: Annotated[Whole, Field(ge=0)] = 0
    """Interrupts per second of a machine above which the watchdog restores knobs; 0 is off."""

    @model_validator(mode="after")
    def _cap_not_below_start(self) -> Self:
        if self.max_blocks < self.min_blocks:
            raise ValueError(f"max_blocks ({self.max_blocks}) is below min_blocks ({self.min_blocks})")
        return self


class TuneClass(_Model):
    """One class of workloads, which gets its own search and profile."""

    name: Name
    """Such as `latency-bound`, `bandwidth-bound` or `collective`."""
    workloads: Texts = Field(default_factory=list)
    """The workloads that it measures; default: all."""
    weights: Weights = Field(default_factory=dict)
    """As in `[tune]`; default: those of `[tune]`."""


class TuneSpec(_Model):
    """What `nearmetal tune` searches."""

    path: str = ""
    """The path to tune; default: the first that is not the baseline."""
    knobs: Annotated[dict[str, Values], BeforeValidator(few_keys)] = Field(min_length=1)
    """Maps knob names to the values to try."""
    method: Literal["race", "grid", "one-at-a-time", "optuna-tpe", "optuna-random"] = "race"
    """The search method."""
    weights: Weights = Field(default_factory=lambda: {"*/mean": 1.0})
    """Weights of cells, by pattern; a cell is `WORKLOAD/OPERATION/SIZE/mean`, `.../median`, `.../p99`,
    `WORKLOAD/interrupts-per-s` or `WORKLOAD/cpu-share`."""
    limits: Annotated[dict[str, Share], BeforeValidator(few_keys)] = Field(default_factory=dict)
    """How much worse than at present cells may get, by pattern."""
    max_trials: Annotated[Whole, Field(ge=10, le=1_000_000)] = 400
    """The search ends after this many trials."""
    workload_class: Name = "latency-bound"
    """What the profile is for: no setting suits every workload."""
    classes: list[TuneClass] = Field(default_factory=list, max_length=MOST)
    """Classes, tuned one after another; default: only `workload_class`."""
    interfaces: Texts = Field(default_factory=list)
    """Interfaces that the profile names."""

    _names_differ = field_validator("classes")(names_differ)

    @property
    def searches(self) -> list[TuneClass]:
        """Return the classes with their weights."""
        named = self.classes or [TuneClass(name=self.workload_class)]
        return [one.model_copy(update={"weights": one.weights or self.weights}) for one in named]


class Study(_Model):
    """What to compare."""

    format: FormatOne = 1
    """The format of this file."""
    name: Name
    """A short name, also used for the run directory."""
    title: str = ""
    """A one-line title for the report."""
    seed: Annotated[Whole, Field(ge=0, lt=1 << 63)] = 1
    """Seed of the random order of trials."""
    baseline: str
    """The path that the others are compared with."""
    margin: Share = 0.05
    """The difference in mean and median that still counts as equal, such as `'5 %'`."""
    tail_margin: Share = 0.10
    """The difference in the p99 that still counts as equal."""
    rarest_mode: Share = 0.2
    """`near-metal` requires enough launches to detect a slow mode that occurs in this share of them: 14 for `'20 %'`,
    5 for `'50 %'`."""
    host: HostSpec = Field(default_factory=HostSpec)
    mpi: MpiSpec = Field(default_factory=MpiSpec)
    path: list[PathSpec] = Field(min_length=1, max_length=MOST)
    """The data paths."""
    workload: list[WorkloadSpec] = Field(min_length=1, max_length=MOST)
    """The workloads."""
    setting: list[SettingSpec] = Field(
        default_factory=lambda: [SettingSpec(name=AS_FOUND)], min_length=1, max_length=MOST
    )
    """The settings."""
    trials: TrialsSpec = Field(default_factory=TrialsSpec)
    tune: TuneSpec | None = None
    """What `nearmetal tune` searches."""

    _names_differ = field_validator("path", "workload", "setting")(names_differ)

    @model_validator(mode="after")
    def _baseline_is_a_path(self) -> Self:
        if self.baseline not in (names := [p.name for p in self.path]):
            raise ValueError(f"the baseline {self.baseline!r} is not the name of a path; {meant(self.baseline, names)}")
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


def parse_study(text: str, source: str, *, measured: bool = False) -> Study:
    """Read the text of a study; `source` names it in errors. Raise BadInputError that lists every error.

    `measured` says that it is the study of a run, in which earlier versions allowed durations without a unit.
    """
    try:
        raw = parse_toml(text)
    except ValueError as error:
        message = f"{source} is not TOML: {error}"
        hint = "docs/reference/study.md shows what a study looks like"
        if "duplicate key" in str(error):
            hint = f"tables of which there may be several have two brackets on each side, as [[path]]; {hint}"
        raise BadInputError(message, hint=hint) from error
    try:
        return Study.model_validate(raw, context={"left": MOST, "measured": measured})
    except ValidationError as error:
        count = counted(error.error_count(), "error")
        message = f"{source} has {count}:\n  {said(error, _keys, 'the study')}"
        raise BadInputError(message, hint="docs/reference/study.md describes every key") from error


class _HostsFile(_Model):
    node: NodeSpecs


def parse_nodes(text: str, source: str) -> list[NodeSpec]:
    """Read the text of a hosts file, `[[node]]` tables alone; raise BadInputError that lists every error."""
    hint = "a hosts file has [[node]] tables and nothing else"
    try:
        return _HostsFile.model_validate(parse_toml(text), context={"left": MOST}).node
    except ValidationError as error:
        wrong = said(error, lambda table: _keys(table) if table else _HostsFile.model_fields, "the file")
        raise BadInputError(f"the hosts file {source} is wrong:\n  {wrong}", hint=hint) from error
    except ValueError as error:
        raise BadInputError(f"{source} is not a hosts file: {error}", hint=hint) from error


def with_machines(study: Study, text: str, source: str) -> Study:
    """Return a study with the machines of its hosts file among its own; raises as `parse_nodes` does."""
    host = {"node": [*study.host.node, *parse_nodes(text, source)], "hosts_file": ""}
    return study.model_copy(update={"host": study.host.model_copy(update=host)})


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
        keys = [one.name for one in fields(known)]
        raise BadInputError(f"{source}: {said(error, lambda _: keys, 'the table')}", hint=hint) from error
    return made


def digest(text: str) -> str:
    """Return the SHA-256 of a study's text: its identity in a run."""
    return hashlib.sha256(text.encode()).hexdigest()


def _keys(table: str) -> Iterable[str]:
    """Return the keys of a table by its name, those of the study for none."""
    return _TABLES.get(table, Study).model_fields


_TABLES: dict[str, type[_Model]] = {
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
