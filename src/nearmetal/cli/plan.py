"""`nearmetal plan STUDY`: what would run, and for how long."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from nearmetal.run.check import check_study
from nearmetal.run.estimate import estimate
from nearmetal.study.plan import block, combinations
from nearmetal.study.spec import read_study
from nearmetal.units import format_duration, format_size


@click.command(name="plan")
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--order", is_flag=True, help="Also list the trials of the first block in their seeded order.")
def command(study: Path, *, order: bool) -> None:
    """Show what STUDY would run, and for about how long. Nothing is started."""
    spec, _ = read_study(study)
    check_study(spec)
    console = Console()
    per_block = len(combinations(spec))
    shortest, longest = estimate(spec)
    console.print(f"[bold]{spec.title or spec.name}[/bold]", highlight=False)
    console.print(
        f"{len(spec.path)} paths x {len(spec.workload)} workloads x {len(spec.setting)} settings, "
        f"the baseline {spec.baseline!r} twice: {per_block} trials a block",
        highlight=False,
    )
    console.print(
        f"{spec.trials.min_blocks} to {spec.trials.max_blocks} blocks, stopping as soon as every comparison is "
        f"decided: about {format_duration(shortest)} to {format_duration(longest)}",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("workload", "operation", "sizes", "iterations", "nodes of ranks", "progress"):
        table.add_column(column)
    for workload in spec.workload:
        table.add_row(
            workload.name,
            workload.operation or workload.name,
            " ".join(format_size(size).replace(" ", "\u00a0") for size in workload.sizes) or "none",
            str(workload.iterations),
            " ".join(map(str, workload.placed)),
            workload.progress,
        )
    console.print(table)
    if order:
        for entry in block(spec, 0):
            console.print(f"{entry.trial:5d}  {entry.path.label}  {entry.workload.label}  {entry.setting}")
