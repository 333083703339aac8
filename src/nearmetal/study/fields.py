"""What the keys of a study hold: names, sizes, durations and settings, as types that check what a file gives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from nearmetal.errors import BadInputError
from nearmetal.study.order import Scalar
from nearmetal.units import parse_duration_ns, parse_share, parse_size_bytes

AGAIN = "-again"
"""The suffix of the baseline's second name: the A/A pair that states the noise floor."""
AS_FOUND = "as-found"
"""The setting that sets nothing."""
MOST = 256
"""Tables of one kind, keys of one table, and entries of wrong lists in all: to word an error takes longer than to read
its bytes, and there may not be thousands."""


def _quantity(parse: Callable[[str], int]) -> Callable[[object], object]:
    """Return a validator for text such as '64 KiB'; it raises ValueError, so that all errors are collected."""

    def read(value: object) -> object:
        if isinstance(value, bool):
            raise ValueError(f"{str(value).lower()} is no size and no duration")  # noqa: TRY004 (pydantic's)
        try:
            return parse(value) if isinstance(value, str) else value
        except BadInputError as error:
            raise ValueError(f"{error.message}: {error.hint}") from error

    return read


def read_duration(value: object, info: ValidationInfo) -> object:
    """Read '60 s' as nanoseconds; raise ValueError for a bare number, whose unit would be a guess.

    In the study of a run that was measured it is what it was then: nanoseconds.
    """
    if isinstance(value, int | float) and not (info.context or {}).get("measured"):
        raise ValueError(f"{value} has no unit: write it as text, such as '{value} s' or '{value} us'")
    return _of_text(value)


def _share(value: object) -> float:
    """Read '5 %', '5%' or 0.05 as 0.05; raise ValueError for what is no share between 0 and 1."""
    try:
        share = parse_share(str(value)) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise ValueError(f"{value!r} is not a share above 0 and below 100 %: write '5 %' or 0.05")
    return share


_of_text = _quantity(parse_duration_ns)


def listed_of(kind: Any) -> Any:
    """Return the type of a list that reports all its wrong entries, only the first when `MOST` were checked."""
    first: TypeAdapter[list[Any]] = TypeAdapter(Annotated[list[kind], FailFast()])

    def read(value: object, every: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        try:
            return first.validate_python(value)
        except ValidationError:
            if isinstance(value, list) and info.context:
                info.context["left"] -= len(value)
                if info.context["left"] < 0:
                    raise
            return every(value)

    return Annotated[list[kind], WrapValidator(read)]


def few_keys(value: object) -> object:
    """Refuse a table of more than `MOST` keys before any is looked at."""
    if isinstance(value, dict) and len(value) > MOST:
        raise ValueError(f"it has {len(value)} keys, but at most {MOST} are allowed")
    return value


def _scalar(value: object) -> object:
    if isinstance(value, str | int | float):
        return value
    raise ValueError("it must be text, a number, true or false")


def _scalars(value: object) -> object:
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return value
    raise ValueError("it must be a list of texts, numbers, true or false")


def _scalar_or_scalars(value: object) -> object:
    return _scalars(value) if isinstance(value, list) else _scalar(value)


def _no_suffix(value: str) -> str:
    if value.endswith(AGAIN):
        raise ValueError(f"names that end in {AGAIN!r} are kept for the second measurement of the baseline")
    return value


class _Named(Protocol):
    name: str


_T = TypeVar("_T", bound=_Named)


def names_differ(entries: list[_T]) -> list[_T]:
    """Refuse tables of one kind of which two have one name: by it, others speak of them."""
    counts = Counter(entry.name for entry in entries)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise ValueError(f"two of them have the name {twice[0]!r}; names must be unique")
    return entries


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,39}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN), AfterValidator(_no_suffix)]
SizeBytes = Annotated[int, BeforeValidator(_quantity(parse_size_bytes)), Field(ge=0, le=1 << 32)]
DurationNs = Annotated[int, BeforeValidator(read_duration), Field(gt=0)]
Value = Annotated[Scalar, PlainValidator(_scalar)]
Values = Annotated[list[Scalar], PlainValidator(_scalars)]
Weights = Annotated[dict[str, Annotated[float, Field(ge=0)]], BeforeValidator(few_keys)]
Keyed = Annotated[dict[str, Value], BeforeValidator(few_keys)]
ValueOrValues = Annotated[Scalar | list[Scalar], PlainValidator(_scalar_or_scalars)]
if TYPE_CHECKING:
    Sizes = list[SizeBytes]
    Nodes = list[int]
    Texts = list[str]
else:
    Sizes, Nodes, Texts = listed_of(SizeBytes), listed_of(Annotated[int, Field(ge=0, le=4095)]), listed_of(str)
Share = Annotated[float, BeforeValidator(_share)]
Pace = Literal["back-to-back", "random"]
Address = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.:%][A-Za-z0-9_.:%-]{0,254})?$")]
User = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.][A-Za-z0-9_.@+\\$-]{0,63})?$")]
Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{0,15}$")]
