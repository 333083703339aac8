"""What several verbs share: their arguments and options, files that users name, and what may be continued."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

import nearmetal
from nearmetal.cli.main import FilePath
from nearmetal.errors import BadInputError, StoreError, command_line, os_errors_as
from nearmetal.study.order import Scalar
from nearmetal.units import parse_share, parse_size_bytes

_F = TypeVar("_F", bound=Callable[..., object])


class _StudyPath(FilePath):
    """The path of a study, or the name of one that ships."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the shipped studies and the TOML files that begin so; where none does, let the shell look for any."""
        from nearmetal.study.shipped import shipped  # noqa: PLC0415 (loads pydantic, which few verbs need)

        folder = incomplete[: incomplete.rfind("/") + 1]
        names = [*shipped(), *(f"{folder}{one.name}" for one in sorted(Path(folder).glob("*.toml")))]
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return found or super().shell_complete(ctx, param, incomplete)


PATH = FilePath(path_type=Path)
STUDY = _StudyPath(path_type=Path)
COUNT = click.IntRange(min=1)


def format_option(*formats: str) -> Callable[[_F], _F]:
    """Return the option `--format`, by default the first of these."""
    return click.option("--format", "form", type=click.Choice(formats), default=formats[0], help="Output format.")


def single_option(*names: str, **attributes: Any) -> Callable[[_F], _F]:
    """Return an option of one file or run beside options that may be repeated: of two, click would take the last."""

    def only(ctx: click.Context, param: click.Parameter, given: tuple[Any, ...]) -> Any:
        if len(set(given)) > 1:
            raise click.BadParameter(f"it takes one, not {' and '.join(map(str, given))}.", ctx, param)
        return given[0] if given else None

    return click.option(*names, multiple=True, callback=only, **attributes)


def refuse_other_version(root: Path, begun_by: str, otherwise: str) -> None:
    """Raise BadInputError where another version began what is continued; `otherwise` is what can be done instead."""
    if begun_by != nearmetal.__version__:
        raise BadInputError(
            f"{root} was begun by nearmetal {begun_by}, this is {nearmetal.__version__}: "
            "what it would measure now cannot be compared with what it has",
            hint=f"use nearmetal {begun_by} or {otherwise}",
        )


def check_resume(verb: str, study: Path | None, resume: Path | None, hint: str, **options: object) -> None:
    """Raise BadInputError where there is neither a study nor --resume DIR, or next to it what DIR already decides."""
    if not study and not resume:
        raise BadInputError("name a study, or continue one with --resume DIR", hint=hint)
    if not resume:
        return
    if study:
        text = f"--resume continues the study that {resume} holds, so it takes none: {study}"
        raise BadInputError(text, hint=command_line(verb, "--resume", resume))
    for option in (name for name, given in options.items() if given):
        text = f"--resume continues in {resume}, so --{option} has no effect"
        raise BadInputError(text, hint=command_line(verb, "--resume", resume))


def refuse_beside(option: str, *used: str) -> None:
    """Raise BadInputError for an option on the command line that has no effect beside one; those of `used` have."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        name = param.name or ""
        source = ctx.get_parameter_source(name)
        if name not in used and param.opts[0][0] == "-" and source is not None and source.name == "COMMANDLINE":
            text = f"{max(param.opts, key=len)} has no effect with {option}"
            raise BadInputError(text, hint="leave one of the two out")


def write_file(path: Path, text: str, *, parents: bool = False) -> None:
    """Write a file that the user named, its directories as well with `parents`; raise StoreError where it cannot be."""
    hint = "name a file in a directory that is there and yours to write"
    with os_errors_as(StoreError, f"cannot write {path}", hint=hint):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


class FiniteRange(click.FloatRange):
    """A number within bounds; nan, which none excludes, is none, nor is inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise BadParameter for anything else."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read `8,64K,1M` as bytes, ascending and each once; raise BadInputError for what is no size."""
    return tuple(sorted({parse_size_bytes(part) for part in text.split(",")}))


def read_share(option: str, text: str, example: str) -> float:
    """Read `10%` or `0.1` of an option; raise BadInputError for anything else, and for `10`, which may mean either."""
    try:
        share = parse_share(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 10 or (share >= 1 and not text.rstrip().endswith("%")):
        raise BadInputError(f"{option} {text!r} is not a percentage", hint=f"write {option} {example}")
    return share


def read_option(text: str) -> tuple[str, Scalar]:
    """Read KEY=VALUE, an option of a host; raise BadInputError for a word without a value."""
    key, equals, value = text.partition("=")
    if not equals:
        message = f"-o {text!r} has no value"
        raise BadInputError(message, hint="write it as -o KEY=VALUE, such as -o mpi_prefix=/opt/openmpi")
    try:
        number: Scalar = json.loads(value)
    except ValueError:
        return key, value
    return key, number if isinstance(number, bool | int | float) else value
