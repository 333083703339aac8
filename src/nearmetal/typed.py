"""JSON that must be of a type: the one reader of records that nearmetal writes and others may have changed.

pydantic looks at every field, strictly: a text is no number, a number is no truth value.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from nearmetal.reading import check_numbers

_T = TypeVar("_T")


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what knows a type: its JSON and its schema."""
    return TypeAdapter(kind)


def read_typed(kind: type[_T], data: str | bytes) -> _T:
    """Return the record in a JSON text; raise ValueError that names the first field that is not of the type."""
    check_numbers(data.encode() if isinstance(data, str) else data)
    known: Any = kind
    try:
        made: _T = adapter(known).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))) from error
    return made
