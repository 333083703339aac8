"""How far predictions were off, and so how far this one may be: split-conformal intervals by class.

`validated.csv` holds every case of two occasions of `bench/validate_predict.py`: an application on a path, measured and
predicted, and held out from the fit. Errors of one occasion resemble each other: those of 27 November at 22:53 gave
ranks with their own cores an interval that contained 67 % of the cases of 20:35, which were replaced since. Within a
class (ranks with cores of their own, ranks that share cores, a relay on the path) the errors of those cases are taken
for the possible errors of a new one (split-conformal prediction; Vovk, Gammerman and Shafer, Algorithmic Learning in a
Random World, 2005; Angelopoulos and Bates, arXiv:2107.07511). They keep their sign: where predictions came out too
short, the interval reaches further up. Each replayed launch is combined with each error.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nearmetal.paths.guests import GUEST_PATHS
from nearmetal.typed import adapter
from nearmetal.units import by_key

if TYPE_CHECKING:
    from nearmetal.predict.models import NamedMachine
    from nearmetal.predict.native import Placement


LEVEL = 0.90
LEAST_CASES = 19
"""So many errors make an interval of that level."""
OWN, SHARED, RELAY, GUEST = "own cores", "shared cores", "relay", "guest"
RELAY_KINDS = frozenset({"tap"})
GUEST_KINDS = frozenset(path.kind for path in GUEST_PATHS)
_FILE = "validated.csv"


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


@cache
def validated_cases() -> tuple[ValidatedCase, ...]:
    """Return the cases that ship with this version."""
    text = files("nearmetal.predict").joinpath(_FILE).read_text()
    return tuple(map(adapter(ValidatedCase).validate_strings, csv.DictReader(text.splitlines())))


def run_errors() -> dict[str, tuple[float, ...]]:
    """Return the errors of run times by class, sorted: what a model file keeps."""
    return by_class((case.case_class, case.run_error) for case in validated_cases())


def p99_errors() -> dict[str, tuple[float, ...]]:
    """Return the errors of the 99th percentile of iterations by class, sorted: what a model file keeps with those."""
    return by_class((case.case_class, case.p99_error) for case in validated_cases())


@dataclass(frozen=True, slots=True)
class JobCase:
    """A case of a job that was validated on several paths: path, setting and progress; its error is a logarithm."""

    case_class: str
    key: tuple[str, str, str]
    error: float


def shipped_jobs() -> list[list[JobCase]]:
    """Return the jobs of the cases that ship with this version."""
    shipped = validated_cases()
    cases = [((one.occasion, one.job), JobCase(one.case_class, (one.path, "", ""), one.run_error)) for one in shipped]
    return list(by_key(cases).values())


def ratio_errors(jobs: Sequence[Sequence[JobCase]], bare: tuple[str, str, str]) -> dict[str, tuple[float, ...]]:
    """Return the errors, by class, of the ratio of a path to the bare one on the same job: what both miss cancels.

    Where a job has not the bare machine's own key, the ratio is to its path under another setting, else to its first.
    """
    found: list[tuple[str, float]] = []
    for job in jobs:
        base = min(job, key=lambda case: (case.key != bare, case.key[0] != bare[0]))
        found += [(case.case_class, case.error - base.error) for case in job if case is not base]
    return by_class(found)


def known_ratio_errors(jobs: Sequence[Sequence[JobCase]], bare: tuple[str, str, str]) -> dict[str, tuple[float, ...]]:
    """Return the errors of ratios by class: those of `jobs` where these are enough, else those that ship.

    Jobs without the bare path do not count: errors that other paths have in common, as guests may, are not its own.
    """
    there = [job for job in jobs if any(case.key[0] == bare[0] for case in job)]
    own = {name: logs for name, logs in ratio_errors(there, bare).items() if len(logs) >= LEAST_CASES}
    return ratio_errors(shipped_jobs(), bare) | own


def by_class(found: Iterable[tuple[str, float]]) -> dict[str, tuple[float, ...]]:
    """Return errors by class, sorted."""
    return {case_class: tuple(sorted(errors)) for case_class, errors in by_key(found).items()}


def errors_of(table: Mapping[str, tuple[float, ...]], case_class: str) -> Errors:
    """Return the errors of a class; those of all classes together where it has no case."""
    if case_class in table:
        return Errors(case_class, table[case_class])
    return Errors(f"of all classes, none is of {case_class}", tuple(sorted(sum(table.values(), ()))))


def class_of(named: NamedMachine, placement: Placement) -> str:
    """Return the class of a prediction: what decided most how far earlier ones were off."""
    kind = named.kind or named.path
    if kind in GUEST_KINDS:
        return GUEST
    if kind in RELAY_KINDS:
        return RELAY
    cores = named.machine.cores
    return SHARED if cores is not None and ranks_of_a_computer(named, placement) > cores.count else OWN


def ranks_of_a_computer(named: NamedMachine, placement: Placement) -> int:
    """Return how many ranks run on the computer that has most."""
    cores = named.machine.cores
    all_on_one = cores is not None and cores.one_computer
    return len(placement.host_of) if all_on_one else int(np.bincount(placement.host_of).max())
