"""Two run directories to one finding; with fresh blocks of the newer one, those decide the cells that looked worse."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from nearmetal.errors import BadInputError, command_line
from nearmetal.results.evidence import cautions_of_levels
from nearmetal.results.gated import ConditionChange, Gate, GateCell, GatedRun, Remeasured
from nearmetal.results.series import CellId, RunSeries, is_part, read_series, sized
from nearmetal.results.stopping import unfinished
from nearmetal.stats.between import Difference, Measured, Standing, difference, floor_between, judge_family
from nearmetal.stats.equivalence import TAIL_MARGIN, margin_log
from nearmetal.stats.summary import HEADLINE, LEAST_SPREAD, Metric
from nearmetal.store.query import disagreements
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.changes import differing_fields, differing_values
from nearmetal.units import by_key, counted
from nearmetal.workloads.figures import IMPORTED

_HOW_MUCH = frozenset({"sizes", "iterations", "warmup"})


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of two runs; `control` names a path that the change cannot have touched, '' for none.

    A `metric` is judged alone; without one the headline decides, and every other figure where it is worse, the p99 by
    more than `tail_margin`, which is never below `margin`.
    """

    margin: float
    metric: Metric | None = None
    control: str = ""
    allow_mixed: bool = False
    tail_margin: float = TAIL_MARGIN

    def __post_init__(self) -> None:
        margin_log(self.margin)
        margin_log(self.tail_margin)

    @property
    def figures(self) -> dict[Metric, float]:
        """Return the margin of each figure that is judged, the one that decides first."""
        if self.metric:
            return {self.metric: self.margin}
        return {HEADLINE: self.margin, Metric.MEDIAN: self.margin, Metric.P99: max(self.margin, self.tail_margin)}


@dataclass(frozen=True, slots=True)
class RunPair:
    """One figure of both runs, read, and known to be of the same kind; `others` are their other figures."""

    run: RunSeries
    base: RunSeries
    question: Question
    metric: Metric
    others: tuple[RunPair, ...] = ()

    @property
    def parts(self) -> frozenset[CellId]:
        """Return the cells of the base that are a part of a program, or of streams, whose whole is another cell."""
        measured = {(cell.workload, cell.operation) for cell in self.base.cells}
        return frozenset(cell for cell in self.base.cells if is_part(cell.workload, cell.operation, measured))


def read_pair(run: RunDir, base: RunDir, question: Question) -> RunPair:
    """Read both runs; raise BadInputError when they did not measure the same things, or hold nothing in common."""
    ours, theirs = read_figures(run, question), read_figures(base, question)
    pair, *others = (RunPair(ours[metric], theirs[metric], question, metric) for metric in question.figures)
    if run.info.host_kind != base.info.host_kind:
        text = f"{run.root} was measured on host {run.info.host_kind!r}, {base.root} on {base.info.host_kind!r}"
        raise BadInputError(text, hint="only runs of one kind of host can be compared")
    if not pair.base.cells:
        raise BadInputError(f"{base.root} has no valid trial", hint=command_line("show", base.root))
    _refuse_other_measurements(pair)
    _refuse_itself(pair)
    if not pair.run.cells.keys() & pair.base.cells.keys():
        text = f"{run.root} and {base.root} have no cell in common"
        raise BadInputError(text, hint="both must be runs of the same study")
    paths = {cell.path for cell in pair.base.cells}
    if question.control and question.control not in paths:
        text = f"--control {question.control!r} is not a path"
        raise BadInputError(text, hint=f"the paths: {', '.join(sorted(paths))}")
    return replace(pair, others=tuple(others))


def read_figures(run: RunDir, question: Question) -> dict[Metric, RunSeries]:
    """Return each figure of a run that a question is about; raises as `read_series`."""
    return {metric: read_series(run, metric, allow_mixed=question.allow_mixed) for metric in question.figures}


def _refuse_itself(pair: RunPair) -> None:
    """Raise BadInputError where both runs hold a trial: compared with itself, nothing is worse."""
    hint = "measure the study again, and compare that run with this one"
    if pair.run.run.root.resolve() == pair.base.run.root.resolve():
        raise BadInputError(f"{pair.run.run.root} would be compared with itself", hint=hint)
    ours, theirs = ({one.seal for one in side.records if one.seal} for side in (pair.run, pair.base))
    if shared := ours & theirs:
        raise BadInputError(
            f"{pair.run.run.root} and {pair.base.run.root} are copies of one run: "
            f"they share {counted(len(shared), 'trial')} of {len(ours)} and {len(theirs)}",
            hint=hint,
        )


def _refuse_other_measurements(pair: RunPair) -> None:
    """Raise BadInputError where one name stands for two measurements."""
    ours, theirs = _definitions(pair.run.records), _definitions(pair.base.records)
    other = [
        f"{what} {name}: {theirs[what, name]} in {pair.base.run.root}, {ours[what, name]} in {pair.run.run.root}"
        for what, name in sorted(ours.keys() & theirs.keys())
        if ours[what, name] != theirs[what, name]
    ]
    if other:
        raise BadInputError(
            "the runs measured different things under one name:\n  " + "\n  ".join(other),
            hint="compare runs of the same study, or give what differs another name",
        )


def _definitions(records: Sequence[TrialRecord]) -> dict[tuple[str, str], str]:
    """Return what each path and workload is, apart from how much of it was measured."""
    found = {}
    for record in records:
        path, workload = record.order.path, record.order.workload
        # An import's window is none of the program's, only what its figures are stored for.
        left_out = _HOW_MUCH | {"window"} if workload.kind == IMPORTED else _HOW_MUCH
        options = {key: value for key, value in workload.options.items() if key not in left_out}
        found["path", path.label] = json.dumps([path.kind, path.options], sort_keys=True)
        found["workload", workload.label] = json.dumps(
            [workload.kind, options, workload.placement, workload.progress], sort_keys=True
        )
    return found


def judge_runs(run: RunDir, base: RunDir, *, allow_mixed: bool = False) -> Gate:
    """Judge every cell of the base by the recorded blocks and the margins of the run's study; raises as `read_pair`."""
    study = run.study()
    return judge(read_pair(run, base, Question(study.margin, allow_mixed=allow_mixed, tail_margin=study.tail_margin)))


def judge(pair: RunPair, fresh: Mapping[Metric, RunSeries] | None = None, *, suspects: Sequence[CellId] = ()) -> Gate:
    """Judge every cell of the base; `fresh` holds blocks of the run's study measured after it was suspected.

    Where fresh blocks are given, they alone decide the `suspects`: nobody chose a cell by them. The family that
    corrects claims of `worse` is every judged cell by the same figure, whether or not it was suspected.
    """
    others = [
        one
        for other in pair.others
        for one in _judged(other, fresh[other.metric] if fresh else None, suspects)
        if one.found and not one.control
    ]
    return Gate(
        run=_side(pair.run, [*_in_neither(pair), *_without_control(pair)]),
        base=_side(pair.base),
        metric=pair.metric,
        margin=pair.question.margin,
        tail_margin=pair.question.figures.get(Metric.P99, pair.question.tail_margin),
        cells=_judged(pair, fresh[pair.metric] if fresh else None, suspects),
        others=tuple(others),
        not_in_base=tuple(cell for cell in pair.run.cells if cell not in pair.base.cells),
        changes=tuple(_changes(pair)),
        mixed=tuple(str(one) for side in (pair.base, pair.run) for one in disagreements(side.records)),
        remeasured=None,
    )


def _judged(pair: RunPair, fresh: RunSeries | None, suspects: Sequence[CellId]) -> tuple[GateCell, ...]:
    """Judge every cell of the base by one figure."""
    floors = {cell: _floor(pair, fresh, cell) for cell in pair.base.cells}
    # What fresh blocks decide is shown as the run's own blocks alone had it; all else has to exceed its floor, too.
    recorded = _by_family(
        pair, lambda cell: _difference(pair, pair.run, cell, None if cell in suspects else floors[cell])
    )
    decided = dict(recorded)
    if fresh is not None:
        renewed = _by_family(
            pair, lambda cell: _difference(pair, fresh, cell, floors[cell]) if cell in suspects else None
        )
        decided |= {cell: renewed[cell] for cell in suspects if cell in renewed}
    source = {cell: fresh if fresh is not None and cell in suspects else pair.run for cell in pair.base.cells}
    return tuple(
        _cell(pair, source[cell], cell, decided.get(cell), recorded.get(cell) if cell in suspects else None)
        for cell in pair.base.cells
    )


def _by_family(pair: RunPair, differ: Callable[[CellId], Difference | None]) -> dict[CellId, Difference | None]:
    """Return how the judged cells differ: wholes are a family, and so are parts, which no verdict rests on."""
    judged = [cell for cell in pair.base.cells if cell.path != pair.question.control and _applies(pair, cell)]
    found = dict[CellId, Difference | None]()
    for family in ([c for c in judged if c not in pair.parts], [c for c in judged if c in pair.parts]):
        found |= zip(family, judge_family([differ(cell) for cell in family]), strict=True)
    return found


def _applies(pair: RunPair, cell: CellId) -> bool:
    """Return whether a cell has the figure: a launch of a few samples has a mean alone, and is no claim's."""
    sides = [side.cells[cell] for side in (pair.base, pair.run) if cell in side.cells]
    return any(one.ns or one.refused for one in sides)


def suspects(gate: Gate) -> tuple[CellId, ...]:
    """Return the cells that look worse: shown to be, or by the headline merely estimated beyond the margin."""
    beyond = [one for one in gate.judged if one.found and (one.standing is Standing.WORSE or one.found.beyond)]
    return tuple(dict.fromkeys(one.cell for one in (*beyond, *gate.against)))


def unconfirmed(gate: Gate, cells: Sequence[CellId], why_not: str) -> Gate:
    """Return the finding when fresh blocks were wanted and could not be had: nothing is called worse then."""
    done = Remeasured("", 0, tuple(cells), why_not)
    return replace(gate, cells=_doubtful(gate.cells), others=_doubtful(gate.others), remeasured=done)


def _doubtful(cells: Sequence[GateCell]) -> tuple[GateCell, ...]:
    return tuple(
        replace(one, standing=Standing.UNDECIDED, reason="looks worse, and could not be measured again")
        if one.standing is Standing.WORSE
        else one
        for one in cells
    )


def _difference(pair: RunPair, run: RunSeries, cell: CellId, floor: float | None) -> Difference | None:
    base, ours = pair.base.cells[cell], run.cells.get(cell)
    if ours is None:
        return None
    return difference(
        ours.values(base.shown),
        base.values(),
        better=base.shown.better,
        margin=pair.question.figures[pair.metric],
        floor=floor,
        measured=(Measured(ours.blocks, ours.occasions), Measured(base.blocks, base.occasions)),
        contexts=(ours.context, base.context),
    )


def _floor(pair: RunPair, fresh: RunSeries | None, cell: CellId) -> float | None:
    """Return what is known of how much two runs of one state differ in this cell.

    Three sources: the occasions of either, the run against its own fresh blocks, and a path that the change cannot have
    touched, in the fresh blocks, too.
    """
    sides = [side.cells[cell] for side in (pair.run, pair.base) if side.occasions > 1 and cell in side.cells]
    known = [floor_between([np.array([ns]) for ns in found.ns.values()]) for found in sides]
    ours = (pair.run,) if fresh is None else (pair.run, fresh)
    known.append(floor_between(_occasions(cell, *ours)))
    if pair.question.control:
        untouched = replace(cell, path=pair.question.control)
        known.append(floor_between(_occasions(untouched, *ours, pair.base)))
    return max((one for one in known if one is not None), default=None)


def _occasions(cell: CellId, *runs: RunSeries) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    found = [run.cells[cell] for run in runs if cell in run.cells]
    return [np.array(list(one.ns.values()), dtype=np.float64) for one in found]


def _cell(pair: RunPair, run: RunSeries, cell: CellId, found: Difference | None, first: Difference | None) -> GateCell:
    base, ours = pair.base.cells[cell], run.cells.get(cell)
    control = cell.path == pair.question.control
    if control:
        found = _difference(pair, run, cell, None)
    reason = found.reason if found else _why_nothing(pair, run, cell)
    return GateCell(
        cell=cell,
        metric=pair.metric,
        shown=base.shown,
        base_level=_level(base.values()),
        run_level=_level(ours.values(base.shown)) if ours else None,
        found=found,
        first=first,
        standing=found.standing if found else Standing.UNDECIDED,
        reason="not judged: the change cannot have touched this path" if control else reason,
        control=control,
        part=cell in pair.parts,
        sized=cell.what in sized(pair.base.cells),
    )


def _counted(series: RunSeries, n: int) -> str:
    return counted(n, "occasion" if series.occasions > 1 else "block")


def _level(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    return math.exp(float(np.log(values).mean())) if values.size else None


def _why_nothing(pair: RunPair, run: RunSeries, cell: CellId) -> str:
    """Return why a cell of the base cannot be compared: it is missing, refused, or too short."""
    base, ours = pair.base.cells[cell], run.cells.get(cell)
    if ours is None:
        failed = [r for r in run.run.trials() if not r.valid and _measures(r, cell)]
        if not failed:
            return "the run did not measure it"
        text = failed[-1].outcome.reason.partition("\n")[0]
        return f"no valid trial in the run: {len(failed)} failed, the last one with: {text}"
    refused = ours.refused or base.refused
    if refused:
        return f"no figure: {refused}"
    short = [name for name, one in (("run", ours), ("base", base)) if not one.ns]
    if short:
        whose = "both runs" if len(short) == 2 else f"the {short[0]}"
        return f"no {pair.metric}: launches of {whose} have fewer than {LEAST_SPREAD} samples"
    in_run, in_base = _counted(run, len(ours.ns)), _counted(pair.base, len(base.ns))
    return f"{in_run} in the run and {in_base} in the base are not enough for an interval"


def _measures(record: TrialRecord, cell: CellId) -> bool:
    order = record.order
    return (order.path.name, order.workload.label, order.setting) == cell.combination


def _side(series: RunSeries, lost: Iterable[str] = ()) -> GatedRun:
    return GatedRun(
        **asdict(series.run.info),
        root=str(series.run.root),
        blocks=len({record.order.block for record in series.records}),
        occasions=series.occasions,
        unfinished=unfinished(series.run, series.run.trials()),
        cautions=(*lost, *cautions(series)),
    )


def cautions(series: RunSeries) -> tuple[str, ...]:
    """Return what readers must know before they believe a run's figures, as sentences."""
    return cautions_of_levels(series.records, series.run.info.host_kind)


def _in_neither(pair: RunPair) -> Iterator[str]:
    """Yield a sentence on each path of which the run tried something that is valid in neither run, so not judged."""
    orders = [record.order for record in pair.run.run.trials()]
    known = {cell.combination for cell in (*pair.run.cells, *pair.base.cells)}
    tried = sorted({(one.path.name, one.workload.label, one.setting) for one in orders})
    for path, of in by_key((one[0], " ".join(one[1:])) for one in tried if one not in known).items():
        yield f"no trial of {', '.join(of)} over {path} is valid, here or in the base: it is not judged"


def _without_control(pair: RunPair) -> Iterator[str]:
    """Yield that a control tells nothing of the noise of some cells: one run or both have no figure of it there."""
    control = pair.question.control
    judged = [replace(cell, path=control) for cell in pair.base.cells if control and cell.path != control]
    known = [{cell for cell, one in side.cells.items() if one.ns} for side in (pair.run, pair.base)]
    if without := sum(cell not in known[0] & known[1] for cell in judged):
        cells = f"{without} of {counted(len(judged), 'cell')}"
        yield f"the control {control} has no figure in both runs beside {cells}: they are judged without it"


def _changes(pair: RunPair) -> Iterator[ConditionChange]:
    """Yield what differs between the runs: facts of machine, interfaces and code, knobs, versions, the study."""
    # The base comes first, so the first value of each disagreement is the base's.
    found = disagreements((*pair.base.records, *pair.run.records))
    places = by_key(((one.fact, one.values[0], ", ".join(one.values[1:])), one.within) for one in found)
    for (fact, old, new), within in places.items():
        yield ConditionChange(fact, within[0] if len(within) == 1 else f"{len(within)} workloads or paths", old, new)
    before, after = (
        {record.order.setting: json.dumps(record.order.knobs, sort_keys=True) for record in side.records}
        for side in (pair.base, pair.run)
    )
    for setting in sorted(before.keys() & after.keys()):
        if before[setting] != after[setting]:
            yield ConditionChange("knobs", f"setting {setting}", before[setting], after[setting])
    texts = pair.base.run.study_text(), pair.run.run.study_text()
    for place, old, new in differing_values(pair.base.study, pair.run.study, texts):
        if pair.run.study.host.kind != "import" or not place.startswith("trials."):  # so many files, not a choice
            yield ConditionChange(f"study {place}", "", old, new)
    files = [side.run.hosts_text() or "" for side in (pair.base, pair.run)]
    for place, old, new in differing_fields(*files):
        yield ConditionChange(f"hosts file {place}", "", old, new)
    old, new = pair.base.run.info.nearmetal_version, pair.run.run.info.nearmetal_version
    if old != new:
        yield ConditionChange("nearmetal version", "", old, new)
