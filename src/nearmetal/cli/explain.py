"""`nearmetal explain RUN`: where one message's time went, from the traced trials of a run."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from nearmetal.cli.values import PATH, format_option, parse_sizes
from nearmetal.errors import BadInputError, command_line
from nearmetal.report.as_table import say_unfinished
from nearmetal.report.terminal import Console
from nearmetal.report.waterfall import as_json, as_text
from nearmetal.results.evidence import cautions_of_levels
from nearmetal.results.stopping import unfinished
from nearmetal.results.waterfalls import Waterfall, waterfalls
from nearmetal.store.query import disagreements, valid
from nearmetal.store.rundir import RunDir
from nearmetal.units import format_size

_LINES = 40
"""Of a screen, where the output is no terminal's."""
_SIZE = "message_bytes"


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
    asked = {"path": paths, "setting": settings, "workload": [workload] * bool(workload)}
    found = _asked(run, traced, {**asked, _SIZE: parse_sizes(size) if size else ()})
    baseline = opened.study().baseline
    label = opened.info.host_label
    columns, height = shutil.get_terminal_size((80, _LINES))
    doubts = _doubts(opened)
    if form == "json":
        text = as_json(found, baseline, label, doubts)
    else:
        text = as_text(found, baseline, label, height, columns)
    click.echo(text, nl=False)


def _doubts(run: RunDir) -> dict[str, object]:
    """Say what speaks against the figures of a run, and return it as keys of JSON."""
    records = run.trials()
    good, lacks, console = valid(records), unfinished(run, records), Console(stderr=True, soft_wrap=True)
    mixed = [str(one) for one in disagreements(good)]
    cautions = cautions_of_levels(good, run.info.host_kind)
    say_unfinished(lacks, Console(stderr=True))
    for line in (*(f"MIXED PROVENANCE: {one}" for one in mixed), *(f"CAUTION: {one}" for one in cautions)):
        console.print(line)
    return {"unfinished": asdict(lacks) if lacks else None, "mixed_provenance": mixed, "cautions": cautions}


def _asked(run: Path, traced: Sequence[Waterfall], asked: Mapping[str, Collection[object]]) -> list[Waterfall]:
    """Return what has the asked values, given by field; raise BadInputError for a value that no traced trial has."""
    hint = f"those that it has: {', '.join(dict.fromkeys(map(_name, traced)))}"
    for of, wanted in asked.items():
        known = {getattr(one, of) for one in traced}
        if unknown := [str(value) for value in wanted if value not in known]:
            what = "size" if of == _SIZE else of
            raise BadInputError(f"{run} has no traced trial of {what} {', '.join(unknown)}", hint=hint)
    found = [one for one in traced if all(not wanted or getattr(one, of) in wanted for of, wanted in asked.items())]
    if not found:
        raise BadInputError(f"{run} has no traced trial of that path, setting, workload and size", hint=hint)
    return found


def _name(one: Waterfall) -> str:
    return f"{one.path} with {one.setting}, {one.workload} of {format_size(one.message_bytes)}"
