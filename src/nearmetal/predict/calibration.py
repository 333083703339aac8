"""How far predictions were off, and so how far this one may be: split-conformal intervals by class.

`validated.csv` holds every case of two occasions of `bench/validate_predict.py`: an application on a path, measured and
predicted, and held out from the fit. Errors of one occasion resemble each other: those of 27 November at 22:53 gave
ranks with their own cores an interval that contained 67 % of the cases of 20:35, which were replaced since. Within a
class (ranks with cores of their own, ranks that share cores, a relay on the path) the errors of those cases are taken
for the possible errors of a new one (split-conformal prediction; Vovk, Gammerman and Shafer, Algorithmic Learning in a
Random World, 2005; Angelopoulos and Bates, arXiv:2107.07511). They keep their sign: where predictions came out too
short, the interval reaches further up. Each replayed launch is combined with each error.

`validated_lab.csv` holds the cases of `bench/validate_lab.py`, on emulated machines and in guests of theirs, in virtual
time. They stand for predictions from runs of the lab alone: elsewhere, guests have no validated case.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from statistics import median
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from nearmetal.paths.guests import GUEST_PATHS
from nearmetal.typed import adapter
from nearmetal.units import by_key

if TYPE_CHECKING:
    from nearmetal.predict.models import NamedMachine
    from nearmetal.predict.native import Placement


LAB = "lab"
LogError = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
"""log(measured / predicted); beyond these bounds no two durations are."""
LEVEL = 0.90
LEAST_CASES = 19
"""So many errors make an interval of that level."""
OWN, SHARED, RELAY, GUEST = "own cores", "shared cores", "relay", "guest"
RULED, TIMED = "by a rule of moderation", "samples that met a timer"
"""Classes of predictions with an interrupt stage, and from samples like those of moderated interrupts, where they have
validated cases: else they are in one of the above."""
RELAY_KINDS = frozenset({"tap"})
GUEST_KINDS = frozenset(path.kind for path in GUEST_PATHS)
_FILE, _LAB_FILE = "validated.csv", "validated_lab.csv"


@dataclass(frozen=True, slots=True)
class ValidatedCase:
    """An application on a path, held out: medians of its launches' run times and 99th percentiles of iterations, ms."""

    case_class: str
    application: str
    letter: str
    ranks: int
    placement: str
    path: str
    launches: int
    measured_ms: float
    predicted_ms: float
    p99_measured_ms: float
    p99_predicted_ms: float
    occasion: str = ""
    """When the cases of one measurement were measured, all with the same micro-benchmarks."""

    @property
    def run_error(self) -> float:
        """Return log(measured / predicted) of the run time."""
        return math.log(self.measured_ms / self.predicted_ms)

    @property
    def p99_error(self) -> float:
        """Return log(measured / predicted) of the 99th percentile of a launch's iterations."""
        return math.log(self.p99_measured_ms / self.p99_predicted_ms)

    @property
    def job(self) -> tuple[str, str, int, str]:
        """Return what it has in common with the same job on other paths."""
        return self.application, self.letter, self.ranks, self.placement


@dataclass(frozen=True, slots=True)
class LabCase:
    """A program on machines of the lab: on a path under a setting; times in ms, `launches_ms` separated by spaces."""

    where: str
    """Machines x ranks on each."""
    program: str
    letter: str
    path: str
    setting: str
    launches_ms: str
    predicted_ms: float
    """From samples under the same setting."""
    by_rule_ms: float | None = None
    """By the rule of the driver that takes the path's interrupts, from samples without moderation."""
    warned: bool = False
    """Whether the prediction, by rule under moderation, came with a warning."""
    held_out: bool = False
    """Whether it was launched after the model had been made."""
    p99_ms: float | None = None
    """The median of the launches' 99th percentiles of iterations; None where it was not kept."""
    predicted_p99_ms: float | None = None
    by_rule_p99_ms: float | None = None

    @property
    def times_ms(self) -> list[float]:
        """Return the measured times."""
        return [float(one) for one in self.launches_ms.split()]

    @property
    def best_ms(self) -> float:
        """Return the time that is predicted as the documentation advises: by rule under moderation."""
        return self.by_rule_ms or self.predicted_ms

    @property
    def error(self) -> float:
        """Return the relative error of that."""
        return self.best_ms / median(self.times_ms) - 1

    @property
    def case_class(self) -> str:
        """Return the class of the prediction from samples; two ranks of a machine share its processor."""
        if self.by_rule_ms is not None:
            return TIMED
        shared = not self.where.split()[0].endswith("x1")
        return _class_of_kind(self.path) or (SHARED if shared else OWN)

    @property
    def job(self) -> tuple[str, str, str]:
        """Return what it has in common with the same job on other paths."""
        return self.where, self.program, self.letter

    def cases(self) -> list[JobCase]:
        """Return what was predicted, from samples and by rule, as cases of the program on this path."""
        key = (self.path, self.setting, "polling")
        errors = self._errors(median(self.times_ms), self.predicted_ms, self.by_rule_ms)
        return [JobCase(name, key, error) for name, error in errors]

    def p99_cases(self) -> list[tuple[str, float]]:
        """Return the class and the error of each p99 of iterations that was predicted."""
        return self._errors(self.p99_ms, self.predicted_p99_ms, self.by_rule_p99_ms)

    def _errors(
        self, measured_ms: float | None, from_samples: float | None, by_rule: float | None
    ) -> list[tuple[str, float]]:
        told = ((self.case_class, from_samples), (RULED, by_rule))
        return [(name, math.log(measured_ms / ms)) for name, ms in told if ms is not None and measured_ms is not None]


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of a class, log(measured / predicted), sorted; `of` is the class they were taken from."""

    of: str
    logs: tuple[float, ...]

    def span(self) -> tuple[float, float] | None:
        """Return the factors between which LEVEL of measured over predicted lie; None for too few cases."""
        n, below = len(self.logs), self._outside()
        return (math.exp(self.logs[below - 1]), math.exp(self.logs[n - below])) if below >= 1 else None

    def interval(self, replayed_ns: NDArray[np.int64] | NDArray[np.float64]) -> tuple[float, float] | None:
        """Return where LEVEL of launches are expected, ns: every replayed launch with every error."""
        return self.around(np.log(np.maximum(replayed_ns, 1)))

    def around(self, predicted_logs: NDArray[np.float64]) -> tuple[float, float] | None:
        """Return where LEVEL of what was predicted turn out: each of its logarithms with every error."""
        if self._outside() < 1:
            return None
        below = (self._outside() - 1) / (len(self.logs) - 1)
        both = np.add.outer(predicted_logs, np.array(self.logs)).ravel()
        low, high = np.quantile(both, (below, 1 - below))
        return float(np.exp(low)), float(np.exp(high))

    def _outside(self) -> int:
        """Return how many errors bound the interval at either end: (1 - LEVEL) / 2 of n + 1, as conformal ranks are."""
        return math.floor((1 - LEVEL) / 2 * (len(self.logs) + 1) + 1e-9)

    def chance_below(self, predicted_logs: NDArray[np.float64], limit: float) -> float:
        """Return the probability that what was predicted turns out at most at `limit`: (k + 1/2) / (n + 1).

        k of n errors keep it there, on average over the logarithms of what was predicted.
        """
        within = np.mean(np.add.outer(predicted_logs, np.array(self.logs)) <= math.log(limit))
        return float(within * len(self.logs) + 0.5) / (len(self.logs) + 1)


def _shipped(name: str) -> list[dict[str, str]]:
    """Return the rows of a file of the package, without empty fields."""
    lines = files("nearmetal.predict").joinpath(name).read_text().splitlines()
    return [{field: text for field, text in row.items() if text} for row in csv.DictReader(lines)]


@cache
def validated_cases() -> tuple[ValidatedCase, ...]:
    """Return the cases that ship with this version."""
    return tuple(map(adapter(ValidatedCase).validate_strings, _shipped(_FILE)))


@cache
def lab_cases() -> tuple[LabCase, ...]:
    """Return the cases of the lab that ship with this version."""
    return tuple(map(adapter(LabCase).validate_strings, _shipped(_LAB_FILE)))


def run_errors(host: str = "") -> dict[str, tuple[float, ...]]:
    """Return the errors of run times by class, sorted: what a model file keeps of a run of that kind of host."""
    shipped = by_class((case.case_class, case.run_error) for case in validated_cases())
    if host != LAB:
        return shipped
    return shipped | _enough(by_class((one.case_class, one.error) for case in lab_cases() for one in case.cases()))


def p99_errors(host: str = "") -> dict[str, tuple[float, ...]]:
    """Return the errors of the 99th percentile of iterations by class, sorted: what a model file keeps with those."""
    shipped = by_class((case.case_class, case.p99_error) for case in validated_cases())
    if host != LAB:
        return shipped
    return shipped | _enough(by_class(one for case in lab_cases() for one in case.p99_cases()))


@dataclass(frozen=True, slots=True)
class JobCase:
    """A case of a job that was validated on several paths: path, setting and progress; its error is a logarithm.

    One without a class is nothing but what ratios of the others are to: newer cases have taken its place.
    """

    case_class: str
    key: tuple[str, str, str]
    error: LogError


def shipped_jobs() -> list[list[JobCase]]:
    """Return the jobs of the cases that ship with this version, those of the lab apart."""
    shipped = validated_cases()
    cases = [((one.occasion, one.job), JobCase(one.case_class, (one.path, "", ""), one.run_error)) for one in shipped]
    return list(by_key(cases).values())


def jobs_of_the_lab() -> list[list[JobCase]]:
    """Return the jobs of its cases, those by rule apart: `predict` applies a rule to all paths alike.

    Cases without moderation come first, so that ratios to a setting that is not there are to those.
    """
    shipped = sorted(lab_cases(), key=lambda case: case.by_rule_ms is not None)
    cases = ((one, case) for one in shipped for case in one.cases())
    return list(by_key(((one.job, case.case_class == RULED), case) for one, case in cases).values())


def ratio_errors(jobs: Sequence[Sequence[JobCase]], bare: tuple[str, str, str]) -> dict[str, tuple[float, ...]]:
    """Return the errors, by class, of the ratio of a path to the bare one on the same job: what both miss cancels.

    Where a job has not the bare machine's own key, the ratio is to its path under another setting, else to its first.
    """
    found: list[tuple[str, float]] = []
    for job in jobs:
        base = min(job, key=lambda case: (case.key != bare, case.key[0] != bare[0]))
        found += [(case.case_class, case.error - base.error) for case in job if case.case_class and case is not base]
    return by_class(found)


def without(jobs: Sequence[Sequence[JobCase]], classes: Iterable[str]) -> list[tuple[JobCase, ...]]:
    """Return jobs whose cases of some classes do not count any more, though ratios of others may be to them."""
    gone = frozenset(classes)
    kept = (tuple(replace(one, case_class="") if one.case_class in gone else one for one in job) for job in jobs)
    return [job for job in kept if any(one.case_class for one in job)]


def known_ratio_errors(jobs: Sequence[Sequence[JobCase]], bare: NamedMachine) -> dict[str, tuple[float, ...]]:
    """Return the errors of ratios to a path by class: those of `jobs` where these are enough, else those that ship.

    Jobs without the bare path do not count: errors that other paths have in common, as guests may, are not its own.
    """
    known = ratio_errors(shipped_jobs(), bare.key)
    for found in (jobs_of_the_lab() if bare.host == LAB else (), jobs):
        there = [job for job in found if any(case.key[0] == bare.path for case in job)]
        known |= _enough(ratio_errors(there, bare.key))
    return known


def _enough(errors: Mapping[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    return {name: logs for name, logs in errors.items() if len(logs) >= LEAST_CASES}


def by_class(found: Iterable[tuple[str, float]]) -> dict[str, tuple[float, ...]]:
    """Return errors by class, sorted."""
    return {case_class: tuple(sorted(errors)) for case_class, errors in by_key(found).items()}


def errors_of(table: Mapping[str, tuple[float, ...]], case_class: str) -> Errors:
    """Return the errors of a class; those of all classes together where it has no case."""
    if case_class in table:
        return Errors(case_class, table[case_class])
    return Errors(f"of all classes, none is of {case_class}", tuple(sorted(sum(table.values(), ()))))


def class_of(named: NamedMachine, placement: Placement, known: Container[str] = ()) -> str:
    """Return the class of a prediction: what decided most how far earlier ones were off.

    RULED and TIMED count only where they are among the classes `known`.
    """
    if named.machine.stage is not None and RULED in known:
        return RULED
    if TIMED in known and named.machine.inter.meets_timer:
        return TIMED
    cores = named.machine.cores
    shared = cores is not None and ranks_of_a_computer(named, placement) > cores.count
    return _class_of_kind(named.kind or named.path) or (SHARED if shared else OWN)


def _class_of_kind(kind: str) -> str:
    return GUEST if kind in GUEST_KINDS else RELAY if kind in RELAY_KINDS else ""


def ranks_of_a_computer(named: NamedMachine, placement: Placement) -> int:
    """Return how many ranks run on the computer that has most."""
    cores = named.machine.cores
    all_on_one = cores is not None and cores.one_computer
    return len(placement.host_of) if all_on_one else int(np.bincount(placement.host_of).max())
