"""`nearmetal predict TRACE...|PATTERN --on RUN`: how long a program takes on every measured path."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from nearmetal.cli.progress import warn
from nearmetal.cli.replay import Replay, paths_of, prepare, replay_options, tell_doubts, warn_failed, warn_unfinished
from nearmetal.cli.values import COUNT, PATH, format_option, read_share, single_option
from nearmetal.errors import BadInputError
from nearmetal.predict.calibration import JobCase, p99_errors, run_errors, without
from nearmetal.predict.decide import AnswerRow, cheapest, cheapest_by_kind, compare, refuse_unordered
from nearmetal.predict.fit_run import key_of
from nearmetal.predict.model_file import MODEL_VERSION, ModelFile, write_model
from nearmetal.predict.models import NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.simulate import Prediction, sensitivity, simulate_launches
from nearmetal.predict.validate import (
    MOST_MARKS,
    MeasuredLaunches,
    Replays,
    Validated,
    doubts_of_launches,
    marked_iterations,
    measured_launches,
    measured_parts,
    program_trials,
    validate,
)
from nearmetal.report import as_table
from nearmetal.report.prediction_json import (
    PREDICTION_SUFFIX,
    VALIDATION_SUFFIX,
    CaseJson,
    LossJson,
    PredictedJson,
    PredictionFile,
    ValidationFile,
    check_place,
    errors_by_class,
    read,
    save,
)
from nearmetal.report.prediction_json import predicted as predicted_json
from nearmetal.report.prediction_text import decision, dependence, figures, measured_on, picture, remarks, validation
from nearmetal.report.schema import made
from nearmetal.report.terminal import Console
from nearmetal.store.rundir import RunDir
from nearmetal.typed import adapter
from nearmetal.units import by_key, counted


@click.command(name="predict")
@click.argument("programs", metavar="PROGRAM...", nargs=-1, required=True, type=PATH)
@replay_options
@click.option("--per-node", type=COUNT, default=1, show_default=True, help="Ranks per node.")
@click.option(
    "--sensitivity", "show_sensitivity", is_flag=True, help="Also show which parameters the run time depends on."
)
@click.option(
    "--baseline", default="", help="The path that ratios refer to [default: bare metal, else the run's baseline]."
)
@click.option("--decide", is_flag=True, help="Name the cheapest path and setting that stays within --loss.")
@click.option("--loss", help="With --decide: acceptable slowdown against the baseline [default: 10%].")
@single_option("--validate", "truth", type=PATH, help="A run that launched PROGRAM: compare predictions with it.")
@click.option("--workload", default="", help="With --validate: the workload of that run that is PROGRAM.")
@click.option(
    "--errors",
    "earlier",
    multiple=True,
    type=PATH,
    help="Derive intervals, by class, from the cases of this NAME.validation.json (repeatable).",
)
@click.option("--save-model", type=PATH, help="Write the fitted models to this file.")
@click.option(
    "--save",
    "kept",
    type=PATH,
    help="Save to NAME.prediction.json for `serve`; with --validate, to NAME.validation.json for --errors.",
)
@format_option("table", "json")
def command(
    *,
    programs: tuple[Path, ...],
    per_node: int,
    show_sensitivity: bool,
    baseline: str,
    decide: bool,
    loss: str | None,
    truth: Path | None,
    workload: str,
    earlier: tuple[Path, ...],
    save_model: Path | None,
    kept: Path | None,
    form: str,
    **given: Any,
) -> None:
    """Predict the run time of PROGRAM: a trace directory, RUN:WORKLOAD of a traced application, or a pattern's .toml.

    Several traces count as launches of one program; replicas use these traces and the run's launches in turn. From
    traces with two different numbers of ranks, message sizes and compute time are extrapolated to a larger --ranks.
    With --decide, give the paths with --path in order of cost, cheapest first. With --validate, ranks are placed as in
    the measured launches.
    """
    check_place(kept, PREDICTION_SUFFIX if truth is None else VALIDATION_SUFFIX)
    asked = _limit(loss, decide=decide)
    of_one = {"--decide": decide, "--sensitivity": show_sensitivity, "--baseline": baseline, "--save-model": save_model}
    placed = {"--per-node": per_node > 1, "--vms-per-host": given["vms_per_host"]}
    _refuse_unused({"--workload": workload} if truth is None else of_one | placed, truth)
    replay = prepare(programs, given, validating=truth is not None)
    validations = _read_errors(earlier)
    replay = _with_errors(replay, validations) if validations else replay
    if truth is not None:
        _validate(replay, RunDir.open(truth), workload, validations, form=form, kept=kept)
        return
    if decide:
        _refuse_one(replay.machines)
        refuse_unordered(replay.machines, paths_of(given["paths"]))
    schedule = replay.schedules[0]
    placing = partial(replay.changes.placement, schedule.ranks, per_node)
    sensitivities = {
        named.name: _depends(replay, named, placing(named)) for named in replay.machines if show_sensitivity
    }
    rows, bare = _answer(replay, placing, baseline, asked or 0.0, validations)
    if save_model is not None:
        write_model(replay.model, save_model)
    losses, decided = _decide(rows, bare, asked, given)
    records = [predicted_json(one, bare, sensitivities.get(one.named.name), losses.get(one.named.name)) for one in rows]
    if kept is not None:
        save(
            kept,
            PredictionFile,
            replay.name,
            replay.model,
            ranks=schedule.ranks,
            baseline=bare.name,
            decision=decided,
            remarks=tuple(remarks(rows)),
            rows=tuple(records),
        )
    _show(rows, records, sensitivities, title=_title(replay, per_node), model=replay.model, decided=decided, form=form)


def _limit(loss: str | None, *, decide: bool) -> float | None:
    if loss is not None and not decide:
        raise BadInputError("--loss is a limit for --decide", hint=f"write --decide --loss {loss}")
    return read_share("--loss", "10%" if loss is None else loss, "10%") if decide else None


def _decide(
    rows: Sequence[AnswerRow], bare: NamedMachine, asked: float | None, given: Mapping[str, Any]
) -> tuple[dict[str, LossJson], str]:
    """Return what --decide says of each machine, by name, and its sentence; nothing without it."""
    if asked is None:
        return {}, ""
    chosen = cheapest(rows, paths_of(given["paths"]), given["settings"])
    losses = {row.named.name: LossJson(at_most=asked, probability=row.chance, chosen=row is chosen) for row in rows}
    return losses, decision(chosen, bare, asked, cheapest_by_kind(rows, given["settings"]))


def _show(
    rows: list[AnswerRow],
    records: list[PredictedJson],
    sensitivities: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    model: ModelFile,
    decided: str,
    form: str,
) -> None:
    if form == "json":
        told = {"figures_from": model.figures_from}
        shown = [adapter(PredictedJson).dump_python(one, mode="json") | told for one in records]
        click.echo(json.dumps(shown, indent=1))
        return
    console = Console()
    as_table.draw(console, [figures(title, records, whole=False)])
    for line in (*picture(rows), *remarks(rows)):
        console.print(line)
    for where, elasticities in sensitivities.items():
        console.print(f"{where}: {dependence(elasticities)}")
    for line in (*measured_on(model), *filter(None, [decided])):
        console.print(line)


def _refuse_one(machines: Sequence[NamedMachine]) -> None:
    if len(machines) == 1:
        text = f"--decide has nothing to choose from but {machines[0].name}"
        raise BadInputError(text, hint="drop the options that restrict it: --path, --setting, --progress")


def _answer(
    replay: Replay,
    placed: Callable[[NamedMachine], Placement],
    baseline: str,
    loss: float,
    errors: Sequence[ValidationFile],
) -> tuple[list[AnswerRow], NamedMachine]:
    """Replay on every machine, print the doubts, and return a row each and the machine that ratios refer to."""
    doubts = {named.name: replay.doubts(named, placed(named)) for named in replay.machines}
    kept = _keeps_marks(replay)
    predicted = [
        (named, _replayed(replay, named, placed(named), kept), doubts[named.name]) for named in replay.machines
    ]
    predicted.sort(key=lambda one: float(np.median(one[1].makespan_ns)))
    model = replay.model
    reference = {"baseline": baseline, "of_the_run": model.baseline}
    answer = compare(predicted, placed, model.validated, model.of_p99, jobs=model.jobs, loss=loss, **reference)
    tell_doubts(doubts)
    _warn_unused(errors, {row.errors.of for row in answer[0]}, model.validated)
    return answer


def _warn_unused(files: Sequence[ValidationFile], used: Set[str], known: Collection[str]) -> None:
    """Warn of errors that are of other classes than the paths; a path of no known class takes those of all."""
    told = {case.case_class for file in files for case in file.cases}
    if told and told.isdisjoint(used) and used <= set(known):
        text = f"--errors changes no interval of run times: its cases are of {', '.join(sorted(told))}, the paths are "
        text += f"of {', '.join(sorted(used))}"
        warn(f"{text}\nhint: save cases of these paths: predict --validate RUN --save NAME.validation.json")


def _title(replay: Replay, per_node: int) -> str:
    ranks, guests = replay.schedules[0].ranks, replay.changes.vms_per_host
    nodes = -(-ranks // per_node)
    where = f"{counted(ranks, 'rank')}, {counted(nodes, 'guest' if guests else 'node')}"
    where += f", {counted(-(-nodes // guests), 'host')}" if guests else ""
    return f"Predicted run time of {replay.name} on {where}"


def _refuse_unused(options: Mapping[str, object], truth: Path | None) -> None:
    """Raise BadInputError for an option that changes nothing without --validate, or with it."""
    for option in (option for option, value in options.items() if value):
        if truth is None:
            raise BadInputError(f"{option} has no effect without --validate", hint="give both, or neither")
        raise BadInputError(f"{option} has no effect with --validate", hint="ranks are placed as in the launches")


def _keeps_marks(replay: Replay) -> bool:
    """Return whether iterations are told apart for their p99; warn where they are too many for that."""
    marks = [marked_iterations(one) * replay.replicas for one in replay.schedules]
    if min(marks) and max(marks) > MOST_MARKS:
        text = f"no p99 of iterations: in all replicas, ranks mark {max(marks):,} of them, more than {MOST_MARKS:,}"
        warn(f"{text}\nhint: fewer --replicas leave fewer")
    return min(marks) > 0 and max(marks) <= MOST_MARKS


def _replayed(replay: Replay, named: NamedMachine, placement: Placement, keep_marks: bool) -> Prediction:
    """Return the run times on one machine, with what an added interrupt stage costs."""
    found = simulate_launches(
        replay.schedules,
        named.replayed,
        placement,
        seed=replay.seed,
        replicas=replay.replicas,
        keep_marks=keep_marks,
    )
    if replay.changes.interrupts:
        bare = [replace(machine, stage=None) for machine in named.replayed]
        without = simulate_launches(replay.schedules, bare, placement, seed=replay.seed, replicas=replay.replicas)
        found = replace(found, moderation_ns=float(np.median(found.makespan_ns) - np.median(without.makespan_ns)))
    return found


def _depends(replay: Replay, named: NamedMachine, placement: Placement) -> dict[str, float]:
    """Return what the time depends on, from at least one replica of each launch."""
    fewer = max(len(replay.schedules), replay.replicas // 10)
    return sensitivity(replay.schedules, named.machine, placement, seed=replay.seed, replicas=fewer)


def _read_errors(paths: Sequence[Path]) -> list[ValidationFile]:
    """Return files of errors; raise BadInputError where two, or one, hold launches twice, predicted alike or not."""
    files: list[ValidationFile] = []
    holder: dict[tuple[str, tuple[int, ...], tuple[float, ...]], tuple[int, Path]] = {}
    for number, path in enumerate(paths):
        file = read(path, ValidationFile)
        for launches in ((case.name, case.nodes, case.launches_ns) for case in file.cases):
            if launches in holder:
                other, where = holder[launches]
                which = f"{path} holds twice" if other == number else f"{where} and {path} hold"
                text = f"{which} the same launches on {launches[0]}, which would then count twice"
                raise BadInputError(text, hint="name one file for each run that was validated against")
            holder[launches] = number, path
        if file.p99_of_launches_together:
            warn(
                f"{path} is of version {file.version}: its errors of the p99 are of several launches together, so only "
                "those of run times are used\nhint: make it again: predict --validate RUN --save NAME.validation.json"
            )
        files.append(file)
    return files


def _refuse_own(files: Sequence[ValidationFile], run: RunDir, launches: Sequence[MeasuredLaunches]) -> None:
    """Raise BadInputError where errors are those of the very launches that are compared: these are in the interval."""
    held = {(case.name, case.nodes, case.launches_ns) for file in files for case in file.cases}
    if own := [one.name for one in launches if (one.name, one.placement, tuple(one.ns.tolist())) in held]:
        text = f"--errors has those of the launches of {run.root} on {own[0]}, which are then inside the intervals"
        raise BadInputError(text, hint="compare with a run that no file of --errors was made of")


def _with_errors(replay: Replay, files: Sequence[ValidationFile]) -> Replay:
    """Return it with errors of the user's own cases in their classes, instead of those that a model file kept."""
    run, p99 = errors_by_class(files)
    model = replay.model
    host = model.machines[0].host
    jobs = without(model.jobs, run) + _jobs_of(files)
    validated = {**(model.validated or run_errors(host)), **run}
    of_p99 = {**(model.of_p99 or p99_errors(host)), **p99}
    renewed = replace(model, validated=validated, validated_p99=of_p99, jobs=tuple(jobs))
    return replace(replay, model=replace(renewed, version=MODEL_VERSION))


def _jobs_of(files: Sequence[ValidationFile]) -> list[tuple[JobCase, ...]]:
    """Return the cases of each program and placement, for the errors of ratios."""
    jobs: dict[tuple[int, tuple[int, ...]], list[JobCase]] = {}
    for number, file in enumerate(files):
        for case in file.cases:
            jobs.setdefault((number, case.nodes), []).append(JobCase(case.case_class, case.key, case.error))
    return list(map(tuple, jobs.values()))


def _validate(
    replay: Replay, run: RunDir, workload: str, errors: Sequence[ValidationFile], *, form: str, kept: Path | None
) -> None:
    """Print predictions next to the launches of a run, and save both."""
    _refuse_unused({"vms_per_host in the machine file": replay.changes.vms_per_host}, run.root)
    measured = measured_launches(run, workload)
    warn_unfinished(run)
    trials = by_key((key_of(one.order), one) for one in program_trials(run, workload))
    failed = {one.key for one in replay.machines} & trials.keys() - {one.key for one in measured}
    warn_failed(run, "the program", {key: trials[key] for key in sorted(failed)})
    _refuse_own(errors, run, measured)
    replays = Replays(replay.model, replay.replicas, replay.seed, measured_parts(run, workload, replay.machines))
    cases = validate(replay.schedules, replay.machines, measured, replays)
    known = {one.key for one in (*replay.model.machines, *replay.machines)}
    if unknown := sorted({one.name for one in measured if one.key not in known}):
        text = f"launches on {', '.join(unknown)} are not compared: {replay.model.run} has no such path"
        warn(f"{text}\nhint: measure the paths under the settings and progress modes of the launches")
    by_name = {named.name: named for named in replay.machines}
    doubts = {}
    for case in cases:
        where = case.launches.name
        named = by_name[where]
        doubts[where] = replay.doubts(named, case.launches.placed(named), from_start=False)
        doubts[where] += doubts_of_launches(replay.schedules, named, case.launches)
    tell_doubts(doubts)
    if kept is not None:
        ran = [(case, case.launches) for case in cases]
        cases_of = [made(CaseJson, case, of, nodes=of.placement, launches_ns=tuple(of.ns.tolist())) for case, of in ran]
        save(kept, ValidationFile, replay.name, replay.model, cases=tuple(cases_of))
    if form == "json":
        told = {"figures_from": replay.model.figures_from}
        click.echo(json.dumps([_validated_record(case) | told for case in cases], indent=1))
        return
    console = Console()
    table, sentences = validation(cases)
    as_table.draw(console, [table])
    for sentence in (*sentences, *measured_on(replay.model)):
        console.print(sentence)


def _validated_record(case: Validated) -> dict[str, object]:
    return {
        "path": case.launches.path,
        "setting": case.launches.setting,
        "progress": case.launches.progress,
        "class": case.case_class,
        "launches_ns": case.launches.ns.tolist(),
        "measured_ns": case.measured_ns,
        "predicted_ns": case.predicted_ns,
        "interval_ns": case.interval_ns,
        "error": case.error,
        "error_with_measured": {part: ns / case.measured_ns - 1 for part, ns in case.parts_ns.items()},
        "oracle_error": None if np.isnan(case.oracle) else case.oracle,
        "inside": None if np.isnan(case.inside) else case.inside,
    }
