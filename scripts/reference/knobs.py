"""The reference of knobs, made from the tables: `make reference` writes it to docs/reference/knobs.md."""

from __future__ import annotations

import sys

from nearmetal.knobs import affinity, drivers, mpi
from nearmetal.knobs.nic import known_as
from nearmetal.knobs.table import FAMILIES

_HEAD = """# Knobs

Made from `src/nearmetal/knobs` by `make reference`. `nearmetal knobs` lists the knobs of a machine with their present
values; `nearmetal knobs --all` also lists the others, with the reason why they are not available. How changes are kept
safe: [Tune](../how-to/tune.md).

A knob of an **interface** is set on the interface of every endpoint, a knob of a **node** in the node's network
namespace, and a knob of the **machine** once. The knobs that a knob *disturbs* are part of its snapshot and are
restored with it. What stands for several features of the kernel, such as `nic.tso`, is restored feature by feature.
`nic.rx-usecs.queue3` (likewise for `tx-usecs`, `rx-frames`, `tx-frames`, `adaptive-rx`,
`adaptive-tx`) is the knob of one queue. Where queues have values of their own, `nic.rx-usecs` sets all of them, and
each is restored.

NICs are accessed only through the programs `ethtool` and `ip` and through files of sysfs and procfs. This works the
same way in a namespace, in the lab's guest and on a remote host, and can be turned into a shell script for the
watchdog, or into the undo script that is printed as a last resort. Only lines with a known label are read, and a
parameter that a driver does not list is reported as missing.
"""


_ROUNDING = {"none": "", "power of two": "", "cap": "higher values are capped"}


def reference() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    every = {one.name for knobs in FAMILIES.values() for one in knobs}
    for family, knobs in FAMILIES.items():
        parts.append(f"\n## {family[0].upper()}{family[1:]}\n")
        parts.append("| knob | of | values | disturbs | what it does |\n|---|---|---|---|---|")
        for knob in (one for one in knobs if one.name == known_as(one.name)):
            others = dict.fromkeys(known_as(name) for name in knob.disturbs if known_as(name) in every - {knob.name})
            disturbed = ", ".join(f"`{name}`" for name in others)
            about = _cell(knob.about)
            parts.append(f"| `{knob.name}` | {knob.scope} | {_cell(knob.kind.about())} | {disturbed} | {about} |")
    parts.append(_mpi())
    parts.append(_drivers())
    return "\n".join(parts) + "\n"


def _mpi() -> str:
    rows = [
        f"| `{knob.name}` | {_cell(knob.kind.about())} | {', '.join(knob.renders)} | {_cell(knob.about)} |"
        for knob in mpi.KNOBS
    ]
    head = "\n## MPI\n\nThese set the environment and arguments of one launch; there is nothing to restore.\n"
    return "\n".join([head, "| knob | values | libraries | what it does |\n|---|---|---|---|", *rows])


def _drivers() -> str:
    lines = [
        "\n## What drivers accept\n",
        "Checked before anything is written. Taken from the drivers' sources, not tested on the hardware.\n",
        "| driver | knob | values | note |\n|---|---|---|---|",
    ]
    for driver, ranges in drivers.RANGES.items():
        for name, one in ranges.items():
            rounding = _ROUNDING.get(one.rounding, f"rounds: {one.rounding}")
            note = "; ".join(text for text in (rounding, one.reason) if text)
            lines.append(f"| {driver} | `{name}` | {one.about()} | {note} |")
    lines += [
        "\nOn every driver, usecs and frames of one direction must not both be 0, and a low threshold must be below",
        f"the high one. On {', '.join(sorted(drivers.OWNED))}, usecs cannot change while the adaptive mode is on;",
        "on ice, neither can rx-usecs-high. A setting that leaves an overriding adaptive mode on is refused:\n",
        *(f"- {driver}: {why}" for driver, ways in drivers.OVERWRITTEN.items() for why in ways.values()),
        "\nKnobs that a driver resets along with another are written after it, with the old or the setting's values:\n",
        *(
            f"- {driver}: `{name}` resets {', '.join(f'`{other}`' for other in others)}"
            for driver, resets in drivers.RESETS.items()
            for name, others in resets.items()
        ),
        "\nWhat else a driver may change with a knob is saved and restored with it, too:\n",
        *(
            f"- {driver}: {', '.join(f'`{name}`' for name in disturbs)} may change `{other}`"
            for driver, disturbs in drivers.DISTURBS.items()
            for other in dict.fromkeys(other for others in disturbs.values() for other in others)
            if other == known_as(other)
        ),
        "\n| driver | source, in `drivers/net/ethernet` of Linux 6.12.117 |\n|---|---|",
        *(f"| {driver} | {where} |" for driver, where in drivers.SOURCES.items()),
        "\n## Unreliable read-backs\n",
        "Reported with every trial that sets the knob, as the fact `knob.unproven.NAME`.\n",
        "| driver | knob | why |\n|---|---|---|",
    ]
    lines += [
        f"| {driver} | `{name}` | {why} |"
        for driver, misreported in drivers.MISREPORTED.items()
        for name, why in misreported.items()
    ]
    name = "nic.irq-affinity"
    lines.append(f"| any, if the old list is such as 0-3 | `{name}` | {affinity.lingers(name, '0-3')} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
