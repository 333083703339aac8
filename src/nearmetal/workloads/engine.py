"""Workload `engine`: one operation of nearmetal's own measuring engine, over a list of sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from nearmetal.hosts.host import Shell
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import PACE, Order
from nearmetal.workloads.build import build_engine, mpi_for
from nearmetal.workloads.framed_file import SAMPLE_FILE, open_frame
from nearmetal.workloads.pairs import check_options
from nearmetal.workloads.parallel import check_ended, parallel_launch
from nearmetal.workloads.workload import Launch

SAMPLES = "samples"
"""The name of the engine's file in an outcome."""
CALLS = "tool.iterations"
"""The counter of calls of the operation over all sizes: what else was counted, was counted over these."""
MIGRATIONS = "sched.migrations"
"""The counter of ranks' moves from one processor to another, over all ranks and sizes."""

LARGE_FROM_BYTES = 65_536
"""From which size on nmbench takes `iterations_large` where `large_from` is not given (`--large-from`)."""

_NUMBERS = (
    *("iterations", "warmup", "window", "large_from", "iterations_large", "warmup_large"),
    *("sync_window_us", PACE, "compute_us", "working_set"),
)
"""Options that are numbers, which nmbench takes by the same names."""
_OPTIONS = {*_NUMBERS, "operation", "sizes", "sync", "buffers", "check", "waterfall"}
_EXIT_STATUSES = {2: "it refused its arguments", 3: "a payload arrived damaged"}


class Engine:
    """Launches `nmbench` with the order's MPI; its one file holds every stamp."""

    kind = "engine"

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Build the engine for the MPI when that was not done before, and say how to launch it."""
        mpi = mpi_for(shell, order.mpi)
        program = build_engine(mpi, shell=shell)
        first = endpoints.ends[order.workload.placement[0]].node
        out = f"{shell.scratch}/{first}/samples.nmb"
        return parallel_launch(
            shell,
            order,
            endpoints,
            mpi,
            (str(program), *engine_argv(order), "--out", out),
            files={SAMPLES: out},
            facts={"engine.build": program.name},
            sleeps=True,
        )

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless the engine ended well; its file is checked by the reader, checksum and all."""
        del order, files
        check_ended(finished, _EXIT_STATUSES, what="the engine failed")

    def counters(self, order: Order, files: dict[str, bytes]) -> dict[str, int]:
        """Return how often it called the operation, and how often ranks were moved to another processor meanwhile.

        The latter not where a kernel does not say.
        """
        del order
        text, _ = open_frame(files[SAMPLES], SAMPLE_FILE)
        header = json.loads(text)
        moves = [count for ranks in header["migrations"] for count in ranks]
        return {CALLS: sum(header["calls"])} | ({} if min(moves) < 0 else {MIGRATIONS: sum(moves)})

    def least_packets(self, order: Order) -> int:
        """Return the packets that the smallest operation cannot do without: one an iteration and size.

        A window of messages may be coalesced into fewer packets than messages, but each window is acknowledged.
        """
        workload = order.workload
        if len(set(workload.placement)) == 1:
            return 0
        usual = workload.number("iterations")
        return sum(of_size(size, workload.options, "iterations", usual) for size in workload.numbers("sizes") or [0])


def of_size(size: int, options: Mapping[str, object], name: str, usual: int) -> int:
    """Return the `iterations` or `warmup` that nmbench makes of a size; large ones may have a number of their own."""
    large_from, few = options.get("large_from", LARGE_FROM_BYTES), options.get(f"{name}_large", usual)
    return few if isinstance(few, int) and isinstance(large_from, int) and size >= large_from else usual


def engine_argv(order: Order) -> list[str]:
    """Return the engine's own arguments for an order; raise BadInputError for an option it does not have."""
    options = order.workload.options
    check_options(order.workload, _OPTIONS)
    argv = ["--op", str(options["operation"])]
    sizes = order.workload.numbers("sizes")
    if sizes:
        argv += ["--sizes", ",".join(str(size) for size in sizes)]
    for name in _NUMBERS:
        if name in options:
            argv += [f"--{name.replace('_', '-')}", str(order.workload.number(name))]
    if PACE in options:
        argv += ["--seed", str(order.seed)]
    for name in ("sync", "buffers"):
        if name in options:
            argv += [f"--{name}", str(options[name])]
    if options.get("check"):
        argv.append("--check")
    return argv
