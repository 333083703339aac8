"""`nearmetal explain RUN`: where one message's time went, from the traced trials of a run."""

from __future__ import annotations

from pathlib import Path

import click

from nearmetal.errors import BadInputError
from nearmetal.report.waterfall_text import as_text
from nearmetal.report.waterfalls import waterfalls
from nearmetal.store.rundir import RunDir


@click.command(name="explain")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--path", "paths", multiple=True, help="Only this path; may be given more than once.")
@click.option("--setting", "settings", multiple=True, help="Only this setting; may be given more than once.")
def command(run: Path, paths: tuple[str, ...], settings: tuple[str, ...]) -> None:
    """Show where the time of a message went on every traced path and setting of RUN."""
    opened = RunDir.open(run)
    found = [
        one
        for one in waterfalls(opened)
        if (not paths or one.path in paths) and (not settings or one.setting in settings)
    ]
    if not found:
        raise BadInputError(
            f"{run} holds no such traced trial",
            hint="give a workload `options = { waterfall = true }`, as studies/sriov-waterfall.toml does",
        )
    click.echo(as_text(found, opened.info.host_label), nl=False)
