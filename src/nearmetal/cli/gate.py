"""`nearmetal gate RUN --against BASE`: whether a run is worse than its base by more than a margin.

Its exit codes are verdicts, so its errors have codes of their own: no failure of the gate can be taken for a finding.
"""

import datetime as dt
import sys
import traceback
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import click

from nearmetal.cli.progress import warn, watcher
from nearmetal.cli.values import PATH, format_option, read_share
from nearmetal.errors import BadInputError, ExitCode, NearmetalError, UnavailableError
from nearmetal.gate import as_json, as_junit, as_openmetrics, as_reframe, as_table
from nearmetal.gate.remeasure import concerned, first_block, measure, open_directory
from nearmetal.report.terminal import Console
from nearmetal.results.between import Question, RunPair, cautions, judge, read_figures, read_pair, suspects, unconfirmed
from nearmetal.results.gated import Gate, GateExit, Remeasured
from nearmetal.results.series import CellId
from nearmetal.run.check import check_study
from nearmetal.run.guests import measuring, open_host
from nearmetal.run.schedule import Watcher
from nearmetal.stats.equivalence import TAIL_MARGIN
from nearmetal.stats.summary import Metric
from nearmetal.store.disk import SharedDisk
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.spec import MOST_BLOCKS
from nearmetal.units import counted

_CODES = {ExitCode.FAILED: GateExit.FAILED, ExitCode.USAGE: GateExit.USAGE, ExitCode.UNAVAILABLE: GateExit.UNAVAILABLE}


class _RecodedError(NearmetalError):
    def __init__(self, error: NearmetalError) -> None:
        super().__init__(error.message, hint=error.hint)
        self.exit_code = _CODES.get(ExitCode(error.exit_code), GateExit.FAILED)


class _GateCommand(click.Command):
    """A command whose errors, its own bugs included, never end with a code that is a verdict."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise _RecodedError(BadInputError(error.format_message(), hint="nearmetal gate --help")) from error
        except NearmetalError as error:
            raise _RecodedError(error) from error

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except NearmetalError as error:
            raise _RecodedError(error) from error
        except OSError as error:
            raise _RecodedError(NearmetalError(f"{error.filename}: {error.strerror}")) from error
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception:  # noqa: BLE001 (a bug's exit code would be 1, which here means `worse`)
            traceback.print_exc()
            return GateExit.FAILED


def _margin(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
    return None if text is None else read_share(option.opts[0], text, "5%")


@click.command(name="gate", cls=_GateCommand)
@click.argument("run", type=PATH)
@click.option("--against", type=PATH, required=True, help="The run to compare with, from before the change.")
@click.option("--margin", default="5%", callback=_margin, show_default=True, help="How much worse still passes.")
@click.option(
    "--tail-margin", callback=_margin, help="The margin for the p99 [default: 10%, or --margin where that is more]."
)
@click.option(
    "--metric",
    type=click.Choice([str(one) for one in Metric]),
    help="Judge this figure of each launch alone [default: the mean, and median and p99 where they are worse].",
)
@click.option(
    "--control", default="", metavar="PATH", help="A path that the change cannot affect, as a measure of noise."
)
@click.option(
    "--remeasure/--no-remeasure", default=True, help="Measure cells that look worse again before they fail the gate."
)
@click.option(
    "--blocks", type=click.IntRange(3, MOST_BLOCKS), default=None, help="Fresh blocks [default: as many as in RUN]."
)
@click.option("--out", type=PATH, help="Directory for fresh blocks [default: RUN-again-TIME].")
@format_option("table", "json")
@click.option("--junit", type=PATH, help="Also write JUnit XML.")
@click.option("--openmetrics", type=PATH, help="Also write OpenMetrics text (Prometheus).")
@click.option("--reframe", type=PATH, help="Also append to a ReFrame performance log.")
@click.option("--allow-mixed", is_flag=True, help="Accept a run whose own trials differ in kernel, MPI, NIC or code.")
def command(
    run: Path,
    *,
    against: Path,
    margin: float,
    tail_margin: float | None,
    metric: str | None,
    control: str,
    remeasure: bool,
    blocks: int | None,
    out: Path | None,
    form: str,
    junit: Path | None,
    openmetrics: Path | None,
    reframe: Path | None,
    allow_mixed: bool,
) -> int:
    """Compare RUN with an earlier run. Exits with 0 within the margin, 1 worse, 2 undecided.

    Errors have other exit codes: 3 something is missing on this machine, 64 wrong usage or input, 70 failed, 130
    interrupted. Cells that look worse are measured again on RUN's host before they count as worse.
    """
    if not remeasure and (blocks or out):
        text = f"{'--blocks' if blocks else '--out'} has no effect with --no-remeasure"
        raise BadInputError(text, hint="leave one of the two out")
    for path in filter(None, (junit, openmetrics, reframe)):
        if not path.absolute().parent.is_dir():
            raise BadInputError(f"{path} cannot be written: {path.parent} is not a directory")
    tail = _tail_margin(margin, tail_margin, metric)
    question = Question(margin, Metric(metric) if metric else None, control, allow_mixed, tail)
    pair = read_pair(RunDir.open(run), RunDir.open(against), question)
    gate = judge(pair)
    looks_worse = suspects(gate)
    if looks_worse and remeasure:
        gate = _remeasured(pair, gate, looks_worse, blocks=blocks, out=out)
    if junit:
        SharedDisk().put_bytes(junit, as_junit.render(gate).encode())
    if openmetrics:
        SharedDisk().put_bytes(openmetrics, as_openmetrics.render(gate).encode())
    if reframe:
        as_reframe.append(gate, reframe, dt.datetime.now())  # local time, as ReFrame writes it
    _show(gate, form)
    return gate.exit_code


def _tail_margin(margin: float, given: float | None, metric: str | None) -> float:
    """Return the margin for the p99; raise BadInputError for one that would have no effect."""
    if given is None:
        return TAIL_MARGIN
    if metric:
        text = f"--tail-margin has no effect with --metric {metric}"
        raise BadInputError(text, hint="--margin is that figure's margin")
    if given < margin:
        text = "--tail-margin has no effect below --margin"
        raise BadInputError(text, hint="the p99 of a launch varies more than its mean")
    return given


def _show(gate: Gate, form: str) -> None:
    if form == "json":
        click.echo(as_json.render(gate))
    else:
        as_table.render(gate, Console())
    sys.stdout.flush()  # here, where a failure gets an exit code that is no verdict


def _remeasured(pair: RunPair, gate: Gate, cells: Sequence[CellId], *, blocks: int | None, out: Path | None) -> Gate:
    """Measure what looks worse again, and let the fresh blocks decide; say so where that cannot be done."""
    console = Console(stderr=True)
    series = pair.run
    blocks = blocks or max(3, gate.run.blocks)
    root = out or _beside(series.run.root)
    try:
        wanted = concerned(series, cells, pair.question.control)
        first = first_block(series)
        trials = series.study.trials.model_copy(update={"max_blocks": blocks})
        check_study(series.study)
        with (
            closing(open_host(series.study, warn)) as host,
            measuring(series.study),
            open_directory(series, root) as opened,
        ):
            console.print(
                f"{len(cells)} of {counted(len(gate.judged), 'cell')} look{'s' * (len(cells) == 1)} worse: "
                f"measuring {counted(blocks, 'fresh block')} of "
                f"{counted(len(wanted), 'combination')} into {root}"
            )
            with watcher(series.study.model_copy(update={"trials": trials}), console) as watching:
                measure(series, host, opened, _FreshBlocks(watching, first), wanted=wanted, blocks=blocks)
            measured = read_figures(opened, pair.question)
    except UnavailableError as error:
        console.print(
            f"not measured again: {error.message}\nhint: {error.hint}\n"
            "hint: --no-remeasure judges only the recorded blocks"
        )
        return unconfirmed(gate, cells, error.message)
    except KeyboardInterrupt:
        console.print(f"interrupted; to continue, repeat the command with --out {root}")
        raise
    decided = judge(pair, measured, suspects=cells)
    fresh = measured[pair.metric]  # of a directory that is continued, perhaps with more blocks than are asked for now
    made = len({record.order.block for record in fresh.records})
    done = Remeasured(str(root), made, tuple(cells), "", cautions(fresh))
    return replace(decided, remeasured=done)


@dataclass(frozen=True, slots=True)
class _FreshBlocks:
    """Tells a watcher of blocks by their place among the fresh ones: on disk their numbers follow those of RUN."""

    watcher: Watcher
    first: int

    def block_started(self, number: int, trials: int, open_paths: Sequence[str]) -> None:
        self.watcher.block_started(number - self.first, trials, open_paths)

    def trial_ended(self, record: TrialRecord) -> None:
        self.watcher.trial_ended(record)


def _beside(run: Path) -> Path:
    """Return a directory for fresh blocks next to the run's, also for a run that is `.` or `..`."""
    named = run if run.name not in {"", ".."} else run.resolve()
    return named.with_name(f"{named.name}-again-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}")
