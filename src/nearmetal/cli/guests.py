"""`nearmetal guests`: what libvirt gives its guests, and what of it would spoil a measurement."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from nearmetal.errors import ExitCode, ForeignFileError
from nearmetal.facts.below import look_below
from nearmetal.facts.guests import Guest, Hypervisor, parse_domain, warnings
from nearmetal.hosts.libvirt import domain_xml
from nearmetal.hosts.machine import MachineShell

_MIB = 1 << 20


@click.command(name="guests")
@click.option("--libvirt", "uri", metavar="URI", help="Read the domains of this libvirt, such as qemu:///system.")
@click.option(
    "--xml", "files", multiple=True, type=click.Path(path_type=Path), help="Read what `virsh dumpxml` printed."
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", help="What to print.")
@click.option("--strict", is_flag=True, help="Exit with status 1 when there is anything to warn of.")
def command(uri: str | None, files: tuple[Path, ...], form: str, *, strict: bool) -> int:
    """Show guests with their vCPUs, memory and NICs; warn of known confounders before anything is measured."""
    if not uri and not files:
        raise click.UsageError("give --libvirt URI, or --xml FILE")
    guests, below = _read(uri, files)
    found = warnings(guests, below)
    if form == "json":
        facts = {name: value for guest in guests for name, value in guest.facts().items()}
        click.echo(json.dumps({"facts": facts, "warnings": found}, indent=1, sort_keys=True))
    else:
        Console().print(_table(guests))
        for warning in found:
            click.echo(f"warning: {warning}", err=True)
    return ExitCode.FAILED if strict and found else ExitCode.OK


def _read(uri: str | None, files: tuple[Path, ...]) -> tuple[list[Guest], Hypervisor]:
    """Return the guests, and the machine below them where it is this one."""
    texts = [_text(path) for path in files]
    if not uri:
        return [parse_domain(text) for text in texts], Hypervisor()
    with MachineShell() as shell:
        texts += domain_xml(shell, uri)
        below = look_below(shell) if uri.partition("://")[2].startswith("/") else Hypervisor()
    return [parse_domain(text) for text in texts], below


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise ForeignFileError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ForeignFileError(f"{path} is not UTF-8 text: {error}") from error


def _table(guests: list[Guest]) -> Table:
    table = Table("guest", "vCPUs (pinned)", "memory", "NIC", "backend", "queues", "behind it", title="Guests")
    for guest in guests:
        pages = (
            f", {guest.page_bytes // 1024} KiB pages" if guest.page_bytes else ", huge pages" if guest.hugepages else ""
        )
        row = [guest.name, f"{guest.vcpus} ({len(guest.pins)})", f"{guest.memory_bytes // _MIB} MiB{pages}"]
        for nic in guest.nics:
            table.add_row(*row, nic.kind, nic.backend, str(nic.queues), nic.source)
            row = ["", "", ""]
        if not guest.nics:
            table.add_row(*row, "none", "", "", "")
    return table
