"""Every kind of host: a new one is one file and one row."""

from __future__ import annotations

import sys
from collections.abc import Callable

from nearmetal.errors import UnavailableError
from nearmetal.hosts.batch.host import open_batch
from nearmetal.hosts.fake import FakeHost
from nearmetal.hosts.host import Host
from nearmetal.hosts.kubectl import open_kubectl
from nearmetal.hosts.lab.lab import open_lab
from nearmetal.hosts.local import LocalHost
from nearmetal.study.spec import Study


def _ssh(study: Study) -> Host:
    """Load asyncssh only for a study that needs it."""
    try:
        from nearmetal.hosts.ssh.host import open_ssh  # noqa: PLC0415
    except ImportError as error:
        raise UnavailableError(f"the ssh host needs asyncssh: {error}", hint="pip install 'nearmetal[ssh]'") from error
    return open_ssh(study.host)


HOSTS: dict[str, Callable[[Study], Host]] = {
    "local": lambda _: LocalHost(),
    "lab": lambda study: open_lab(study.host.options, _say),
    "ssh": _ssh,
    "slurm": lambda study: open_batch("slurm", study),
    "kubectl": lambda study: open_kubectl(study.host),
    "fake": lambda study: FakeHost(study.host.options),
    "import": lambda _: _refuse(),
}


def _refuse() -> Host:
    raise UnavailableError(
        "this run was imported from files: there is no host to measure on",
        hint="import the new files together with the old ones into another run",
    )


def _say(text: str) -> None:
    sys.stderr.write(f"lab: {text}\n")


def open_host(study: Study) -> Host:
    """Return the host of a study, ready to carry trials out; raise UnavailableError when it cannot work here."""
    return HOSTS[study.host.kind](study)
