"""`nearmetal tune STUDY`: search settings, prove the winner on fresh trials, write it as a profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from nearmetal.errors import BadInputError, ExitCode
from nearmetal.hosts.table import open_host
from nearmetal.study.spec import read_study
from nearmetal.tune.explain import explain
from nearmetal.tune.measure import study_measure, study_space, tuned_path
from nearmetal.tune.objective import Limit, Objective
from nearmetal.tune.profile import Evidence, Profile
from nearmetal.tune.race import Race
from nearmetal.tune.samplers import Sampler
from nearmetal.tune.search import Confirmation, Found, Laboratory, confirm, search
from nearmetal.tune.sweeps import Grid, OneAtATime

if TYPE_CHECKING:
    from nearmetal.study.spec import Study, TuneSpec
    from nearmetal.tune.method import Method
    from nearmetal.tune.space import Space

_SHOWN_EFFECTS = 8
_LEAST_SHARE = 0.01


@click.command(name="tune")
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The profile to write; default NAME.profile.json.")
def command(study: Path, out: Path | None) -> int:
    """Search the knobs of STUDY's [tune] table for a better setting.

    The winner is measured against the present setting on fresh blocks, and only that is reported. A profile is
    written when it is better there; that no setting beats the present one is an answer, too.
    """
    spec, _ = read_study(study)
    if spec.tune is None:
        raise BadInputError(
            f"{study} has no [tune] table", hint="name knobs: [tune.knobs] then 'nic.rx-usecs' = [0, 10]"
        )
    talk = Console(stderr=True, highlight=False)
    space = study_space(spec.tune)
    objective = Objective(spec.tune.weights, (), tuple(Limit(*limit) for limit in spec.tune.limits.items()))
    host = open_host(spec)
    try:
        laboratory = Laboratory(space, study_measure(spec, spec.tune, host), objective, spec.seed)
        talk.print(
            f"{len(space.points)} settings of path {tuned_path(spec, spec.tune).name}, method {spec.tune.method}"
        )
        found = search(laboratory, _method(spec, spec.tune, space), max_trials=spec.tune.max_trials)
        talk.print(f"{found.trials} trials in {found.blocks} blocks; measuring the winner on fresh blocks")
        proof = confirm(laboratory, found.winner, first_block=found.blocks)
        label = host.label
    finally:
        host.close()
    _report(Console(highlight=False), space, found, proof)
    if not proof.recommended:
        return ExitCode.OK
    place = out or Path(f"{spec.name}.profile.json")
    place.write_text(_profile(spec, spec.tune, space, found, proof, label=label).to_json())
    click.echo(f"profile: {place}")
    return ExitCode.OK


def _method(spec: Study, tune: TuneSpec, space: Space) -> Method:
    match tune.method:
        case "grid":
            return Grid(space, blocks=spec.trials.min_blocks, seed=spec.seed)
        case "one-at-a-time":
            return OneAtATime(space, blocks=spec.trials.min_blocks, seed=spec.seed)
        case "race":
            return Race(space, seed=spec.seed)
        case sampler:
            return Sampler(space, trials=tune.max_trials, seed=spec.seed, kind=sampler.removeprefix("optuna-"))


def _report(console: Console, space: Space, found: Found, proof: Confirmation) -> None:
    console.print(f"[bold]{proof.reason}[/bold]")
    setting = space.setting(found.winner)
    for knob, value in setting.items():
        console.print(f"  {knob} = {value}")
    if proof.ratio is not None and proof.interval is not None:
        console.print(
            f"cost against present: {proof.ratio:.3f} ({proof.interval.low:.3f} to {proof.interval.high:.3f},"
            f" {proof.interval.level:.0%}), {proof.blocks} fresh blocks"
        )
    cells = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("cell", "ratio", "low", "high"):
        cells.add_column(column, justify="left" if column == "cell" else "right")
    for cell, (ratio, interval) in proof.cells.items():
        low, high = (f"{interval.low:.3f}", f"{interval.high:.3f}") if interval else ("-", "-")
        cells.add_row(cell, f"{ratio:.3f}", low, high)
    if proof.cells:
        console.print(cells)
    _explain(console, space, found)


def _explain(console: Console, space: Space, found: Found) -> None:
    made = explain(space, found.notes)
    shown = [effect for effect in made.effects if effect.share >= _LEAST_SHARE][:_SHOWN_EFFECTS]
    if not shown:
        return
    table = Table(
        box=None, pad_edge=False, header_style="bold", title="what mattered in the search", title_justify="left"
    )
    for column in ("knob", "cell", "share", "log cost by value"):
        table.add_column(column)
    for effect in shown:
        values = ", ".join(f"{value}: {cost:+.3f}" for value, cost in effect.by_value.items())
        table.add_row(effect.knob, effect.cell, f"{effect.share:.0%}", values)
    pairs = [pair for pair in made.interactions if pair.share >= _LEAST_SHARE]
    for pair in pairs[: _SHOWN_EFFECTS // 2]:
        table.add_row(" x ".join(pair.knobs), pair.cell, f"{pair.share:.0%}", "together, beyond each alone")
    console.print(table)


def _profile(spec: Study, tune: TuneSpec, space: Space, found: Found, proof: Confirmation, *, label: str) -> Profile:
    assert proof.ratio is not None
    assert proof.interval is not None
    cells = {cell: [ratio, interval.low, interval.high] for cell, (ratio, interval) in proof.cells.items() if interval}
    aim = ", ".join(f"{weight:g} x {pattern}" for pattern, weight in tune.weights.items())
    low, high, level = proof.interval.low, proof.interval.high, proof.interval.level
    trials, blocks = found.trials, proof.blocks
    evidence = Evidence(tune.method, trials, blocks, proof.ratio, low, high, level, aim, cells, {}, label)
    flavour = {"openmpi": "openmpi5"}.get(spec.mpi.flavour, spec.mpi.flavour)
    setting = space.setting(found.winner)
    return Profile(spec.name, tune.workload_class, tuple(tune.interfaces), setting, {}, flavour, evidence)
