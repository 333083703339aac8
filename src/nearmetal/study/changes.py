"""What differs between two texts of a study, field by field, as a person wrote it."""

import json
from collections.abc import Iterator
from typing import Any

from nearmetal.errors import listed
from nearmetal.study.spec import Study, parse_toml

_MISSING = "missing"


def changes(was: str, now: str) -> list[str]:
    """Return a line `place: value -> value` for each field that differs between two studies, as written in them.

    Tables of a list go by their names. One line says so where `now` is not TOML, or where no value differs.
    """
    try:
        lines = [f"{place}: {old} -> {new}" for place, old, new in differing_fields(was, now)]
    except ValueError as error:
        return [f"it is not valid TOML any more: {error}"]
    if not lines:
        return ["no value differs, only comments, spacing or the order of tables"]
    return listed(lines)


def differing_fields(was: str, now: str) -> list[tuple[str, str, str]]:
    """Return place, old and new value of each field that differs; raise ValueError for a text that is not TOML."""
    old, new = (dict(_flat("", parse_toml(text))) for text in (was, now))
    return [
        (place, old.get(place, _MISSING), new.get(place, _MISSING))
        for place in {**old, **new}
        if old.get(place) != new.get(place)
    ]


def differing_values(was: Study, now: Study, texts: tuple[str, str]) -> list[tuple[str, str, str]]:
    """Return the differing fields of two studies, but those written otherwise alone: a default, `"1 KiB"` for 1024.

    The default stands for what is not written.
    """
    old, new = (dict(_flat("", study.model_dump(mode="json"))) for study in (was, now))

    def told(written: str, place: str, values: dict[str, str]) -> str:
        return f"{values[place]} (default)" if written == _MISSING and place in values else written

    return [
        (place, told(before, place, old), told(after, place, new))
        for place, before, after in differing_fields(*texts)
        if place not in old or old[place] != new.get(place)
    ]


def _flat(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield every field below a place with its value as text."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flat(f"{place}.{key}" if place else key, below)
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for number, one in enumerate(value):
            yield from _flat(f"{place}[{one.get('name', number)}]", one)
    else:
        yield place, json.dumps(value, default=str)
