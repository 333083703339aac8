"""Programs built where they run: sources are sent, the far compiler builds, the far cache keeps."""

from pathlib import Path

from nearmetal import native
from nearmetal.errors import NearmetalError
from nearmetal.hosts.host import FarShell, Shell, is_far
from nearmetal.native import Recipe

_INSTALL = 'mkdir -p -- "${2%/*}" && chmod 755 -- "$1" && cp -- "$1" "$2.$$" && mv -f -- "$2.$$" "$2"'


def program(shell: Shell, recipe: Recipe) -> Path:
    """Return a program as the shell's machines see it, built there when it is not in their cache.

    Raises NearmetalError with the compiler's last words, UnavailableError without sources or compiler.
    """
    if not is_far(shell):
        return native.build(recipe)
    far = shell
    return far.once(f"program {recipe!r}", lambda: _on_every_machine(far, recipe))


def _on_every_machine(shell: FarShell, recipe: Recipe) -> Path:
    """Build on each machine whose cache lacks the program: they may or may not share a file system."""
    place = Path(shell.site.cache) / "programs" / f"{recipe.name}-{native.fingerprint(recipe)}"
    for node in shell.machines:
        if not shell.run(["test", "-x", str(place)], node=node, check=False).ok:
            _build(shell, node, recipe, place)
    return place


def _build(shell: FarShell, node: str, recipe: Recipe, place: Path) -> None:
    """Build in the shell's scratch directory, which goes with the connection, and put the finished program in place."""
    work = f"{shell.scratch}/{place.name}"
    try:
        files = native.all_files(recipe)
        folders = sorted({f"{work}/{name}".rpartition("/")[0] for name in files})
        shell.run(["mkdir", "-p", "--", *folders], node=node)
        for name, path in files.items():
            shell.write(f"{work}/{name}", path.read_bytes(), node=node)
        made = f"{work}/{recipe.name}"
        argv = native.compile_argv(recipe, lambda room: f"{work}/{room}", made)
        finished = shell.run(argv, node=node, timeout_s=native.BUILD_TIMEOUT_S, check=False)
        if not finished.ok:
            message = f"cannot build {recipe.name} on {node or 'the far machine'}: {finished.complaint()}"
            needed = "that machine needs the MPI's mpicc and a C11 compiler with its headers"
            raise NearmetalError(message, hint=native.LATE_HINT if finished.timed_out else needed)
        shell.run(["sh", "-c", _INSTALL, "sh", made, str(place)], node=node)
    finally:
        shell.run(["rm", "-rf", "--", work], node=node, check=False)
