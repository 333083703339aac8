"""A study file becomes a run directory: checked, labelled, and ready for its first trial."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import nearmetal
from nearmetal.run.check import check_study
from nearmetal.run.guests import open_host
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.study.shipped import read_study
from nearmetal.study.spec import Study, digest


def begin(study: Path, out: Path | None) -> tuple[Study, RunDir]:
    """Read a study and make its run directory, locked; without `out` it is runs/NAME-TIME.

    Raise BadInputError for a study that cannot be carried out, or a directory that holds something.
    """
    spec, text = read_study(study)
    check_study(spec)
    return spec, RunDir.create(out or default_root(spec.name), info_of(spec, text), text)


def default_root(name: str) -> Path:
    """Return runs/NAME-TIME."""
    return Path("runs") / f"{name}-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}"


def info_of(spec: Study, text: str) -> RunInfo:
    """Return what a run of a study is, from now on."""
    created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    host = open_host(spec)
    try:
        return RunInfo(spec.name, digest(text), host.kind, host.label, nearmetal.__version__, created)
    finally:
        host.close()
