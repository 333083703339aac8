"""A study file becomes a run directory: checked, labelled, and ready for its first trial."""

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path

from nearmetal.errors import UnavailableError
from nearmetal.hosts.host import Host
from nearmetal.run.check import check_study
from nearmetal.run.guests import Settle, measuring, open_host, refuse
from nearmetal.run.preflight import preflight
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.study.shipped import read_study, with_hosts_file
from nearmetal.study.spec import Study, digest


@contextlib.contextmanager
def begin(
    study: Path,
    out: Path | None,
    warn: Callable[[str], object] = lambda _: None,
    settle: Settle = refuse,
    *,
    anyway: bool = False,
) -> Iterator[tuple[Study, RunDir, Host]]:
    """Read a study, open its host and make its run directory, locked; without `out` it is runs/NAME-TIME.

    Both are open for the length of a `with`. Raise BadInputError, before the host is opened, for a study that cannot be
    run, or a directory that holds something, and UnavailableError, before anything is made, where its trials would fail
    on the host; with `anyway` those reasons are warnings. `warn` and `settle` are as for `open_host`.
    """
    spec, text = read_study(study)
    check_study(spec)
    RunDir.refuse_used(root := out or default_root(spec.name))
    spec, hosts = with_hosts_file(spec)
    with contextlib.closing(open_host(spec, warn, settle)) as host, measuring(spec):
        try:
            preflight(spec, host, warn)
        except UnavailableError as error:
            if not anyway:
                raise
            warn(error.message)
        with RunDir.create(root, info_of(spec, text, host), text, hosts_text=hosts) as run:
            yield spec, run, host


def default_root(name: str) -> Path:
    """Return runs/NAME-TIME."""
    return Path("runs") / f"{name}-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}"


def info_of(spec: Study, text: str, host: Host) -> RunInfo:
    """Return what a run of a study is, from now on."""
    return RunInfo.now(spec.name, digest(text), host.kind, host.label)
