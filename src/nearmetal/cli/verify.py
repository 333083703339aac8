"""`nearmetal verify DIR...`: whether every file of a run is still what was recorded."""

from pathlib import Path

import click

from nearmetal.cli.values import PATH
from nearmetal.errors import ExitCode
from nearmetal.store.searchdir import open_either
from nearmetal.store.verify import Verification, verify
from nearmetal.units import counted


@click.command(name="verify")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="DIR...")
def command(runs: tuple[Path, ...]) -> int:
    """Read each run or search DIR completely and check every file against its recorded SHA-256.

    Exit code 0: all match. 1: a file has changed or is missing, or the study was edited. 4: nothing has changed, but
    some files have no recorded checksum because an older nearmetal wrote them.
    """
    codes = [_one(root) for root in runs]
    return ExitCode.FAILED if ExitCode.FAILED in codes else max(codes)


def _one(root: Path) -> ExitCode:
    """Print what was found in one run; return its exit code."""
    found = verify(open_either(root))
    for problem in found.problems + found.gone:
        click.echo(problem)
    click.echo(f"{root}: {_summary(found)}")
    if found.problems or found.gone:
        return ExitCode.FAILED
    return ExitCode.PARTIAL if found.without_sums else ExitCode.OK


def _summary(found: Verification) -> str:
    checked = f"{counted(found.trials, 'trial')}, {counted(found.files, 'file')}"
    good = f"{checked} ({found.size_bytes / 1e6:.1f} MB) match their checksums"
    parts = [good]
    if found.problems:
        parts.append("1 does not" if len(found.problems) == 1 else f"{len(found.problems)} do not")
    if found.gone:
        parts.append("1 trial is missing" if len(found.gone) == 1 else f"{len(found.gone)} trials are missing")
    if found.without_sums:
        parts.append(f"{len(found.without_sums)} have no recorded checksum")
    if found.unfinished:
        parts.append(f"{len(found.unfinished)} from unfinished trials")
    return ", ".join(parts)
