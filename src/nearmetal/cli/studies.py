"""`nearmetal studies`: what comes with nearmetal, to be run by name."""

import json

import click

from nearmetal.cli.values import format_option
from nearmetal.errors import UnavailableError
from nearmetal.report.terminal import Console, plain_table
from nearmetal.run.estimate import estimate
from nearmetal.study.shipped import read_study, shipped
from nearmetal.units import format_wait


@click.command(name="studies")
@format_option("table", "json")
def command(form: str) -> None:
    """List the studies that ship with nearmetal; `nearmetal run NAME` runs one.

    Shows where each one runs, how long it takes at most, and the question it answers.
    """
    studies = {name: read_study(path)[0] for name, path in shipped().items()}
    if not studies:
        raise UnavailableError("this installation has no studies", hint="get them from studies/ in the source tree")
    if form == "json":
        rows = [
            {"name": name, "host": study.host.kind, "title": study.title, "longest_ns": estimate(study)[1]}
            for name, study in studies.items()
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    table = plain_table("name", "host", "at most", "question", right={"at most"})
    for name, study in studies.items():
        table.add_row(name, study.host.kind, format_wait(estimate(study)[1]), study.title)
    Console().print(table)
