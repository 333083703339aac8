"""Workloads `omb`, `imb` and `mpi4py`: MPI benchmarks that the user has, for the operations of nearmetal's own engine.

Each size is a separate launch, so that an output holds only what was requested. All of them print one mean per launch,
so a trial has one sample per size. Options: `folder` (below which the programs of OMB or IMB are; PATH otherwise),
`python` (the interpreter that has mpi4py), `mpi` (the directory of the MPI that they were built with, such as `/usr`).
Standard library only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from nearmetal.errors import ForeignFileError, TrialError, UnavailableError
from nearmetal.hosts.host import Shell, name_of
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import Order, WorkloadOrder
from nearmetal.workloads.build import mpi_for
from nearmetal.workloads.pairs import WHERE_IS, check_ended, check_halves, check_options, launch_group, text_option
from nearmetal.workloads.parallel import mpi_prefix, parallel_launch
from nearmetal.workloads.program_group import Command
from nearmetal.workloads.streams import OutputName, read_name
from nearmetal.workloads.tools.tool import Mean
from nearmetal.workloads.workload import Launch


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One launch: the suite's name of the benchmark, and a file in the scratch directory that holds the size."""

    benchmark: str
    ranks: int
    sized: bool
    size_bytes: int
    sizes_file: str
    iterations: int
    warmup: int


@dataclass(frozen=True, slots=True)
class MpiBenchmark:
    """A suite, of which it launches one benchmark over the placement, size after size.

    `kind` is its name, the word in the study file. `benchmarks` maps operations to its names; `option` says where its
    programs are. `program` is the file to look for, `arguments` follow it, and `means` reads what is in an output.
    """

    kind: str
    benchmarks: Mapping[str, str]
    option: str
    program: Callable[[str], str]
    arguments: Callable[[BenchmarkRun], list[str]]
    means: Callable[[bytes], Sequence[Mean]]
    hint: str
    pairs_by_halves: tuple[str, ...] = ()
    powers_of_two: bool = False

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for an operation or option that the suite does not have, and for pairs on one node."""
        check_options(workload, {self.option, "mpi"})
        operation = text_option(workload, "operation", "", tuple(self.benchmarks))
        text_option(workload, self.option, "")
        mpi_prefix(workload)
        odd = [size for size in workload.numbers("sizes") if self.powers_of_two and size.bit_count() != 1]
        if odd:
            raise workload.invalid(f"{self.kind} supports only powers of two, not {odd[0]}")
        if operation in self.pairs_by_halves:
            check_halves(workload, self.kind)

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Find the program and the MPI, and say how to launch it for each size."""
        workload = order.workload
        operation = text_option(workload, "operation", "")
        node = endpoints.ends[workload.placement[0]].node
        program = self._find(shell, node, workload, self.program(self.benchmarks[operation]))
        mpi = mpi_for(shell, order.mpi, mpi_prefix(workload))
        library = PurePosixPath(mpi.mpirun or mpi.mpicc).parent.parent / "lib"
        launches = []
        for size in workload.numbers("sizes") or [0]:
            wanted_run = BenchmarkRun(
                benchmark=self.benchmarks[operation],
                ranks=len(workload.placement),
                sized=bool(workload.numbers("sizes")),
                size_bytes=size,
                sizes_file=f"{shell.scratch}/{node}/size-{size}",
                iterations=workload.number("iterations"),
                warmup=workload.number("warmup"),
            )
            shell.write(wanted_run.sizes_file, f"{size}\n".encode(), node=node)
            launch = parallel_launch(
                shell,
                order,
                endpoints,
                mpi,
                (program, *self.arguments(wanted_run)),
                facts={f"{self.kind}.program": program},
                # IMB of Intel's wheel and mpi4py of PyPI's take the MPI that the loader finds: the one that launches.
                environment={"LD_LIBRARY_PATH": str(library)},
            )
            launches.append((str(OutputName(self.kind, operation, size, 0, 0)), launch))
        commands = [
            Command("", launch.argv, name, step, env=launch.env) for step, (name, launch) in enumerate(launches)
        ]
        known = launches[0][1]
        return replace(launch_group(shell, order, commands, known.facts, node=node), late_hint=known.late_hint)

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless every launch ended well and printed what was asked for."""
        check_ended(order.workload, finished)
        for name, data in files.items():
            if (named := read_name(name)) is None:
                continue
            wanted = (named.operation, named.size_bytes)
            if (found := [(one.operation, one.message_bytes) for one in self.means(data)]) != [wanted]:
                raise TrialError(f"{self.kind} was asked for {wanted}, its output holds {found}")

    def samples(self, data: bytes) -> Mean:
        """Return the one mean of a launch of one size."""
        mean = self.means(data)[0]
        if mean.figure == 0:
            message = f"{self.kind.upper()} prints a mean of 0.00 for {mean.operation}"
            raise ForeignFileError(message, hint="give it more bytes or iterations")
        return mean

    def counters(self, order: Order, files: dict[str, bytes]) -> dict[str, int]:
        """Return how many iterations its launches made: what they print is one mean."""
        del files
        workload = order.workload
        of_a_launch = workload.number("iterations") + workload.number("warmup")
        return {"tool.iterations": of_a_launch * max(1, len(workload.numbers("sizes")))}

    def least_packets(self, order: Order) -> int:
        """Return one packet an iteration and size, where ranks are on several nodes."""
        workload = order.workload
        if len(set(workload.placement)) == 1:
            return 0
        return workload.number("iterations") * max(1, len(workload.numbers("sizes")))

    def _find(self, shell: Shell, node: str, workload: WorkloadOrder, name: str) -> str:
        where = text_option(workload, self.option, "")
        if self.option == "python":
            argv = [where or name, "-c", "import sys, mpi4py.bench; print(sys.executable)"]
        elif where:
            argv = ["find", "-L", where, "-type", "f", "-name", name]
        else:
            argv = [*WHERE_IS, name]
        found = sorted(shell.run(argv, node=node, check=False).text.splitlines())
        if not found:
            place = f"{where or 'PATH'} of {name_of(shell, node)}"
            raise UnavailableError(f"{name} of {self.kind} was not found in {place}", hint=self.hint)
        return found[0]
