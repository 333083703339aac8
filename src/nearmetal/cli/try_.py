"""`nearmetal try`: a finished run that comes with nearmetal, in the browser at once."""

import os
import webbrowser
from importlib import resources

import click

from nearmetal import scratch
from nearmetal.cli.main import loading
from nearmetal.cli.serve import LOOPBACK, until_interrupted
from nearmetal.errors import command_line

_NAME = "example"


@click.command(name="try")
@click.option("--no-browser", is_flag=True, help="Print the address only.")
def command(*, no_browser: bool) -> None:
    """Show the report of a small finished run that ships with nearmetal; nothing is measured.

    Prints the address and, on a desktop, opens it in the browser. Stop it with Ctrl-C.
    """
    with loading():
        from nearmetal.serve.catalogue import Catalogue  # noqa: PLC0415
        from nearmetal.serve.pages import run_path  # noqa: PLC0415
        from nearmetal.serve.server import listen, preload  # noqa: PLC0415
        from nearmetal.store.archive import unarchive  # noqa: PLC0415

    with scratch.folder("nm") as folder:
        with resources.as_file(resources.files("nearmetal.serve") / f"{_NAME}.zip") as archive:
            unarchive(archive, folder / _NAME)
        catalogue, listening = Catalogue(folder), listen(LOOPBACK, 0)
        preload()
        address = listening.at(run_path(_NAME))
        click.echo(address)
        click.echo(
            f"the run is {folder / _NAME} until Ctrl-C; beside the browser, in another terminal:\n"
            f"  {command_line('compare', folder / _NAME)}\n"
            f"  {command_line('advise', folder / _NAME)}\n"
            "your own: nearmetal run paths, or between two machines: nearmetal between HOST1 HOST2",
            err=True,
        )
        if not no_browser and _has_a_screen():
            webbrowser.open(address)
        until_interrupted(catalogue, listening)


def _has_a_screen() -> bool:
    """Return whether a browser would open a window; one that draws in the terminal would cover the output."""
    return any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
