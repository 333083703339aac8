"""Carry a search out: blocks of trials, then the proof of the winner on fresh blocks.

`measure(setting, block)` is given by the caller: it yields the figures of one trial, cell by cell, so that a trial
that has become hopeless is not finished. It raises TrialError or KnobError when the trial fails; the setting is then
out of the search. Any other error ends the search.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nearmetal.errors import TrialError
from nearmetal.knobs.access import KnobError
from nearmetal.stats.equivalence import Finding
from nearmetal.stats.interval import Interval
from nearmetal.stats.stopping import Look, StoppingPlan, look
from nearmetal.stats.summary import Metric
from nearmetal.tune.method import Method
from nearmetal.tune.objective import Objective
from nearmetal.tune.space import Point, Space
from nearmetal.units import counted

Measure = Callable[[Mapping[str, str], int], Iterable[tuple[str, float]]]

_NO_WEIGHT = "it gave no figure that the objective weighs and the other launches of its blocks have"
_CONFIRM_BLOCKS = 15
CONFIRM_MARGIN = 0.01
"""Settings within 1 % of the present one are not worth a change."""


@dataclass(frozen=True, slots=True)
class TrialNote:
    """One trial of a search: log costs by cell relative to the present setting of its block; `reason` if it failed.

    `cut` says that the trial became hopeless and was not finished: `cost` is then the least that it can be.
    `present_to_native` are log costs of the block's present setting relative to native, where native was measured;
    `native_failure` is why it was not.
    `lacking` are cells of which a launch, of the setting or of the present one, held no figure.
    """

    block: int
    point: Point
    cost: float | None
    log_costs: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    cut: bool = False
    present_to_native: Mapping[str, float] = field(default_factory=dict)
    native_failure: str = ""
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A search after a block: how many blocks and launches it took, the block's notes, who leads, who is still in.

    `lost` says why the block compared nothing and is measured again, where that is so.
    """

    blocks: int
    trials: int
    notes: tuple[TrialNote, ...]
    leader: Point
    standing: frozenset[Point]
    lost: str = ""


@dataclass(frozen=True, slots=True)
class _Tried:
    """Figures of one trial, fewer than all when it was `cut` for being hopeless, or why it failed."""

    figures: Mapping[str, float]
    failure: str = ""
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean of ratios over blocks, and its interval where there are blocks enough for one."""

    value: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found before its proof; `trials` counts every launch, those of the present setting too."""

    winner: Point
    notes: tuple[TrialNote, ...]
    trials: int
    blocks: int

    @property
    def failures(self) -> int:
        """Return how many trials failed; their settings left the search."""
        return sum(note.cost is None for note in self.notes)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The proof on fresh blocks: the only figures of a search that may be reported.

    `ratio` and `interval` are of winner / present over the whole objective, below 1 is better; `cells` holds the same
    for each cell. `to_native` holds present / native and winner / native over the objective, of the blocks that have
    native; `native_failed` says in how many it failed, and why.
    `recommended` says whether the winner should replace the present setting, `reason` why or why not.
    """

    recommended: bool
    reason: str
    blocks: int = 0
    trials: int = 0
    ratio: float | None = None
    interval: Interval | None = None
    cells: Mapping[str, Ratio] = field(default_factory=dict)
    to_native: tuple[Ratio, Ratio] | None = None
    native_failed: str = ""


@dataclass(slots=True)
class Laboratory:
    """Measures blocks and keeps what it learnt about the cells.

    `native(block)`, where given, yields the figures of the baseline for the blocks of the proof. `lost` says why the
    last block compared nothing, where that is so.
    """

    space: Space
    measure: Measure
    objective: Objective
    seed: int
    native: Callable[[int], Iterable[tuple[str, float]]] | None = None
    trials: int = 0
    lost: str = ""
    _reference: dict[str, float] = field(default_factory=dict)
    _least: dict[str, float] = field(default_factory=dict)

    def block(
        self, number: int, asked: tuple[Point, ...], hopeless_above: float = float("inf"), *, with_native: bool = False
    ) -> list[TrialNote]:
        """Measure the settings and the present one in random order, and return the notes of the settings.

        None if the block is `lost`, because the present setting failed twice in it. Raise TrialError if the block
        before was so, too, or if there was none.
        """
        order = [self.space.present, *(point for point in asked if point != self.space.present)]
        chance = random.Random(f"{self.seed}/{number}")
        chance.shuffle(order)
        native_first = chance.random() < 0.5
        native = self._native(number) if with_native and native_first else _Tried({})
        outcomes = {point: self._trial(number, point, hopeless_above) for point in order}
        native = self._native(number) if with_native and not native_first else native
        tried = outcomes.pop(self.space.present)
        if not self._weighs(tried.figures):  # a hiccup must not cost the search
            tried = self._trial(number, self.space.present, hopeless_above)
        present = dict(tried.figures)
        if not self._weighs(present):
            again = bool(self.lost) or not self._reference
            self.lost = f"the present setting failed twice in block {number + 1}: {tried.failure or _NO_WEIGHT}"
            if again:
                hint = "nothing can be compared without it; run the study without tuning first"
                raise TrialError(self.lost, hint=hint)
            return []
        self.lost = ""
        self._reference = present
        known = {cell: value for cell, value in native.figures.items() if cell in present}
        distance = self.objective.log_costs(present, known)
        notes = [self._note(number, point, outcome, present) for point, outcome in outcomes.items()]
        return [replace(note, present_to_native=distance, native_failure=native.failure) for note in notes]

    def _native(self, block: int) -> _Tried:
        """Return the figures of native; where it fails, which the answer does not need, why."""
        try:
            native = _Tried(dict(self.native(block)) if self.native else {})
        except (TrialError, KnobError) as error:
            native = _Tried({}, error.message)
        self.trials += bool(native.figures or native.failure)
        return native

    def _weighs(self, cells: Iterable[str]) -> bool:
        return any(self.objective.weight(cell) for cell in cells)

    def _trial(self, block: int, point: Point, hopeless_above: float) -> _Tried:
        self.trials += 1
        figures: dict[str, float] = {}
        try:
            for cell, value in self.measure(self.space.setting(point), block):
                figures[cell] = value
                if point != self.space.present and self._at_least(figures) > hopeless_above:
                    return _Tried(figures, cut=True)
        except (TrialError, KnobError) as error:
            return _Tried({}, error.message)
        return _Tried(figures)

    def _at_least(self, figures: Mapping[str, float]) -> float:
        """Return the least cost a trial can still reach: cells to come are taken as good as ever seen."""
        bound = self._bound(self._costs(figures, self._reference), self._reference)
        return self.objective.cost(bound) if self._least and self._weighs(bound) else float("-inf")

    def _bound(self, log_costs: Mapping[str, float], present: Iterable[str]) -> dict[str, float]:
        return {**{cell: self._least[cell] for cell in present if cell in self._least}, **log_costs}

    def _costs(self, figures: Mapping[str, float], present: Mapping[str, float]) -> dict[str, float]:
        """Return the log costs of what both have: a launch may hold no median, the other one does."""
        return self.objective.log_costs(figures, {cell: present[cell] for cell in figures if cell in present})

    def _note(self, block: int, point: Point, tried: _Tried, present: Mapping[str, float]) -> TrialNote:
        log_costs = self._costs(tried.figures, present)
        for cell, value in log_costs.items():
            self._least[cell] = min(value, self._least.get(cell, 0.0))
        weighed = self._bound(log_costs, present) if tried.cut else log_costs
        if tried.failure or not self._weighs(weighed):
            return TrialNote(block, point, None, reason=tried.failure or _NO_WEIGHT)
        lacking = () if tried.cut else tuple(cell for cell in {**present, **tried.figures} if cell not in log_costs)
        return TrialNote(block, point, self.objective.cost(weighed), log_costs, cut=tried.cut, lacking=lacking)


def search(
    laboratory: Laboratory, method: Method, *, max_trials: int, watch: Callable[[SearchStep], object] | None = None
) -> SearchResult:
    """Run a method until it ends or `max_trials` are spent; a block that has begun is finished.

    `watch` is given each block as it ends. Raise TrialError when every setting failed: nothing was compared.
    """
    notes: list[TrialNote] = []
    blocks = 0
    asked: tuple[Point, ...] = ()
    while laboratory.trials < max_trials and (asked := asked if laboratory.lost else method.ask()):
        told = laboratory.block(blocks, asked, method.hopeless_above())
        blocks += 1
        notes += told
        if not laboratory.lost:
            method.tell({note.point: note.cost for note in told})
        if watch:
            leader, standing = method.recommend(), method.standing()
            watch(SearchStep(blocks, laboratory.trials, tuple(told), leader, standing, laboratory.lost))
    found = SearchResult(method.recommend(), tuple(notes), laboratory.trials, blocks)
    if notes and found.failures == len(notes):
        text = f"every setting that was tried failed, so none was compared with the present one: {notes[-1].reason}"
        raise TrialError(text, hint="mend that, then start a new search")
    return found


def first_line(reason: str) -> str:
    """Return the first line of why a trial failed, without what introduces the others."""
    return reason.partition("\n")[0].rstrip(" :")


def step_line(space: Space, step: SearchStep) -> str:
    """Return a block as a line for people."""
    if step.lost:
        return f"block {step.blocks}, {counted(step.trials, 'trial')}: measured again, because {first_line(step.lost)}"
    setting = ", ".join(f"{knob}={value}" for knob, value in space.setting(step.leader).items())
    failed = [first_line(note.reason) for note in step.notes if note.cost is None]
    after = f"; failed: {'; '.join(dict.fromkeys(failed))}" if failed else ""
    return f"block {step.blocks}, {counted(step.trials, 'trial')}: {setting or 'the present setting'} leads{after}"


def confirm(laboratory: Laboratory, winner: Point, *, first_block: int) -> Confirmation:
    """Measure the winner against the present setting on fresh blocks, from `first_block` on.

    The search picked the winner because its figures were good, so those figures flatter it; none of them is used here.
    Stops by the sequential rule of `nearmetal.stats.stopping`, whose intervals stay true under repeated looks. One
    block in which the winner failed is left out, and said to be, as those that were lost; a second failure of the
    winner ends the proof.
    """
    if winner == laboratory.space.present:
        return Confirmation(recommended=False, reason="no setting seems better than the present one")
    plan = StoppingPlan(max_blocks=_CONFIRM_BLOCKS, margin=CONFIRM_MARGIN)
    before = laboratory.trials
    notes: list[TrialNote] = []
    failed = lost = ""
    for block in range(_CONFIRM_BLOCKS):
        told = laboratory.block(first_block + block, (winner,), with_native=True)
        if laboratory.lost:
            lost = f"; another block is left out: {first_line(laboratory.lost)}"
            continue
        (note,) = told
        shared = _in_all([*(one.log_costs for one in notes), note.log_costs])
        if note.cost is None or not any(map(laboratory.objective.weight, shared)):
            reason = f"the winner failed: {first_line(note.reason or _NO_WEIGHT)}"
            if failed:
                return Confirmation(False, f"{reason}, as it did once before", block + 1, laboratory.trials - before)
            failed = f"; another block is left out: {reason}"
            continue
        notes.append(note)
        seen = look(np.array([laboratory.objective.aim(_only(note.log_costs, shared)) for note in notes]), plan)
        cells = _ratios(notes, plan)
        lacking = tuple(dict.fromkeys(cell for one in notes for cell in one.lacking))
        broken, unproven = _limits(laboratory.objective, cells, lacking)
        if (seen.stop or seen.finding is Finding.DIFFERS) and (broken or not unproven):
            break
    known, objective = {*cells, *lacking}, laboratory.objective
    unproven += objective.idle(objective.limits, known)
    idle = objective.idle(objective.weights, known)
    return Confirmation(
        _better(seen) and not broken and not unproven,
        _why(seen, broken, unproven)
        + _worse_figures(seen, cells)
        + (f"; judged without {', '.join(lacking)}, which some blocks lack" if lacking else "")
        + (f"; no figure has the weight of {', '.join(idle)}" if idle else "")
        + failed
        + lost,
        len(notes),
        laboratory.trials - before,
        seen.ratio,
        seen.interval,
        cells,
        _to_native(objective, [note for note in notes if note.present_to_native], plan),
        _native_failed(notes),
    )


def _native_failed(notes: Sequence[TrialNote]) -> str:
    """Return in how many blocks native failed, and why; empty if it never did."""
    reasons = [first_line(note.native_failure) for note in notes if note.native_failure]
    return f"the baseline failed in {len(reasons)} of {counted(len(notes), 'block')}: {reasons[-1]}" if reasons else ""


def _to_native(objective: Objective, notes: list[TrialNote], plan: StoppingPlan) -> tuple[Ratio, Ratio] | None:
    """Return present / native and winner / native over the objective; None where native has none of its cells."""
    if not notes:
        return None
    shared = _in_all([*(note.present_to_native for note in notes), *(note.log_costs for note in notes)])
    if not any(map(objective.weight, shared)):
        return None
    present = [objective.aim(_only(note.present_to_native, shared)) for note in notes]
    winner = [
        objective.aim({cell: note.present_to_native[cell] + note.log_costs[cell] for cell in shared}) for note in notes
    ]
    return _ratio(present, plan), _ratio(winner, plan)


def _in_all(several: Sequence[Mapping[str, float]]) -> list[str]:
    return [cell for cell in several[0] if all(cell in one for one in several)]


def _only(log_costs: Mapping[str, float], cells: Iterable[str]) -> dict[str, float]:
    return {cell: log_costs[cell] for cell in cells}


def _ratios(notes: Sequence[TrialNote], plan: StoppingPlan) -> dict[str, Ratio]:
    """Return each cell's ratio over the blocks that have it."""
    cells = dict.fromkeys(cell for note in notes for cell in note.log_costs)
    return {cell: _ratio([one.log_costs[cell] for one in notes if cell in one.log_costs], plan) for cell in cells}


def _ratio(log_costs: list[float], plan: StoppingPlan) -> Ratio:
    seen = look(np.array(log_costs), plan)
    return Ratio(math.exp(float(np.mean(log_costs))), seen.interval)


def _limits(
    objective: Objective, cells: Mapping[str, Ratio], lacking: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the cells that are shown to be beyond their limits, and those not shown to keep them.

    Judged by the ends of the intervals, not by the estimates: a limit that blocks cannot resolve is not kept. A claim
    that needs every limit kept, each shown at a level, has that level itself (Berger 1982): no correction.
    """
    known = {cell: one.interval for cell, one in cells.items() if one.interval}
    broken = objective.broken({cell: math.log(interval.low) for cell, interval in known.items()})
    surely = {cell: math.log(known[cell].high) if cell in known else math.inf for cell in (*cells, *lacking)}
    return broken, tuple(cell for cell in objective.broken(surely) if cell not in broken)


def _better(seen: Look) -> bool:
    """Return whether the winner is shown to beat the present setting, by however little."""
    below = seen.interval is not None and seen.interval.high < 1.0
    return seen.finding is Finding.FASTER or (seen.finding is Finding.DIFFERS and below)


def _worse_figures(seen: Look, cells: Mapping[str, Ratio]) -> str:
    """Return in which figures a better setting is shown to be worse, whether or not they are weighed."""
    metrics = {str(metric) for metric in Metric}
    worse = {
        cell: one.value
        for cell, one in cells.items()
        if cell.rpartition("/")[2] in metrics and one.interval and one.interval.low > 1.0
    }
    named = ", ".join(f"{cell} {value:.3f} times" for cell, value in worse.items())
    return f", but worse in {named}" if worse and _better(seen) else ""


def _why(seen: Look, broken: tuple[str, ...], unproven: tuple[str, ...]) -> str:
    if _better(seen) and broken:
        return f"better, but beyond its limit in {', '.join(broken)}"
    if _better(seen) and unproven:
        return f"better, but not shown to keep its limit in {', '.join(unproven)}"
    if _better(seen):
        return "better on fresh blocks"
    how = {Finding.WITHIN: "equal to it", Finding.SLOWER: "worse", Finding.DIFFERS: "worse"}.get(seen.finding)
    if how is None:
        return "no setting is proven to beat the present one: fresh blocks leave it undecided"
    return f"no setting beats the present one: the winner of the search is {how} on fresh blocks"
