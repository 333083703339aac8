"""A study file becomes a run directory: checked, labelled, and ready for its first trial."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import nearmetal
from nearmetal.run.check import check_study
from nearmetal.run.guests import open_host
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.study.spec import Study, digest, read_study


def begin(study: Path, out: Path | None) -> tuple[Study, RunDir]:
    """Read a study and make its run directory, locked; without `out` it is runs/NAME-TIME.

    Raise BadInputError for a study that cannot be carried out, or a directory that holds something.
    """
    spec, text = read_study(study)
    check_study(spec)
    now = dt.datetime.now(dt.UTC)
    root = out or Path("runs") / f"{spec.name}-{now:%Y%m%dT%H%M%SZ}"
    host = open_host(spec)
    try:
        info = RunInfo(
            spec.name, digest(text), host.kind, host.label, nearmetal.__version__, now.isoformat(timespec="seconds")
        )
    finally:
        host.close()
    return spec, RunDir.create(root, info, text)
