"""`nearmetal tune STUDY`: search settings, prove the winner on fresh trials, write it as a profile."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from nearmetal.cli.progress import warn
from nearmetal.errors import BadInputError, ExitCode
from nearmetal.report.tuning import render
from nearmetal.run.check import check_study
from nearmetal.run.guests import open_host
from nearmetal.store.disk import Disk
from nearmetal.study.spec import read_study
from nearmetal.tune.measure import StudyTrials, study_space, tuned_path
from nearmetal.tune.objective import Limit, Objective
from nearmetal.tune.profile import Evidence, Profile
from nearmetal.tune.race import Race
from nearmetal.tune.samplers import Sampler
from nearmetal.tune.search import Confirmation, Found, Laboratory, confirm, search
from nearmetal.tune.sweeps import Grid, OneAtATime

if TYPE_CHECKING:
    from nearmetal.hosts.host import Host
    from nearmetal.study.spec import Study, TuneClass, TuneSpec
    from nearmetal.tune.method import Method
    from nearmetal.tune.space import Space


@click.command(name="tune")
@click.argument("study", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The profile to write, or the directory for one a class; default NAME.profile.json here.",
)
def command(study: Path, out: Path | None) -> int:
    """Search the knobs of STUDY's [tune] table for a better setting, once for each class of workloads.

    The winner is measured against the present setting on fresh blocks, and only that is reported. A profile is
    written when it is better there; that no setting beats the present one is an answer, too.
    """
    spec, _ = read_study(study)
    if spec.tune is None:
        raise BadInputError(
            f"{study} has no [tune] table", hint="name knobs: [tune.knobs] then 'nic.rx-usecs' = [0, 10]"
        )
    check_study(spec)
    folder = _folder(spec.tune, out)
    file_name = out.name if out is not None and folder != out else ""
    space = study_space(spec.tune)
    talk = Console(stderr=True, highlight=False)
    talk.print(f"{len(space.points)} settings of path {tuned_path(spec, spec.tune).name}, method {spec.tune.method}")
    host = open_host(spec, warn)
    try:
        for kind in spec.tune.searches:
            profile = _tune(spec, spec.tune, kind, host, talk)
            if profile is not None:
                place = folder / (file_name or f"{profile.name}.profile.json")
                Disk().put_bytes(place, profile.to_json().encode())
                click.echo(f"profile: {place}")
    finally:
        host.close()
    return ExitCode.OK


def _tune(spec: Study, tune: TuneSpec, kind: TuneClass, host: Host, talk: Console) -> Profile | None:
    """Search for one class, print what was found, and return the profile when there is a better setting."""
    space = study_space(tune)
    trials = StudyTrials(spec, tune, kind, host)
    objective = Objective(kind.weights, (), tuple(Limit(*limit) for limit in tune.limits.items()))
    laboratory = Laboratory(space, trials, objective, spec.seed, trials.native)
    method = _method(spec, tune, space)
    found = search(laboratory, method, max_trials=tune.max_trials, watch=lambda line: talk.print(line, soft_wrap=True))
    talk.print(f"{found.trials} trials in {found.blocks} blocks; measuring the winner on fresh blocks")
    proof = confirm(laboratory, found.winner, first_block=found.blocks)
    console = Console(highlight=False)
    console.print(f"[bold]{kind.name}[/bold]")
    render(console, space, objective, found, proof)
    for knob, reason in trials.doubts.items():
        talk.print(f"warning: the read-back of {knob} proves nothing: {reason}")
    if not proof.recommended:
        return None
    setting = space.setting(found.winner)
    flavour = {"openmpi": "openmpi5"}.get(spec.mpi.flavour, spec.mpi.flavour)
    return Profile(
        f"{spec.name}-{kind.name}" if tune.classes else spec.name,
        kind.name,
        tuple(tune.interfaces),
        setting,
        {knob: value for knob, value in trials.was.items() if knob in setting},
        flavour,
        replace(_evidence(tune, kind, found, proof), machine=trials.machine, label=host.label),
    )


def _folder(tune: TuneSpec, out: Path | None) -> Path:
    """Return the directory that profiles go to; raise BadInputError now when they could not be written later."""
    folder = out or Path()
    if not tune.classes and not folder.is_dir():
        folder = folder.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"cannot make the directory {folder} for profiles: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise BadInputError(f"cannot write profiles to {folder}", hint="name another place with --out")
    return folder


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


def _evidence(tune: TuneSpec, kind: TuneClass, found: Found, proof: Confirmation) -> Evidence:
    assert proof.ratio is not None
    assert proof.interval is not None
    intervals = {cell: (one.value, one.interval) for cell, one in proof.cells.items()}
    return Evidence(
        tune.method,
        found.trials,
        proof.blocks,
        proof.ratio,
        proof.interval.low,
        proof.interval.high,
        proof.interval.level,
        ", ".join(f"{weight:g} x {pattern}" for pattern, weight in kind.weights.items()),
        {cell: [ratio, of.low, of.high] for cell, (ratio, of) in intervals.items() if of},
        to_native=[one.value for one in proof.to_native] if proof.to_native else [],
    )
