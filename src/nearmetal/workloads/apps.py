"""Workload `application`: the programs of native/apps, each verified by its own published or exact result.

The kernels and pseudo-applications of the NAS Parallel Benchmarks are written from their specification (Bailey et al.,
reports RNR-94-007 and NAS-95-020), the advection equation follows Nanos et al. (2011). Every iteration of every
rank is kept, and beside it the time that the rank spent inside MPI calls. Standard library only.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from nearmetal.errors import ForeignFileError, TrialError, UnavailableError
from nearmetal.hosts.host import Shell, is_far
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import PROFILE_FOLDER, PROFILE_OPTION, Order, WorkloadOrder
from nearmetal.units import NS_PER_S
from nearmetal.workloads.build import build_profiler, build_program, mpi_for, profiled
from nearmetal.workloads.mpi.mpi import Mpi
from nearmetal.workloads.pairs import check_options, text_option
from nearmetal.workloads.parallel import GUEST_KINDS, check_ended, parallel_launch
from nearmetal.workloads.workload import Launch

ITERATIONS = "application.iterations"
COMMUNICATION = "application.communication"
"""The names of an application's two sample files in an outcome."""

PROGRAM = "nmapps"
CLASSES = "SWABC"

_OPTIMIZED = ("-O3",)
_VERDICTS = {"SUCCESSFUL": True, "UNSUCCESSFUL": False}
_EXIT_STATUSES = {1: "its verification failed", 2: "it refused its arguments", 3: "it could not be carried out"}


@dataclass(frozen=True, slots=True)
class RankRule:
    """Which numbers of ranks an application takes, in words and as a test."""

    words: str
    holds: Callable[[int], bool] = lambda ranks: ranks >= 1


_ANY = RankRule("any number of ranks")
_PLANES = RankRule("any number of ranks that leaves each 3 points along x and y")
_GRID = RankRule("the number of places of `grid`")
_POWER_OF_TWO = RankRule("a power of two", lambda ranks: ranks >= 1 and ranks & (ranks - 1) == 0)
_SQUARE = RankRule("a square", lambda ranks: ranks >= 1 and math.isqrt(ranks) ** 2 == ranks)


@dataclass(frozen=True, slots=True)
class Application:
    """One application: which rank counts it takes, how many iterations a class has.

    `iterations[c]` is of class CLASSES[c]. `options` are flags that a study may give besides the class.
    """

    name: str
    ranks: RankRule
    iterations: tuple[int, int, int, int, int]
    options: tuple[str, ...] = ()
    messages_each_iteration: bool = True

    def iterations_of(self, letter: str) -> int:
        """Return the number of timed iterations of a class on one rank."""
        return self.iterations[CLASSES.index(letter)]


_ROWS = (
    # Gaussian random pairs; one reduction at the end
    Application("ep", _ANY, (256, 512, 4096, 16384, 65536), messages_each_iteration=False),
    # sparse eigenvalue by conjugate gradients: long vectors and single numbers
    Application("cg", _POWER_OF_TWO, (15, 15, 15, 75, 75)),
    # multigrid for the Poisson equation: faces of every size
    Application("mg", _POWER_OF_TWO, (4, 4, 4, 20, 20)),
    # diffusion by Fourier transforms: all-to-all of the whole grid
    Application("ft", _POWER_OF_TWO, (6, 6, 6, 20, 20)),
    # integer sort: vector all-to-all of every key
    Application("is", _POWER_OF_TWO, (10, 10, 10, 10, 10)),
    # SSOR wavefront on a flow problem: many small messages
    Application("lu", _PLANES, (50, 300, 250, 250, 250)),
    # pentadiagonal line solves on a flow problem: long messages around rings
    Application("sp", _SQUARE, (100, 400, 400, 400, 400)),
    # upwind advection on any process grid: one face to each upper neighbour
    Application("advection", _GRID, (64, 128, 128, 256, 512), options=("grid", "size", "steps")),
)

APPLICATIONS: dict[str, Application] = {row.name: row for row in _ROWS}


def build_apps(mpi: Mpi, extra_flags: tuple[str, ...] = (), shell: Shell | None = None) -> Path:
    """Return the program that holds all applications, built for an MPI; see build_program for what it raises."""
    flags = (*_OPTIMIZED, *extra_flags)
    return build_program(mpi, "apps", PROGRAM, shares=("apps/common", "common"), extra_flags=flags, shell=shell)


# ---- what it prints ----


@dataclass(frozen=True, slots=True)
class EndBlock:
    """The end block of an application, with the keys of the NAS benchmarks.

    `elapsed_ns` is the slowest rank's timed part, `communication_ns` the mean over ranks of what each spent inside
    MPI calls, `mops` millions of operations a second by the formula of the specification.
    """

    title: str
    letter: str
    size: str
    iterations: int
    elapsed_ns: int
    communication_ns: int
    ranks: int
    mops: float
    verified: bool


def read_end_block(text: str) -> EndBlock:
    """Read the end block out of all that an application printed; raise ForeignFileError when it is not there."""
    title = re.search(r"^ (\w+) Benchmark Completed\.?\s*$", text, re.MULTILINE)
    if not title:
        said = "the application printed no end block"
        raise ForeignFileError(said, hint="it did not finish; its last output is in the trial")
    pairs = re.findall(r"^ (\S[^=\n]*?) *= +(\S.*?) *$", text[title.end() :], re.MULTILINE)
    fields: dict[str, str] = dict(pairs)
    try:
        return EndBlock(
            title=title[1],
            letter=fields["Class"],
            size=fields["Size"].replace(" ", ""),
            iterations=int(fields["Iterations"]),
            elapsed_ns=_ns(fields["Time in seconds"]),
            communication_ns=_ns(fields["Mean comm. time"]),
            ranks=int(fields["Total processes"]),
            mops=float(fields["Mop/s total"]),
            verified=_VERDICTS[fields["Verification"]],
        )
    except (KeyError, ValueError, ArithmeticError) as error:
        raise ForeignFileError(f"the end block of {title[1]} is incomplete or misprinted: {error!r}") from error


def _ns(seconds: str) -> int:
    return int(Decimal(seconds) * NS_PER_S)


# ---- the workload ----


class ApplicationWorkload:
    """Launches one application with the order's MPI; it leaves two sample files."""

    kind = "application"

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for an application, class, number of ranks or option that there is not."""
        every = {name for app in APPLICATIONS.values() for name in app.options}
        check_options(workload, {"class", PROFILE_OPTION, *every})
        _argv(workload)

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Build the applications for the MPI when that was not done before, and say how to launch this one."""
        arguments = application_argv(order)
        mpi = mpi_for(shell, order.mpi)
        program = build_apps(mpi, shell=shell)
        first = endpoints.ends[order.workload.placement[0]].node
        files = {name: f"{shell.scratch}/{first}/{name}.nmb" for name in (ITERATIONS, COMMUNICATION)}
        recording = ("--record", files[ITERATIONS], "--record-communication", files[COMMUNICATION])
        return parallel_launch(
            shell,
            order,
            endpoints,
            mpi,
            (str(program), *arguments, *recording),
            files=files | _trace_files(order, f"{shell.scratch}/{first}"),
            facts={"application.build": program.name},
            environment=_tracing(shell, order, endpoints, mpi, f"{shell.scratch}/{first}"),
            sleeps=True,
        )

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless the application ended well, verified itself, and was the one ordered."""
        del files
        check_ended(finished, _EXIT_STATUSES, what="the application failed")
        block = read_end_block(finished.text)
        ordered = (_application(order.workload).name.upper(), _letter(order.workload), len(order.workload.placement))
        if not block.verified or (block.title, block.letter, block.ranks) != ordered:
            raise TrialError(
                f"{ordered[0]} class {ordered[1]} on {ordered[2]} ranks was ordered, and "
                f"{block.title} class {block.letter} on {block.ranks} ranks ended, verified: {block.verified}",
                hint="ranks that each report 1 process were started by the launcher of another MPI",
            )

    def least_packets(self, order: Order) -> int:
        """Return one packet for each iteration in which every rank depends on another: a floor, not an estimate."""
        if len(set(order.workload.placement)) == 1:
            return 0
        app = _application(order.workload)
        if not app.messages_each_iteration:
            return 1
        return order.workload.number("steps", app.iterations_of(_letter(order.workload)))


def _trace_files(order: Order, folder: str) -> dict[str, str]:
    """Return the trace files that the ranks leave in a folder, by their names in the outcome."""
    ranks = range(len(order.workload.placement)) if order.workload.switch(PROFILE_OPTION) else ()
    names = (f"rank-{rank:06d}.nmtrace" for rank in ranks)
    return {f"{PROFILE_FOLDER}{name}": f"{folder}/{name}" for name in names}


def _tracing(shell: Shell, order: Order, endpoints: Endpoints, mpi: Mpi, folder: str) -> dict[str, str]:
    """Return the variables that make ranks record what they do; none where no trace is asked for.

    Gaps are in processor time, because nodes of one machine may share a processor. Raise UnavailableError for nodes
    that do not see each other's files.
    """
    if not order.workload.switch(PROFILE_OPTION):
        return {}
    nodes = {endpoints.ends[index].node for index in order.workload.placement}
    if is_far(shell) or (order.path.kind in GUEST_KINDS and len(nodes) > 1):
        raise UnavailableError(
            f"workload {order.workload.label!r}: trace = true on nodes that do not see each other's files",
            hint="trace on bare nodes of one machine: what the program does is replayed on every path",
        )
    variables = profiled(build_profiler(mpi, shell=shell), folder, 1 + order.trial)
    return variables | {"NEARMETAL_TRACE_CLOCK": "processor"}


def application_argv(order: Order) -> list[str]:
    """Return an application's own arguments for an order; raise BadInputError for what it cannot do."""
    return _argv(order.workload)


def _argv(workload: WorkloadOrder) -> list[str]:
    app, letter, ranks = _application(workload), _letter(workload), len(workload.placement)
    check_options(workload, {"class", PROFILE_OPTION, *app.options})
    if not app.ranks.holds(ranks):
        raise workload.invalid(f"{app.name} cannot run on {ranks} ranks", hint=f"it takes {app.ranks.words}")
    workload.switch(PROFILE_OPTION)
    argv = [app.name, "--class", letter]
    for name in app.options:
        if name in workload.options:
            argv += [f"--{name}", _shape(workload, name, ranks)]
    return argv


def _shape(workload: WorkloadOrder, name: str, ranks: int) -> str:
    """Return the value of `grid`, `size` or `steps`; raise BadInputError for one that the program would refuse."""
    if name == "steps":
        if workload.number(name) < 1:
            raise workload.invalid(f"option 'steps' is at least 1, not {workload.number(name)}")
        return str(workload.number(name))
    text = text_option(workload, name, "")
    if not re.fullmatch(r"[1-9]\d{0,8}x[1-9]\d{0,8}x[1-9]\d{0,8}", text):
        raise workload.invalid(f"option {name!r} is three numbers, such as '4x1x1', not {text!r}")
    places = math.prod(map(int, text.split("x")))
    if name == "grid" and places != ranks:
        raise workload.invalid(f"the grid {text} has {places} places, for {ranks} ranks", hint="give it one a rank")
    return text


def _application(workload: WorkloadOrder) -> Application:
    name = str(workload.options.get("operation", workload.label))
    if name not in APPLICATIONS:
        known = f"operation is one of: {', '.join(APPLICATIONS)}"
        raise workload.invalid(f"there is no application {name!r}", hint=known)
    return APPLICATIONS[name]


def _letter(workload: WorkloadOrder) -> str:
    letter = str(workload.options.get("class", "S"))
    if len(letter) != 1 or letter not in CLASSES:
        raise workload.invalid(f"there is no class {letter!r}", hint=f"one of: {', '.join(CLASSES)}")
    return letter
