"""What a path has of the knobs that a search is about, and which of their values it would take; nothing is written.

Facts for the trial's record: `knob.found.NAME` is the present value, `knob.lacks.NAME` why there is none,
`knob.refuses.NAME=VALUE` why a value is out of range there, `knob.drivers` the drivers of the interfaces. Rules over
several knobs are for the search, which knows what else a setting sets (`nearmetal.knobs.drivers.check`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nearmetal.errors import NearmetalError
from nearmetal.hosts.host import Shell, machines_of
from nearmetal.knobs import drivers
from nearmetal.knobs.access import Reading
from nearmetal.knobs.guards import identify, refuse_management
from nearmetal.knobs.knob import Knob, Target, canon, check_limits, targets_of
from nearmetal.knobs.mpi import PREFIX
from nearmetal.knobs.plan import RULED
from nearmetal.knobs.table import find
from nearmetal.paths.path import Endpoints
from nearmetal.study.order import Scalar

FOUND = "knob.found."
LACKS = "knob.lacks."
REFUSES = "knob.refuses."
DRIVERS = "knob.drivers"


def look(
    shell: Shell, endpoints: Endpoints, asked: Mapping[str, Sequence[Scalar]], machine: Shell | None = None
) -> dict[str, Scalar]:
    """Return the facts about knobs and values; `machine` is the shell for machine settings, as in `hold`."""
    ours = {name: values for name, values in asked.items() if not name.startswith(PREFIX)}
    if not ours:
        return {}
    interfaces = [Target(end.node, end.interface) for end in endpoints.ends]
    driver = {target: identify(shell, target).driver for target in interfaces if target.interface}
    facts: dict[str, Scalar] = {DRIVERS: ";".join(dict.fromkeys(driver.values()))}
    ruled = [name for name in RULED if name not in ours] if any(name in RULED for name in ours) else []
    for name in [*ours, *ruled]:
        knob = find(name)
        of_machine = knob.scope == "machine"
        side = (machine or shell) if of_machine else shell
        places = [Target(node) for node in machines_of(side)] if of_machine else interfaces
        facts |= _facts(side, knob, targets_of(knob, places), ours.get(name, ()), driver)
    return facts


def _facts(
    shell: Shell, knob: Knob, targets: Sequence[Target], values: Iterable[Scalar], driver: Mapping[Target, str]
) -> Iterator[tuple[str, Scalar]]:
    readings = [(target, knob.read(shell, target)) for target in targets]
    for target, reading in readings:
        if reading.value is None:
            yield f"{LACKS}{knob.name}", f"{target}: {reading.reason}"
            return
    yield f"{FOUND}{knob.name}", ";".join(dict.fromkeys(reading.value or "" for _, reading in readings))
    for value in values:
        reasons = [_refusal(shell, knob, canon(knob, value), place, driver) for place in readings]
        if reason := next(filter(None, reasons), ""):
            yield f"{REFUSES}{knob.name}={value}", reason


def _refusal(shell: Shell, knob: Knob, value: str, place: tuple[Target, Reading], driver: Mapping[Target, str]) -> str:
    target, reading = place
    try:
        if target.interface:
            refuse_management(shell, target)
        check_limits(knob, value, reading, target)
    except NearmetalError as error:
        return error.message
    return drivers.range_refusal(driver.get(target, ""), knob.name, value)
