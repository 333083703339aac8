"""What `predict` and `place` replay: launches of a program, on the machines of a run, changed as options say."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from nearmetal.cli.progress import lacks_of, warn
from nearmetal.cli.values import COUNT, PATH, FiniteRange, single_option
from nearmetal.errors import BadInputError, command_line, meant
from nearmetal.predict.calibration import LAB, LEAST_CASES, run_errors
from nearmetal.predict.doubt import Doubt, refuse_beyond, worst
from nearmetal.predict.doubts import find_doubts
from nearmetal.predict.doubts_of_messages import of_connections
from nearmetal.predict.fit_run import failed_of, fit_run
from nearmetal.predict.machine_file import Changes, learn_copying, read_changes
from nearmetal.predict.model_file import MODEL_VERSION, ModelFile, read_model
from nearmetal.predict.models import INTRA_KIND, MachineKey, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.patterns import read_pattern, schedule_from_pattern
from nearmetal.predict.scale import scale, scale_on
from nearmetal.predict.schedule import Schedule
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.trace_file import read_trace
from nearmetal.predict.validate import traced_launches
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.units import by_key, counted, parse_size_bytes

_NAMED = 2
"""Programs that a title names; of more it gives the number."""


def traced_by_run(program: Path) -> bool:
    """Return whether a program is RUN:WORKLOAD, not the directory of a trace."""
    run, colon, _ = str(program).rpartition(":")
    return bool(colon) and Path(run, RunDir.MARKER).is_file()


def load_schedules(program: Path, ranks: int | None, scaling: str | None = None) -> list[Schedule]:
    """Return the schedules of a pattern file, for a number of ranks, or of a trace directory or RUN:WORKLOAD."""
    if program.suffix == ".toml":
        if scaling:
            raise BadInputError("--scaling is for traces", hint=f"write scaling = {scaling!r} into {program}")
        pattern = read_pattern(program)
        asked = pattern.at(ranks) if ranks else pattern
        return [replace(schedule_from_pattern(asked), given_dims=pattern.dims if asked.dims != pattern.dims else ())]
    if traced_by_run(program):
        run, _, workload = str(program).rpartition(":")
        schedules, (chosen, *others) = traced_launches(RunDir.open(Path(run)), workload)
        if others:
            text = f"{program} was traced on {chosen} and on {', '.join(others)}, where ranks may compute and wait "
            text += f"otherwise: the launches on {chosen} are replayed"
            warn(f"{text}\nhint: to replay others, trace the program in a run with their path alone")
        return schedules
    if (program / RunDir.MARKER).is_file():
        hint = f"name an application that it traced: {program}:WORKLOAD"
        raise BadInputError(f"{program} is a run, not a trace", hint=hint)
    return [schedule_from_trace(read_trace(program))]


def scaled(schedules: list[Schedule], ranks: int | None, scaling: str | None) -> list[Schedule]:
    """Return traces on a number of ranks, if they show what the program would do there (`predict.scale`)."""
    traced = sorted({one.ranks for one in schedules})
    if len(traced) > 1 and not scaling and (ranks is None or ranks <= traced[-1]):
        text = f"the traces have {' and '.join(map(str, traced))} ranks"
        text += f", and --ranks {ranks} is not more than both" if ranks else ""
        hint = "name traces with one number of ranks, or with two and a larger --ranks to extrapolate to"
        raise BadInputError(text, hint=hint)
    if ranks is None or traced == [ranks]:
        if scaling:
            text = f"--scaling has no effect on a trace of {counted(traced[0], 'rank')}"
            raise BadInputError(text, hint="give their number with --ranks")
        return schedules
    if scaling:
        return [scale(schedule, ranks) for schedule in schedules]
    if len(traced) == 2 and traced[1] < ranks:
        few, many = ([one for one in schedules if one.ranks == count] for count in traced)
        return scale_on(few, many, ranks)
    have = counted(traced[0], "rank") if len(traced) == 1 else f"{', '.join(map(str, traced))} ranks"
    raise BadInputError(
        f"the trace has {have}, not {ranks}",
        hint="say how its compute time scales: --scaling strong (divided among the ranks) or weak (the same on each); "
        "or give traces of two smaller numbers of ranks",
    )


def load_model(source: Path, eager: str | None, paths: Sequence[str]) -> ModelFile:
    """Return the models of a run directory (fitted now) or of a model file; warn of asked paths whose trials failed."""
    if source.is_dir():
        run = RunDir.open(source).held()
        model = fit_run(run, eager_up_to_bytes=None if eager is None else parse_size_bytes(eager))
        warn_unfinished(run)
        failed = failed_of(run, model).items()
        warn_failed(run, "its ping-pong", {key: ones for key, ones in failed if not paths or key[0] in paths})
        return model
    if eager is not None:
        message = f"--eager has no effect on {source}, whose paths are fitted"
        raise BadInputError(message, hint="use it when you fit the run")
    model = read_model(source)
    if model.validated_p99 and not model.of_p99:
        warn(
            f"{source} is of version {model.version}: its errors of the p99 are of several launches together, so the "
            "cases that ship give intervals of the p99\nhint: fit the run again: --on RUN --save-model FILE"
        )
    if model.version < MODEL_VERSION and model.validated not in ({}, run_errors()):
        warn(
            f"{source} is of version {model.version}, which keeps no cases of ratios: if its errors are your own, "
            "ratios and --decide still take cases that ship\nhint: save it again: predict --errors FILE --save-model"
        )
    return model


def warn_unfinished(run: RunDir) -> None:
    """Warn of a run that ended early: nothing else tells of the paths and the launches that it lacks."""
    if (lacks := lacks_of(run, run.trials())) and lacks.premature:
        state, then = "is not finished", f"measure the rest: {lacks.resume}"
        if lacks.running:
            state, then = "is being measured", "repeat the command when it has ended"
        warn(f"{run.root} {state}: {lacks.says}. What it lacks is left out\nhint: {then}")


def warn_failed(run: RunDir, what: str, failed: Mapping[MachineKey, Sequence[TrialRecord]]) -> None:
    """Warn of each path, setting and progress mode that is left out because `what` failed in all its trials."""
    for key, ones in failed.items():
        text = f"{' / '.join(key)} is left out: {what} failed in {counted(len(ones), 'trial')}"
        text += f", first because: {ones[0].outcome.reason.splitlines()[0]}"
        warn(f"{text}\nhint: `{command_line('show', run.root)}` lists the trials")


def choose(
    model: ModelFile, paths: Sequence[str], settings: Sequence[str] = (), progress: Sequence[str] = ()
) -> list[NamedMachine]:
    """Return the machines of the named paths, settings and progress modes, of all where none is named.

    Raise BadInputError for a name that the model does not have.
    """
    for what, asked, known in (
        ("path", paths, {named.path for named in model.machines}),
        ("setting", settings, {named.setting for named in model.machines}),
        ("progress mode", progress, {named.progress for named in model.machines}),
    ):
        unknown = sorted(set(asked) - known)
        if unknown:
            has = f"it has {', '.join(sorted(known))}"
            raise BadInputError(f"no {what} {', '.join(unknown)} in the model", hint=meant(unknown[0], known, has))
    return [
        named
        for named in model.machines
        if (not paths or named.path in paths)
        and (not settings or named.setting in settings)
        and (not progress or named.progress in progress)
    ]


def paths_of(words: Sequence[str]) -> list[str]:
    """Return the paths that --path names, once or several times; raise BadInputError for an empty name."""
    paths = [path.strip() for word in words for path in word.split(",")]
    if not all(paths):
        text = f"--path {','.join(words)!r} has an empty name"
        raise BadInputError(text, hint="a comma too many, or a shell variable without a value? write --path native,vf")
    return paths


def name_of(programs: Sequence[Path], schedules: Sequence[Schedule]) -> str:
    """Return what is replayed, in few words: a single launch by its own name, several by what the user named."""
    if len(schedules) == 1:
        return schedules[0].name
    named, more = (", ".join(map(str, programs[:_NAMED])), len(programs) - _NAMED)
    return f"{len(schedules)} launches of {named}" + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Replay:
    """What both verbs replay: launches of a program, on which machines, and how often."""

    name: str
    schedules: list[Schedule]
    machines: list[NamedMachine]
    model: ModelFile
    changes: Changes
    unlike: dict[str, list[Doubt]]
    """By name, what is doubtful because the machine differs from the measured one."""
    replicas: int
    seed: int
    extrapolate: bool

    def doubts(self, named: NamedMachine, placement: Placement, *, from_start: bool = True) -> list[Doubt]:
        """Return what is doubtful on a machine; raise BadInputError where it would decide the answer.

        Without `from_start` a part of the program is predicted, not from its first message on.
        """
        validated = {name for name, logs in self.model.validated.items() if len(logs) >= LEAST_CASES}
        if named.host == LAB:  # cases of its own guests ship, some far off: only the user's replace that doubt
            validated &= {case.case_class for job in self.model.jobs for case in job}
        found = [*find_doubts(self.schedules, named, placement, validated), *self.unlike[named.name]]
        if from_start:
            found += worst(of_connections(one, named.machine, placement) for one in self.schedules)
        if not self.extrapolate:
            refuse_beyond(found, named.name)
        return found


_REPLAY_OPTIONS = (
    single_option("--on", "source", type=PATH, required=True, help="A run directory or model file."),
    click.option("--path", "paths", multiple=True, help="Only this path (repeatable, or a,b,c) [default: all]."),
    click.option("--paths", "paths", multiple=True, hidden=True),
    click.option("--setting", "settings", multiple=True, help="Only this setting of the run (repeatable)."),
    click.option("--progress", "modes", multiple=True, help="Only this progress mode of the run (repeatable)."),
    click.option("--ranks", type=COUNT, help="Number of ranks [default: as in the pattern or trace]."),
    click.option(
        "--scaling",
        type=click.Choice(["strong", "weak"]),
        help="How compute time scales to other --ranks: the same total work, or the same work per rank.",
    ),
    click.option(
        "--eager", help="The MPI's eager limit between nodes, such as '64 KiB'; larger messages use rendezvous."
    ),
    single_option("--machine", "machine_file", type=PATH, help="A machine file: how the target machine differs."),
    click.option("--vms-per-host", type=COUNT, help="Guests per host; each guest is a node."),
    click.option("--cores", type=COUNT, help="Cores per host [default: as in the run]."),
    click.option("--compute-scale", type=FiniteRange(min=0, min_open=True), help="Scale compute time by this factor."),
    click.option("--topology", help="Switches: flat, fat-tree:NODES:LEAVES or dragonfly:NODES:LEAVES."),
    click.option("--hop", help="Latency of each switch beyond the first, such as '300 ns'."),
    click.option("--interrupts", help="An interrupt moderation rule to add, such as 'igbvf:usecs=50'."),
    click.option("--delivery", help="Delay from an added interrupt to its handler, such as '2 us'."),
    click.option("--as", "stands_for", help="The setting that a path with --interrupts represents, such as default."),
    single_option(
        "--moderated", type=PATH, help="With --interrupts: a run or model file of the same path under that moderation."
    ),
    click.option("--replicas", type=COUNT, default=100, show_default=True, help="How often to replay the program."),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random numbers."
    ),
    click.option(
        "--extrapolate", is_flag=True, help="Predict even if what was not measured, such as sizes, decides the answer."
    ),
)


def replay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `predict` and `place` share; `prepare` takes their values."""
    for option in reversed(_REPLAY_OPTIONS):
        command = option(command)
    return command


def prepare(programs: Sequence[Path], given: Mapping[str, Any], *, validating: bool = False) -> Replay:
    """Return what to replay, from the values of `replay_options`."""
    given_ranks = (given["ranks"], given["scaling"])
    pattern = next((str(one) for one in programs if one.suffix == ".toml"), "")
    if pattern and len(programs) > 1:
        text = f"{pattern} is a pattern, a program by itself, and {len(programs)} programs are named"
        raise BadInputError(text, hint="predict them one at a time: only traces can be launches of one program")
    loaded = [(program, one) for program in programs for one in load_schedules(program, *given_ranks)]
    _refuse_copies(loaded)
    schedules = scaled([one for _, one in loaded], *given_ranks)
    changes = read_changes(given["machine_file"], **{one.name: given[one.name] for one in fields(Changes)})
    if given["scaling"] == "strong":
        shares = {schedule.traced_ranks / schedule.ranks for schedule in schedules}
        if len(shares) > 1:
            text = "the traces have different numbers of ranks"
            raise BadInputError(text, hint="give launches with the same number of ranks")
        changes = replace(changes, compute_scale=changes.compute_scale * shares.pop())
    changes = replace(changes, compute_scale=changes.compute_scale * schedules[0].compute_scale)
    paths = paths_of(given["paths"])
    model = load_model(given["source"], given["eager"], paths)
    chosen = _chosen(model, paths, given, validating=validating)
    if given["moderated"]:
        chosen = _as_moderated(chosen, changes, given["moderated"], given["eager"])
    machines = [changes.apply(named) for named in chosen]
    if len({one.key for one in machines}) < len(machines) or changes.stands_for in {one.setting for one in chosen}:
        text = f"--as {changes.stands_for}: exactly one setting must be chosen, and a different one"
        raise BadInputError(text, hint=f"choose one with --setting: there are {', '.join(one.name for one in chosen)}")
    of_one_rule = list(_of_one_rule(changes, chosen))
    unlike = {one.name: [*changes.doubts(was), *of_one_rule] for one, was in zip(machines, chosen, strict=True)}
    if changes.interrupts and not given["moderated"]:
        for one, was in zip(machines, chosen, strict=True):
            unlike[one.name] += _of_copying(was, model)
    if given["replicas"] < len(schedules):
        warn(
            f"only {given['replicas']} of {len(schedules)} launches are replayed, one for each of --replicas\n"
            f"hint: give --replicas {len(schedules)}, or a multiple of it"
        )
    often = (given["replicas"], given["seed"], given["extrapolate"])
    return Replay(name_of(programs, schedules), schedules, machines, model, changes, unlike, *often)


def _chosen(
    model: ModelFile, paths: Sequence[str], given: Mapping[str, Any], *, validating: bool
) -> list[NamedMachine]:
    """Return the machines of the paths, settings and progress modes that are asked for, in the order of the paths.

    The path inside a node is one to choose only where it is named, or where launches on it are to be predicted.
    """
    chosen = choose(model, paths, given["settings"], given["modes"])
    if not paths and not validating and any(named.kind != INTRA_KIND for named in chosen):
        chosen = [named for named in chosen if named.kind != INTRA_KIND]
    if not chosen:
        has = sorted({named.name for named in model.machines if not paths or named.path in paths})
        text = "no path was measured under that setting and progress mode"
        raise BadInputError(text, hint=f"there are {', '.join(has)}")
    return sorted(chosen, key=lambda named: paths.index(named.path) if paths else 0)


def tell_doubts(doubts: Mapping[str, Sequence[Doubt]]) -> None:
    """Print each doubt once, on stderr, with the machines that it concerns: of a subject that which concerns most."""
    every = [(where, one) for where, found in doubts.items() for one in found]
    for (_, hint), told in by_key(((one.about or one.said, one.hint), (where, one)) for where, one in every).items():
        worst = max((doubt for _, doubt in told), key=lambda one: one.share)
        alike = [where for where, doubt in told if doubt.said == worst.said]
        others = [where for where, _ in told if where not in alike]
        whole = len(alike) == len(doubts)
        more = f" (much the same on {', '.join(others)})" if others else ""
        warn(f"{'' if whole else ', '.join(alike) + ': '}{worst.said}{more}\nhint: {hint}")


def _refuse_copies(loaded: Sequence[tuple[Path, Schedule]]) -> None:
    """Raise BadInputError where two launches are one, as a trace and its copy are: intervals would be too narrow."""
    held: dict[str, Path] = {}
    for program, one in loaded:
        if one.digest in held:
            text = f"{held[one.digest]} and {program} hold the same launch, which would count as two"
            raise BadInputError(text, hint="name each trace once, and no copy of it")
        held |= {one.digest: program} if one.digest else {}


def _as_moderated(
    chosen: Sequence[NamedMachine], changes: Changes, source: Path, eager: str | None
) -> list[NamedMachine]:
    """Return machines that know what copying took in another run of their paths (`machine_file.learn_copying`)."""
    if not changes.interrupts:
        raise BadInputError("--moderated has no effect without --interrupts", hint="give both, or neither")
    other = load_model(source, eager if source.is_dir() else None, [named.path for named in chosen])
    return [learn_copying(named, other.machines) for named in chosen]


def _of_copying(named: NamedMachine, model: ModelFile) -> Iterator[Doubt]:
    """Say that moderation may save work that a run of one setting does not show."""
    alike = [one for one in model.machines if (one.path, one.progress) == (named.path, named.progress)]
    if named.machine.inter.work_ps and len(alike) == 1:
        text = "what copying takes under moderation is not known: the run has one setting of the path. Over vhost and "
        text += "virtio in the lab, FT and IS were predicted 25 to 55 % too slow without knowing it, 9 to 21 % with it"
        yield Doubt(text, "measure the path under the moderation, too, and give that run: --moderated RUN", 1.0)


def _of_one_rule(changes: Changes, chosen: Sequence[NamedMachine]) -> Iterator[Doubt]:
    """Say that paths of several drivers are given the rule of one."""
    paths = list(dict.fromkeys(named.path for named in chosen))
    if changes.interrupts and len(paths) > 1:
        text = (
            f"the rule {changes.interrupts} is added to all of {', '.join(paths)}, but the drivers of a port, of its "
        )
        text += "virtual function and of a guest's NIC have different rules"
        yield Doubt(text, "name the paths that it applies to with --path", 1.0)
