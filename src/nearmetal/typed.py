"""JSON that must be of a type: the one reader of records that nearmetal writes and others may have changed.

pydantic looks at every field, strictly: a text is no number, a number is no truth value.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import PlainSerializer, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from nearmetal.reading import check_numbers

_T = TypeVar("_T")


def _in_json(value: float) -> float | None:
    return value if math.isfinite(value) else None


JsonFloat = Annotated[float, PlainSerializer(_in_json, return_type=float | None, when_used="json")]
"""A float that is null in JSON where it is infinite or no number, for which JSON has none."""

_HOLDS = ("list", "tuple", "set", "frozenset", "dict")


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what knows a type: its JSON and its schema."""
    return TypeAdapter(kind)


@cache
def _reader(kind: Any) -> SchemaValidator:
    """Return what reads a type and ends each list and table at its first wrong entry.

    To keep and word every error of one takes 7 s per MB, only to show the first.
    """
    return SchemaValidator(_ending_early(adapter(kind).core_schema))


def _ending_early(schema: Any) -> Any:
    """Return a schema of pydantic's whose lists and tables, however deep, end at their first wrong entry."""
    if isinstance(schema, dict):
        made = {key: _ending_early(value) for key, value in schema.items()}
        return {**made, "fail_fast": True} if made.get("type") in _HOLDS else made
    return [_ending_early(one) for one in schema] if isinstance(schema, list) else schema


def read_typed(kind: type[_T], data: str | bytes) -> _T:
    """Return the record in a JSON text; raise ValueError that names the first field that is not of the type."""
    check_numbers(data.encode() if isinstance(data, str) else data)
    known: Any = kind
    try:
        made: _T = _reader(known).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))) from error
    return made
