"""The paths of a run compared with its baseline, and the verdict on each path over all its cells."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nearmetal.results.records import Cell, PathCell, PathVerdict, SettingContrast, wholes_and_parts
from nearmetal.results.series import variants
from nearmetal.results.shown import DisplayScale
from nearmetal.results.stopping import criteria_of, planned_blocks, stopping_plan
from nearmetal.stats.compare import CellComparison, NoiseFloor, compare, correct_family, noise_floor, pair_launches
from nearmetal.stats.equivalence import Finding, Verdict
from nearmetal.stats.stopping import StoppingPlan
from nearmetal.stats.summary import HEADLINE, Metric, Summary
from nearmetal.stats.widen import BlockFigures
from nearmetal.store.rundir import TrialRecord
from nearmetal.study.order import is_again, labels_of
from nearmetal.study.plan import occasion_of
from nearmetal.study.spec import Study
from nearmetal.units import counted


@dataclass(frozen=True, slots=True)
class ComparisonMethod:
    """How the blocks of a run are compared.

    `plan` is that of the looks, None when the number of blocks was fixed beforehand; `occasion` gives that of a block,
    where a run has several; `variants` the boot that a block ran in, where there were several.
    """

    study: Study
    plan: StoppingPlan | None
    occasion: Callable[[int], int] | None
    variants: Mapping[int, int]

    def rng(self) -> np.random.Generator:
        """Return the random numbers of a comparison: the same for each."""
        return np.random.default_rng(self.study.seed)


def method_of(study: Study, records: Sequence[TrialRecord], occasions: int) -> ComparisonMethod:
    """Return how the blocks of these trials are compared."""
    least, most = planned_blocks(study)
    looked = occasions == 1 and least < most
    return ComparisonMethod(
        study,
        plan=stopping_plan(study) if looked else None,
        occasion=None if occasions == 1 else partial(occasion_of, study),
        variants=variants(records),
    )


def with_comparisons(cells: Sequence[Cell], method: ComparisonMethod) -> tuple[Cell, ...]:
    """Compare every path with the baseline of its cell; correct each path over its sizes, operations and settings.

    The family is the one that `stopping_plan` divides by, so that correction here never undoes a stop.
    """
    study = method.study
    raw: dict[tuple[int, str], CellComparison] = {}
    refused: dict[tuple[int, str], str] = {}
    for number, cell in enumerate(cells):
        base = cell.named(study.baseline)
        for one in cell.paths if base else ():
            if one in base:
                continue
            found = _compare([one], base, cell.shown, method)
            if isinstance(found, CellComparison):
                raw[number, one.path] = found
            else:
                refused[number, one.path] = found
    corrected: dict[tuple[int, str], CellComparison] = {}
    for path in {path for _, path in raw}:
        family = [key for key in raw if key[1] == path]
        corrected |= zip(family, correct_family([raw[key] for key in family]), strict=True)
    return tuple(
        replace(
            cell,
            noise=_noise(cell, method),
            paths=tuple(
                _compared(one, corrected.get((number, one.path)), study, refused.get((number, one.path), ""))
                for one in cell.paths
            ),
        )
        for number, cell in enumerate(cells)
    )


def _compared(one: PathCell, found: CellComparison | None, study: Study, refused: str) -> PathCell:
    if found is not None or one.path in labels_of(study.baseline):
        return replace(one, comparison=found)
    nothing = f"no block in which both {one.path} and {study.baseline} have a valid trial"
    return replace(one, uncompared=refused or nothing)


def _compare(
    ours: Sequence[PathCell],
    theirs: Sequence[PathCell],
    shown: DisplayScale,
    method: ComparisonMethod,
    spans: Sequence[Cell] = (),
) -> CellComparison | str:
    """Compare the launches of two paths, each under all its names, or return why the mean of one is refused.

    That is '' where no block holds both.
    In each cell that the comparison `spans`, if more than one, the baseline's own difference counts.
    """
    both = [[one.launches for one in cell.named(method.study.baseline)] for cell in spans]
    figures, refused = _paired(ours, theirs, shown, method, twins=[pair for pair in both if len(pair) == 2])
    if HEADLINE not in figures:
        return refused.get(HEADLINE, "")
    criteria = criteria_of(method.study)
    return compare(figures, refused=refused, rng=method.rng(), better=shown.better, criteria=criteria, plan=method.plan)


def _paired(
    ours: Sequence[PathCell],
    theirs: Sequence[PathCell],
    shown: DisplayScale,
    method: ComparisonMethod,
    twins: Sequence[Sequence[Mapping[int, Summary]]] = (),
) -> tuple[dict[Metric, BlockFigures], dict[Metric, str]]:
    return pair_launches(
        [one.launches for one in ours],
        [one.launches for one in theirs],
        shown.value,
        margin=method.study.margin,
        occasion=method.occasion,
        variants=method.variants,
        twins=twins,
    )


def _noise(cell: Cell, method: ComparisonMethod) -> NoiseFloor | None:
    first, second = map(cell.of, labels_of(method.study.baseline))
    if first is None or second is None:
        return None
    figures, _ = _paired([second], [first], cell.shown, method)
    if HEADLINE not in figures:
        return None
    return noise_floor(figures[HEADLINE], rng=method.rng(), margin=method.study.margin, plan=method.plan)


def setting_contrasts(cells: Sequence[Cell], method: ComparisonMethod) -> tuple[SettingContrast, ...]:
    """Compare each further setting with the study's first, path by path; a separate family for the correction.

    The second name of the baseline is no separate path: counted as one it would only raise the correction.
    """
    first = method.study.setting[0].name
    reference = {(cell.group, cell.message_bytes): cell for cell in cells if cell.group.setting == first}
    raw: list[SettingContrast] = []
    for cell in cells:
        group, size = cell.group, cell.message_bytes
        other = reference.get((replace(group, setting=first), size))
        if other is None or group.setting == first:
            continue
        for one in (one for one in cell.paths if not is_again(one.path)):
            ours, theirs = cell.named(one.path), other.named(one.path)
            found = _compare(ours, theirs, cell.shown, method, spans=(cell, other)) if theirs else ""
            if isinstance(found, CellComparison):
                where = (group.workload, group.operation, group.setting, size, one.path)
                raw.append(SettingContrast(*where, first, found, cell.sized))
    corrected = correct_family([one.comparison for one in raw])
    return tuple(replace(one, comparison=found) for one, found in zip(raw, corrected, strict=True))


# ---- verdicts


def path_verdict(path: str, setting: str, of_setting: Sequence[Cell], lost: Sequence[str] = ()) -> PathVerdict:
    """Judge a path under a setting over its cells: one that is slower makes it so, near-metal needs every one.

    Parts of a program, and single streams of several, are only named: a user waits for the whole. Workloads that are
    `lost`, of which all trials failed on every path, have no cell, but near-metal needs them, too.
    """
    cells, parts = wholes_and_parts(of_setting)
    found = [(cell, one.comparison) for cell in cells if (one := cell.of(path)) and one.comparison is not None]
    tally = [comparison.verdict for _, comparison in found]
    counts = tuple((verdict, tally.count(verdict)) for verdict in Verdict if verdict in tally)
    decided = [pair for pair in found if pair[1].verdict is not Verdict.UNDECIDED]
    by_cost = sorted(decided or found, key=lambda pair: pair[1].cost(HEADLINE))
    return PathVerdict(
        path=path,
        setting=setting,
        verdict=_over_cells(tally, missing=len(cells) - len(found) + len(lost), hidden=bool(_of_faster(found))),
        counts=counts,
        cells=len(cells),
        worst=by_cost[-1] if by_cost else None,
        best=by_cost[0] if by_cost else None,
        both_kinds=len({comparison.better for _, comparison in found}) > 1,
        reason=_reason(path, counts, len(cells), found) + _of_parts(path, parts) + _of_lost(lost if cells else ()),
    )


def _of_parts(path: str, parts: Sequence[Cell]) -> str:
    """Return in words the verdicts on parts, empty where there are none."""
    tally = [one.comparison.verdict for cell in parts if (one := cell.of(path)) and one.comparison is not None]
    text = ", ".join(f"{verdict} in {tally.count(verdict)}" for verdict in Verdict if verdict in tally)
    return f"; of parts: {text} of {len(parts)}" if text else ""


def _of_lost(lost: Sequence[str]) -> str:
    return f"; no valid trial of {', '.join(lost)}" if lost else ""


def _over_cells(tally: Sequence[Verdict], *, missing: int, hidden: bool) -> Verdict:
    """Return the verdict on a path: a proven gap anywhere counts, anything unproven anywhere is undecided.

    `hidden` says whether some cell is faster by the mean alone, and so not near-metal.
    """
    for worst in (Verdict.SLOWER, Verdict.SLOWER_TAIL):
        if worst in tally:
            return worst
    if not tally or missing or Verdict.UNDECIDED in tally:
        return Verdict.UNDECIDED
    if all(verdict is Verdict.FASTER for verdict in tally):
        return Verdict.FASTER
    return Verdict.DIFFERS if hidden or Verdict.DIFFERS in tally else Verdict.NEAR_METAL


def slower_beside(found: Iterable[CellComparison]) -> Counter[Metric]:
    """Return in how many cells another figure is shown to be slower though the mean is not."""
    beside = [one.estimates for one in found if one.headline.finding is not Finding.SLOWER]
    return Counter(metric for of in beside for metric in of if of[metric].finding is Finding.SLOWER)


def _of_faster(found: Sequence[tuple[Cell, CellComparison]]) -> Counter[Metric]:
    """Return the same of cells that are faster, which is said of the mean."""
    return slower_beside(one for _, one in found if one.verdict is Verdict.FASTER)


def _reason(
    path: str, counts: Sequence[tuple[Verdict, int]], cells: int, found: Sequence[tuple[Cell, CellComparison]]
) -> str:
    """Return in words on how many cells the verdict rests, and what is missing."""
    parts = [f"{verdict} in {count}" for verdict, count in counts]
    if cells > len(found):
        parts.append(f"not compared in {cells - len(found)}")
    if not parts:
        return f"{path} has no valid trial"
    tails = [one.cost(Metric.P99) for _, one in found if one.verdict is Verdict.SLOWER_TAIL]
    tail = f": near-metal in the body, tail up to {100.0 * (max(tails) - 1.0):.0f} % slower" if tails else ""
    slow = _of_faster(found).items()
    though = "".join(f", but by the {metric} slower in {count} of the faster" for metric, count in slow)
    return f"{', '.join(parts)} of {counted(cells, 'cell')}{though}{tail}"
