"""The reference of knobs, made from the tables: `make reference` writes it to docs/reference/knobs.md."""

from __future__ import annotations

import sys

from nearmetal.knobs import drivers, mpi
from nearmetal.knobs.table import FAMILIES

_HEAD = """# Knobs

Made from `src/nearmetal/knobs` by `make reference`. `nearmetal knobs` shows which of them a machine has, with their
present values, and `nearmetal knobs --all` why not the others. How they are kept safe: [Tune](../how-to/tune.md).

A knob of an **interface** is set on the interface of every endpoint, one of a **node** in its network namespace, one
of the **machine** once. What a knob *disturbs* is part of its snapshot and is put back with it. `nic.rx-usecs.queue3`
(also `tx-usecs`, `rx-frames`, `tx-frames`, `adaptive-rx`, `adaptive-tx`) is the knob of one queue.

NICs are reached with the `ethtool` and `ip` programs and with files of sysfs and procfs, and with nothing else: the
same access then works in a namespace, in the lab's guest and on a far host, and renders into a shell script for the
watchdog and for the undo that is printed when all else fails. Only lines whose label is known are read, and a
parameter that a driver does not list is reported as such.
"""


def reference() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for family, knobs in FAMILIES.items():
        parts.append(f"\n## {family[0].upper()}{family[1:]}\n")
        parts.append("| knob | of | takes | disturbs | what it does |\n|---|---|---|---|---|")
        for knob in knobs:
            disturbed = ", ".join(f"`{name}`" for name in knob.disturbs)
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
    head = "\n## MPI\n\nEnvironment and arguments of one launch; nothing to restore.\n"
    return "\n".join([head, "| knob | takes | libraries | what it does |\n|---|---|---|---|", *rows])


def _drivers() -> str:
    lines = [
        "\n## What drivers take\n",
        "Checked before anything is written (read in the drivers' sources; not run on the hardware).\n",
        "| driver | knob | takes | note |\n|---|---|---|---|",
    ]
    for driver, ranges in drivers.RANGES.items():
        for name, one in ranges.items():
            rounding = "" if one.rounding == "none" else f"rounds: {one.rounding}"
            note = "; ".join(text for text in (rounding, one.reason) if text)
            lines.append(f"| {driver} | `{name}` | {one.about()} | {note} |")
    lines += [
        "\nOn every driver: usecs and frames of one direction are never both 0, a low threshold is below its high one.",
        f"On {', '.join(sorted(drivers.OWNED))} usecs cannot change while the adaptive mode is on; on ice",
        "rx-usecs-high cannot either. A setting that leaves an adaptive mode on which would overrule it is refused:\n",
        *(f"- {driver}: {why}" for driver, ways in drivers.OVERWRITTEN.items() for why in ways.values()),
        "\nWhat a driver resets with a knob is written after it, as it was or as the setting has it:\n",
        *(
            f"- {driver}: `{name}` resets {', '.join(f'`{other}`' for other in others)}"
            for driver, resets in drivers.RESETS.items()
            for name, others in resets.items()
        ),
        "\n| driver | read in Linux 6.12.117, `drivers/net/ethernet` |\n|---|---|",
        *(f"| {driver} | {where} |" for driver, where in drivers.SOURCES.items()),
        "\n## Read-backs that prove nothing\n",
        "Reported with every trial that sets the knob (`knob.unproven.NAME` among its facts).\n",
        "| driver | knob | why |\n|---|---|---|",
    ]
    lines += [
        f"| {driver} | `{name}` | {why} |"
        for driver, misreported in drivers.MISREPORTED.items()
        for name, why in misreported.items()
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
