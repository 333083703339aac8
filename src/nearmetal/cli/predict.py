"""`nearmetal predict TRACE...|PATTERN --on RUN`: how long a program takes on every measured path."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from nearmetal.errors import BadInputError
from nearmetal.predict.fit_run import fit_run
from nearmetal.predict.models import ModelFile, NamedMachine, read_model, write_model
from nearmetal.predict.native import Placement
from nearmetal.predict.patterns import read_pattern, schedule_from_pattern
from nearmetal.predict.schedule import Schedule, schedule_from_trace
from nearmetal.predict.simulate import Prediction, Quantile, sensitivity, simulate_launches
from nearmetal.predict.trace_file import read_trace
from nearmetal.store.rundir import RunDir
from nearmetal.units import format_duration, parse_size_bytes

PROBABILITIES = (0.5, 0.95, 0.99)


def load_schedule(program: Path, ranks: int | None) -> Schedule:
    """Return the schedule of a trace directory or a pattern file; only patterns come in other sizes."""
    if program.suffix == ".toml":
        pattern = read_pattern(program)
        return schedule_from_pattern(pattern.at(ranks) if ranks else pattern)
    schedule = schedule_from_trace(read_trace(program))
    if ranks not in {None, schedule.ranks}:
        raise BadInputError(
            f"the trace has {schedule.ranks} ranks, not {ranks}",
            hint="a trace is replayed as it is; describe the program as a pattern to change its size",
        )
    return schedule


def load_model(source: Path, eager: str | None) -> ModelFile:
    """Return the models of a run directory (fitted now) or of a model file."""
    if source.is_dir():
        return fit_run(RunDir.open(source), eager_up_to_bytes=parse_size_bytes(eager) if eager else None)
    return read_model(source)


def choose(model: ModelFile, paths: tuple[str, ...]) -> list[NamedMachine]:
    """Return the machines of the named paths, all when none is named; raise BadInputError for an unknown one."""
    known = {named.path for named in model.machines}
    unknown = sorted(set(paths) - known)
    if unknown:
        raise BadInputError(f"no path {', '.join(unknown)} in the model", hint=f"it has {', '.join(sorted(known))}")
    return [named for named in model.machines if not paths or named.path in paths]


@click.command(name="predict")
@click.argument("programs", metavar="PROGRAM...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--on", "source", type=click.Path(path_type=Path), required=True, help="A run directory or model file.")
@click.option("--path", "paths", multiple=True, help="Only this path (repeatable); all by default.")
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks of a pattern, when not those of its file.")
@click.option("--per-node", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks on each node.")
@click.option("--eager", help="The MPI's eager limit, such as '64 KiB'; rendezvous above it.")
@click.option("--replicas", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--sensitivity", "show_sensitivity", is_flag=True, help="Also tell what the time depends on.")
@click.option("--save-model", type=click.Path(path_type=Path), help="Write the fitted models to this file.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
def command(
    *,
    programs: tuple[Path, ...],
    source: Path,
    paths: tuple[str, ...],
    ranks: int | None,
    per_node: int,
    eager: str | None,
    replicas: int,
    seed: int,
    show_sensitivity: bool,
    save_model: Path | None,
    form: str,
) -> None:
    """Predict how long PROGRAM takes: a trace directory, or a pattern file ending in .toml.

    Several traces are launches of one program; replicas take them, and the launches of the run, in turn.
    """
    schedules = [load_schedule(program, ranks) for program in programs]
    schedule = schedules[0]
    model = load_model(source, eager)
    placement = Placement.block(schedule.ranks, per_node)
    rows: list[tuple[NamedMachine, Prediction]] = []
    told: dict[str, dict[str, float]] = {}
    for named in choose(model, paths):
        rows.append((named, simulate_launches(schedules, named.replayed, placement, seed=seed, replicas=replicas)))
        if show_sensitivity:
            told[_label(named)] = sensitivity(
                schedule, named.machine, placement, seed=seed, replicas=max(1, replicas // 10)
            )
    if save_model is not None:
        write_model(model, save_model)
    rows.sort(key=lambda row: row[1].quantile(0.5).value_ns)
    if form == "json":
        click.echo(json.dumps([_record(*row, told.get(_label(row[0]))) for row in rows], indent=1))
        return
    _print(schedule, rows, told)


def _label(named: NamedMachine) -> str:
    return f"{named.path} / {named.setting} / {named.progress}"


def _record(named: NamedMachine, found: Prediction, told: dict[str, float] | None) -> dict[str, object]:
    return {
        "path": named.path,
        "setting": named.setting,
        "progress": named.progress,
        "quantiles": [
            {"probability": q.probability, "ns": q.value_ns, "low_ns": q.low_ns, "high_ns": q.high_ns}
            for q in map(found.quantile, PROBABILITIES)
        ],
        "messages": found.messages,
        "inter_share": found.inter_share,
        "compute_ns": found.compute_ns,
        **({"sensitivity": told} if told is not None else {}),
    }


def _shown(quantile: Quantile) -> str:
    value = format_duration(quantile.value_ns)
    if quantile.low_ns is None or quantile.high_ns is None:
        return value
    return f"{value} [{format_duration(quantile.low_ns)}, {format_duration(quantile.high_ns)}]"


def _print(schedule: Schedule, rows: list[tuple[NamedMachine, Prediction]], told: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"Predicted run time of {schedule.name} on {schedule.ranks} ranks", title_justify="left")
    for column in ("path / setting / progress", "median", "p95", "p99", "between nodes"):
        table.add_column(column)
    for named, found in rows:
        cells = [_shown(found.quantile(probability)) for probability in PROBABILITIES]
        table.add_row(_label(named), *cells, f"{found.inter_share:.0%}")
    console = Console(highlight=False)
    console.print(table)
    console.print("Brackets: 95 % intervals over replicas; they do not contain the error of the models.")
    for label, elasticities in told.items():
        strongest = [f"{name} {value:+.2f}" for name, value in elasticities.items() if abs(value) >= 0.01]
        console.print(f"{label}: time depends on {', '.join(strongest) or 'nothing that was varied'}")
