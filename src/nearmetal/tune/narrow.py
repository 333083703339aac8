"""The space of a study: the knobs and values that it names, narrowed to those that the path has and would take.

One launch of the present setting looks (`nearmetal.knobs.look`). What is not there, what a driver does not take and
what is set already is left out before the search and named, instead of being found out trial by trial. A host whose
launches report nothing about knobs keeps the study's whole space.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nearmetal.errors import BadInputError, TrialError
from nearmetal.knobs import drivers, mpi
from nearmetal.knobs.look import DRIVERS, FOUND, LACKS, REFUSES
from nearmetal.knobs.plan import RULED
from nearmetal.knobs.table import find
from nearmetal.study.order import Scalar, TrialStatus
from nearmetal.study.spec import Study, TuneSpec
from nearmetal.tune.measure import Launches, orders, tuned_path
from nearmetal.tune.space import AS_FOUND, Axis, Space


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The space, and a line for people for each knob or value that it leaves out."""

    space: Space
    left_out: tuple[str, ...]


def study_values(tune: TuneSpec) -> dict[str, list[str]]:
    """Return the values of a study in their only form; raise BadInputError for one that its knob never takes."""
    return {knob: _canonical(knob, values) for knob, values in tune.knobs.items()}


def look_around(study: Study, tune: TuneSpec, launches: Launches) -> dict[str, Scalar]:
    """Launch the present setting once on the tuned path and return its facts; raise TrialError when it fails."""
    values = study_values(tune)
    order = orders(study, tuned_path(study, tune), {}, 0)[0]
    outcome, _ = launches.launch(replace(order, look={knob: list(taken) for knob, taken in values.items()}))
    if outcome.status is not TrialStatus.VALID:
        text = f"the present setting cannot be measured: {order.workload.label}: {outcome.reason}"
        raise TrialError(text, hint=outcome.hint or "run the study without tuning first")
    return outcome.facts


def narrowed(tune: TuneSpec, facts: Mapping[str, Scalar]) -> Narrowed:
    """Return the space that is left; raise BadInputError when none is."""
    axes: list[Axis] = []
    left_out: list[str] = []
    for knob, values in study_values(tune).items():
        if lacks := facts.get(f"{LACKS}{knob}"):
            left_out.append(f"{knob} is not there: {lacks}")
            continue
        refused = {value: facts[f"{REFUSES}{knob}={value}"] for value in values if f"{REFUSES}{knob}={value}" in facts}
        left_out += [f"{knob} = {value}: {reason}" for value, reason in refused.items()]
        found = str(facts.get(f"{FOUND}{knob}", AS_FOUND))
        present = found if ";" not in found else AS_FOUND
        others = [value for value in values if value not in refused and value != present]
        if others:
            axes.append(Axis(knob, (present, *others)))
        elif not refused:
            left_out.append(f"{knob} is {present} already")
    if not axes:
        raise BadInputError("nothing is left to search: " + "; ".join(left_out), hint="name other knobs or values")
    return Narrowed(Space.of(axes, _legal(facts)), tuple(left_out))


def _legal(facts: Mapping[str, Scalar]) -> Callable[[Mapping[str, str]], bool]:
    """Return a function that says whether the drivers accept a whole setting, given by every knob's value."""
    names = [name for name in str(facts.get(DRIVERS, "")).split(";") if name]
    present = {name: str(facts[f"{FOUND}{name}"]) for name in RULED if f"{FOUND}{name}" in facts}
    present = {name: value for name, value in present.items() if ";" not in value}

    def legal(setting: Mapping[str, str]) -> bool:
        wanted = {
            name: value
            for name, value in setting.items()
            if name in RULED and value not in {AS_FOUND, present.get(name)}
        }
        try:
            for driver in names:
                drivers.check(driver, present, wanted)
        except BadInputError:
            return False
        return True

    return legal


def _canonical(knob: str, values: list[Scalar]) -> list[str]:
    kind = mpi.find(knob).kind if knob.startswith(mpi.PREFIX) else find(knob).kind
    found = []
    for value in values:
        try:
            found.append(kind.canon(value))
        except ValueError as error:
            raise BadInputError(f"tune.knobs: {knob} = {value!r}: {knob} {error}") from error
    return list(dict.fromkeys(found))
