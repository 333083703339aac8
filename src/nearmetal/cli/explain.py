"""`nearmetal explain RUN`: where one message's time went, from the traced trials of a run."""

import shutil
from pathlib import Path

import click

from nearmetal.cli.values import PATH, format_option, parse_sizes
from nearmetal.errors import BadInputError, command_line
from nearmetal.report.as_table import say_unfinished
from nearmetal.report.terminal import Console
from nearmetal.report.waterfall import as_json, as_text
from nearmetal.results.stopping import unfinished
from nearmetal.results.waterfalls import Waterfall, waterfalls
from nearmetal.store.rundir import RunDir
from nearmetal.units import format_size

_LINES = 40
"""Of a screen, where the output is no terminal's."""


@click.command(name="explain")
@click.argument("run", type=PATH)
@click.option("--path", "paths", multiple=True, help="Only this path (repeatable).")
@click.option("--setting", "settings", multiple=True, help="Only this setting (repeatable).")
@click.option("--workload", default="", help="Only this workload.")
@click.option("--size", default="", metavar="LIST", help="Only these message sizes, such as 8,64K.")
@format_option("text", "json")
def command(
    run: Path, *, paths: tuple[str, ...], settings: tuple[str, ...], workload: str, size: str, form: str
) -> None:
    """Show where the time of one message goes, for every traced path and setting of RUN, side by side."""
    opened = RunDir.open(run)
    traced = waterfalls(opened)
    if not traced:
        raise BadInputError(
            f"{run} has no traced trial",
            hint=f"`{command_line('advise', run)}` gives reasons from counters; for the parts of a message, give a "
            "workload `options = { waterfall = true }`, as the study sriov-waterfall does",
        )
    found = [
        one
        for one in traced
        if (not paths or one.path in paths)
        and (not settings or one.setting in settings)
        and (not workload or one.workload == workload)
        and (not size or one.message_bytes in parse_sizes(size))
    ]
    if not found:
        message = f"{run} has no traced trial of that path, setting, workload and size"
        raise BadInputError(message, hint=f"those that it has: {', '.join(dict.fromkeys(map(_name, traced)))}")
    say_unfinished(unfinished(opened, opened.trials()), Console(stderr=True))
    baseline = opened.study().baseline
    label = opened.info.host_label
    columns, height = shutil.get_terminal_size((80, _LINES))
    text = as_json(found, baseline, label) if form == "json" else as_text(found, baseline, label, height, columns)
    click.echo(text, nl=False)


def _name(one: Waterfall) -> str:
    return f"{one.path} with {one.setting}, {one.workload} of {format_size(one.message_bytes)}"
