"""The hosts whose knobs verbs change: this machine, and those that ssh knows by a name."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager

from nearmetal.errors import BadInputError, ExitCode, ForeignFileError, NearmetalError, UnavailableError, meant
from nearmetal.hosts.host import RUN, Shell, Way
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs.guards import identify
from nearmetal.knobs.knob import Target
from nearmetal.knobs.places import LOCAL, interfaces
from nearmetal.study.order import Scalar


@contextmanager
def open_shell(host: str, options: Mapping[str, Scalar] | None = None) -> Iterator[Shell]:
    """Give a shell on a host whose knobs stay as they are set: this machine, or one that ssh knows by that name.

    `options` are those of the host kind `ssh`.
    """
    if host == LOCAL:
        with MachineShell() as here:
            yield here
        return
    try:
        from nearmetal.hosts.ssh.host import machine_shell  # noqa: PLC0415 (asyncssh is an extra)
    except ImportError as error:
        raise UnavailableError(f"{host} is reached over ssh: {error}", hint="pip install 'nearmetal[ssh]'") from error
    with machine_shell(host, options) as there:
        yield there


@contextmanager
def open_as_before(way: Way, options: Mapping[str, Scalar]) -> Iterator[Shell]:
    """Give a shell on a machine that a trial was on, reached as then.

    `options` are added; what is run on this side is taken from them alone.
    """
    # A machine without far hosts needs the standard library alone, as the player in the lab.
    from nearmetal.hosts.table import find_host  # noqa: PLC0415
    from nearmetal.study.spec import HostSpec, NodeSpec  # noqa: PLC0415

    kept = {name: value for name, value in way["options"].items() if name not in RUN}
    try:
        spec = HostSpec(kind=way["kind"], node=[NodeSpec(**way["node"])], options={**kept, **options})
    except (TypeError, ValueError) as error:
        raise ForeignFileError(f"a journal does not say how its machine is reached: {error}") from error
    opened = find_host(spec.kind).machine
    if opened is None:
        raise ForeignFileError(f"a journal names the host {spec.kind!r}, which has no far machines")
    with closing(opened(spec)) as host, closing(host.shells()) as shells:
        yield next(shells)


def refuse_unknown_interfaces(shell: Shell, targets: Iterable[Target]) -> None:
    """Raise BadInputError for an interface that the host does not have, by any of its names."""
    for target in targets:
        try:
            identify(shell, target)
        except NearmetalError as error:
            if error.exit_code != ExitCode.FAILED:
                raise
            known = [one.interface for one in interfaces(shell)]
            raise BadInputError(error.message, hint=meant(target.interface, known, error.hint)) from error
