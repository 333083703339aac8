"""`nearmetal init`: five questions, or flags, to a commented study."""

import re
import sys
from pathlib import Path
from typing import Any

import click

from nearmetal.cli.values import PATH, parse_sizes, read_share, write_file
from nearmetal.errors import BadInputError, command_line
from nearmetal.hosts.far.host import check_names
from nearmetal.paths.table import find_path
from nearmetal.run.between import node_named
from nearmetal.run.check import check_study
from nearmetal.study.draft import Draft, draft_text
from nearmetal.study.fields import NAME_PATTERN
from nearmetal.study.spec import NodeSpec, parse_study
from nearmetal.workloads.operations import operation_named

_PATHS = {"local": "veth,bridge", "lab": "native,vf", "ssh": "native", "slurm": "native"}
_HOSTS = click.Choice(list(_PATHS))


@click.command(name="init")
@click.argument("study", type=PATH)
@click.option("--host", type=_HOSTS, help="Where trials run.")
@click.option("--machines", help="For ssh: the machines' ssh host names, separated by commas.")
@click.option("--paths", help="The data paths, the baseline first.")
@click.option("--workloads", help="Operations to measure, such as latency,bw,allreduce.")
@click.option("--sizes", help="Message sizes, such as 8,64K.")
@click.option("--margin", help="Difference that still counts as equal, such as 5%.")
def command(  # noqa: PLR0917 (click passes by name)
    study: Path,
    host: str | None,
    machines: str | None,
    paths: str | None,
    workloads: str | None,
    sizes: str | None,
    margin: str | None,
) -> None:
    """Write a commented study to STUDY. Asks for whatever the flags leave open; nothing is measured.

    The answers are checked as `nearmetal run` would check them before anything is written.
    """
    if study.exists():
        raise BadInputError(f"{study} already exists", hint="choose another file name, or remove it")
    if not re.fullmatch(NAME_PATTERN, study.stem):
        hint = "choose another file name: letters, digits and . _ + -, at most 40, a letter or digit first"
        raise BadInputError(f"the study is named after its file, and {study.stem!r} cannot be a name", hint=hint)
    host = host or ("ssh" if machines else "") or _asked("Where", "--host", default="local", type=_HOSTS)
    if host == "ssh":
        machines = machines or _asked("Machines, such as hpc1,hpc2", "--machines")
    elif machines:
        raise BadInputError(f"--machines is for --host ssh, not {host}", hint="leave one of the two out")
    draft = Draft(
        name=study.stem,
        host=host,
        nodes=_machines(machines or ""),
        paths=_paths(_asked("Data paths, the baseline first", "--paths", paths, default=_PATHS[host]), host),
        workloads=_operations(_asked("Operations, such as latency,bw", "--workloads", workloads, default="latency")),
        sizes=parse_sizes(_asked("Message sizes", "--sizes", sizes, default="8,64K")),
        margin=_margin(_asked("Difference that still counts as equal", "--margin", margin, default="5%")),
    )
    text = draft_text(draft)
    check_study(parse_study(text, str(study)))
    write_file(study, text)
    click.echo(f"{study}\nnext: {command_line('plan', study)}")


def _machines(text: str) -> tuple[NodeSpec, ...]:
    """Return the machines of an ssh host; raise BadInputError where they are too few, or two have one name."""
    nodes = tuple(node_named(word, {}) for word in _words(text))
    if nodes:
        check_names("ssh", nodes)
    if len(nodes) == 1:
        message = "one machine alone has no network to measure"
        raise BadInputError(message, hint="name two or more: --machines hpc1,hpc2")
    return nodes


def _words(text: str) -> tuple[str, ...]:
    """Return the words between commas or blanks: people type both."""
    return tuple(text.replace(",", " ").split())


def _asked(question: str, flag: str, given: str | None = None, **how: Any) -> Any:
    """Return what the flag gave, or ask; raise BadInputError where nobody answers."""
    if given is not None:
        return given
    try:
        return click.prompt(question, err=True, **how)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise BadInputError(f"nobody answers {question!r}", hint=f"give {flag}, or run it on a terminal") from None


def _paths(text: str, host: str) -> tuple[str, ...]:
    """Return the paths; raise BadInputError for one that the host cannot make: a study's checks speak of keys."""
    names = _words(text)
    if not names:
        raise BadInputError("a study needs a path", hint="nearmetal init --help")
    for name in names if host in {"local", "lab"} else ():
        find_path(name)
    return names


def _operations(text: str) -> tuple[str, ...]:
    names = _words(text)
    if not names:
        raise BadInputError("a study needs a workload", hint="nearmetal init --help")
    for name in names:
        if not operation_named(name).has_size:
            message = f"{name} takes no message size"
            raise BadInputError(message, hint="leave it out here and add it to the study file without `sizes`")
    return names


def _margin(text: str) -> float:
    """Return the margin, read as `gate` reads it; raise BadInputError below 0.1 % or above 50 %."""
    share = read_share("--margin", text, "5%")
    if not 0.001 <= share <= 0.5:
        raise BadInputError(f"--margin {text!r} is not from 0.1% to 50%", hint="write --margin 5%")
    return share
