"""The reference of hosts and paths, made from their tables by `make reference`."""

from __future__ import annotations

import sys

from nearmetal.hosts.far.host import PATH_OPTIONS
from nearmetal.hosts.table import HOSTS
from nearmetal.paths.table import PATHS

_HEAD = """# Hosts and paths

Possible values of `host.kind`, `host.options` and `path.kind` in a [study](study.md). Made from the code by
`make reference`.
"""
_PATHS = """
## Paths

| kind | connection between the nodes |
|---|---|
"""
_MACHINES = "\nFurther options of a path on an ssh, kubectl or batch host:\n\n| option | meaning |\n|---|---|\n"
_PATH_OPTIONS = "\nOptions of paths:\n\n| option | meaning | paths |\n|---|---|---|\n"


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
    parts.append(_PATH_OPTIONS)
    meanings = {name: meaning for path in PATHS.values() for name, meaning in path.options.items()}
    for name, meaning in meanings.items():
        having = ", ".join(f"`{path.kind}`" for path in PATHS.values() if name in path.options)
        parts.append(f"| `{name}` | {meaning} | {having} |\n")
    parts.append(_MACHINES)
    parts += [f"| `{name}` | {meaning} |\n" for name, meaning in PATH_OPTIONS.items()]
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(reference())
