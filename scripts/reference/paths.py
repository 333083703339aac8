"""The reference of hosts and paths, made from their tables by `make reference`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nearmetal.hosts import fake, kubectl
from nearmetal.hosts.batch import host as batch
from nearmetal.hosts.lab import lab
from nearmetal.hosts.ssh import host as ssh
from nearmetal.paths.table import PATHS

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOSTS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("local", "Namespaces of this machine, with or without root.", {}),
    ("lab", "An emulated SR-IOV cluster in virtual time ([how](../how-to/lab.md)).", lab.OPTIONS),
    ("ssh", "Machines that the study names ([how](../how-to/real-cluster.md)).", ssh.OPTIONS),
    ("kubectl", "Pods of a Kubernetes cluster ([how](../how-to/real-cluster.md)).", kubectl.OPTIONS),
    ("slurm", "Allocations of a batch system ([how](../how-to/real-cluster.md)).", batch.OPTIONS),
    ("fake", "Figures from a formula, for trying things out and for tests.", fake.OPTIONS),
)
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
    for kind, about, options in _HOSTS:
        parts.append(f"\n## `{kind}`\n\n{about}\n")
        if options:
            parts.append("\n| option | meaning (default) |\n|---|---|\n")
            parts += [f"| `{name}` | {meaning} |\n" for name, meaning in options.items()]
    parts.append(_PATHS)
    parts += [f"| `{path.kind}` | {path.about} |\n" for path in PATHS.values()]
    return "".join((*parts, _MACHINES))


if __name__ == "__main__":
    sys.stdout.write(reference())
