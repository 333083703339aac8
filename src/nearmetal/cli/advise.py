"""`nearmetal advise RUN`: from verdict to change."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import click

from nearmetal.cli.values import PATH, format_option
from nearmetal.errors import BadInputError
from nearmetal.report.advice import RULES, advise
from nearmetal.report.as_table import say_unfinished
from nearmetal.report.terminal import Console
from nearmetal.results.evidence import mostly_disturbed
from nearmetal.results.paths import build_view, nothing_to_show
from nearmetal.results.stopping import unfinished
from nearmetal.run.adopt import HOST_KIND
from nearmetal.store.query import disagreements, refuse_fabric, valid
from nearmetal.store.rundir import RunDir
from nearmetal.units import wrapped


@click.command(name="advise")
@click.argument("run", type=PATH)
@format_option("text", "json")
def command(run: Path, form: str) -> None:
    """Rank what is worth trying on the paths of RUN, with the evidence and the command for each.

    The evidence comes from the run's own counters and facts; the expected gains were measured by other studies. Try a
    setting in a study: each trial restores what it changed.
    """
    opened = RunDir.open(run).held()
    refuse_fabric(opened)
    if opened.info.host_kind == HOST_KIND:
        raise BadInputError(
            f"{run} holds figures of other programs: they come without the counters and facts that advice rests on",
            hint="measure these paths here: `nearmetal studies`, or `nearmetal between` for two pairs of machines",
        )
    study = opened.study()
    records = opened.trials()
    if not any(one.valid for one in records):
        raise nothing_to_show(opened, records)
    several = len(study.setting) > 1
    contrasts = build_view(opened, allow_mixed=True, distributions=False).gains if several else ()
    found = advise(study, records, contrasts)
    lacks, mixed = unfinished(opened, records), [str(one) for one in disagreements(valid(records))]
    if form == "json":
        of_run = {"advise_format": 1, "unfinished": asdict(lacks) if lacks else None, "mixed_provenance": mixed}
        click.echo(json.dumps({**of_run, "advice": [asdict(one) for one in found]}, indent=1))
        return
    console = Console()
    say_unfinished(lacks, console)
    for line in mixed:
        console.print(f"MIXED PROVENANCE: {line}")
    for number, one in enumerate(found, 1):
        gain = f"{one.gain:g} times as fast in {one.source}" if one.gain else "not measured by any shipped study"
        for text in (f"{number}. {one.path}: try {one.remedy}", f"   evidence: {one.evidence}", f"   gain: {gain}"):
            console.print("\n".join(wrapped(text, console.width, subsequent_indent="   ")))
        click.echo(f"   how: {one.attempt.replace('RUN/', f'{shlex.quote(str(run))}/')}")  # in one piece, to be copied
    if mostly_disturbed(valid(records)):
        console.print("most launches ran on a busy machine: first measure on a quieter one")
    if not found:
        console.print(f"none of {len(RULES)} rules finds a reason in this run's counters and facts")
    copied = shlex.quote(str(run / "study.toml"))
    console.print(f"next: change a copy of {copied} and run it; or let `nearmetal tune` search")
