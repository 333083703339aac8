"""The three ways in which a session's settings come back: by itself, by its script, by a roll-back elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.knobs import rollback

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.hosts.host import Shell
    from nearmetal.knobs.session import Session

WAYS = ("undo", "script", "another process")


def check_undone(
    shell: Shell, begun: Session, by: str, state: Callable[[], object], before: object, *, node: str = ""
) -> None:
    """Undo a session in one of the ways, and check that all is as before; the session itself may follow its script."""
    if by == "script":
        finished = shell.run(["sh", "-c", begun.undo_script], node=node, check=False)
        assert (finished.exit_status, state()) == (0, before), finished.text
    if by == "another process":
        begun.journal.close()
        assert not rollback.roll_back(shell, begun.journal.path).unproven
    else:
        assert not begun.restore()[0].unproven
    assert state() == before


def process_on(shell: Shell, node: str) -> str:
    """Return a process in the network namespace of a node."""
    there = shell.run(["readlink", "/proc/self/ns/net"], node=node).text.strip()
    find = f"for f in /proc/[0-9]*; do [ $(readlink $f/ns/net) = {there} ] && echo ${{f##*/}} && break; done"
    return shell.run(["sh", "-c", find]).text.strip()
