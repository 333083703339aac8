"""The NAS Parallel Benchmarks: the end block that every one prints. Read with 2.4 to 3.4, MPI and OpenMP.

The time has two decimals, so a small class reads 0.00 or is wrong by tens of percent: adopted is the rate, Mop/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nearmetal.workloads.tools.lines import number, positive, processes, refuse, to_text
from nearmetal.workloads.tools.tool import FileCell, Foreign, Import, Tool, one_figure

PROGRAM = "the NAS Parallel Benchmarks"

_TITLE = re.compile(r"^ (\w{2})(?:-MZ)? Benchmark Completed\.?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NpbResult:
    """One benchmark: name in lower case, class letter, processes, and the rate of the whole."""

    name: str
    letter: str
    processes: int
    mops: float
    seconds: float
    version: str


def parse(data: bytes) -> NpbResult:
    """Read one benchmark's output; raise ForeignFileError for anything else, a failed verification included."""
    text = to_text(data, PROGRAM)
    titles = list(_TITLE.finditer(text))
    if len(titles) != 1:
        raise refuse(PROGRAM, f"it has {len(titles)} end blocks, not one")
    cut = (line[1:].partition("=") for line in text[titles[0].end() :].splitlines() if line.startswith(" "))
    fields = {key.strip(): value.strip() for key, _, value in cut if key.strip() and value.strip()}
    missing = [key for key in ("Class", "Time in seconds", "Mop/s total", "Verification") if key not in fields]
    if missing:
        raise refuse(PROGRAM, f"its end block lacks {missing[0]!r}")
    if fields["Verification"] != "SUCCESSFUL":
        raise refuse(PROGRAM, f"its verification says {fields['Verification'][:40]}")
    count = fields.get("Total processes") or fields.get("Total threads") or "1"
    return NpbResult(
        titles[0][1].lower(),
        fields["Class"][:1],
        processes(count, PROGRAM),
        positive(fields["Mop/s total"], PROGRAM, "the rate", "its rate is 0: the run was too short for its clock"),
        number(fields["Time in seconds"], PROGRAM, "the time"),
        fields.get("Version", ""),
    )


# ---- launching, decoding, adopting


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    result = parse(data)
    cells = ((f"{result.name}.{result.letter} [Mop/s]", 0, one_figure("Mop/s", result.mops)),)
    lacks = ("one rate per run; its time has two decimals and is not used",)
    yield Foreign("NPB", result.version, f"npb-{result.name}-{result.processes}", result.processes, cells, lacks)


TOOL = Tool("npb", (Import((b" Benchmark Completed",), _adopt, begins=rb"^ NAS Parallel Benchmarks "),))
