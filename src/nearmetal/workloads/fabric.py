"""Workload `fabric`: every pair of nodes in rounds of disjoint pairs, inside one MPI job. Standard library only."""

from pathlib import Path

from nearmetal.hosts.host import Shell
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import FABRIC_FOLDER, Order, WorkloadOrder
from nearmetal.workloads import rounds
from nearmetal.workloads.build import build_program, mpi_for
from nearmetal.workloads.mpi.mpi import Mpi
from nearmetal.workloads.pairs import check_options
from nearmetal.workloads.parallel import check_ended, parallel_launch
from nearmetal.workloads.workload import Launch

PROGRAM = "nmfabric"
SAMPLES = f"{FABRIC_FOLDER}samples.nmf"
"""The name of its one file in an outcome."""
ROUNDS = "rounds"
"""Option: the lines of the rounds, when they are not those of a whole fabric."""

NUMBERS = {
    "latency_bytes": 8,
    "latency_iterations": 50,
    "latency_warmup": 5,
    "bandwidth_bytes": 65536,
    "bandwidth_window": 16,
    "bandwidth_iterations": 10,
    "bandwidth_warmup": 2,
    "patience": 30,
}
"""Options of the engine, with its defaults."""
_MAY_BE_0 = ("latency_warmup", "bandwidth_iterations", "bandwidth_warmup")
_OPTIONS = {*NUMBERS, "bisection", ROUNDS}
_EXIT_STATUSES = {
    2: "it refused its arguments",
    4: "a node has no memory",
    5: "its file could not be written",
    6: "a node got no answer",
}


class Fabric:
    """Launches `nmfabric` with one rank a node."""

    kind = "fabric"

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for options that it does not have, and for a placement that is not one rank a node."""
        check_options(workload, _OPTIONS)
        if workload.placement != tuple(range(len(workload.placement))) or len(workload.placement) < 2:
            said = "a fabric has two nodes or more, one rank on each"
            raise workload.invalid(said, hint="placement = [0, 1, 2, 3]")
        for name, default in NUMBERS.items():
            least = 0 if name in _MAY_BE_0 else 1
            if workload.number(name, default) < least:
                raise workload.invalid(f"option {name!r} is at least {least}, not {workload.number(name)}")
        workload.switch("bisection")
        if not isinstance(workload.options.get(ROUNDS, []), list):
            raise workload.invalid(f"option {ROUNDS!r} is a list of lines, such as 'all 0-1 2-3'")

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Build the engine for the MPI, hand it its rounds, and say how to launch it."""
        mpi = mpi_for(shell, order.mpi)
        program = build_fabric(mpi, shell=shell)
        first = endpoints.ends[order.workload.placement[0]].node
        folder = f"{shell.scratch}/{first}"
        shell.write(f"{folder}/rounds", "".join(f"{line}\n" for line in lines_of(order.workload)).encode(), node=first)
        return parallel_launch(
            shell,
            order,
            endpoints,
            mpi,
            (str(program), "--rounds", f"{folder}/rounds", "--out", f"{folder}/{PROGRAM}", *_argv(order)),
            files={SAMPLES: f"{folder}/{PROGRAM}"},
            facts={"engine.build": program.name},
        )

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless the engine ended well; its file is checked by the reader, checksum and all."""
        del order, files
        hint = "repair the node that is named, or leave it out of the path's nodes, and measure again"
        check_ended(finished, _EXIT_STATUSES, what="the fabric was not measured", rank="node", hint=hint)

    def least_packets(self, order: Order) -> int:
        """Return the packets of the node that works least: one a round trip, one a window."""
        workload = order.workload
        once = sum(workload.number(name, NUMBERS[name]) for name in ("latency_iterations", "bandwidth_iterations"))
        return once * rounds.least_rounds_of_a_node(lines_of(workload), len(workload.placement))


def build_fabric(mpi: Mpi, extra_flags: tuple[str, ...] = (), shell: Shell | None = None) -> Path:
    """Return the engine built for an MPI; see build_program for what it raises."""
    return build_program(mpi, "fabric", PROGRAM, shares=("common",), extra_flags=extra_flags, shell=shell)


def lines_of(workload: WorkloadOrder) -> list[str]:
    """Return the rounds of an order: those that it names, else those of a whole fabric."""
    given = workload.options.get(ROUNDS)
    if isinstance(given, list):
        return [str(line) for line in given]
    bisection = workload.switch("bisection", default=True)
    return rounds.to_lines(rounds.whole(len(workload.placement), bisection=bisection))


def _argv(order: Order) -> list[str]:
    argv = []
    for name, default in NUMBERS.items():
        argv += [f"--{name.replace('_', '-')}", str(order.workload.number(name, default))]
    return argv
