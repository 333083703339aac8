"""The reference of hosts and paths, made from their tables by `make reference`."""

from __future__ import annotations

import sys

from nearmetal.hosts.table import HOSTS
from nearmetal.paths.table import PATHS

_HEAD = """# Hosts and paths

What `host.kind`, `host.options` and `path.kind` of a [study](study.md) may say. Made from the code by `make reference`.
"""
_PATHS = """
## Paths

| kind | what joins the nodes |
|---|---|
"""
_MACHINES = """
Options of a path on an ssh, kubectl or batch host:

| option | meaning |
|---|---|
| `nodes` | of a `declared` path: names of its machines, separated by blanks |
| `hypervisor` | of any other path: the machine on which it is built |
| `network` | `own` (a scratch network) or `machine` (its own ports); by the recipe when left out |
| `interface` | of a `declared` path: the interface on every machine, where it is not the node's |

Options in the lab are in [its page](../how-to/lab.md).
"""


def reference() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for kind, row in HOSTS.items():
        parts.append(f"\n## `{kind}`\n\n{row.about}\n")
        if row.options:
            parts.append("\n| option | meaning (default) |\n|---|---|\n")
            parts += [f"| `{name}` | {meaning} |\n" for name, meaning in row.options.items()]
    parts.append(_PATHS)
    parts += [f"| `{path.kind}` | {path.about} |\n" for path in PATHS.values()]
    return "".join((*parts, _MACHINES))


if __name__ == "__main__":
    sys.stdout.write(reference())
