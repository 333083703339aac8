"""`nearmetal tune STUDY`: search settings, prove the winner on fresh trials, write it as a profile."""

import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten

import click

from nearmetal.cli.progress import warn
from nearmetal.cli.rollback import offer_rollback, settle_far
from nearmetal.cli.values import PATH, STUDY, check_resume, refuse_other_version
from nearmetal.errors import BadInputError, ExitCode, StoreError, command_line, listed, os_errors_as
from nearmetal.hosts.host import Host
from nearmetal.knobs.mpi import dialect
from nearmetal.report.terminal import Console
from nearmetal.report.tuning import render
from nearmetal.run.begin import default_root, info_of
from nearmetal.run.check import check_study
from nearmetal.run.guests import measuring, open_host
from nearmetal.run.preflight import rehearse
from nearmetal.store.disk import Disk
from nearmetal.store.searchdir import SearchDir
from nearmetal.study.order import Scalar
from nearmetal.study.shipped import read_study, with_hosts_file
from nearmetal.study.spec import Study, TuneClass, TuneSpec
from nearmetal.tune.measure import Launches, orders, tuned_path
from nearmetal.tune.narrow import look_around, narrowed, study_values
from nearmetal.tune.profile import MOST_LABEL, Profile, ProfileEvidence
from nearmetal.tune.recall import search_of
from nearmetal.tune.search import Confirmation, SearchResult, confirm, search, step_line
from nearmetal.tune.space import Space
from nearmetal.units import counted


@click.command(name="tune")
@click.argument("study", type=STUDY, required=False)
@click.option(
    "--out", type=PATH, help="The profile to write, or a directory for one per class [default: NAME.profile.json]."
)
@click.option("--run", "root", type=PATH, help="Directory for the search's trials [default: runs/NAME-tune-TIME].")
@click.option("--resume", type=PATH, help="Resume the search in this directory.")
def command(study: Path | None, out: Path | None, root: Path | None, resume: Path | None) -> int:
    """Search the knobs in STUDY's [tune] table for a better setting, once for each class of workloads.

    The winner is then measured against the present setting on fresh blocks, and only that result is reported. A profile
    is written if the winner is better there. The answer may also be that no setting beats the present one.

    Every launch is kept. Resume an interrupted search with --resume DIR; it ends as if it had not been interrupted.
    """
    check_resume("tune", study, resume, "nearmetal tune tune-namespaces", run=root)
    offer_rollback()
    progress = Console(stderr=True)
    with ExitStack() as opened:
        spec, tune, host, kept = (
            _continued(resume, out, opened) if resume else _started(study or Path(), out, root, opened)
        )
        try:
            _searches(spec, tune, host, kept, progress)
        except KeyboardInterrupt:
            again = command_line("tune", "--resume", kept.root)
            progress.print(f"interrupted; continue with: {again}", soft_wrap=True)
            raise
    return ExitCode.OK


def _started(
    study: Path, out: Path | None, root: Path | None, opened: ExitStack
) -> tuple[Study, TuneSpec, Host, SearchDir]:
    spec, text = read_study(study)
    tune = _checked(spec, str(study))
    place = _place(tune, out)
    SearchDir.refuse_used(root := root or default_root(f"{spec.name}-tune"))
    spec, hosts = with_hosts_file(spec)
    host = _opened_host(spec, opened)
    kept = opened.enter_context(SearchDir.create(root, info_of(spec, text, host), text, hosts_text=hosts))
    kept.keep_out(place)
    return spec, tune, host, kept


def _continued(root: Path, out: Path | None, opened: ExitStack) -> tuple[Study, TuneSpec, Host, SearchDir]:
    refuse_other_version(root, SearchDir.open(root).info.nearmetal_version, "start a new search")
    kept = opened.enter_context(SearchDir.open_for_writing(root))
    spec = kept.study()
    if kept.lost:
        which = f"{counted(len(kept.lost), 'finished launch')} of {root} ({', '.join(listed(kept.lost))})"
        warn(f"the records of {which} are gone: measured again; if the search then asks for others, start a new one")
    tune = _checked(spec, f"{root}/study.toml")
    if out is not None:
        kept.keep_out(_place(tune, out))
    return spec, tune, _opened_host(spec, opened), kept


def _opened_host(spec: Study, opened: ExitStack) -> Host:
    host = opened.enter_context(closing(open_host(spec, warn, settle_far)))
    opened.enter_context(measuring(spec))
    return host


def _checked(spec: Study, source: str) -> TuneSpec:
    """Return what a study searches; raise BadInputError for a study that cannot be searched."""
    if spec.tune is None:
        text = f"{source} has no [tune] table"
        raise BadInputError(text, hint="name knobs: [tune.knobs] then 'nic.rx-usecs' = [0, 10]")
    check_study(spec)
    values = study_values(spec.tune)
    for kind in spec.tune.searches:  # what no profile can hold is refused now, not after the search
        for value in zip_longest(*values.values()):
            setting = {knob: one for knob, one in zip(values, value, strict=True) if one is not None}
            Profile(_profile_name(spec, kind), kind.name, tuple(spec.tune.interfaces), setting)
    return spec.tune


def _searches(spec: Study, tune: TuneSpec, host: Host, kept: SearchDir, progress: Console) -> None:
    """Search for each class, and write a profile for each that has a better setting."""
    place = _place(tune, kept.kept_out())
    in_folder = place.is_dir()  # now: it may be removed before the last of the profiles is written
    launches = Launches(host, kept)
    again = command_line("tune", "--resume", kept.root)
    progress.print(f"trials are kept; to resume after an interruption: {again}", soft_wrap=True)
    if launches.recalled:
        one = launches.recalled == 1
        progress.print(f"{launches.recalled} {'launch was' if one else 'launches were'} kept from before")
    else:
        paths = [path for path in spec.path if path.name in {spec.baseline, tuned_path(spec, tune).name}]
        tried = [order for path in paths for order in orders(spec, path, {}, 0)]
        rehearse(spec.name, tried, host, warn)
    facts = look_around(spec, tune, launches)
    made = narrowed(tune, facts)
    for line in made.left_out:
        progress.print(f"left out: {line}", soft_wrap=True)
    progress.print(f"{len(made.space.points)} settings of path {tuned_path(spec, tune).name}, method {tune.method}")
    task = _Task(spec, tune, launches, made.space, host.label, facts)
    for kind in tune.searches:
        profile = _tune(task, kind, progress)
        file = place / f"{_profile_name(spec, kind)}.profile.json" if in_folder else place
        if profile is not None:
            _write(profile, file, again)
            click.echo(f"profile: {file}")
        elif file.exists():
            warn(f"{file} is not of this search, which found no better setting: it is left as it was")


def _write(profile: Profile, file: Path, again: str) -> None:
    """Write a profile; raise StoreError that says by which command that is done without measuring anew."""
    disk = Disk()
    try:
        with os_errors_as(StoreError, f"cannot make the directory {file.parent}"):
            disk.make_folder(file.parent)
        disk.put_bytes(file, profile.to_json().encode())
    except StoreError as error:
        hint = f"every launch is kept: mend that, then write the profile by: {again}"
        raise StoreError(error.message, hint=hint) from error


@dataclass(frozen=True, slots=True)
class _Task:
    """What the searches of all classes share; `facts` are those of the present setting."""

    spec: Study
    tune: TuneSpec
    launches: Launches
    space: Space
    label: str
    facts: Mapping[str, Scalar]


def _tune(task: _Task, kind: TuneClass, progress: Console) -> Profile | None:
    """Search for one class, print what was found, and return the profile when there is a better setting."""
    spec, tune, space, facts = task.spec, task.tune, task.space, task.facts
    one = search_of(spec, tune, kind, task.launches, space)
    found = search(
        one.laboratory,
        one.method,
        max_trials=tune.max_trials,
        watch=lambda step: progress.print(step_line(space, step), soft_wrap=True),
    )
    progress.print(f"{found.trials} trials in {found.blocks} blocks; measuring the winner on fresh blocks")
    proof = confirm(one.laboratory, found.winner, first_block=found.blocks)
    console = Console()
    console.print(kind.name, style="bold")
    console.print(f"Figures from {task.label}.")
    render(console, space, one.objective, found, proof)
    for line in one.trials.warnings():
        progress.print(f"warning: {line}", soft_wrap=True)
    if not proof.recommended:
        return None
    setting = space.setting(found.winner)
    return Profile(
        _profile_name(spec, kind),
        kind.name,
        tuple(tune.interfaces),
        setting,
        {knob: value for knob, value in one.trials.was.items() if knob in setting},
        dialect(str(facts.get("mpi.flavour", spec.mpi.flavour)), str(facts.get("mpi.version", ""))),
        _evidence(task, kind, found, proof, one.trials.machine),
    )


def _profile_name(spec: Study, kind: TuneClass) -> str:
    return f"{spec.name}-{kind.name}" if spec.tune and spec.tune.classes else spec.name


def _place(tune: TuneSpec, out: Path | None) -> Path:
    """Return the directory that profiles go to, or the file; raise BadInputError when they could not be written."""
    place = out or Path()
    alone = not tune.classes and not place.is_dir()
    folder = place.parent if alone else place
    with os_errors_as(BadInputError, f"cannot make the directory {folder} for profiles"):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise BadInputError(f"cannot write profiles to {folder}", hint="name another place with --out")
    return place


def _evidence(
    task: _Task, kind: TuneClass, found: SearchResult, proof: Confirmation, machine: dict[str, str]
) -> ProfileEvidence:
    assert proof.ratio is not None
    assert proof.interval is not None
    return ProfileEvidence(
        task.tune.method,
        found.trials,
        proof.blocks,
        proof.ratio,
        proof.interval.low,
        proof.interval.high,
        proof.interval.level,
        ", ".join(f"{weight:g} x {pattern}" for pattern, weight in kind.weights.items()),
        {cell: [one.value, of.low, of.high] for cell, one in proof.cells.items() if (of := one.interval)},
        machine,
        shorten(task.label, MOST_LABEL, placeholder=" ..."),
        to_native=[one.value for one in proof.to_native] if proof.to_native else [],
    )
