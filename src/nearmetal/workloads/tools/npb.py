"""The NAS Parallel Benchmarks: the end block that every one prints. Read with 2.4 to 3.4, MPI and OpenMP.

The time has two decimals, so a small class reads 0.00 or is wrong by tens of percent: adopted is the rate, Mop/s.
Several zones (-MZ), and threads instead of processes or in each, make another program.
"""

import re

from nearmetal.workloads.tools.lines import positive, processes, refuse, to_text
from nearmetal.workloads.tools.tool import FileCell, Foreign, Import, Tool, one_figure

PROGRAM = "the NAS Parallel Benchmarks"

_TITLE = re.compile(r"^ (\w{2}(?:-MZ)?) Benchmark Completed\.?$", re.MULTILINE)


def parse(data: bytes) -> Foreign[FileCell]:
    """Read one benchmark's rate; raise ForeignFileError for anything else, a failed verification included."""
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
    name = titles[0][1].lower()
    told = [key for key in ("Total processes", "Total threads") if key in fields]
    counts = [processes(fields[key], PROGRAM) for key in told] or [1]
    of_threads = ("threads",) if told[-1:] == ["Total threads"] else ()
    mops = positive(fields["Mop/s total"], PROGRAM, "the rate", "its rate is 0: the run was too short for its clock")
    cells = ((f"{name}.{fields['Class'][:1]} [Mop/s]", 0, one_figure("Mop/s", mops)),)
    lacks = ("one rate per run; its time has two decimals and is not used",)
    workload = "-".join(("npb", name, *map(str, counts), *of_threads))
    return Foreign("NPB", fields.get("Version", ""), workload, counts[0], cells, lacks)


_IMPORT = Import((b" Benchmark Completed",), lambda data: [parse(data)], begins=rb"^ NAS Parallel Benchmarks ")
TOOL = Tool("npb", (_IMPORT,))
