"""Workload `engine`: one operation of nearmetal's own measuring engine, over a list of sizes."""

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise

from nearmetal.hosts.host import Shell
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import PACE, TRACE_OPTION, Order, WorkloadOrder, numbered
from nearmetal.workloads.build import build_engine, mpi_for
from nearmetal.workloads.framed_file import SAMPLE_FILE, open_frame
from nearmetal.workloads.operations import operation_named
from nearmetal.workloads.pairs import check_options, text_option
from nearmetal.workloads.parallel import check_ended, parallel_launch
from nearmetal.workloads.workload import Launch

SAMPLES = "samples"
"""The name of the engine's file in an outcome."""
CALLS = "tool.iterations"
"""The counter of calls of the operation over all sizes: what else was counted, was counted over these."""
MIGRATIONS = "sched.migrations"
"""The counter of ranks' moves from one processor to another, over all ranks and sizes."""

LARGE_FROM_BYTES = 65_536
"""From which size on nmbench takes `iterations_large` where `large_from` is not given (`--large-from`).

With a list of sizes there, each has its own number in `iterations_large` and `warmup_large`.
"""
AFTER_EXCHANGE, ONE_WAY = "after_exchange", "one_way"
"""Operations that compute a fixed amount, and in their warm-up without a message."""
WORKING_SET_BYTES = 1 << 20
"""On how much memory nmbench computes where `working_set` is not given (`--working-set`)."""

_MOST_SIZES = 64
_COUNT = 10**9
_NUMBERS = {
    "iterations": (1, _COUNT),
    "warmup": (0, _COUNT),
    "window": (1, 65_536),
    "large_from": (1, (1 << 31) - 1),
    "iterations_large": (1, _COUNT),
    "warmup_large": (0, _COUNT),
    "sync_window_us": (1, 60_000_000),
    PACE: (0, 60_000_000),
    "compute_us": (0, 60_000_000),
    "working_set": (4096, 1 << 30),
}
"""Options that are numbers, which nmbench takes by the same names, with its least and its greatest (`options.c`)."""
_WORDS = {"sync": ("none", "barrier", "window"), "buffers": ("single", "many")}
_OF_LARGE = ("large_from", "iterations_large", "warmup_large")
_OPTIONS = {*_NUMBERS, *_WORDS, "operation", "sizes", "check", TRACE_OPTION}
_EXIT_STATUSES = {2: "it refused its arguments", 3: "a payload arrived damaged"}


class Engine:
    """Launches `nmbench` with the order's MPI; its one file holds every stamp."""

    kind = "engine"

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for options that nmbench does not have, refuses, or would not use."""
        check_options(workload, _OPTIONS)
        for name, (least, most) in _NUMBERS.items():
            for number in _numbers(workload, name):
                if not least <= number <= most:
                    raise workload.invalid(f"option {name!r} is from {least} to {most}, not {number}")
        _check_large(workload)
        _check_computing(workload)
        sizes = workload.numbers("sizes")
        if len(sizes) > _MOST_SIZES or not all(0 < size < 1 << 31 for size in sizes):
            raise workload.invalid(f"the engine takes up to {_MOST_SIZES} sizes of 1 byte to {(1 << 31) - 1}")
        for name, words in _WORDS.items():
            text_option(workload, name, words[0], words)
        for name in ("check", TRACE_OPTION):
            workload.switch(name)
        for name, why in _idle(workload):
            raise workload.invalid(f"option {name!r} would have no effect: {why}", hint="leave it out")

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Build the engine for the MPI when that was not done before, and say how to launch it."""
        mpi = mpi_for(shell, order.mpi)
        program = build_engine(mpi, shell=shell)
        first = endpoints.ends[order.workload.placement[0]].node
        outs = [f"{shell.scratch}/{first}/samples{number}.nmb" for number in range(len(order.of_launch))]
        parts = [(*engine_argv(one), "--out", out) for one, out in zip(order.of_launch, outs, strict=True)]
        return parallel_launch(
            shell,
            order,
            endpoints,
            mpi,
            (str(program), *parts[0], *(word for part in parts[1:] for word in ("--then", *part))),
            files={numbered(SAMPLES, number): out for number, out in enumerate(outs)},
            facts={"engine.build": program.name},
            sleeps=True,
        )

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless the engine ended well; its file is checked by the reader, checksum and all."""
        del order, files
        check_ended(finished, _EXIT_STATUSES, what="the engine failed")

    def counters(self, order: Order, files: dict[str, bytes]) -> dict[str, int]:
        """Return how often it called the operation, and how often ranks were moved to another processor meanwhile.

        Over all workloads of the launch, as all else is counted. The latter not where a kernel does not say.
        """
        frames = [open_frame(files[numbered(SAMPLES, one)], SAMPLE_FILE) for one in range(len(order.of_launch))]
        headers = [json.loads(text) for text, _ in frames]
        moves = [count for header in headers for ranks in header["migrations"] for count in ranks]
        calls = sum(sum(header["calls"]) for header in headers)
        return {CALLS: calls} | ({} if min(moves) < 0 else {MIGRATIONS: sum(moves)})

    def least_packets(self, order: Order) -> int:
        """Return the packets that the smallest operation cannot do without: one an iteration and size.

        A window of messages may be coalesced into fewer packets than messages, but each window is acknowledged.
        """
        if len(set(order.workload.placement)) == 1:
            return 0
        return sum(_iterations(one.workload) for one in order.of_launch)


def _iterations(workload: WorkloadOrder) -> int:
    usual = workload.number("iterations")
    return sum(of_size(size, workload.options, "iterations", usual) for size in workload.numbers("sizes") or [0])


def _numbers(workload: WorkloadOrder, name: str) -> list[int]:
    """Return an option's numbers, none where it is not given; those of large sizes may be a list."""
    if name not in workload.options:
        return []
    several = name in _OF_LARGE and isinstance(workload.options[name], list)
    return workload.numbers(name) if several else [workload.number(name)]


def _check_large(workload: WorkloadOrder) -> None:
    starts = _numbers(workload, "large_from") or [LARGE_FROM_BYTES]
    if any(later <= start for start, later in pairwise(starts)):
        raise workload.invalid(f"the sizes of option 'large_from' must ascend, not {starts}")
    for name in _OF_LARGE[1:]:
        made = _numbers(workload, name)
        if name in workload.options and len(made) != len(starts):
            wanted = f"{len(starts)} and not {len(made)}"
            raise workload.invalid(f"option {name!r} needs one number for each size of `large_from`, {wanted}")


def _check_computing(workload: WorkloadOrder) -> None:
    name = workload.options["operation"]
    if name not in (AFTER_EXCHANGE, ONE_WAY):
        return
    if not workload.options.get("compute_us"):
        raise workload.invalid(f"{name} needs the option 'compute_us'", hint="compute_us = 600, for example")
    if workload.options.get("sync") == "window":
        raise workload.invalid(f"{name} does not take sync = 'window'", hint="leave it out: a barrier is the default")


def _idle(workload: WorkloadOrder) -> Iterator[tuple[str, str]]:
    """Yield each option that is given and not used, with the reason."""
    options = workload.options
    operation = operation_named(str(options["operation"]))
    if operation.kind != "window":
        why = f"{operation.name} sends no windows of messages; bw, bibw and message_rate do"
        yield from ((name, why) for name in ("window", "buffers") if name in options)
    if "sync_window_us" in options and options.get("sync") != "window":
        yield "sync_window_us", "it is the length of the windows of sync = 'window'"
    if "working_set" in options and not options.get("compute_us"):
        yield "working_set", "it is what `compute_us` computes on"
    large = [name for name in _OF_LARGE if name in options]
    starts = _numbers(workload, "large_from") or [LARGE_FROM_BYTES]
    for start, end in pairwise((*starts, 1 << 31)):
        if large and not any(start <= size < end for size in workload.numbers("sizes")):
            below = f" and less than {end}" if end in starts else ""
            yield large[0], f"no size is {start} bytes or more{below}"
    if large == ["large_from"]:
        yield "large_from", "neither `iterations_large` nor `warmup_large` is given"


def of_size(size: int, options: Mapping[str, object], name: str, usual: int) -> int:
    """Return the `iterations` or `warmup` that nmbench makes of a size; large ones may have a number of their own."""
    starts, few = _listed(options.get("large_from", LARGE_FROM_BYTES)), _listed(options.get(f"{name}_large"))
    own = [made for start, made in zip(starts, few, strict=False) if size >= start]
    return own[-1] if own else usual


def _listed(given: object) -> list[int]:
    """Return a number or a list of numbers as a list; what is neither is refused elsewhere."""
    items = given if isinstance(given, list) else [given]
    return [item for item in items if isinstance(item, int)]


def engine_argv(order: Order) -> list[str]:
    """Return the engine's own arguments for an order; raise BadInputError for an option it does not have."""
    options = order.workload.options
    check_options(order.workload, _OPTIONS)
    argv = ["--op", str(options["operation"])]
    sizes = order.workload.numbers("sizes")
    if sizes:
        argv += ["--sizes", ",".join(str(size) for size in sizes)]
    for name in _NUMBERS:
        if numbers := _numbers(order.workload, name):
            argv += [f"--{name.replace('_', '-')}", ",".join(map(str, numbers))]
    if PACE in options:
        argv += ["--seed", str(order.seed)]
    for name in _WORDS:
        if name in options:
            argv += [f"--{name}", str(options[name])]
    if order.workload.switch("check"):
        argv.append("--check")
    return argv
