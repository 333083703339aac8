"""Cases of a validation of predictions: their figures, and the page that shows them."""

from __future__ import annotations

import csv
import os
import platform
from collections import defaultdict
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.predict import calibration
from nearmetal.predict.calibration import OWN, RELAY, SHARED, ValidatedCase
from nearmetal.predict.validate import TOLD_APART, wrong_orders
from nearmetal.units import as_percent, by_key
from support.coverage import coverage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.store.rundir import RunDir

WITH_RELAY = ("tap",)
"""Paths whose messages go through a process of their own."""
GOAL_ALL, GOAL_OWN_CORES, GOAL_SHARED, GOAL_P99 = 0.10, 0.05, 0.10, 0.85


@dataclass(frozen=True)
class App:
    """One application, class and number of ranks."""

    name: str
    letter: str
    ranks: int

    @property
    def label(self) -> str:
        """Return its name in studies and file names."""
        return f"{self.name}-{self.letter}-{self.ranks}"


@dataclass(frozen=True)
class Case:
    """An application on a path with a placement: measured and predicted, in ns."""

    app: App
    path: str
    placement: str
    launches: int
    measured_ns: float
    noise: float
    predicted_ns: float
    measured_p99_ns: float
    predicted_p99_ns: float
    oracle: float

    @property
    def error(self) -> float:
        """Return the relative error of the predicted time."""
        return self.predicted_ns / self.measured_ns - 1

    @property
    def own_cores(self) -> bool:
        """Return whether every rank had a core to itself; a path with a relay needs a core for that."""
        return self.app.ranks + (self.path in WITH_RELAY) <= len(os.sched_getaffinity(0))


def median_error(cases: list[Case]) -> float:
    """Return the median absolute error; NaN without cases."""
    return float(np.median([abs(case.error) for case in cases])) if cases else float("nan")


def median_oracle(cases: list[Case]) -> float:
    """Return the median error of guesses from half of the very launches; NaN without cases."""
    return float(np.median([case.oracle for case in cases])) if cases else float("nan")


def orders(cases: list[Case]) -> tuple[int, int]:
    """Return the number of pairs of paths with a measurable difference, and of those predicted the wrong way."""
    return wrong_orders(((one.app, one.placement), one.measured_ns, one.noise, one.predicted_ns) for one in cases)


@dataclass(frozen=True)
class Goal:
    """One figure to reach."""

    what: str
    found: str
    reached: bool


def goals(cases: list[Case]) -> list[Goal]:
    """Return the figures of the validation and whether each is reached."""
    own = [case for case in cases if case.own_cores]
    shared = [case for case in cases if not case.own_cores]
    apart, wrong = orders(cases)
    inside, judged = p99_coverage([kept(case) for case in cases])
    return [
        Goal("median absolute error, all cases, at most 10 %",
             f"{as_percent(median_error(cases), 1)} of {len(cases)} cases",
             median_error(cases) <= GOAL_ALL),
        Goal("median absolute error, ranks with their own cores, at most 5 %",
             f"{as_percent(median_error(own), 1)} of {len(own)} cases; "
             f"of an oracle {as_percent(median_oracle(own), 1)}",
             median_error(own) <= GOAL_OWN_CORES),
        Goal("median absolute error, ranks that share cores and relays, at most 10 %",
             f"{as_percent(median_error(shared), 1)} of {len(shared)} cases; "
             f"of an oracle {as_percent(median_oracle(shared), 1)}",
             median_error(shared) <= GOAL_SHARED),
        Goal("paths in the right order", f"{wrong} of {apart} pairs with a measurable difference wrong", wrong == 0),
        Goal("measured p99 of iterations inside the 90 % interval that `predict` prints, in at least 85 % of cases",
             f"{inside} of {judged} cases ({as_percent(inside / max(1, judged))}), each application held out"
             f"{f'; {len(cases) - judged} have too few others for an interval' if judged < len(cases) else ''}",
             judged > 0 and inside >= GOAL_P99 * judged),
    ]  # fmt: skip


def milliseconds(ns: float) -> str:
    """Return a duration with three significant digits, in ms."""
    return f"{ns / 1e6:.3g}" if ns < 1e9 else f"{ns / 1e6:.0f}"


def table(cases: list[Case]) -> list[str]:
    """Return one line a case, in Markdown."""
    head = "| application | ranks | placement | path | measured, ms | range of launches | predicted, ms | error | p99 of iterations measured, ms | predicted, ms |"  # noqa: E501
    rows = (
        f"| {case.app.name} {case.app.letter} | {case.app.ranks} | {case.placement} | {case.path} | "
        f"{milliseconds(case.measured_ns)} | {as_percent(case.noise)} | {milliseconds(case.predicted_ns)} | "
        f"{as_percent(case.error, 1, '+')} | {milliseconds(case.measured_p99_ns)} | "
        f"{milliseconds(case.predicted_p99_ns)} |"
        for case in cases
    )
    return [head, "|---|---|---|---|---|---|---|---|---|---|", *rows]


def where(run: RunDir, load_before: str) -> str:
    """Say when, where and with what a run was made."""
    first = run.trials()[0]
    facts, day, cores = first.outcome.facts, first.started_utc[:10], len(os.sched_getaffinity(0))
    return (
        f"{day}, {facts['cpu.model']}, {cores} processors, Linux {platform.release()}, "
        f"{facts['mpi.flavour']}-{facts['mpi.version']}. Load average before: {load_before}."
    )


def coverage_table(cases: Sequence[ValidatedCase]) -> list[str]:
    """Return how intervals made of some cases do on applications that they were not made from, in Markdown."""
    lines = [
        "| class | cases | run time inside | width | p99 of iterations inside | width |",
        "|---|---|---|---|---|---|",
    ]
    for name in (OWN, SHARED, RELAY):
        cells, own = [], [case for case in cases if case.case_class == name]
        for errors in ([(one.application, one.run_error) for one in own], _p99_errors(own)):
            inside, total, width = coverage(errors)
            cells.append(f"{inside} of {total} ({as_percent(inside / max(1, total))}) | x{width:.1f}")
        lines.append(f"| {name} | {total} | {' | '.join(cells)} |")
    return lines


def _p99_errors(cases: Sequence[ValidatedCase]) -> list[tuple[str, float]]:
    return [(case.application, case.p99_error) for case in cases]


def p99_coverage(cases: Sequence[ValidatedCase]) -> tuple[int, int]:
    """Return how many cases have their p99 in the interval that `predict` prints, of how many, held out."""
    found = [coverage(_p99_errors(group)) for group in by_key((case.case_class, case) for case in cases).values()]
    return sum(inside for inside, _, _ in found), sum(judged for _, judged, _ in found)


def kept(case: Case, occasion: str = "") -> ValidatedCase:
    """Return a case as the package ships it."""
    name = RELAY if case.path in WITH_RELAY else OWN if case.own_cores else SHARED
    times = (case.measured_ns, case.predicted_ns, case.measured_p99_ns, case.predicted_p99_ns)
    app = case.app
    run, predicted, p99, predicted_p99 = (float(f"{ns / 1e6:.6g}") for ns in times)
    where = (app.name, app.letter, app.ranks, case.placement, case.path)
    return ValidatedCase(name, *where, case.launches, run, predicted, p99, predicted_p99, occasion)


def write_cases(cases: Sequence[ValidatedCase]) -> None:
    """Write the cases that the package ships, of which intervals are made: these, and those of the last occasion."""
    shipped = [case for case in calibration.validated_cases() if case.occasion != cases[0].occasion]
    last = max((case.occasion for case in shipped), default="")
    cases = [*(case for case in shipped if case.occasion == last), *cases]
    with (Path(calibration.__file__).parent / "validated.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([one.name for one in fields(ValidatedCase)])
        writer.writerows([f"{one:.6g}" if isinstance(one, float) else one for one in astuple(case)] for case in cases)


def page(cases: list[Case], failures: list[str], made: str) -> str:
    """Return the docs page."""
    reached = goals(cases)
    by_app = defaultdict(list)
    for case in cases:
        by_app[case.app.name, case.app.ranks].append(case)
    lines = [
        "# Accuracy of predictions",
        "",
        "Written by `python bench/validate_predict.py --write docs/explanation/prediction-validation.md`.",
        made,
        "",
        "**Fitted from**: `latency`, `bw`, `bibw` and `exchange`, on `shm` and the four paths, and nothing else.",
        "**Only checked**: every application below. Its schedule comes from profiles inside one node. A round of the",
        "measurement profiles every application once and launches it once on each path.",
        "",
        "| goal | result | |",
        "|---|---|---|",
        *(f"| {one.what} | {one.found} | {'reached' if one.reached else '**missed**'} |" for one in reached),
        "",
        f"{len(failures)} launches failed and were left out: {'; '.join(sorted(set(failures)))}."
        if failures
        else "Every launch was valid.",
        "Paths count as different when their measured medians differ by more than "
        f"{as_percent(TOLD_APART)} and by more than the range of launches.",
        "The oracle guesses the median of half of a case's launches from that of the other half.",
        "",
        "| application | ranks | cases | median absolute error | worst |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {ranks} | {len(group)} | {as_percent(median_error(group), 1)} | "
            f"{as_percent(max((case.error for case in group), key=abs), 1, '+')} |"
            for (name, ranks), group in sorted(by_app.items())
        ),
        "",
        "## Intervals",
        "",
        *COVERAGE_HEAD,
        *coverage_table(calibration.validated_cases()),
        "",
        "## Every case",
        "",
        *table(cases),
        "",
    ]
    return "\n".join(lines)


COVERAGE_HEAD = (
    "`nearmetal predict` derives its 90 % intervals from the errors of these cases and those of the occasion before,",
    "by class. Here all of them are checked, each application against intervals derived only from other applications.",
    "The width is high / low, without the spread of replayed launches.",
    "",
)
