"""`nearmetal import FILE...`: existing output of other programs as a run that compares like any other."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from nearmetal.cli.values import PATH
from nearmetal.errors import BadInputError, command_line
from nearmetal.report import as_table
from nearmetal.report.terminal import Console
from nearmetal.results.paths import build_view
from nearmetal.run.adopt import AdoptedFile, adopt
from nearmetal.run.begin import default_root
from nearmetal.store.rundir import RunDir
from nearmetal.units import counted


@click.command(name="import")
@click.argument("files", nargs=-1, required=True, metavar="[LABEL=]FILE...")
@click.option("--out", type=PATH, help="The run directory [default: runs/imported-TIME].")
@click.option("--baseline", default="", help="The label to compare with [default: the first].")
@click.option("--allow-mixed", is_flag=True, help="Compare even if the programs' versions differ.")
def command(files: tuple[str, ...], out: Path | None, baseline: str, *, allow_mixed: bool) -> None:
    """Import output of other benchmarks, one launch per FILE.

    Supported: OMB, IMB, mpi4py, perftest, nuttcp, iperf2, iperf3, sockperf, netperf, qperf, HPL/HPCC and NPB.

    A label names the path that a file was measured on; by default it is the name of the file's folder. The first file
    of each label and program is paired with the first of the others, the second with the second, and so on.
    """
    labelled = [_labelled(file) for file in files]
    root = out or default_root("imported")
    adopted = adopt(labelled, root, baseline=baseline)
    console = Console(stderr=True, soft_wrap=True)
    for one in adopted:
        found = one.found
        values = sum(cell.ns.shape[1] for cell in found.cells)
        what = f"{counted(len(found.cells), 'cell')}, {counted(values, 'value')}"
        program = f"{found.program} {found.version}".strip()
        console.print(f"{one.file}: {program}, {one.label}, block {one.block + 1}: {what}")
    for lack, whose in _lacks(adopted):
        console.print(f"  {lack} ({whose})")
    as_table.render(build_view(RunDir.open(root), allow_mixed=allow_mixed, distributions=False), Console())
    click.echo(f"run: {root}")


def _lacks(adopted: Sequence[AdoptedFile]) -> Iterator[tuple[str, str]]:
    """Yield each thing that files lack once, and which of them do."""
    lacking: dict[str, list[str]] = {}
    for one in adopted:
        for lack in one.found.lacks:
            lacking.setdefault(lack, []).append(one.file)
    for lack, files in lacking.items():
        if len(files) == 1:
            yield lack, files[0]
        elif len(files) == len(adopted):
            yield lack, f"all {len(files)} launches"
        else:
            yield lack, f"{len(files)} launches, {files[0]} the first"


def _labelled(argument: str) -> tuple[str, Path]:
    label, given, file = argument.partition("=")
    if given and not Path(argument).exists():
        return label, Path(file)
    path = Path(argument)
    folder = path.resolve().parent.name
    if not folder:
        raise BadInputError(f"{argument} needs a label", hint=command_line("import", f"native={argument}"))
    return folder, path
