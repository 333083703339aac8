"""`nearmetal trace -- mpirun ...`: profile an MPI program; `nearmetal trace show DIR`: what the profile says."""

from pathlib import Path

import click

from nearmetal.cli.main import loading
from nearmetal.cli.values import PATH, format_option, write_file
from nearmetal.errors import ExitCode, command_line
from nearmetal.predict.trace_file import read_trace
from nearmetal.units import counted


class _TraceGroup(click.Group):
    """A group whose own arguments are a launch line unless they name a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["record", *args]
        return super().parse_args(ctx, args)


@click.group(name="trace", cls=_TraceGroup, subcommand_metavar="[-o DIR] -- mpirun ... | show DIR")
def command() -> None:
    """Trace an MPI program with `nearmetal trace -- mpirun -n 4 PROGRAM`, or show a trace."""


@command.command(name="record", context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "--output", type=PATH, default=Path("trace"), show_default=True,
    help="A new directory for the trace, visible to all ranks."
)  # fmt: skip
@click.option("--processor-time", is_flag=True, help="Measure compute as CPU time, for ranks that share cores.")
@click.argument("launch", nargs=-1, required=True, type=click.UNPROCESSED)
def record(*, output: Path, processor_time: bool, launch: tuple[str, ...]) -> int:
    """Run LAUNCH (mpirun and its arguments) under the tracer.

    The tracer writes one file per rank into the directory.
    Exits with 0 if every rank wrote a complete trace and the program ended with 0, else with 1. Of several programs
    that a launch runs one after another only the first is traced, which also exits with 1.
    """
    with loading():
        from nearmetal.predict.trace_view import view_trace  # noqa: PLC0415
        from nearmetal.predict.tracing import run_traced, understand  # noqa: PLC0415
        from nearmetal.report.trace_text import rounded_size, warnings  # noqa: PLC0415

    argv = understand(launch).argv
    if argv[0] != launch[0]:
        click.echo(f"{launch[0]} is not on PATH; using {argv[0]}", err=True)
    trace, status = run_traced(argv, output, processor_time=processor_time)
    calls = counted(sum(time.calls for rank in trace.ranks for time in rank.times), "call")
    size = sum(path.stat().st_size for path in output.iterdir())
    click.echo(
        f"traced {counted(trace.world_ranks, 'rank')} and {calls} into {output} ({rounded_size(size)}); "
        f"see `{command_line('trace', 'show', output)}`",
        err=True,
    )
    for warning in warnings(view_trace(trace)):
        click.echo(f"warning: {warning}", err=True)
    if processor_time and any(rank.meta.get("gaps") != "processor" for rank in trace.ranks):
        click.echo(
            "warning: compute is not in processor time: several threads of a rank called MPI (MPI_THREAD_MULTIPLE), "
            "and a gap may begin in one and end in another",
            err=True,
        )
    if status:
        click.echo(f"warning: the trace is complete, but the launcher ended with status {status}", err=True)
    return ExitCode.FAILED if status or trace.first_of_several else ExitCode.OK


@command.command(name="show")
@click.argument("trace", type=PATH)
@click.option(
    "--placement", "placements", multiple=True, metavar="block:N|cyclic:N|FILE",
    help="Also show traffic between nodes: N ranks per node, a file with one node name per line, a host file of MPICH "
    "or a rankfile."
)  # fmt: skip
@format_option("table", "json", "html")
@click.option("-o", "--output", type=PATH, help="Write to this file instead of stdout.")
def show(trace: Path, placements: tuple[str, ...], form: str, output: Path | None) -> None:
    """Show where the time of TRACE goes, and who sends to whom.

    Shows time in compute and in MPI, message sizes, senders and receivers, collectives, traffic between nodes.
    """
    with loading():
        from nearmetal.predict.trace_view import read_placement, regular_placement, view_trace  # noqa: PLC0415
        from nearmetal.report.trace_html import as_html  # noqa: PLC0415
        from nearmetal.report.trace_text import as_json, as_text  # noqa: PLC0415

    opened = read_trace(trace)
    ranks = opened.world_ranks
    chosen = [regular_placement(text, ranks) or read_placement(Path(text), ranks) for text in placements]
    render = {"table": as_text, "json": as_json, "html": as_html}[form]
    text = render(view_trace(opened, chosen))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(output, text)
