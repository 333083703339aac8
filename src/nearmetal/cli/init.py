"""`nearmetal init`: five questions, or flags, to a commented study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nearmetal.cli.sizes import parse_sizes
from nearmetal.errors import BadInputError
from nearmetal.paths.table import find_path
from nearmetal.run.between import node_named
from nearmetal.run.check import check_study
from nearmetal.study.draft import Draft, draft_text
from nearmetal.study.spec import parse_study
from nearmetal.workloads.operations import operation_named

if TYPE_CHECKING:
    from collections.abc import Sequence

_PATHS = {"local": "veth,bridge", "lab": "native,vf", "ssh": "native", "slurm": "native"}
_HOSTS = click.Choice(list(_PATHS))
_MARGIN = click.FloatRange(0.1, 50)


@click.command(name="init")
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--host", type=_HOSTS, help="Where trials run.")
@click.option("--machines", help="For ssh: the machines' ssh host names, separated by commas.")
@click.option("--paths", help="The data paths, the baseline first.")
@click.option("--workloads", help="Operations to measure, such as latency,bw,allreduce.")
@click.option("--sizes", help="Message sizes, such as 8,64K.")
@click.option("--margin", type=_MARGIN, help="Difference that still counts as equal, in percent.")
def command(  # noqa: PLR0917 (click passes by name)
    study: Path,
    host: str | None,
    machines: str | None,
    paths: str | None,
    workloads: str | None,
    sizes: str | None,
    margin: float | None,
) -> None:
    """Write a commented study to STUDY. Asks for whatever the flags leave open; nothing is measured.

    The answers are checked as `nearmetal run` would check them before anything is written.
    """
    if study.exists():
        raise BadInputError(f"{study} already exists", hint="choose another file name, or remove it")
    host = host or click.prompt("Where", type=_HOSTS, default="local", err=True)
    if host == "ssh":
        machines = machines or click.prompt("Machines, such as hpc1,hpc2", err=True)
    draft = Draft(
        name=study.stem,
        host=host,
        paths=_words(paths or click.prompt("Data paths, the baseline first", default=_PATHS[host], err=True)),
        workloads=_words(workloads or click.prompt("Operations, such as latency,bw", default="latency", err=True)),
        sizes=parse_sizes(sizes or click.prompt("Message sizes", default="8,64K", err=True)),
        margin_percent=margin
        or click.prompt("Difference that still counts as equal, in percent", type=_MARGIN, default=5.0, err=True),
        nodes=tuple(node_named(word, {}) for word in _words(machines or "")) if host == "ssh" else (),
    )
    _check(draft)
    text = draft_text(draft)
    check_study(parse_study(text, str(study)))
    study.write_text(text)
    click.echo(f"{study}\nnext: nearmetal plan {study}")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _check(draft: Draft) -> None:
    """Raise BadInputError for what a study cannot say: its own checks speak of keys, not of questions."""
    if not draft.paths or not draft.workloads:
        raise BadInputError("a study needs a path and a workload", hint="nearmetal init --help")
    for name in _recipes(draft):
        find_path(name)
    for name in draft.workloads:
        operation = operation_named(name)
        if not operation.has_size:
            raise BadInputError(
                f"{name} takes no message size", hint="leave it out here and add it to the study file without `sizes`"
            )


def _recipes(draft: Draft) -> Sequence[str]:
    return draft.paths if draft.host in {"local", "lab"} else ()
