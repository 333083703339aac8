"""HPL and HPCC: the result rows of HPL, and the summary section of hpccoutf.txt. Read with HPL 2.x and HPCC 1.5.

Only the summary of HPCC is read: the text above it prints latencies in milliseconds, the summary in microseconds.
"""

import re

from nearmetal.workloads.tools.lines import number, positive, processes, refuse, to_text, whole
from nearmetal.workloads.tools.tool import FileCell, Foreign, Import, Tool, one_figure

PROGRAM = "HPL or HPCC"

_BEGIN, _END = "Begin of Summary section.", "End of Summary section."
_HPCC = "This is the DARPA/DOE HPC Challenge Benchmark"
_ROW = re.compile(r"^W[RC]\w+ +(\d+) +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+e[+-]\d+)$", re.MULTILINE)
_CHECK = re.compile(r"^\|\|Ax-b\|\|.*\.\.\.\.\.\. (PASSED|FAILED)$", re.MULTILINE)
_UNIT_ENDS = (
    ("_Tflops", "Tflop/s"),
    ("_Gflops", "Gflop/s"),
    ("_GUPs", "Gup/s"),
    ("_GBs", "GB/s"),
    ("_GBytes", "GB/s"),
    ("_usec", "us"),
)
_STREAM = re.compile(r"(?:Star|Single)STREAM_(?:Copy|Scale|Add|Triad)")


def parse(data: bytes) -> Foreign[FileCell]:
    """Read the figures of one run; raise ForeignFileError for anything else, a failed residual included."""
    text = to_text(data, PROGRAM)
    checks = _CHECK.findall(text)
    if "FAILED" in checks:
        raise refuse(PROGRAM, "a residual check failed")
    if _BEGIN in text or _END in text:
        return _summary(text)
    if _HPCC in text:
        raise refuse(PROGRAM, "it is cut off: HPCC's summary section is missing")
    rows = _ROW.findall(text)
    if len(rows) != 1 or len(checks) != 1:
        raise refuse(PROGRAM, f"it has {len(rows)} results and {len(checks)} residual checks, not one of each")
    grid = [processes(word, PROGRAM) for word in rows[0][2:4]]
    cell = _cell("HPL", positive(rows[0][5], PROGRAM, "HPL", "HPL is 0"), "Gflop/s")
    return _run(f"hpl-{rows[0][0]}", "", processes(str(grid[0] * grid[1]), PROGRAM), [cell])


def _summary(text: str) -> Foreign[FileCell]:
    begins, ends = text.count(_BEGIN), text.count(_END)
    if (begins, ends) != (1, 1):
        raise refuse(PROGRAM, f"its summary section begins {begins} times and ends {ends} times, not once each")
    section = text.partition(_BEGIN)[2].partition(_END)[0]
    fields = dict(line.partition("=")[::2] for line in section.splitlines() if "=" in line)
    if whole(fields.get("Success", "").strip() or "missing", PROGRAM, "Success") != 1:
        raise refuse(PROGRAM, "HPCC itself says that it did not succeed")
    units = {name: _unit(name, value) for name, value in fields.items()}
    cells = [_cell(name, number(fields[name], PROGRAM, name), unit) for name, unit in units.items() if unit]
    if not cells:
        raise refuse(PROGRAM, "its summary holds no figure")
    parts = [fields.get(f"Version{part}", "").strip() for part in ("Major", "Minor", "Micro")]
    count = processes(fields.get("CommWorldProcs", "").strip() or "missing", PROGRAM)
    order = fields.get("HPL_N", "").strip()
    name = f"hpcc-{whole(order, PROGRAM, 'HPL_N')}" if order else "hpcc"
    return _run(name, ".".join(parts) if all(parts) else "", count, cells)


def _run(name: str, version: str, count: int, cells: list[FileCell]) -> Foreign[FileCell]:
    """Return a run on so many processes, under the name of what it ran."""
    lacks = ("one figure of each kind per run",)
    return Foreign("HPCC", version, f"{name}-{count}", count, tuple(cells), lacks)


def _cell(name: str, value: float, unit: str) -> FileCell:
    return f"{name} [{unit}]", 0, one_figure(unit, value)


def _unit(name: str, value: str) -> str:
    """Return the unit of a key, empty for one that is no figure or was not measured (0 or negative)."""
    unit = "GB/s" if _STREAM.fullmatch(name) else next((unit for end, unit in _UNIT_ENDS if name.endswith(end)), "")
    measured = unit and not value.strip().startswith("-") and number(value, PROGRAM, name) > 0
    return unit if measured else ""


def _adopt(data: bytes) -> list[Foreign[FileCell]]:
    return [parse(data)]


TOOL = Tool(
    "hpcc",
    (
        Import((b"of Summary section.",), _adopt, begins=rb"^#+\nThis is the DARPA/DOE HPC Challenge Benchmark"),
        Import((b"||Ax-b||",), _adopt, ended=rb"^End of Tests\.\n=*\n?"),
    ),
)
