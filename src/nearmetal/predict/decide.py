"""What a path loses against bare metal, and the cheapest path that stays within a given loss."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError, meant
from nearmetal.predict.calibration import (
    Errors,
    JobCase,
    class_of,
    errors_of,
    known_ratio_errors,
    p99_errors,
    run_errors,
)
from nearmetal.predict.doubt import Doubt
from nearmetal.predict.models import BARE_METAL, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.simulate import Prediction
from nearmetal.predict.validate import p99_iterations_ns
from nearmetal.study.fields import AS_FOUND

SURE = 0.9
"""A path is chosen when it stays within the loss with at least this probability."""
_SEED, _DRAWS = 20261126, 400
STANDS_FOR_BARE = "veth"
"""The kind that ratios are to where neither bare metal nor the run's baseline was predicted."""
CHEAPEST_FIRST = (
    *("e1000", "virtio", "tap", "bridge", "vhost", "macvlan", "veth"),
    *("guest-vf", "vf", "passthrough", "vf-roce", "native-roce", "native"),
)
"""By what a path asks of the site: software alone, then a NIC with virtual functions, then a machine for each node."""


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One line of an answer: a machine, its run times, its interval (ns), its ratio to bare metal, and its doubts.

    `chance` is the probability of staying within the loss that was asked for. `p99_ns` is the 99th percentile of a
    launch's iterations, the median of those replayed, and where it is expected, for programs that mark them.
    """

    named: NamedMachine
    found: Prediction
    errors: Errors
    interval_ns: tuple[float, float] | None
    ratio: float
    ratio_errors: Errors
    ratio_span: tuple[float, float] | None
    chance: float
    doubts: tuple[Doubt, ...]
    p99_errors: Errors
    p99_ns: tuple[float, tuple[float, float] | None] | None

    @property
    def median_ns(self) -> float:
        """Return the median run time."""
        return float(np.median(self.found.makespan_ns))

    @property
    def parts_ns(self) -> dict[str, float]:
        """Return what the median is made of, by name: means over ranks in the replicas around it.

        What moderation adds is told apart where an interrupt stage was asked for; of measured paths it is waiting.
        """
        compute, overhead = self.found.rank_compute_ns, self.found.rank_overhead_ns
        # Without any waiting, those replicas may take a little longer than the median.
        scale = min(1.0, self.median_ns / max(1.0, compute + overhead))
        compute, overhead = compute * scale, overhead * scale
        idle = max(0.0, self.median_ns - compute - overhead)
        moderation = min(idle, max(0.0, self.found.moderation_ns))
        return {"compute": compute, "communication": overhead, "waiting": idle - moderation, "moderation": moderation}


def compare(
    predicted: Sequence[tuple[NamedMachine, Prediction, Sequence[Doubt]]],
    placed: Callable[[NamedMachine], Placement],
    validated: Mapping[str, tuple[float, ...]],
    validated_p99: Mapping[str, tuple[float, ...]],
    *,
    jobs: Sequence[Sequence[JobCase]] = (),
    baseline: str = "",
    of_the_run: str = "",
    loss: float = 0.0,
) -> tuple[list[AnswerRow], NamedMachine]:
    """Return a row for each prediction, in their order, and the machine that ratios are to: the baseline's fastest.

    Without a baseline bare metal is it, else that `of_the_run`, else veth or the fastest. `placed` says where ranks
    run. Errors by class are as a model file keeps them; without any, those that ship are taken. Errors of ratios come
    from `jobs` in the classes of which those have enough; how launches of both paths differ adds to them. Raise
    BadInputError for a baseline that was not predicted.
    """
    bare, bare_ns = _bare(predicted, baseline, of_the_run)
    if bare_ns <= 0:
        raise BadInputError(
            "the program takes no time, so paths have no ratio",
            hint="trace it again, to its end; or give the pattern `compute`, or two ranks that exchange messages",
        )
    of_runs, of_ratios = validated or run_errors(bare.host), known_ratio_errors(jobs, bare)
    bare_logs = _drawn_anew(bare, next(found for named, found, _ in predicted if named == bare))
    rows = []
    for named, found, doubts in predicted:
        median_ns = float(np.median(found.makespan_ns))
        ratio = median_ns / bare_ns
        errors, of_ratio, of_p99 = (
            errors_of(table, class_of(named, placed(named), table))
            for table in (of_runs, of_ratios, validated_p99 or p99_errors(bare.host))
        )
        p99_ns = p99_iterations_ns(found)
        logs = math.log(max(1.0, median_ns) / bare_ns) + _drawn_anew(named, found) - bare_logs
        itself = named == bare
        rows.append(
            AnswerRow(
                named,
                found,
                errors,
                errors.interval(found.makespan_ns),
                ratio,
                of_ratio,
                None if itself else of_ratio.around(logs),
                1.0 if itself else of_ratio.chance_below(logs, 1 + loss),
                tuple(doubts),
                of_p99,
                None if p99_ns is None else (float(np.median(p99_ns)), of_p99.interval(p99_ns)),
            )
        )
    return rows, bare


def _drawn_anew(named: NamedMachine, found: Prediction) -> NDArray[np.float64]:
    """Return by how much the logarithm of a median run time changes if the path's launches are drawn anew.

    Each machine has draws of its own, so that a ratio does not depend on what else is predicted.
    """
    rng = np.random.default_rng([_SEED, *named.name.encode()])
    times = np.log(np.maximum(found.makespan_ns, 1))
    launches = np.array([np.median(times[found.machines == one]) for one in np.unique(found.machines)])
    drawn = launches[rng.integers(launches.size, size=(_DRAWS, launches.size))]
    return np.asarray(np.median(drawn, axis=1) - np.median(launches))


def _bare(
    predicted: Sequence[tuple[NamedMachine, Prediction, Sequence[Doubt]]], baseline: str, of_the_run: str
) -> tuple[NamedMachine, float]:
    times = [(named, float(np.median(found.makespan_ns))) for named, found, _ in predicted]
    known = {named.path for named, _ in times}
    if baseline and baseline not in known:
        hint = meant(baseline, sorted(known), f"predicted are {', '.join(sorted(known))}")
        raise BadInputError(f"no path {baseline} to compare with", hint=hint)
    named_so = ([one for one in times if one[0].path == name] for name in (baseline, of_the_run))
    of_kind = ([one for one in times if _kind(one[0]) == kind] for kind in (*BARE_METAL, STANDS_FOR_BARE))
    asked, usual, *bare, veth = (*named_so, *of_kind)
    return min(next(filter(None, (asked, *bare, usual, veth)), times), key=lambda one: one[1])


def _kind(named: NamedMachine) -> str:
    """Return the recipe of a path; a file of an older version has only its name."""
    return named.kind or named.path


def _rank(named: NamedMachine, order: Sequence[str]) -> int | None:
    """Return the place of a path in the order, else of its kind behind that; None where neither shows its cost."""
    if named.path in order:
        return order.index(named.path)
    return len(order) + CHEAPEST_FIRST.index(_kind(named)) if _kind(named) in CHEAPEST_FIRST else None


def refuse_unordered(machines: Sequence[NamedMachine], order: Sequence[str]) -> None:
    """Raise BadInputError where the cheapest of several paths cannot be told, because their cost is not known."""
    paths = list(dict.fromkeys(named.path for named in machines))
    unknown = list(dict.fromkeys(named.path for named in machines if _rank(named, order) is None))
    if unknown and len(paths) > 1:
        raise BadInputError(
            f"--decide cannot order {', '.join(paths)} by cost: what {', '.join(unknown)} costs is not known",
            hint=f"name the paths with --path, the cheapest first, such as --path {','.join(paths)}",
        )


def cheapest(rows: Sequence[AnswerRow], order: Sequence[str] = (), settings: Sequence[str] = ()) -> AnswerRow:
    """Return the cheapest row that stays within the loss with SURE probability, as that which ratios are to does.

    `order` names paths from the cheapest on; without it CHEAPEST_FIRST holds. Of a path's settings `as-found` is the
    cheapest, because nothing has to be set for it; then come those in `settings`, in that order; then the likeliest.
    """

    def cost(row: AnswerRow) -> tuple[int, int, float]:
        rank, setting = _rank(row.named, order), row.named.setting
        at = -1 if setting == AS_FOUND else settings.index(setting) if setting in settings else len(settings)
        return len(order) + len(CHEAPEST_FIRST) if rank is None else rank, at, -row.chance

    return min((row for row in rows if row.chance >= SURE), key=cost)


def cheapest_by_kind(rows: Sequence[AnswerRow], settings: Sequence[str] = ()) -> AnswerRow | None:
    """Return what `cheapest` does without an order; None where the kind of a path does not show its cost."""
    return None if any(_rank(row.named, ()) is None for row in rows) else cheapest(rows, (), settings)
