"""A run as a Python object: its trials, samples and comparisons as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path

import pyarrow as pa

from nearmetal.api.comparison import Comparison, of_paths, of_runs
from nearmetal.api.frame import Frame
from nearmetal.api.rows import (
    TRIAL_COLUMNS,
    CellQuery,
    keys,
    pair_table,
    sample_rows,
    summary_columns,
    trial_row,
    with_trial,
)
from nearmetal.errors import BadInputError
from nearmetal.fabric.survey import survey
from nearmetal.report import as_html
from nearmetal.report.markup import element, together
from nearmetal.report.progress import progress, sentence
from nearmetal.results.between import Question, judge, read_pair
from nearmetal.results.paths import build_view
from nearmetal.results.waterfalls import waterfalls
from nearmetal.run import schedule
from nearmetal.run.begin import begin
from nearmetal.store.rundir import RunDir, RunInfo, TrialRecord
from nearmetal.store.samples import StoredCell
from nearmetal.study.spec import Study
from nearmetal.units import counted


def open_run(path: str | PathLike[str]) -> Run:
    """Open a run directory for reading; it may still be growing, and each call sees its present state.

    Raise ForeignFileError if it is damaged or not a run.
    """
    return Run(RunDir.open(Path(path)))


def open_runs(path: str | PathLike[str] = "runs") -> list[Run]:
    """Open every run directly below a directory, oldest first.

    Raise BadInputError if it is no directory, ForeignFileError if a run is damaged.
    """
    if not Path(path).is_dir():
        raise BadInputError(f"{path} is not a directory", hint="name the directory that holds your runs")
    found = [open_run(one.parent) for one in Path(path).glob("*/run.json")]
    return sorted(found, key=lambda one: (one.info.created_utc, str(one.path)))


def run_study(
    study: str | PathLike[str], out: str | PathLike[str] | None = None, *, say: Callable[[str], object] | None = None
) -> Run:
    """Run a whole study file and return the run, like `nearmetal run STUDY --out OUT`.

    `say` is called with one line per block and per failed trial (pass `print`). Interrupting keeps every finished
    trial. Raise BadInputError for a study that cannot run, UnavailableError if something is missing on this machine.
    """
    report = say or (lambda _: None)
    with begin(Path(study), Path(out) if out is not None else None, report) as (spec, run, host):
        schedule.run_study(spec, host, run, _LineWatcher(report))
    return open_run(run.root)


def _share(name: str, value: float) -> float:
    """Return a share; raise BadInputError for what is none, and for 5, which may mean 5 %, as the command line does."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise BadInputError(f"{name} {value!r} is not a share between 0 and 1", hint=f"{name}=0.05 means 5 %")
    return value


class _LineWatcher:
    """A watcher of the schedule that forwards lines."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def block_started(self, number: int, trials: int, open_paths: Sequence[str]) -> None:
        self._say(f"block {number + 1}: {counted(trials, 'trial')} on {' '.join(open_paths)}")

    def trial_ended(self, record: TrialRecord) -> None:
        if not record.valid:
            self._say(f"trial {record.order.trial} failed: {record.outcome.reason}")


class Run:
    """One run directory, read-only. Get it from `open_run` or `run_study`."""

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory

    @property
    def path(self) -> Path:
        """Return the run directory."""
        return self._directory.root

    @property
    def info(self) -> RunInfo:
        """Return the run's study, host, version and start. `info.host_label` says what its figures mean."""
        return self._directory.info

    @property
    def study(self) -> Study:
        """Return the study; raise BadInputError if it is invalid."""
        return self._directory.study()

    @property
    def trials(self) -> Frame:
        """Return every finished trial, valid or failed, in the order of the plan; one row per attempt.

        `elapsed_ns` is the time of its launch, 0 where that is not known. Raise ForeignFileError for a damaged record.
        """
        schema = pa.schema(TRIAL_COLUMNS)
        rows = [trial_row(record) for record in self._directory.trials()]
        return Frame("Trials", pa.Table.from_pylist(rows, schema=schema))

    def samples(
        self,
        *,
        path: str | None = None,
        workload: str | None = None,
        operation: str | None = None,
        message_bytes: int | None = None,
        setting: str | None = None,
        trial: int | None = None,
        everything: bool = False,
    ) -> Frame:
        """Return raw samples of valid trials as measured, one row per iteration and rank.

        Columns: the trial's (`trial`, `attempt`, `block`, `path`, `workload`, `setting`), the cell's (`operation`,
        `message_bytes`), and `rank`, `iteration`, `warmup`, `flags` (0: good), `begin_ns` (since the rank's first stamp
        of the trial), `ns` (the duration). Each argument keeps what equals it. Warm-up and flagged iterations are left
        out unless `everything`. Raise BadInputError when nothing is left, ForeignFileError for damaged samples.
        """
        wanted = CellQuery(path, workload, operation, message_bytes, setting, trial)
        parts = [sample_rows(self._directory, *one, everything=everything) for one in self._cells(wanted)]
        return Frame("Samples", pa.concat_tables(parts).unify_dictionaries())

    def values(
        self,
        *,
        path: str | None = None,
        workload: str | None = None,
        operation: str | None = None,
        message_bytes: int | None = None,
        setting: str | None = None,
        trial: int | None = None,
    ) -> Frame:
        """Return one value per iteration, as used by all statistics: `ns`, the slowest of the ranks that count.

        Warm-up and flagged iterations have none. Columns and errors otherwise as those of `samples`.
        """
        wanted = CellQuery(path, workload, operation, message_bytes, setting, trial)
        parts = [with_trial(*one, pa.table({"ns": self._directory.values(*one)})) for one in self._cells(wanted)]
        return Frame("Values", pa.concat_tables(parts).unify_dictionaries())

    def summary(self) -> Frame:
        """Return one row per valid trial and cell: n, mean, sd, median, MAD, extremes, autocorrelation, percentiles.

        A percentile is null where n cannot support it; `effective_n` is how many independent iterations would be worth
        as much. Raise BadInputError when no trial is valid.
        """
        cells = self._cells(CellQuery())
        rows = [{**keys(*one), **summary_columns(self._directory.summary(*one))} for one in cells]
        return Frame("Summary", pa.Table.from_pylist(rows))

    def pairs(self) -> Frame:
        """Return every ordered pair of a fabric's nodes, as measured by `nearmetal fabric`.

        Columns: `node`, `partner`, `latency_us` (half the median round trip), `bandwidth_mb_per_s` (10^6 bytes a second
        from node to partner, null where it was not measured). Raise BadInputError for any other run.
        """
        return Frame("Pairs", pair_table(survey(self._directory)))

    def compare(self, base: Run | None = None, *, margin: float | None = None, allow_mixed: bool = False) -> Comparison:
        """Compare the paths of this run with its baseline or, given `base`, this run with another, cell by cell.

        `margin` is how much more this run may cost than `base` (0.05: 5 %), the study's by default; the margin between
        paths is always the study's. Raise BadInputError without valid trials, for a margin that is no share between 0
        and 1, or when kernel, MPI, NIC or code differ between trials and `allow_mixed` is not set.
        """
        if base is None:
            if margin is not None:
                raise BadInputError("the margin between paths is fixed by the study", hint="give `base`, or no margin")
            return of_paths(build_view(self._directory, allow_mixed=allow_mixed, distributions=False))
        asked = self.study.margin if margin is None else _share("margin", margin)
        question = Question(asked, allow_mixed=allow_mixed, tail_margin=self.study.tail_margin)
        return of_runs(judge(read_pair(self._directory, base._directory, question)))  # noqa: SLF001 (another Run)

    def html(self, *, allow_mixed: bool = False) -> str:
        """Return the whole report as one HTML page, as `nearmetal report` writes it; raises the errors of `compare`."""
        return as_html.render(build_view(self._directory, allow_mixed=allow_mixed), waterfalls(self._directory))

    def __repr__(self) -> str:
        return f"<nearmetal.Run {self.path}: study {self.info.study_name} on {self.info.host_kind}>"

    def _repr_html_(self) -> str:
        """Return a description of the run and its progress as HTML, all text escaped; notebooks call this."""
        lines = (
            f"{self.path}: study {self.info.study_name}, {self.info.created_utc}",
            f"Figures from {self.info.host_label}.",
            self._how_far(),
        )
        return str(together(*(element("p", line) for line in lines)))

    def _how_far(self) -> str:
        if self._directory.of_fabric:
            return "All pairs of a fabric, in one launch: see .pairs()"
        return sentence(progress(self._directory, self._directory.trials()))

    def _cells(self, wanted: CellQuery) -> Iterator[tuple[TrialRecord, StoredCell]]:
        """Yield the selected cells of valid trials; raise BadInputError if there are none."""
        found = False
        for record in self._directory.trials():
            for cell in record.cells:
                if record.valid and wanted.holds(record, cell):
                    found = True
                    yield record, cell
        if not found:
            text = f"{self.path} has no valid trial with {wanted}"
            raise BadInputError(text, hint="run.trials and run.summary() show what there is")
