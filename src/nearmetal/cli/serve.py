"""`nearmetal serve [DIR]`: browse runs, compare two, follow one, in a web browser."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nearmetal.cli.main import loading
from nearmetal.cli.values import PATH
from nearmetal.errors import BadInputError
from nearmetal.units import counted

if TYPE_CHECKING:
    from nearmetal.serve.catalogue import Catalogue
    from nearmetal.serve.server import Listening

LOOPBACK = "127.0.0.1"


@click.command(name="serve")
@click.argument("directory", metavar="[DIR]", type=PATH, default=Path("runs"))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The TCP port [default: any free port].")
@click.option(
    "--listen", "address", default=LOOPBACK, metavar="ADDR", help="Listen on ADDR, so that other machines can connect."
)
@click.option("--socket", "place", type=PATH, help="Listen on this Unix socket instead.")
@click.option("--behind", metavar="URL", help="Public address of the reverse proxy, such as https://host/nearmetal.")
def command(directory: Path, port: int, address: str, place: Path | None, behind: str | None) -> None:
    """Serve the runs in DIR (default: runs) to a web browser on this machine, read-only.

    Prints the address, with the token that opens it. Stop it with Ctrl-C.
    """
    with loading():  # all that a page may show
        from nearmetal.serve.behind import PublicAddress  # noqa: PLC0415
        from nearmetal.serve.catalogue import Catalogue  # noqa: PLC0415
        from nearmetal.serve.server import listen, listen_on_socket, preload  # noqa: PLC0415

    catalogue = Catalogue(directory)
    public = PublicAddress.parse(behind) if behind else None
    if place and (port or address != LOOPBACK):
        raise BadInputError("--socket cannot be combined with --listen or --port", hint="drop --listen and --port")
    listening = listen_on_socket(place, public) if place else listen(address, port, public)
    if listening.access.beyond_loopback:
        click.echo(
            "warning: anyone who can reach this address and has the token can read every run; nothing is encrypted\n"
            f"hint: safer from another machine: ssh -L 8470:{LOOPBACK}:PORT THIS-MACHINE",
            err=True,
        )
    preload()
    runs = counted(len(catalogue.entries()), "run")
    click.echo(f"serving {runs} of {catalogue.root}; stop with Ctrl-C", err=True)
    click.echo(listening.url)
    try:
        until_interrupted(catalogue, listening)
    finally:
        if place:
            place.unlink(missing_ok=True)


def until_interrupted(catalogue: Catalogue, listening: Listening) -> None:
    """Serve until Ctrl-C."""
    from nearmetal.serve.server import serve  # noqa: PLC0415 (as above)

    with contextlib.closing(listening.socket), contextlib.suppress(KeyboardInterrupt):
        serve(catalogue, listening)
    click.echo("stopped", err=True)
