"""What the keys of a study hold: names, sizes, durations and settings, as types that check what a file gives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    FailFast,
    Field,
    PlainValidator,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import ErrorDetails

from nearmetal.errors import BadInputError, listed, meant
from nearmetal.study.order import AGAIN, Scalar
from nearmetal.units import parse_duration_ns, parse_share, parse_size_bytes

AS_FOUND = "as-found"
"""The setting that sets nothing."""
MOST = 256
"""Tables of one kind, keys of one table, and entries of wrong lists in all: to word an error takes longer than to read
its bytes, and there may not be thousands."""


def _refuse_truth(value: object) -> None:
    """Raise ValueError for true and false, which Python counts as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is no number")  # noqa: TRY004 (pydantic's)


def _no_truth(value: object, info: ValidationInfo) -> object:
    """Refuse true and false as numbers, but in the study of a run, in which earlier versions took them for 1 and 0."""
    if not _measured(info):
        _refuse_truth(value)
    return value


def _measured(info: ValidationInfo) -> bool:
    """Return whether the study is that of a measured run, which is read as it was then."""
    return bool((info.context or {}).get("measured"))


def _parsed(value: object, parse: Callable[[str], int]) -> object:
    """Read text such as '64 KiB', and leave numbers to the type; raise ValueError, so that all errors are collected."""
    _refuse_truth(value)
    try:
        return parse(value) if isinstance(value, str) else value
    except BadInputError as error:
        raise ValueError(f"{error.message}: {error.hint}") from error


def _read_size(value: object, info: ValidationInfo) -> object:
    """Read '64 KiB' as bytes; in the study of a measured run as it was then."""
    return _parsed(value, partial(parse_size_bytes, measured=_measured(info)))


def read_duration(value: object, info: ValidationInfo) -> object:
    """Read '60 s' as nanoseconds; raise ValueError for a bare number, whose unit would be a guess.

    In the study of a run that was measured it is what it was then: nanoseconds.
    """
    _refuse_truth(value)
    if isinstance(value, int | float) and not _measured(info):
        raise ValueError(f"{value} has no unit: write it as text, such as '{value} s' or '{value} us'")
    return _parsed(value, partial(parse_duration_ns, measured=_measured(info)))


def _share(value: object) -> float:
    """Read '5 %', '5%' or 0.05 as 0.05; raise ValueError for what is no share between 0 and 1."""
    try:
        share = parse_share(str(value)) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise ValueError(f"{value!r} is not a share above 0 and below 100 %: write '5 %' or 0.05")
    return share


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


def _a_word(value: object) -> object:
    if not isinstance(value, str) or value not in {"spread", "packed"}:
        seen = f", not {value!r}" if isinstance(value, str | int | float) else ""
        raise ValueError(f"it is 'spread', 'packed' or a list of nodes, in square brackets{seen}")
    return value


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
Whole = Annotated[int, BeforeValidator(_no_truth)]
Number = Annotated[float, BeforeValidator(_no_truth), Field(allow_inf_nan=False)]
FormatOne = Annotated[Literal[1], BeforeValidator(_no_truth)]
SizeBytes = Annotated[int, BeforeValidator(_read_size), Field(ge=0, le=1 << 32)]
DurationNs = Annotated[int, BeforeValidator(read_duration), Field(gt=0)]
Value = Annotated[Scalar, PlainValidator(_scalar)]
Values = Annotated[list[Scalar], PlainValidator(_scalars)]
Weights = Annotated[dict[str, Annotated[Number, Field(ge=0)]], BeforeValidator(few_keys)]
Keyed = Annotated[dict[str, Value], BeforeValidator(few_keys)]
ValueOrValues = Annotated[Scalar | list[Scalar], PlainValidator(_scalar_or_scalars)]
if TYPE_CHECKING:
    Sizes = list[SizeBytes]
    Placement = list[int] | Literal["spread", "packed"]
    Texts = list[str]
else:
    Sizes, Texts = listed_of(SizeBytes), listed_of(str)
    Placement = Annotated[
        Annotated[listed_of(Annotated[Whole, Field(ge=0, le=4095)]), Tag("#nodes")]
        | Annotated[Literal["spread", "packed"], BeforeValidator(_a_word), Tag("#word")],
        Discriminator(lambda value: "#nodes" if isinstance(value, list) else "#word"),
    ]
Share = Annotated[float, BeforeValidator(_share)]
Pace = Literal["back-to-back", "random"]
Address = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.:%][A-Za-z0-9_.:%-]{0,254})?$")]
User = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.][A-Za-z0-9_.@+\\$-]{0,63})?$")]
Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{0,15}$")]


def said(error: ValidationError, keys_of: Callable[[str], Iterable[str]], whole: str) -> str:
    """Return each error in a line, such as `path[2].kind: what is wrong (hint)`.

    `keys_of` gives the keys of a table by its name, those of the outermost for none, which is called `whole`.
    """
    return "\n  ".join(listed(error.errors(include_url=False), lambda one: _said(one, keys_of, whole)))


def _said(detail: ErrorDetails, keys_of: Callable[[str], Iterable[str]], whole: str) -> str:
    place, at = "", [step for step in detail["loc"] if step not in _TAGS]
    for step in at:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else str(step)
    if detail["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        *parents, key = [step for step in at if isinstance(step, str)]
        return f"{place}: unknown key; {meant(key, keys_of(parents[-1] if parents else ''))}"
    if detail["type"] == "missing":
        return f"{place}: missing"
    message = _brackets(detail) or _SAID.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    value = detail["input"]
    if detail["type"] == "string_pattern_mismatch" and detail["ctx"]["pattern"] == NAME_PATTERN:
        message = "a name has up to 40 letters, digits and . _ + -, and begins with a letter or a digit"
    shown = f" (it is {value!r})" if isinstance(value, str | int | float) and detail["type"] != "value_error" else ""
    return f"{place or whole}: {message[:1].lower()}{message[1:]}{shown}"


def _brackets(detail: ErrorDetails) -> str:
    """Return how a table is headed that has the brackets of another kind; empty for any other error."""
    key = next((step for step in reversed(detail["loc"]) if isinstance(step, str)), "")
    if detail["type"] == "list_type" and isinstance(detail["input"], dict):
        return f"write [[{key}]], with two brackets on each side: there may be several"
    if detail["type"] in {"model_type", "dataclass_type"}:
        several = isinstance(detail["input"], list)
        return f"write [{key}], with one bracket on each side: there is only one" if several else "it must be a table"
    return ""


_TAGS = {"#nodes", "#word"}
"""What pydantic names in the place of an error, though no file has it."""
_SAID = {"int_parsing_size": "the number is too large", "list_type": "it must be a list, in square brackets"}
"""What is said in place of a sentence about how the number was read, by the kind of error."""
