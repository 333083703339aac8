"""The reference of the study file, made from its models: `make reference` writes it to docs/reference/study.md."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import typing
from itertools import pairwise
from types import NoneType, UnionType

from pydantic_core import PydanticUndefined

from nearmetal.study import fields, spec
from nearmetal.units import NS_PER_S

if typing.TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_TABLES: tuple[tuple[str, type[BaseModel]], ...] = (
    ("Top level", spec.Study),
    ("`[host]`", spec.HostSpec),
    ("`[[host.node]]`", spec.NodeSpec),
    ("`[mpi]`", spec.MpiSpec),
    ("`[[path]]`", spec.PathSpec),
    ("`[[workload]]`", spec.WorkloadSpec),
    ("`[[setting]]`", spec.SettingSpec),
    ("`[trials]`", spec.TrialsSpec),
    ("`[tune]`", spec.TuneSpec),
    ("`[[tune.classes]]`", spec.TuneClass),
)
_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false"}

_HEAD = """# The study file

TOML, format 1. Unknown keys are errors, and all errors are reported at once. Made from `src/nearmetal/study/spec.py`
by `make reference`.

A size is an integer number of bytes or text with a binary unit (`"64 KiB"`, short `"64K"`; `KB`, which may mean 1000 or
1024, is refused), a duration is text with a unit (`"30 s"`), a share is a number below 1 or text (`"5 %"`). Upper and
lower case count in units: `"60 MS"` is refused.
"""


def reference() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, model in _TABLES:
        doc = (model.__doc__ or "").strip().splitlines()[0]
        parts.append(f"\n## {title}\n\n{doc}\n\n| key | type | default | meaning |\n|---|---|---|---|")
        said = _meanings(model)
        parts += [_row(name, field, said.get(name, "")) for name, field in model.model_fields.items()]
    return "\n".join(parts) + "\n"


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return what stands under each field of a model, as a docstring."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(found, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(found.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _row(name: str, field: FieldInfo, meaning: str) -> str:
    about = meaning or f"See the table below: {name}."
    kind = "duration" if _is_duration(field.metadata) else _type(field.annotation)
    return f"| `{name}` | {kind} | {_default(field)} | {about} |"


def _type(annotation: object) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return "duration" if _is_duration(inner[1:]) else _type(inner[0])
    if origin is typing.Literal:
        return " or ".join(f"`{value!r}`" for value in inner)
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return "table"
    if origin in (typing.Union, UnionType):
        return " or ".join(_type(one) for one in inner if one is not NoneType)
    return _WORDS.get(annotation, "table") if isinstance(annotation, type) else "text"


def _is_duration(metadata: Sequence[object]) -> bool:
    """Return whether a value is read as a duration: it is stored as an integer, and written as text."""
    return any(getattr(one, "func", None) is fields.read_duration for one in metadata)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined or field.default is None or field.default == "":
        return "-"
    if _is_duration(field.metadata):
        return f"`'{field.default // NS_PER_S} s'`"
    return f"`{field.default!r}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
