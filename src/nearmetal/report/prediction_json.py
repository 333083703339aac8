"""Predictions and placements as JSON: what `--format json` prints, and the files that `--save` keeps for `serve`.

docs/reference/prediction-json.md says what each key means. A file from elsewhere is read within limits: its numbers are
finite, its lists bounded, its texts text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field
from typing_extensions import TypedDict  # that of `typing` lacks what pydantic needs below Python 3.12

import nearmetal
from nearmetal import limits
from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.predict.calibration import by_class
from nearmetal.predict.models import MachineName, NamedMachine
from nearmetal.reading import read_bytes
from nearmetal.report.schema import as_json, made
from nearmetal.store.disk import Disk
from nearmetal.store.record import utc_now
from nearmetal.typed import read_typed

if TYPE_CHECKING:
    from nearmetal.predict.decide import AnswerRow
    from nearmetal.predict.model_file import ModelFile

PREDICTION_SUFFIX, PLACEMENT_SUFFIX, VALIDATION_SUFFIX = ".prediction.json", ".placement.json", ".validation.json"
PROBABILITIES = (0.5, 0.95, 0.99)
MAX_ROWS = 10_000
_MAX_HOSTS = 1 << 20

Number = Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]
Size = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=1e-9, le=1e18, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Span = tuple[Size, Size]
_T = TypeVar("_T")
Rows = Annotated[tuple[_T, ...], Field(max_length=MAX_ROWS)]
ValidatedJson = TypedDict("ValidatedJson", {"class": str, "cases": Count, "factors": Span | None})
"""How far validated cases of this class were off: measured / predicted."""
Errors = dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileJson:
    """One quantile of the run time over replicas, with the interval of order statistics."""

    probability: Size
    ns: Size
    low_ns: Size | None
    high_ns: Size | None


@dataclass(frozen=True, slots=True, kw_only=True)
class P99Json:
    """The 99th percentile of iterations, for programs that mark them."""

    ns: Size
    interval_ns: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioJson:
    """The median against the machine that ratios are to."""

    to: str
    median: Size
    interval: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossJson:
    """The loss that was asked for, the probability of staying within it, and whether that decides for this machine.

    Files of earlier versions do not tell the latter.
    """

    at_most: Size
    probability: Size
    chosen: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtJson:
    """What a prediction rests on that was not measured."""

    said: str
    hint: str
    share: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedJson(MachineName):
    """One machine: a path under a setting and a progress mode."""

    quantiles: Rows[QuantileJson]
    launches_ns: Span | None
    validated: ValidatedJson
    p99_iteration: P99Json | None
    ratio: RatioJson
    loss: LossJson | None
    messages: Count
    inter_share: Size
    compute_ns: Size
    parts_ns: dict[Literal["compute", "communication", "waiting", "moderation"], Size]
    doubts: Rows[DoubtJson]
    sensitivity: dict[str, Number] | None

    @property
    def median_ns(self) -> float:
        """Return the median run time."""
        return next((one.ns for one in self.quantiles if one.probability == PROBABILITIES[0]), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """What every file of `save` begins with; `model` is the run or file that the machines were fitted from.

    `figures_from` is what that was measured on, empty where it is not known.
    """

    format: str
    version: Literal[1]
    nearmetal_version: str
    created_utc: str
    program: str
    model: str
    figures_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionFile(SavedFile):
    """What `nearmetal predict --save` keeps."""

    format: Literal["nearmetal-prediction"]
    ranks: Count
    baseline: str
    decision: str
    remarks: Rows[str]
    rows: Rows[PredictedJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJson:
    """One placement on one machine; `gain` is that on host after host: its middle, and where 95 % of replicas are."""

    name: str
    method: str
    median_ns: Size
    gain: tuple[Number, Number, Number]
    inter_share: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvenJson:
    """Two paths over the share of messages between nodes."""

    first: str
    second: str
    message_bytes: Count
    compute_ns: Size
    shares: Rows[Size]
    first_ns: Rows[Size]
    second_ns: Rows[Size]
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFile(SavedFile):
    """What `nearmetal place --save` keeps; `host_of` is the host of each rank, an index in `hosts`."""

    format: Literal["nearmetal-placement"]
    candidates: Rows[PlacedJson]
    hosts: Annotated[tuple[str, ...], Field(max_length=_MAX_HOSTS)]
    host_of: Annotated[tuple[Count, ...], Field(max_length=_MAX_HOSTS)]
    launcher: str
    launcher_file: str
    doubts: Rows[str]
    break_even: BreakEvenJson | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseJson(MachineName):
    """A program on a path, predicted and launched: each launch by itself, and of an application its iterations' p99."""

    case_class: str
    nodes: Annotated[tuple[Count, ...], Field(max_length=_MAX_HOSTS)]
    predicted_ns: Positive
    launches_ns: Annotated[tuple[Positive, ...], Field(min_length=1, max_length=MAX_ROWS)]
    predicted_p99_ns: Positive | None
    p99_ns: Rows[Positive]

    @property
    def error(self) -> float:
        """Return log(measured / predicted) of the run time."""
        return math.log(median(self.launches_ns) / self.predicted_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationFile(SavedFile):
    """What `nearmetal predict --validate RUN --save` keeps.

    In version 1 `predicted_p99_ns` is of several launches together, `p99_ns` of each: their ratio is no error.
    """

    format: Literal["nearmetal-validation"]
    version: Literal[1, 2]  # type: ignore[assignment] # the others are at 1
    cases: Rows[CaseJson]

    @property
    def p99_of_launches_together(self) -> bool:
        """Return whether it has predictions of a p99 that no launch's own can be compared with."""
        return self.version == 1 and any(case.predicted_p99_ns for case in self.cases)


def errors_by_class(files: Sequence[ValidationFile]) -> tuple[Errors, Errors]:
    """Return log(measured / predicted) by class, sorted: of the run times of cases, and of the p99 of each launch."""
    cases = [case for file in files for case in file.cases]
    p99 = (
        (case.case_class, math.log(one / case.predicted_p99_ns))
        for file in files
        if not file.p99_of_launches_together
        for case in file.cases
        if case.predicted_p99_ns
        for one in case.p99_ns
    )
    return by_class((case.case_class, case.error) for case in cases), by_class(p99)


def predicted(
    row: AnswerRow, bare: NamedMachine, sensitivity: Mapping[str, float] | None, loss: LossJson | None
) -> PredictedJson:
    """Return one line of an answer; `sensitivity` is what its time depends on, where that was asked for."""
    found, errors = row.found, row.errors
    quantiles = (found.quantile(probability) for probability in PROBABILITIES)
    return made(
        PredictedJson,
        row.named,
        found,
        quantiles=tuple(made(QuantileJson, one, ns=one.value_ns) for one in quantiles),
        launches_ns=row.interval_ns,
        validated={"class": errors.of, "cases": len(errors.logs), "factors": errors.span()},
        p99_iteration=P99Json(ns=row.p99_ns[0], interval_ns=row.p99_ns[1]) if row.p99_ns else None,
        ratio=RatioJson(to=bare.name, median=row.ratio, interval=row.ratio_span),
        loss=loss,
        compute_ns=float(found.compute_ns),
        parts_ns={name: float(ns) for name, ns in row.parts_ns.items()},
        doubts=tuple(made(DoubtJson, one) for one in row.doubts),
        sensitivity=None if sensitivity is None else dict(sensitivity),
    )


File = TypeVar("File", bound=SavedFile)


def check_place(path: Path | None, suffix: str) -> None:
    """Raise BadInputError for a place where `nearmetal serve` would not look; before anything is worked out."""
    if path is not None and not (path.name.endswith(suffix) and path.name != suffix):
        text = f"{path} does not end in {suffix}"
        raise BadInputError(text, hint=f"`serve` finds files by that: {path.stem}{suffix}")


_FORMATS = {
    PredictionFile: ("nearmetal-prediction", 1),
    PlacementFile: ("nearmetal-placement", 1),
    ValidationFile: ("nearmetal-validation", 2),
}
"""Name and version of each kind of file."""


def save(path: Path, kind: type[SavedFile], program: str, model: ModelFile, **own: Any) -> None:
    """Write a file of a kind, with its specific fields; it appears whole or not at all."""
    name, version = _FORMATS[kind]
    head: dict[str, Any] = {"format": name, "version": version, "created_utc": utc_now()}
    head |= {"nearmetal_version": nearmetal.__version__, "program": program}
    whole = kind(**head, model=model.run, figures_from=model.figures_from, **own)
    Disk().put_bytes(path, as_json(whole).encode() + b"\n")


def read(path: Path, kind: type[File]) -> File:
    """Read a file of `save`; raise ForeignFileError when it is damaged, of another format or too large."""
    try:
        return read_typed(kind, read_bytes(path, limits.TEXT))
    except OSError as error:
        hint = "give a file that --save wrote"
        raise ForeignFileError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        made = "predict --validate RUN --save NAME.validation.json" if kind is ValidationFile else "--save"
        text = f"{path} is not a file of this kind in version {_FORMATS[kind][1]}: {str(error)[:200]}"
        raise ForeignFileError(text, hint=f"make it again with this version of nearmetal: {made}") from error
