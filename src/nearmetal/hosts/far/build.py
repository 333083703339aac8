"""Programs built where they run: sources are sent, the far compiler builds, the far cache keeps."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal import native
from nearmetal.errors import NearmetalError
from nearmetal.hosts.host import FarShell, machines_of

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.native import Recipe

_INSTALL = 'chmod 755 -- "$1" && mv -f -- "$1" "$2"'


def program(shell: Shell, recipe: Recipe) -> Path:
    """Return a program as the shell's machines see it, built there when it is not in their cache.

    Raises NearmetalError with the compiler's last words, UnavailableError without sources or compiler.
    """
    if not isinstance(shell, FarShell):
        return native.build(recipe)
    far = shell
    return far.once(f"program {recipe!r} {machines_of(far)}", lambda: _on_every_machine(far, recipe))


def _on_every_machine(shell: FarShell, recipe: Recipe) -> Path:
    """Build on each machine whose cache lacks the program: they may or may not share a file system."""
    place = Path(shell.site.cache) / "programs" / f"{recipe.name}-{native.fingerprint(recipe)}"
    for node in shell.machines:
        if not shell.run(["test", "-x", str(place)], node=node, check=False).ok:
            _build(shell, node, recipe, place)
    return place


def _build(shell: FarShell, node: str, recipe: Recipe, place: Path) -> None:
    work = f"{place}.{secrets.token_hex(4)}"
    shell.run(["mkdir", "-p", "--", work], node=node)
    try:
        for room in (recipe.room, *recipe.include_rooms):
            shell.run(["mkdir", "-p", "--", f"{work}/{room}"], node=node)
            for file in sorted([*native.source_dir(room).glob("*.h"), *native.source_dir(room).glob("*.c")]):
                shell.write(f"{work}/{room}/{file.name}", file.read_bytes(), node=node)
        made = f"{work}/{recipe.name}"
        argv = native.compile_argv(recipe, lambda room: f"{work}/{room}", made)
        finished = shell.run(argv, node=node, timeout_s=native.BUILD_TIMEOUT_S, check=False)
        if not finished.ok:
            raise NearmetalError(
                f"cannot build {recipe.name} on {node or 'the far machine'}: {finished.complaint()}",
                hint="the far side needs that MPI's mpicc and a C11 compiler with headers",
            )
        shell.run(["sh", "-c", _INSTALL, "sh", made, str(place)], node=node)
    finally:
        shell.run(["rm", "-rf", "--", work], node=node, check=False)
