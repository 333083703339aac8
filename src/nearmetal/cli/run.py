"""`nearmetal run STUDY`: the main path. Study -> run directory -> trials -> verdicts -> report."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import click

from nearmetal.cli.progress import warn, watcher
from nearmetal.cli.rollback import offer_rollback, settle_far
from nearmetal.cli.values import COUNT, PATH, STUDY, check_resume, format_option, refuse_other_version
from nearmetal.errors import ExitCode, TrialError, command_line, listed
from nearmetal.hosts.host import Host
from nearmetal.report import as_html, as_json, as_table
from nearmetal.report.terminal import Console
from nearmetal.results.paths import build_view, nothing_to_show
from nearmetal.results.records import View
from nearmetal.results.series import own_ns
from nearmetal.results.stopping import as_it_ends, never_valid
from nearmetal.results.waterfalls import waterfalls
from nearmetal.run.begin import begin
from nearmetal.run.guests import measuring, open_host
from nearmetal.run.schedule import Ending, run_study
from nearmetal.store.disk import Disk
from nearmetal.store.query import refuse_fabric, valid
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.facts import VIRTUAL_TIME
from nearmetal.study.spec import Study
from nearmetal.units import counted, format_duration


@click.command(name="run")
@click.argument("study", type=STUDY, required=False)
@click.option("--out", type=PATH, help="The run directory [default: runs/NAME-TIME].")
@click.option("--resume", type=PATH, help="Resume this run.")
@click.option(
    "--occasions",
    type=COUNT,
    default=1,
    help="Repeat the study at this many hours, boots or allocations: one now, the next by --resume.",
)
@click.option("--blocks", type=COUNT, help="Measure at most this many blocks now; --resume measures the rest.")
@click.option("--anyway", is_flag=True, help="Start even if parts of the study cannot run on this machine.")
@format_option("table", "json")
@click.option("--allow-mixed", is_flag=True, help="Compare trials even if kernel, MPI, NIC or code differ.")
def command(
    study: Path | None,
    out: Path | None,
    resume: Path | None,
    *,
    occasions: int,
    blocks: int | None,
    anyway: bool,
    form: str,
    allow_mixed: bool,
) -> int:
    """Run STUDY, keep every sample, and report.

    Before the first trial, every path, program, login and setting is checked, and everything that is missing is listed
    at once.

    Resume an interrupted run with --resume DIR: no finished trial is lost or repeated. The interval of a single
    occasion says nothing about another hour or another boot; with --occasions 3 it covers another occasion.
    """
    check_resume("run", study, resume, "nearmetal run paths; `nearmetal studies` lists more", out=out, anyway=anyway)
    offer_rollback()
    opened = (
        _continued(resume, allow_mixed=allow_mixed)
        if resume
        else begin(study or Path(), out, warn, settle_far, anyway=anyway)
    )
    with opened as (spec, run, host):
        _, ending = carry_out(spec, run, host, form=form, allow_mixed=allow_mixed, occasions=occasions, blocks=blocks)
    if ending.cut:
        click.echo(
            f"{ending.blocks} of at most {as_it_ends(spec).trials.max_blocks} blocks "
            f"{'is' if ending.blocks == 1 else 'are'} done; to continue:\n"
            + command_line("run", "--resume", run.root, *(["--occasions", occasions] if occasions > 1 else [])),
            err=True,
        )
    elif ending.occasion < occasions:
        click.echo(
            f"occasion {ending.occasion} of {occasions} is done; to continue at another hour, boot or allocation:\n"
            + command_line("run", "--resume", run.root, "--occasions", occasions),
            err=True,
        )
    elif ending.idle:
        click.echo(
            f"nothing was left to measure: the study ended after {counted(ending.blocks, 'block')}; to repeat it at "
            "another hour, boot or allocation:\n"
            + command_line("run", "--resume", run.root, "--occasions", ending.occasion + 1),
            err=True,
        )
    return ExitCode.PARTIAL if ending.given_up else ExitCode.OK


def carry_out(
    spec: Study,
    run: RunDir,
    host: Host,
    *,
    form: str = "table",
    allow_mixed: bool = False,
    occasions: int = 1,
    blocks: int | None = None,
) -> tuple[View, Ending]:
    """Carry a study out into its run directory, print the verdicts, and say where the report is.

    The combinations that were given up are those, too, of which no trial is valid.
    """
    console = Console(stderr=True)
    try:
        numbers = spec.trials.max_blocks
        with watcher(as_it_ends(spec), console, host, blocks=blocks, numbers=numbers) as watching:
            ending = run_study(spec, host, run, watching, occasions=occasions, blocks=blocks)
    except KeyboardInterrupt:
        again = command_line("run", "--resume", run.root, *(["--occasions", occasions] if occasions > 1 else []))
        console.print(f"interrupted; continue with: {again}", soft_wrap=True)
        raise
    host.close()
    if not valid(records := run.trials()):  # they were measured: that the study is wrong is not known
        none = nothing_to_show(run, records)
        raise TrialError(none.message, hint=none.hint)
    view = build_view(run, allow_mixed=allow_mixed)
    html = run.root / "report.html"
    Disk().put_bytes(html, as_html.render(view, waterfalls(run)).encode())
    if form == "json":
        click.echo(as_json.render(view), nl=False)
    else:
        as_table.render(view, Console(), brief=True)
    click.echo(f"all tables: {command_line('compare', run.root, '--all')}\nreport: {html}", err=form == "json")
    if virtual_ns := virtual_time_ns(run.trials()):
        console.print(f"virtual time: launches took {format_duration(virtual_ns)} of the lab's own clock")
    lost = dict.fromkeys(ending.given_up, "gave up after repeated failures")
    lost = dict.fromkeys(never_valid(run.trials()), "no trial is valid") | lost
    for one, why in lost.items():
        console.print(f"{why}: {' / '.join(one)} (see `{command_line('show', run.root)}`)")
    return view, replace(ending, given_up=tuple(lost))


def virtual_time_ns(records: Iterable[TrialRecord]) -> int:
    """Return how long the launches of trials in the lab took on its own clock, in ns; 0 where none ran there."""
    return round(sum(own_ns(one) for one in records if one.outcome.facts.get(VIRTUAL_TIME)))


@contextlib.contextmanager
def _continued(root: Path, *, allow_mixed: bool) -> Iterator[tuple[Study, RunDir, Host]]:
    known = RunDir.open(root)
    refuse_fabric(known)
    if not allow_mixed:
        otherwise = "begin a new run; --allow-mixed continues and compares anyway"
        refuse_other_version(root, known.info.nearmetal_version, otherwise)
    with RunDir.open_for_writing(root) as run:
        if run.lost:
            which = f"{counted(len(run.lost), 'finished trial')} of {root} ({', '.join(listed(run.lost))})"
            warn(f"the records of {which} are missing: they are measured anew, at another time than their blocks")
        spec = run.study()
        with contextlib.closing(open_host(spec, warn, settle_far)) as host, measuring(spec):
            yield spec, run, host
