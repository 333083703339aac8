"""`nearmetal export PROFILE --to TOOL`: a profile in the words of another tool."""

from pathlib import Path

import click

from nearmetal.cli.values import PATH, write_file
from nearmetal.tune.export.table import EXPORTS, export
from nearmetal.tune.profile import Profile


@click.command(name="export")
@click.argument("profile", type=PATH)
@click.option("--to", required=True, type=click.Choice(list(EXPORTS)), help="The tool to write for.")
@click.option("--out", type=PATH, help="Write the files into this directory instead of stdout.")
def command(profile: Path, to: str, out: Path | None) -> None:
    """Write PROFILE as files for another tool. Knobs that the tool cannot express are listed on stderr."""
    made = export(Profile.read(profile), to)
    for name, text in made.files.items():
        if out is None:
            click.echo(text, nl=False)
            continue
        place = out / name
        write_file(place, text, parents=True)
        place.chmod(0o755 if text.startswith("#!/") else 0o600 if to == "networkmanager" else 0o644)
        click.echo(str(place))
    for knob, reason in made.left_out.items():
        click.echo(f"warning: {knob} is left out: {reason}", err=True)
    them, into = "it" if len(made.files) == 1 else "them", "" if made.where.startswith("anywhere") else "into "
    click.echo(f"put {them} {into}{made.where}", err=True)
