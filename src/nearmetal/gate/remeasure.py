"""Fresh blocks of a run's study, in their own run directory: nothing is ever added to a finished run.

The study is the run's, to the byte; block numbers start after all that the run has. A launch measures all sizes of its
workload, as it did in the run: a size alone would be another measurement. The baseline is measured beside what was
suspected, under both its names, so that the directory compares like any other.
"""

from collections.abc import Sequence
from pathlib import Path

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.hosts.host import Host
from nearmetal.results.series import CellId, Combination, RunSeries, are_fresh
from nearmetal.run.schedule import Watcher, run_block
from nearmetal.store.query import disagreements, valid
from nearmetal.store.rundir import RunDir, RunInfo, TrialRecord
from nearmetal.study.order import labels_of


def concerned(series: RunSeries, suspects: Sequence[CellId], control: str) -> set[Combination]:
    """Return what has to be launched: the suspects' combinations, with the baseline and the control."""
    companions = {*labels_of(series.study.baseline), *([control] if control else [])}
    return {cell.combination for cell in suspects} | {
        (path, cell.workload, cell.setting) for cell in suspects for path in companions
    }


def open_directory(series: RunSeries, root: Path) -> RunDir:
    """Make the directory for fresh blocks, or open the one that an interrupted gate left.

    Raise BadInputError for another run, and for fresh blocks that were begun before the last trial of this one.
    """
    info = series.run.info
    if (root / "run.json").exists():
        fresh = RunDir.open_for_writing(root)
        trials = fresh.trials()
        if fresh.info.study_sha256 != info.study_sha256 or (trials and not are_fresh(series.study, trials)):
            fresh.close()
            text = f"{root} is a run, but not one of fresh blocks of {series.run.root}"
            raise BadInputError(text, hint="name another --out")
        if fresh.info.created_utc < (last := max(record.started_utc for record in series.records)):
            fresh.close()
            text = f"the fresh blocks in {root} were begun before the last trial of {series.run.root} ({last})"
            raise BadInputError(text, hint="they are of an earlier run: name another --out, or remove them")
        return fresh
    made = RunInfo.now(info.study_name, info.study_sha256, info.host_kind, info.host_label)
    return RunDir.create(root, made, series.run.study_text(), hosts_text=series.run.hosts_text())


def first_block(series: RunSeries) -> int:
    """Return a number after all blocks that the run has, and after its first occasion: by that they are known as fresh.

    A later occasion of the run may have the same numbers in its own directory; nothing pairs blocks of two directories.
    """
    return max(series.study.trials.max_blocks, 1 + max((r.order.block for r in series.records), default=0))


def measure(
    series: RunSeries, host: Host, fresh: RunDir, watcher: Watcher, *, wanted: set[Combination], blocks: int
) -> None:
    """Carry out `blocks` further blocks of the combinations; those that `fresh` holds already are not repeated.

    Raise UnavailableError after the first block when its facts are not those of the run: then this is no longer what
    the run measured, and nothing measured here can confirm it.
    """
    records = fresh.trials()
    first = first_block(series)
    for number in range(first, first + blocks):
        run_block(series.study, host, fresh, watcher, number=number, wanted=wanted, records=records)
        if number == first:
            _refuse_another_state(series, records)


def _refuse_another_state(series: RunSeries, records: Sequence[TrialRecord]) -> None:
    known = {str(one) for one in disagreements(series.records)}
    found = [one for one in disagreements((*series.records, *valid(records))) if str(one) not in known]
    if found:
        lines = "\n  ".join(f"{one.fact}: {one.values[0]} in the run, {', '.join(one.values[1:])} now" for one in found)
        text = f"this machine is no longer in the state that {series.run.root} measured:\n  {lines}"
        raise UnavailableError(text, hint="restore that state")
