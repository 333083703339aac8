"""A gate's finding as a line of a ReFrame performance log.

It follows what the `filelog` handler of ReFrame 4.10 writes with its built-in configuration: a header of column names
and one line a run, parted by `|`, with five columns for each performance variable: value, unit, reference, and the
thresholds below and above it as fractions of it. As ReFrame does, a file whose header is another is moved aside to
`FILE.h0`, `.h1` ... and a new one begun. https://reframe-hpc.readthedocs.io, `handlers_perflog`, `filelog`.
"""

import datetime as dt
import fcntl
import re
from pathlib import Path

from nearmetal.results.gated import Gate, GateCell
from nearmetal.stats.between import Standing

_RESULTS = {Standing.WITHIN: "pass", Standing.WORSE: "fail", Standing.UNDECIDED: "fail"}
_NULL = "null"
"""What ReFrame writes for an attribute that was not set."""
_NUMBERS = (
    "num_cpus_per_task",
    "num_gpus_per_node",
    "num_tasks",
    "num_tasks_per_core",
    "num_tasks_per_node",
    "num_tasks_per_socket",
)
_NO_NAME = re.compile(r"[^A-Za-z0-9_.+-]+")


def append(gate: Gate, path: Path, now: dt.datetime) -> None:
    """Add one line to the log, which is created, or begun anew when its columns were others."""
    columns = _columns(gate, now)
    header, line = ("|".join(part) for part in zip(*columns, strict=True))
    if path.exists() and _first_line(path) not in {header, ""}:
        number = 0
        while (moved := path.with_name(f"{path.name}.h{number}")).exists():
            number += 1
        path.rename(moved)
    with path.open("a", encoding="utf-8") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # the handle's end frees it
        log.write(f"{line}\n" if log.tell() else f"{header}\n{line}\n")


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as log:
        return log.readline().rstrip("\n")


def _columns(gate: Gate, now: dt.datetime) -> list[tuple[str, str]]:
    """Return (name, entry) of each column, in ReFrame's order: by the names of the attributes."""
    result, name = _RESULTS[gate.verdict], _name(gate.run.study_name)
    return [
        ("result", result),
        ("job_completion_time", now.strftime("%Y-%m-%dT%H:%M:%S")),
        ("descr", f"nearmetal gate, {gate.metric}: {gate.verdict}"),
        ("env_vars", "{}"),
        ("environ", "builtin"),
        ("exclusive_access", "false"),
        ("extra_resources", "{}"),
        ("job_completion_time_unix", f"{now.timestamp():.6f}"),
        ("job_exitcode", str(int(gate.exit_code))),
        ("job_nodelist", ""),
        ("job_submit_time", _NULL),
        ("jobid", _NULL),
        ("modules", ""),
        ("name", name),
        *((number, _NULL) for number in _NUMBERS),
        ("partition", _name(gate.run.host_kind)),
        *(entry for one in gate.cells if not one.part for entry in _variable(gate, one)),
        ("short_name", name),
        ("system", "nearmetal"),
        ("unique_name", name),
        ("use_multithreading", _NULL),
    ]


def _variable(gate: Gate, one: GateCell) -> list[tuple[str, str]]:
    variable = _name(one.name)
    loses = 1.0 / (1.0 + gate.margin) - 1.0
    below, above = (f"{loses:.6g}", "None") if one.shown.rate else ("None", f"{gate.margin:.6g}")
    return [
        (f"{variable}_value", _figure(one.run_level)),
        (f"{variable}_unit", one.shown.unit),
        (f"{variable}_ref", _figure(one.base_level)),
        (f"{variable}_lower_thres", below),
        (f"{variable}_upper_thres", above),
    ]


def _figure(level: float | None) -> str:
    return _NULL if level is None else repr(level)


def _name(text: str) -> str:
    """Return a name without what parts columns or lines."""
    return _NO_NAME.sub("_", text)
