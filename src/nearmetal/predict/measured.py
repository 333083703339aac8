"""Measure placements: launches of the traced program under each, in blocks, on the host and path of a run's study."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError, TrialError
from nearmetal.hosts.host import Host
from nearmetal.predict.models import NamedMachine
from nearmetal.predict.trace import Trace
from nearmetal.run.trial import carry_out
from nearmetal.stats.compare import estimate_ratio
from nearmetal.stats.widen import BlockFigures
from nearmetal.study import plan
from nearmetal.study.order import Order, Scalar, TrialStatus
from nearmetal.study.spec import Study, WorkloadSpec
from nearmetal.workloads.samples import decode

DEFAULT, CHOSEN = "default", "chosen"
MIN_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Gain:
    """What a placement gains on another, as a share of the other's time, and its 95 % interval, if there is one."""

    share: float
    low: float | None
    high: float | None


def traced_program(trace: Trace) -> tuple[str, ...]:
    """Return the command line that a trace was taken of; raise BadInputError when it has none, or several programs."""
    told = [words for command in trace.commands if (words := tuple(command.split()))]  # the profiler joins them
    if not told:
        raise BadInputError("the trace does not name its program", hint="trace the program again")
    if len(told) > 1:
        text = f"{len(told)} programs were launched together: {', '.join(map(' '.join, told))}"
        raise BadInputError(text, hint="--check launches one program; run these under both placements yourself")
    return told[0]


def placement_study(
    study: Study, machine: NamedMachine, program: Sequence[str], placements: dict[str, NDArray[np.uint32]], figure: str
) -> Study:
    """Return a study of the program alone, under each placement, on the path, setting and progress of a machine.

    `figure` is a regular expression with one group, the seconds that the program prints; without it the wall clock
    counts, start-up of the MPI included. Nodes are numbered as `Slots` numbers hosts.
    """
    path = next((path for path in study.path if path.name == machine.path), None)
    setting = next((setting for setting in study.setting if setting.name == machine.setting), None)
    if path is None or setting is None:
        raise BadInputError(f"the run's study has no path {machine.path!r} with the setting {machine.setting!r}")
    options: dict[str, Scalar | list[Scalar]] = {"argv": list(program), "mpi": True}
    if figure:
        options |= {"figure": "regex", "pattern": figure, "unit": "s"}
    workloads = [
        WorkloadSpec(
            name=name,
            kind="command",
            placement=[int(host) for host in host_of],
            progress="blocking" if machine.progress == "blocking" else "polling",
            options=options,
        )
        for name, host_of in placements.items()
    ]
    return study.model_copy(
        update={"path": [path], "baseline": path.name, "setting": [setting], "workload": workloads, "tune": None}
    )


def measure_gain(study: Study, host: Host, blocks: int, tell: Callable[[str], None]) -> Gain:
    """Carry out a placement study; return what CHOSEN gains on DEFAULT, paired by block.

    Raise TrialError when a launch fails: a gain over some of the launches would be of whichever happened to work.
    """
    if blocks < MIN_BLOCKS:
        raise BadInputError(f"{blocks} blocks", hint=f"an interval needs at least {MIN_BLOCKS}")
    found: dict[str, list[float]] = {DEFAULT: [], CHOSEN: []}
    for block in range(blocks):
        orders = [order for order in plan.block(study, block) if not order.path.again]
        for order in orders:
            found[order.workload.label].append(_launch(host, order))
        tell(f"block {block + 1} of {blocks}: " + ", ".join(f"{name} {found[name][-1] / 1e9:.3f} s" for name in found))
    ratio = estimate_ratio(
        BlockFigures(np.array(found[CHOSEN]), np.array(found[DEFAULT])), rng=np.random.default_rng(study.seed)
    )
    interval = ratio.interval
    return Gain(1 - ratio.ratio, 1 - interval.high if interval else None, 1 - interval.low if interval else None)


def _launch(host: Host, order: Order) -> float:
    outcome = host.carry_out(order, carry_out)
    if outcome.status is not TrialStatus.VALID:
        raise TrialError(f"{order.workload.label} placement: {outcome.reason}", hint=outcome.hint)
    ns = decode(outcome)[0].ns
    if ns.size > 1 and "pattern" in order.workload.options:
        text = f"{order.workload.label} placement: the pattern matches {ns.size} figures of a launch, not its run time"
        raise TrialError(text, hint="let --check-figure match one: the seconds that the whole program took")
    return float(np.median(ns))
