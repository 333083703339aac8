"""`nearmetal lab build|status|clean|shell`: the image of the emulated SR-IOV cluster."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import click
from rich.table import Table

from nearmetal import scratch
from nearmetal.errors import ExitCode, NearmetalError
from nearmetal.hosts.lab import image
from nearmetal.hosts.lab.lab import LABEL, find_emulator, open_lab
from nearmetal.hosts.lab.machine import MACHINES, Files, machine_named, shell_argv
from nearmetal.hosts.lab.root import require_builder
from nearmetal.hosts.lab.wirecheck import WIRE_FITS, fitting_wire
from nearmetal.report.terminal import Console
from nearmetal.units import format_size


@click.group(name="lab")
def command() -> None:
    """Build, inspect or open the lab: an emulated SR-IOV cluster with real drivers, in virtual time."""


@command.command()
@click.option("--again", is_flag=True, help="Rebuild even if the cached image is up to date.")
def build(*, again: bool) -> None:
    """Build the image from this machine's Debian or Ubuntu packages, and boot it once. The result is cached."""
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
    """Show if the lab can run on this machine, what is cached, and what each machine configuration is."""
    console = Console(highlight=False, soft_wrap=True)
    problems = [problem for problem in (_problem(find_emulator), _problem(image.require_built)) if problem]
    builder = _problem(require_builder)
    console.print("the lab can run here" if not problems else "the lab cannot run here")
    for problem in problems:
        console.print(f"  {problem.message}\n  hint: {problem.hint}")
    wire = _problem(lambda: fitting_wire(*find_emulator()))
    console.print(f"machines can be coupled into a cluster: {WIRE_FITS}" if not wire else "machines cannot be coupled")
    if wire:
        console.print(f"  {wire.message}\n  hint: {wire.hint}")
    console.print("an image can be built here" if not builder else f"no image can be built here: {builder.message}")
    table = Table("folder", "made of", "size", "state", box=None, pad_edge=False, header_style="bold")
    for entry in image.cached(verify=verify):
        table.add_row(entry.folder.name, entry.about, format_size(entry.size_bytes), entry.state)
    console.print(table)
    for machine in MACHINES.values():
        console.print(f"{machine.name}: {machine.about}; {machine.memory_mib} MiB")
    console.print(f"figures are from {LABEL}")
    return ExitCode.UNAVAILABLE if problems else ExitCode.OK


@command.command()
@click.option("--all", "everything", is_flag=True, help="Also remove the root layer, which takes a minute to rebuild.")
def clean(*, everything: bool) -> None:
    """Remove images, snapshots and unfinished work from the cache."""
    for folder in image.clean(everything=everything):
        click.echo(f"removed {folder}")


@command.command()
@click.argument("machine", default="base")
def shell(machine: str) -> int:
    """Open a console on a fresh MACHINE. It runs on the real clock, so nothing measured there is reproducible."""
    program, _ = find_emulator()
    chosen = machine_named(machine)
    built = image.current(lambda text: click.echo(text, err=True))
    with scratch.folder("nearmetal-lab") as folder:
        unused = Path(folder, "unused")
        files = Files(built.kernel, built.initrd, unused, unused, unused, unused)
        # The one program that is not started through nearmetal.process: the terminal is its own.
        return subprocess.run(shell_argv(program, chosen, files), check=False).returncode


def _problem(check: object) -> NearmetalError | None:
    assert callable(check)
    try:
        check()
    except NearmetalError as error:
        return error
    return None
