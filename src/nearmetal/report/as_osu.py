"""A run in the columns of the OSU micro-benchmarks 7: the figures of `results.osu` as their programs print them."""

import nearmetal
from nearmetal.results.osu import OsuTable, osu_tables
from nearmetal.store.rundir import RunDir
from nearmetal.units import counted


def render(run: RunDir) -> str:
    """Return every table of a run; raise BadInputError when no operation of it is one that OMB has."""
    return "\n".join(_text(run, table) for table in osu_tables(run))


def _text(run: RunDir, table: OsuTable) -> str:
    lines = [
        f"# nearmetal {nearmetal.__version__}: path {table.path}, workload {table.workload}, setting {table.setting}, "
        f"{counted(table.trials, 'trial')}; {run.info.host_label}",
        f"# OSU MPI {table.title} Test",
    ]
    if table.pairs:
        lines.append(f"# [ pairs: {table.pairs} ] [ window size: {table.window} ]")
    lines.append(("# Size    " if table.has_size else "# ") + "".join(f"{name:>20}" for name in table.columns))
    for size, figures in table.rows.items():
        start = f"{size:<10}" if table.has_size else "  "
        digits = (0 if name == "Iterations" else 2 for name in table.columns)
        lines.append(start + "".join(f"{figure:>20.{n}f}" for figure, n in zip(figures, digits, strict=True)))
    return "\n".join(lines) + "\n"
