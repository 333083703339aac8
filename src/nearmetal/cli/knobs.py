"""`nearmetal knobs [HOST]`: every knob, its value, its range, and why it is not there."""

import json
from dataclasses import asdict

import click
from rich.table import Column, Table
from rich.text import Text

from nearmetal.cli.reach import open_shell, refuse_unknown_interfaces
from nearmetal.cli.values import format_option
from nearmetal.knobs import places
from nearmetal.knobs.guards import refuse_without_files, rivals
from nearmetal.knobs.inventory import KnobRow, rows
from nearmetal.knobs.knob import Target
from nearmetal.report.terminal import Console
from nearmetal.units import by_key

_WIDE_ENOUGH = 120
_KINDS = {"/proc": "procfs", "/sys/": "sysfs"}
"""Where the path of a file does not fit, its file system stands for it."""


@click.command(name="knobs")
@click.argument("host", default=places.LOCAL)
@click.option("--interface", "-i", "chosen", multiple=True, help="Only this interface (repeatable).")
@click.option("--all", "everything", is_flag=True, help="Also list knobs that this host lacks, with the reason.")
@format_option("table", "json")
def command(host: str, chosen: tuple[str, ...], *, everything: bool, form: str) -> None:
    """List the knobs of HOST (settings that can be tuned) with their values and ranges. Nothing is changed."""
    with open_shell(host) as shell:
        refuse_unknown_interfaces(shell, named := [Target("", name) for name in chosen])
        targets = named or places.interfaces(shell)
        for target in targets:
            refuse_without_files(shell, target)
        found = list(rows(shell, targets))
        fought = rivals(shell, "", [row.knob for row in found if row.value is not None])
    shown = [row for row in found if everything or row.value is not None]
    if form == "json":
        click.echo(json.dumps([asdict(row) for row in shown], indent=2))
    else:
        _render(Console(), shown, everything=everything)
        if not everything:
            lacks = len(found) - len(shown)
            verb = "does" if lacks == 1 else "do"
            click.echo(f"{lacks} more {verb} not exist on this host; --all lists the reasons", err=True)
    for rival in fought:
        click.echo(f"warning: {rival}", err=True)


def _render(console: Console, shown: list[KnobRow], *, everything: bool) -> None:
    """Print a table for each interface, one for the machine and one for launches."""
    for target, group in by_key((row.target, row) for row in shown).items():
        driver = f" ({group[0].driver})" if group[0].driver else ""
        console.print(Text.assemble((str(target), "bold"), driver))
        console.print(_table(group, everything=everything, wide=console.width >= _WIDE_ENOUGH))


def _table(group: list[KnobRow], *, everything: bool, wide: bool) -> Table:
    folded = [Column(name, overflow="fold") for name in ("value", "accepts", "set by")]
    table = Table(Column("knob", no_wrap=True), *folded, box=None, pad_edge=False, header_style="dim")
    for row in group:
        value = row.value if row.value is not None else "-"
        by = row.support if wide else _KINDS.get(row.support[:5], row.support)
        by = "; ".join(part for part in (by, row.doubt, row.reason if everything else "") if part)
        table.add_row(row.knob, value, row.takes, by)
    return table
