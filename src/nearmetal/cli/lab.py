"""`nearmetal lab build|status|clean|shell`: the image of the emulated SR-IOV cluster."""

import contextlib
import shutil
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from nearmetal import native, scratch
from nearmetal.errors import BadInputError, ExitCode, NearmetalError, TrialError, UnavailableError
from nearmetal.hosts.lab import cache, image, terminal
from nearmetal.hosts.lab.lab import LABEL, LabHost, find_emulator, open_lab
from nearmetal.hosts.lab.machine import MACHINES
from nearmetal.hosts.lab.root import require_builder
from nearmetal.hosts.lab.wire import NODES_MAX, RECIPE
from nearmetal.hosts.lab.wirecheck import WIRE_FITS, fitting_wire
from nearmetal.paths.guests import GUEST_PATHS
from nearmetal.paths.table import find_path
from nearmetal.report.terminal import Console
from nearmetal.run.session import SESSION, STATUS, STDERR, STDOUT
from nearmetal.study.order import Order, Outcome, PathOrder, Scalar, TrialStatus, WorkloadOrder

CLUSTER_PATHS = ("native", "vf", "macvlan", "bridge", "tap", *(path.kind for path in GUEST_PATHS))
"""The paths that machines of a cluster can be joined by."""
_LONGEST_S = 86_400.0
"""Of virtual time; at a prompt it passes faster than the clock on the wall."""
_BY_SIGNAL = 128


@click.group(name="lab")
def command() -> None:
    """Build, inspect or open the lab: an emulated SR-IOV cluster with real drivers, in virtual time."""


@command.command()
@click.option("--again", is_flag=True, help="Rebuild even if the cached image is up to date.")
def build(*, again: bool) -> None:
    """Build the image from this machine's Debian or Ubuntu packages. It is booted once, and cached."""
    started_s = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - started_s:5.1f} s] {text}", err=True)

    built = image.build(say, again=again)
    open_lab({}, say).prepare()
    say("done")
    click.echo(str(built.folder))


@command.command()
@click.option("--verify", is_flag=True, help="Also check every file's checksum.")
def status(*, verify: bool) -> int:
    """Show if the lab can run on this machine, and what is cached. The machine configurations are listed, too."""
    console = Console()
    problems = [problem for problem in (_problem(find_emulator), _problem(image.require_built)) if problem]
    builder = _problem(require_builder)
    console.print("the lab can run here" if not problems else "the lab cannot run here")
    for problem in problems:
        console.print(f"  {problem.message}\n  hint: {problem.hint}", soft_wrap=True)
    wire = _problem(lambda: fitting_wire(*find_emulator()))
    console.print(f"machines can be coupled into a cluster: {WIRE_FITS}" if not wire else "machines cannot be coupled")
    if wire:
        console.print(f"  {wire.message}\n  hint: {wire.hint}", soft_wrap=True)
    console.print("an image can be built here" if not builder else f"no image can be built here: {builder.message}")
    entries = cache.cached(_makes(), verify=verify)
    for entry in entries:
        if entry.serves:
            console.print(f"{entry.folder.name}: {entry.about}, {entry.size_bytes >> 20} MiB")
    if old := cache.old_of(entries):
        console.print(old)
    for machine in MACHINES.values():
        console.print(f"{machine.name}: {machine.about}; {machine.memory_mib} MiB")
    console.print(f"figures are from {LABEL}")
    return ExitCode.UNAVAILABLE if problems else ExitCode.OK


@command.command()
@click.option("--all", "everything", is_flag=True, help="Also remove the root layer, which takes a minute to rebuild.")
@click.option("--old", "old_only", is_flag=True, help="Remove only what is of other sources, packages or emulators.")
def clean(*, everything: bool, old_only: bool) -> None:
    """Remove images, snapshots and unfinished work from the cache. No lab may be running."""
    if everything and old_only:
        raise BadInputError("--all and --old exclude each other", hint="--old removes old root layers too")
    for folder in cache.clean(_makes(), everything=everything, old_only=old_only):
        click.echo(f"removed {folder}")


def _makes() -> dict[str, str]:
    """Return the facts of snapshots that are made here now, empty if none can be made."""
    with contextlib.suppress(UnavailableError):
        _, version = find_emulator()
        return image.made_with(version, native.build(RECIPE))
    return {}


@command.command()
@click.argument("node", default="n0")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("--path", "kind", default="native", show_default=True, help="The path of the lab that joins the nodes.")
@click.option("--nodes", default=2, type=click.IntRange(2, NODES_MAX), show_default=True, help="How many machines.")
def shell(node: str, argv: tuple[str, ...], kind: str, nodes: int) -> int:
    """Open a shell on NODE of a cluster, or run COMMAND there.

    A path joins the nodes meanwhile. NODE is n0, n1 ... or, on a path with guests, g0, g1 ... The machines are those of
    a trial, in virtual time, and end with the shell; ctrl-] ends them, too.
    """
    guests = kind in {path.kind for path in GUEST_PATHS}
    known = [f"{letter}{number}" for letter in ("ng" if guests else "n") for number in range(nodes)]
    if find_path(kind).kind not in CLUSTER_PATHS:
        message = f"path {kind!r} does not connect machines of the lab"
        raise BadInputError(message, hint=f"one of: {', '.join(CLUSTER_PATHS)}")
    if node not in known:
        raise BadInputError(f"there is no node {node!r} on path {kind!r}", hint=f"one of: {', '.join(known)}")
    options: dict[str, Scalar] = {"machine": "kvm" if guests else "base", "nodes": nodes, "variants": 1}
    rows, columns = shutil.get_terminal_size()[::-1]
    wanted: dict[str, Scalar | list[Scalar]] = {"node": node, "rows": rows, "columns": columns}
    workload = WorkloadOrder(SESSION, SESSION, wanted | ({"argv": list(argv)} if argv else {}), tuple(range(nodes)))
    order = Order(0, 0, PathOrder(kind, kind), workload, timeout_s=_LONGEST_S)
    with contextlib.closing(open_lab(options, lambda text: click.echo(text, err=True))) as host:
        outcome = host.carry_out(order, _elsewhere) if argv else _at_terminal(host, order)
    if outcome is None:
        return ExitCode.OK
    if outcome.status is not TrialStatus.VALID:
        raise TrialError(outcome.reason, hint=outcome.hint)
    sys.stdout.buffer.write(outcome.files[STDOUT])
    sys.stderr.buffer.write(outcome.files[STDERR])
    status = int(outcome.facts[STATUS])
    return status if status >= 0 else _BY_SIGNAL - status


def _at_terminal(host: LabHost, order: Order) -> Outcome | None:
    """Join this terminal to the cluster; return what came of the shell, or None when the person left it."""
    with (
        scratch.folder("nearmetal-lab") as folder,
        contextlib.closing(socket.socket(socket.AF_UNIX)) as listener,
        ThreadPoolExecutor(1) as pool,
    ):
        host.terminal = Path(folder, "console")
        listener.bind(str(host.terminal))
        listener.listen(1)
        click.echo("in virtual time; leave with `exit`, or with ctrl-]", err=True)
        session = pool.submit(host.carry_out, order, _elsewhere)
        try:
            left = terminal.attend(listener, session.done)
        except BaseException:
            host.close()
            raise
        if left:
            host.close()
            return None
        return session.result()


def _elsewhere(*_: object) -> Outcome:
    raise AssertionError("the lab's own body carries it out")


def _problem(check: Callable[[], object]) -> NearmetalError | None:
    try:
        check()
    except NearmetalError as error:
        return error
    return None
