"""Host of a batch system: one allocation for a batch of blocks, trials in steps inside it.

A trial never starts in an allocation that has less time left than the trial may take. An allocation that is lost
(preemption, a node that fails) fails no trial at once: the trial is run again in the next one.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from nearmetal.errors import BadInputError, NearmetalError, QuarantinedError, StoreError
from nearmetal.hosts.batch.allocations import SPARE_S, Allocation, Allocations, Measuring
from nearmetal.hosts.batch.scheduler import CHOICES, Request, Scheduler
from nearmetal.hosts.far.host import BoundTrial, bind, check_options, refreshed
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.namespaces import FarNamespaceShell
from nearmetal.hosts.far.shell import MachinesShell, Memory
from nearmetal.hosts.far.stream import LostError
from nearmetal.hosts.host import Shell, is_on, seconds, whole_number
from nearmetal.study.order import Order, Outcome, Scalar, TrialStatus

OF_ALLOCATION = dict.fromkeys(CHOICES, "as in the batch system")
"""What a path may ask for itself, too: native nodes and guests are often two partitions."""
OPTIONS = {
    "nodes": "number of nodes in an allocation (2)",
    "time_limit_s": "time limit of an allocation (1800)",
    "queue_timeout_s": "how long to wait for nodes (3600)",
    "blocks": "number of blocks that share an allocation (4)",
    "allocations": "number of allocations side by side, as an array job (1)",
    "exclusive": "allocate whole nodes (true)",
    "mpi": "plugin of the launcher, such as `pmix` or `pmi2` (chosen by the MPI's flavour)",
    "mpi_prefix": "directory of the MPI on the nodes (found on PATH)",
    "cache": "directory for programs built there (`~/.cache/nearmetal`)",
    "interface": "the nodes' interface on the measured path; a path may name a different one",
    **OF_ALLOCATION,
}
_ATTEMPTS = 2


class BatchHost:
    """Carries trials out in the allocations of a batch system."""

    def __init__(self, scheduler: Scheduler, options: Mapping[str, Scalar]) -> None:
        check_options(scheduler.kind, options, OPTIONS)
        self.kind = scheduler.kind
        self.label = f"allocations of {scheduler.kind}, launched by its own launcher"
        self.slots = whole_number(options, "allocations", 1)
        self._nodes = whole_number(options, "nodes", 2)
        self._blocks = whole_number(options, "blocks", 4)
        self._time_limit_s = whole_number(options, "time_limit_s", 1800)
        self._exclusive = is_on(options, "exclusive", default=True)
        self._scheduler = scheduler
        self._options = dict(options)
        self._memory = Memory()
        self._allocations = Allocations(
            scheduler,
            seconds(options, "queue_timeout_s", 3600),
            say=lambda sentence: sys.stderr.write(f"{self.kind}: {sentence}\n"),
        )

    def mark(self, measuring: Measuring) -> str:
        """Mark the nodes of each allocation, by the batch system's names, for as long as it is held."""
        self._allocations.measuring = measuring
        return ""

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        """Carry a trial out in an allocation, in a second one when the first is lost on the way."""
        lost: tuple[str, ...] = ()
        opened, batch = self._allocations.times_closed, order.block // self._blocks
        for _ in range(_ATTEMPTS):
            try:
                allocation = self._allocations.take(self._request(order), batch, order.timeout_s, opened)
            except NearmetalError as error:
                return Outcome.of_error(error)
            try:
                outcome = self._outcome_in(allocation, order, body)
                if not (lost := self._interruption(allocation, outcome)):
                    return outcome
            except LostError as error:
                lost = self._after_loss(allocation, error)
            except BaseException:
                self._allocations.release(allocation)
                raise
        return Outcome(TrialStatus.FAILED, reason=lost[0], hint=lost[1])

    def _outcome_in(self, allocation: Allocation, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        """Carry a trial out; what a person can act on is a failed outcome; what ends a run, and a loss, is raised."""
        try:
            return self._carry_out_in(allocation, order, body)
        except (LostError, QuarantinedError, StoreError):
            raise
        except NearmetalError as error:
            return Outcome.of_error(error)

    def _carry_out_in(self, allocation: Allocation, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        interface = str(order.path.options.get("interface", self._options.get("interface", "")))
        options = {name: value for name, value in order.path.options.items() if name not in OF_ALLOCATION}
        nodes = allocation.state.nodes
        bound = bind(replace(order, path=replace(order.path, options=options)), dict.fromkeys(nodes, interface))
        machines = [allocation.machines[name] for name in bound.machines]
        with self._shell(allocation, machines, bound) as shell:
            outcome = body(shell, bound.order)
        facts: dict[str, Scalar] = {
            f"{self.kind}.job": allocation.state.job,
            f"{self.kind}.nodes": " ".join(nodes),
            f"{self.kind}.restarts": allocation.state.restarts,
        }
        if "_" in allocation.job:
            facts[f"{self.kind}.array_task"] = allocation.job
        return replace(outcome, facts={**outcome.facts, **facts})

    def _shell(
        self, allocation: Allocation, machines: list[FarMachine], bound: BoundTrial
    ) -> MachinesShell | FarNamespaceShell:
        site = refreshed(machines, self._options)
        if bound.built:
            return FarNamespaceShell(machines[0], site, self._memory, own_network=bound.own_network)
        site = replace(site, starter=self._scheduler.starter(allocation.state))
        return MachinesShell(machines, [machine.name for machine in machines], site, self._memory)

    def _request(self, order: Order) -> Request:
        time_limit_s = self._time_limit_s
        if time_limit_s < order.timeout_s + SPARE_S:
            raise BadInputError(
                f"time_limit_s is {time_limit_s}, and one trial may take {order.timeout_s:g} s and {SPARE_S} s more",
                hint="raise the host's option `time_limit_s`, or lower `trials.timeout`",
            )
        asked = {name: str(value) for name, value in {**self._options, **order.path.options}.items()}
        return Request(
            nodes=max(self._nodes, order.nodes),
            time_limit_s=time_limit_s,
            tasks=self.slots,
            choices=tuple((name, asked[name]) for name in OF_ALLOCATION if asked.get(name)),
            exclusive=self._exclusive,
        )

    def _interruption(self, allocation: Allocation, outcome: Outcome) -> tuple[str, ...]:
        """Return why a trial does not count that its job was halted or ended in, as `_after_loss`; nothing else."""
        state = self._scheduler.look(allocation.job)
        halted = state.suspended not in {"", allocation.state.suspended}
        if not halted and outcome.status is not TrialStatus.VALID and (state.phase != "running" or state.ending):
            return self._after_loss(allocation, LostError(outcome.reason))
        self._allocations.put_back(allocation)
        if not halted:
            return ()
        hint = "its samples would hold the pause: use a partition or QOS whose jobs are not suspended for others"
        return f"job {state.job} was suspended during the trial", hint

    def _after_loss(self, allocation: Allocation, error: LostError) -> tuple[str, ...]:
        """Return why an allocation was lost, in the batch system's words where it has some, and the next step."""
        allocation.disconnect()
        allocation.state = state = self._allocations.settled(allocation.job)
        if state.phase in {"waiting", "stuck"}:  # back in the queue: it comes, or is given up
            self._allocations.put_back(allocation)
        else:
            self._allocations.release(allocation)
        if state.phase == "running":
            return error.message, error.hint
        message, hint = self._scheduler.explain(state)
        return f"{message} during the trial", hint

    def close(self) -> None:
        """Give every allocation back; calling twice does nothing more."""
        self._allocations.close()
