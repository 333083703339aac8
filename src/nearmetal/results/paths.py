"""The one view model of a run: from the run directory to everything that any report shows.

records -> provenance checked -> each trial summarized once -> cells -> comparisons, corrected -> verdicts
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import numpy as np

from nearmetal.errors import BadInputError, command_line
from nearmetal.results import evidence
from nearmetal.results.causes import causes
from nearmetal.results.comparisons import ComparisonMethod, method_of, path_verdict, setting_contrasts, with_comparisons
from nearmetal.results.records import (
    Cell,
    Failure,
    GroupId,
    HowToRepeat,
    Level,
    PathCell,
    PathEntry,
    PathVerdict,
    TrialSummary,
    View,
)
from nearmetal.results.series import CellId, as_measured, block_ns, occasions_of, typical_ns
from nearmetal.results.shown import DisplayScale, shown_for
from nearmetal.results.stopping import criteria_of, lost_workloads, planned_blocks, unfinished
from nearmetal.stats.bootstrap import IntervalMethod
from nearmetal.stats.compare import estimate_level
from nearmetal.stats.order import Curve, ecdf, tail_curve, tally
from nearmetal.stats.summary import Metric, by_occasion, over_names
from nearmetal.stats.widen import OCCASIONS, BlockContext
from nearmetal.store.query import disagreements, refuse_fabric, refuse_mixed, valid
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.facts import describes_machine, scope_of
from nearmetal.study.order import PACE, TRACE_OPTION, Scalar, WorkloadOrder, labels_of
from nearmetal.study.plan import combinations
from nearmetal.study.spec import Study
from nearmetal.units import counted

_CellKey = tuple[GroupId, int]
_SIDE_BY_SIDE = 2
"""How many path cells are held in memory at once."""
_NO_CURVE = Curve(np.empty(0, np.int64), np.empty(0, np.float64))


def build_view(run: RunDir, *, allow_mixed: bool = False, distributions: bool = True) -> View:
    """Return what a report on this run shows; the same run gives the same view, to the bit.

    Figures come from the summaries in the records. Samples are read for `distributions` alone, those of a cell once;
    without them the curves are empty.

    Raises BadInputError when the run has no valid trial or is a whole fabric's, or when its trials are of mixed
    provenance and `allow_mixed` is not set; ForeignFileError for damaged records and samples.
    """
    refuse_fabric(run)
    study = run.study()
    records = run.trials()
    good = valid(records)
    if not good:
        raise nothing_to_show(run, records)
    mixed = disagreements(good)
    if not allow_mixed:
        refuse_mixed(mixed)
    occasions = occasions_of(study, records)
    study = as_measured(study, records)
    paths = _paths(study)
    method = method_of(study, good, occasions)
    cells = with_comparisons(_cells(run, good, paths, method, distributions=distributions), method)
    return View(
        name=study.name,
        title=study.title or study.name,
        baseline=study.baseline,
        criteria=criteria_of(study),
        host_kind=run.info.host_kind,
        host_label=run.info.host_label,
        mpi=None if run.info.host_kind == "import" else study.mpi.flavour,
        created_utc=run.info.created_utc,
        nearmetal_version=run.info.nearmetal_version,
        blocks=len({record.order.block for record in good}),
        planned_blocks=planned_blocks(study),
        block_numbers=study.trials.max_blocks,
        occasions=occasions,
        plan=method.plan,
        variants=method.variants,
        valid_trials=len(good),
        block_ns=block_ns(good),
        paths=paths,
        cells=cells,
        verdicts=_verdicts(study, paths, cells, records),
        settings=setting_contrasts(cells, method),
        provenance=_provenance(good),
        mixed=tuple(str(one) for one in mixed),
        cautions=_cautions(run, good, cells),
        busy=evidence.mostly_disturbed(good),
        causes=causes(cells, good),
        facts=evidence.fact_rows(good, paths),
        counters=evidence.counter_rows(good, paths),
        failures=failed(records),
        unfinished=unfinished(run, records),
        traced=any(record.order.workload.options.get(TRACE_OPTION) for record in good),
        repeat=_how_to_repeat(run, study, good),
    )


def _verdicts(
    study: Study, paths: Sequence[PathEntry], cells: Sequence[Cell], records: Sequence[TrialRecord]
) -> tuple[PathVerdict, ...]:
    own = {setting.name: [cell for cell in cells if cell.group.setting == setting.name] for setting in study.setting}
    lost = lost_workloads(records)
    return tuple(
        path_verdict(path.label, setting.name, own[setting.name], lost.get(setting.name, ()))
        for path in paths
        if not (path.baseline or path.again)
        for setting in study.setting
    )


def cautions_of(run: RunDir, view: View, group: GroupId) -> tuple[str, ...]:
    """Return the cautions of a run that are about the launches of a group, where that alone is shown."""
    ours = [
        one
        for one in valid(run.trials())
        if (one.order.workload.label, one.order.setting) == (group.workload, group.setting)
    ]
    return _cautions(run, ours, view.cells_of(group))


def _cautions(run: RunDir, records: Sequence[TrialRecord], cells: Sequence[Cell]) -> tuple[str, ...]:
    rounded = _rounded(cells) if run.info.host_kind == "import" else ()
    return (*evidence.cautions(records, run.info.host_kind), *rounded)


def _rounded(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return a sentence on imported figures that are the same in every launch, as two decimals of 0.25 us are."""
    alike = [
        CellId(**asdict(cell.group), message_bytes=cell.message_bytes, path=one.path).name(sized=cell.sized)
        for cell in cells
        for one in cell.paths
        if len(one.trials) > 1 and len({trial.summary.trimmed_mean_ns for trial in one.trials}) == 1
    ]
    if not alike:
        return ()
    which = alike[0] + (f" and of {counted(len(alike) - 1, 'more cell')}" if alike[1:] else "")
    return (f"every launch of {which} has the same figure: what the files round off is in no interval",)


def failed(records: Sequence[TrialRecord]) -> tuple[Failure, ...]:
    """Return every failed attempt in the order of the plan."""
    mended = {record.order.trial for record in records if record.valid}
    return tuple(
        Failure(
            **record.keys,  # type: ignore[arg-type]  # ints and texts by name
            reason=record.outcome.reason,
            hint=record.outcome.hint,
            mended=record.order.trial in mended,
        )
        for record in records
        if not record.valid
    )


def _how_to_repeat(run: RunDir, study: Study, good: Sequence[TrialRecord]) -> HowToRepeat:
    hosts = run.hosts_text() or ""
    return HowToRepeat(run.study_text(), hosts, run.info.study_sha256, study.seed, _launch_lines(good))


def _launch_lines(records: Sequence[TrialRecord]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the launch line of the first valid trial of each path and workload."""
    first: dict[str, tuple[str, ...]] = {}
    for record in records:
        if record.outcome.launch_argv:
            name = f"{record.order.path.label}, {record.order.workload.label}"
            first.setdefault(name, record.outcome.launch_argv)
    return tuple(sorted(first.items()))


def nothing_to_show(run: RunDir, records: Sequence[TrialRecord]) -> BadInputError:
    """Return the error for a run without a valid trial: what became of it, and how to go on."""
    if not records:
        resume = command_line("run", "--resume", run.root)
        return BadInputError(f"{run.root} holds no finished trial yet", hint=f"continue: {resume}")
    none = f"none of the {len(records)} trials of {run.root} is valid"
    if len(records) == 1:
        none = f"the only trial of {run.root} is not valid"
    text = f"{none}; the last one says: {records[-1].outcome.reason}"
    return BadInputError(text, hint=f"all reasons: {command_line('show', run.root)}")


def _paths(study: Study) -> tuple[PathEntry, ...]:
    entries = [
        PathEntry(path.name, path.recipe, number, path.name == study.baseline, again=False)
        for number, path in enumerate(study.path)
    ]
    if study.host.kind == "import":
        return tuple(entries)  # its files hold the baseline under one name
    base = next(entry for entry in entries if entry.baseline)
    return (*entries, replace(base, label=labels_of(study.baseline)[1], baseline=False, again=True))


def _provenance(records: Sequence[TrialRecord]) -> tuple[tuple[str, Scalar], ...]:
    """Return facts of machine and versions; of one that changed during the run all values, in their order."""
    facts: dict[str, dict[Scalar, None]] = {}
    for record in records:
        for key, value in record.outcome.facts.items():
            facts.setdefault(key, {})[value] = None
    machine = [key for key in facts if describes_machine(key)]
    versions = [key for key in facts if scope_of(key) == "code" and key not in machine]
    found = ((key, [*facts[key]]) for key in [*sorted(machine), *sorted(versions)])
    return tuple((key, values[0] if len(values) == 1 else " | ".join(map(str, values))) for key, values in found)


# ---- cells


def _cells(
    run: RunDir,
    records: Sequence[TrialRecord],
    paths: Sequence[PathEntry],
    method: ComparisonMethod,
    *,
    distributions: bool,
) -> list[Cell]:
    """Return the cells, without comparisons, ordered as the study names workloads and settings, then by size."""
    sources: dict[_CellKey, dict[str, list[TrialRecord]]] = {}
    shown: dict[_CellKey, DisplayScale] = {}
    typical = typical_ns(run, records)
    for record in records:
        wanted = record.order
        for cell in record.cells:
            key = (GroupId(wanted.workload.label, cell.operation, wanted.setting), cell.message_bytes)
            sources.setdefault(key, {}).setdefault(wanted.path.label, []).append(record)
            if key not in shown:
                of = typical.get((wanted.workload.label, cell.operation), 0.0)
                shown[key] = shown_for(wanted.workload, cell.operation, cell.message_bytes, of)
    rank = {(workload.name, setting): n for n, (_, workload, setting) in enumerate(combinations(method.study))}
    keys = sorted(sources, key=lambda key: (rank.get((key[0].workload, key[0].setting), len(rank)), key[0], key[1]))
    jobs = [(key, path) for key in keys for path in paths if _launches(sources[key], path)]

    def one(job: tuple[_CellKey, PathEntry]) -> PathCell:
        key, path = job
        return _path_cell(run, sources[key], key, path, distributions=distributions)

    # Reading and sorting leave the interpreter to others.
    with ThreadPoolExecutor(max_workers=_SIDE_BY_SIDE if distributions else 1) as pool:
        parts = list(zip(jobs, pool.map(one, jobs), strict=True))
    cells = (
        Cell(
            *key,
            shown[key],
            tuple(part for (of, _), part in parts if of == key),
            noise=None,
            may_pause=_may_pause(next(iter(sources[key].values()))[0].order.workload),
            sized=any(size for group, size in keys if group == key[0]),
        )
        for key in keys
    )
    return [_with_levels(cell, method) for cell in cells]


def _may_pause(workload: WorkloadOrder) -> bool:
    return workload.kind == "engine" and PACE not in workload.options


def _launches(by_label: Mapping[str, Sequence[TrialRecord]], path: PathEntry) -> list[TrialRecord]:
    """Return the trials that a path's figures are of, its own first: of the baseline those under both its names."""
    labels = labels_of(path.label) if path.baseline else (path.label,)
    return [record for label in labels for record in by_label.get(label, ())]


def _path_cell(
    run: RunDir,
    by_label: Mapping[str, Sequence[TrialRecord]],
    key: _CellKey,
    path: PathEntry,
    *,
    distributions: bool,
) -> PathCell:
    """Return one path's part of a cell, without levels; `by_label` are the trials of each path, one of this at least.

    Its distributions are of what its levels are of; the baseline's second name, which no chart draws, has none.
    """
    group, size = key
    measured = [
        (record, next(c for c in record.cells if (c.operation, c.message_bytes) == (group.operation, size)))
        for record in _launches(by_label, path)
    ]
    trials = tuple(
        TrialSummary(
            record.order.trial, record.attempt, record.order.block, record.started_utc, run.summary(record, cell)
        )
        for record, cell in measured
        if record.order.path.label == path.label
    )
    drawn = distributions and not path.again
    together = tally(run.values(*one) for one in measured) if drawn else None
    return PathCell(
        path=path.label,
        trials=trials,
        levels={},
        comparison=None,
        uncompared="",
        iterations=sum(one.summary.n for one in trials),
        ecdf=_NO_CURVE if together is None else ecdf(together),
        tail=_NO_CURVE if together is None else tail_curve(together),
        drawn=0 if together is None else int(together.upto[-1]),
    )


def _with_levels(cell: Cell, method: ComparisonMethod) -> Cell:
    """Return a cell with the levels of its paths; that of the baseline is of both its launches, as ratios to it are."""
    baseline, margin = method.study.baseline, method.study.margin

    def levels(one: PathCell) -> dict[Metric, Level]:
        names = [each.launches for each in (cell.named(baseline) if one.path == baseline else [one])]
        return {metric: _level(*over_names(names, metric, margin), cell.shown, method) for metric in Metric}

    return replace(cell, paths=tuple(replace(one, levels=levels(one)) for one in cell.paths))


def _level(ns: dict[int, float], refused: str, shown: DisplayScale, method: ComparisonMethod) -> Level:
    if not ns:
        return Level(0, 1, None, None, IntervalMethod.NONE, refused)
    blocks = len(ns)
    context = BlockContext(variants=tuple(method.variants[block] for block in ns) if method.variants else ())
    if method.occasion is not None:
        ns, context = by_occasion(ns, method.occasion), OCCASIONS
    alone = estimate_level([shown.value(value) for value in ns.values()], context=context)
    occasions = alone.n if method.occasion is not None else 1
    return Level(blocks, occasions, alone.value, alone.interval, alone.method, refused="")
