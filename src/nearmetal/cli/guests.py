"""`nearmetal guests`: what libvirt gives its guests, and what of it would spoil a measurement."""

import json
from pathlib import Path

import click

from nearmetal.cli.progress import warn
from nearmetal.cli.values import PATH, format_option
from nearmetal.errors import ExitCode, ForeignFileError
from nearmetal.facts.guests import Guest, HypervisorFacts, parse_domain, warnings
from nearmetal.reading import read_text
from nearmetal.report import words
from nearmetal.report.as_table import draw
from nearmetal.report.tables import Table
from nearmetal.report.terminal import Console
from nearmetal.run.guests import look_at
from nearmetal.units import format_size

_MIB = 1 << 20

_DUMP = "`virsh dumpxml GUEST > FILE` writes such a file"


@click.command(name="guests")
@click.option("--libvirt", "uri", metavar="URI", help="Read the domains of this libvirt, such as qemu:///system.")
@click.option("--xml", "files", multiple=True, type=PATH, help="Read a file written by `virsh dumpxml`.")
@format_option("table", "json")
@click.option("--strict", is_flag=True, help="Exit with status 1 if there are warnings.")
def command(uri: str | None, files: tuple[Path, ...], form: str, *, strict: bool) -> int:
    """Show guests with their vCPUs, memory and NICs, and warn about known confounders before you measure."""
    if not uri and not files:
        raise click.UsageError("give --libvirt URI, or --xml FILE")
    guests, found = _read(uri, files)
    if form == "json":
        facts = {name: value for guest in guests for name, value in guest.facts().items()}
        click.echo(json.dumps({"facts": facts, "warnings": found}, indent=1, sort_keys=True))
    else:
        draw(Console(), _tables(guests))
        for warning in found:
            warn(warning)
    return ExitCode.FAILED if strict and found else ExitCode.OK


def _read(uri: str | None, files: tuple[Path, ...]) -> tuple[list[Guest], list[str]]:
    """Return the guests, and what would spoil a measurement."""
    guests = [_domain(path) for path in files]
    found = warnings(guests, HypervisorFacts())
    if uri:
        look = look_at(uri)
        guests += look.guests
        found += look.warnings
    return guests, found


def _domain(path: Path) -> Guest:
    try:
        return parse_domain(read_text(path))
    except OSError as error:
        raise ForeignFileError(f"cannot read {path}: {error.strerror}", hint=_DUMP) from error
    except UnicodeDecodeError as error:
        raise ForeignFileError(f"{path} is not UTF-8 text: {error}", hint=_DUMP) from error
    except ForeignFileError as error:
        named = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise ForeignFileError(named, hint=error.hint or _DUMP) from error


def _tables(guests: list[Guest]) -> list[Table]:
    machines = []
    for guest in guests:
        pages = format_size(guest.page_bytes) if guest.page_bytes else "huge" if guest.hugepages else words.NOTHING
        machines.append((guest.name, f"{guest.vcpus} ({len(guest.pins)})", f"{guest.memory_bytes // _MIB} MiB", pages))
    nics = [(one.name, nic.kind, nic.backend, str(nic.queues), nic.source) for one in guests for nic in one.nics]
    return [
        Table("Guests", ("guest", "vCPUs (pinned)", "memory", "large pages"), tuple(machines)),
        Table("NICs", ("guest", "NIC", "backend", "queues", "behind it"), tuple(nics)),
    ]
