"""`nearmetal plan STUDY`: what would run, and for how long."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click
import rich.table

from nearmetal.cli.progress import warn
from nearmetal.cli.values import STUDY, format_option
from nearmetal.errors import BadInputError
from nearmetal.report import words
from nearmetal.report.as_table import draw
from nearmetal.report.tables import Table
from nearmetal.report.terminal import Console, plain_table
from nearmetal.results.stopping import as_it_ends
from nearmetal.run.check import check_study
from nearmetal.run.estimate import estimate
from nearmetal.run.resolve import USUAL_SD, Resolution, resolution
from nearmetal.run.unused import measured_twice, progress_of
from nearmetal.study.order import Order
from nearmetal.study.plan import block, by_launch, combinations, longest_pause_ns
from nearmetal.study.shipped import read_study
from nearmetal.study.spec import Study, TrialsSpec, WorkloadSpec
from nearmetal.units import counted, format_duration, format_size, format_wait, wrapped
from nearmetal.workloads.engine import Engine, of_size
from nearmetal.workloads.figures import WITH_OPERATIONS

_ITERATE = {"fake", "perftest", *WITH_OPERATIONS}
"""The kinds of workload that take a study's `iterations`; others have a class, an input or a time of their own."""
_LISTS_WIDE = 15
"""Where lists of sizes and nodes are broken into lines."""


@click.command(name="plan")
@click.argument("study", type=STUDY)
@click.option("--order", is_flag=True, help="Also list the trials of the first block in the order of their launches.")
@format_option("table", "json")
def command(study: Path, *, order: bool, form: str) -> None:
    """Show what STUDY would run and about how long it takes. Nothing is started."""
    if order and form == "json":
        text = "--order has no effect with --format json, which lists them"
        raise BadInputError(text, hint="leave one of the two out")
    spec, _ = read_study(study)
    check_study(spec)
    for sentence in measured_twice(spec):
        warn(sentence)
    spec = as_it_ends(spec)
    if form == "json":
        click.echo(json.dumps(plan_json(spec), indent=1, allow_nan=False))
        return
    console = Console()
    per_block = len(combinations(spec))
    shortest, longest = estimate(spec)
    console.print(spec.title or spec.name, style="bold")
    parts = {"path": len(spec.path), "workload": len(spec.workload), "setting": len(spec.setting)}
    combined = " x ".join(counted(count, what) for what, count in parts.items())
    console.print(f"{combined}, the baseline {spec.baseline!r} twice: {per_block} trials per block")
    console.print(blocks(spec.trials, shortest, longest))
    draw(console, [_workloads(spec)])
    if len(spec.path) == 1 and len(spec.setting) == 1:
        console.print("\none path under one setting: nothing is compared, and nothing is resolved")
    else:
        console.print(f"\nwhat {spec.trials.max_blocks} blocks can resolve")
        more = "max_blocks" if len(spec.path) > 1 else "min_blocks"
        differences, sentences = resolves(resolution(spec), spec.margin, more)
        console.print(differences)
        for line in sentences:
            console.print(line)
    if order:
        grouped = "; the lab groups its launches by path and setting" if spec.host.kind == "lab" else ""
        console.print(f"\nthe first block, in its order{grouped}")
        for entry in _first_block(spec):
            console.print(f"{entry.trial:5d}  {entry.path.label}  {entry.workload.label}  {entry.setting}")


def _first_block(spec: Study) -> list[Order]:
    """Return the trials of the first block as they are asked for: those of one launch follow each other."""
    return [order for launch in by_launch(spec, block(spec, 0)) for order in launch.of_launch]


def _workloads(spec: Study) -> Table:
    head = ("workload", "operation", "sizes", "iterations", "nodes of ranks", "progress", "pause")
    rows = [
        (
            one.name,
            one.operation or one.name,
            _in_lines(map(format_size, one.sizes)) or "none",
            _iterations(one),
            _in_lines(map(str, one.placed)),
            progress_of(one) or "its own",
            f"to {format_duration(pause_ns)}" if (pause_ns := longest_pause_ns(spec, one)) else "none",
        )
        for one in spec.workload
    ]
    return Table("What a block launches", head, tuple(rows))


def _iterations(one: WorkloadSpec) -> str:
    """Return its iterations; where large sizes have numbers of their own, each number once, in the order of sizes."""
    if one.kind != Engine.kind:
        return str(one.iterations) if one.kind in _ITERATE else "its own"
    made = (of_size(size, one.options, "iterations", one.iterations) for size in one.sizes or [0])
    return _in_lines(dict.fromkeys(map(str, made)))


def _in_lines(entries: Iterable[str]) -> str:
    return "\n".join(wrapped(" ".join(entries), _LISTS_WIDE))


def resolves(found: Resolution, margin: float, more: str = "max_blocks") -> tuple[rich.table.Table, list[str]]:
    """Return what a study can resolve: differences as a table, modes and percentiles as sentences.

    `more` is the key of the study that asks for more blocks.
    """
    heads = ("if launches differ by (sd)", "found in 80 % of studies", f"blocks to find {words.limit(margin)}")
    table = plain_table(*heads, right=heads)
    for sd, smallest, enough in found.differences:
        table.add_row(words.percent(sd), words.percent(smallest), str(enough or "over 1,000"))
    held = f"percentiles up to {words.percentile_name(found.percentile)}" if found.percentile else "no percentile"
    beyond = f"; {words.percentile_name(found.next_percentile)} needs {found.next_iterations}"
    sentences = [
        f"a mode in fewer than {words.percent(found.rarest_mode)} of launches may stay unseen; near-metal needs "
        f"{found.blocks_for_mode} blocks"
    ]
    if found.iterations:
        support = f"a launch of {found.iterations} iterations supports {held}"
        sentences.append(f"{support}{beyond if found.next_percentile else ''}")
    gap = f"a gap of {words.limit(margin)} if launches differ by {words.percent(USUAL_SD)}"
    goals = ["near-metal", *(["its p99"] if found.iterations else []), *([gap] if found.proposed_blocks else [])]
    goal = ", ".join(goals[:-1]) + "," * (len(goals) > 2) + " and " * (len(goals) > 1) + goals[-1]
    wanted = found.proposed_blocks or found.blocks_for_mode
    asks = [f"{more} = {wanted}"] if wanted > found.blocks else []
    asks += [
        f"{key} = {found.proposed_iterations}"
        for key, has in found.iterations_by.items()
        if has < found.proposed_iterations
    ]
    sentences.append(f"proposed, for {goal}: {', '.join(asks)}" if asks else f"enough for {goal}")
    if not found.proposed_blocks:
        sentences.append(f"not even 1,000 blocks find {gap}")
    return table, sentences


def blocks(trials: TrialsSpec, shortest_ns: int, longest_ns: int) -> str:
    """Return how many blocks there are, what ends them, and how long they take."""
    least, most = trials.min_blocks, trials.max_blocks
    if least == most:
        return f"{least} blocks: about {format_wait(longest_ns)}"
    known = "" if trials.precision is None else f", or its mean known to {words.limit(trials.precision)}"
    comma = "," if known else ""
    quiet = "" if trials.floor is None else f"{comma} and no noise floor is above {words.limit(trials.floor)}"
    took = f"about {format_wait(shortest_ns)} to {format_wait(longest_ns)}"
    return f"{least} to {most} blocks, stopping as soon as every comparison is decided{known}{quiet}: {took}"


def plan_json(spec: Study) -> dict[str, object]:
    """Return the plan for programs; docs/reference/report-json.md says what each key means."""
    shortest, longest = estimate(spec)
    return {
        "plan_format": 1,
        "study": {"name": spec.name, "title": spec.title, "baseline": spec.baseline, "seed": spec.seed},
        "host": {"kind": spec.host.kind},
        "blocks": {"least": spec.trials.min_blocks, "most": spec.trials.max_blocks},
        "trials_a_block": len(combinations(spec)),
        "about_ns": {"least": shortest, "most": longest},
        "workloads": [
            {
                "name": one.name,
                "kind": one.kind,
                "operation": one.operation or one.name,
                "sizes": one.sizes,
                "iterations": one.iterations,
                "warmup": one.warmup,
                "progress": progress_of(one),
                "nodes_of_ranks": one.placed,
                "longest_pause_ns": longest_pause_ns(spec, one),
            }
            for one in spec.workload
        ],
        "settings": [one.model_dump() for one in spec.setting],
        "resolves": asdict(resolution(spec)),
        "first_block": [
            {"trial": one.trial, "path": one.path.label, "workload": one.workload.label, "setting": one.setting}
            for one in _first_block(spec)
        ],
    }
