r"""A gate's finding as OpenMetrics 1.0 text, for Prometheus.

Gauges alone, so that the textfile collector of the node exporter, which knows no newer types, reads it as well.
Format: https://prometheus.io/docs/specs/om/open_metrics_spec/ (label values escape \, " and line feeds; the last line
is `# EOF`).
"""

import math
from collections.abc import Callable
from dataclasses import asdict

from nearmetal.errors import visible
from nearmetal.results.gated import Gate, GateCell
from nearmetal.stats.between import Difference, Standing

_PREFIX = "nearmetal_gate"
_VERDICTS = (Standing.WITHIN, Standing.WORSE, Standing.UNDECIDED)


def _found(take: Callable[[Difference], float]) -> Callable[[GateCell], float | None]:
    """Return what takes a figure of the difference, where one was found."""
    return lambda one: take(one.found) if one.found else None


_CELL_GAUGES: tuple[tuple[str, str, Callable[[GateCell], float | None]], ...] = (
    ("cell_ratio", "Run / base of the figure as shown.", _found(lambda found: found.ratio)),
    ("cell_ratio_low", "Lower end of the 95 % interval of the ratio.", _found(lambda found: found.interval.low)),
    ("cell_ratio_high", "Upper end of the 95 % interval of the ratio.", _found(lambda found: found.interval.high)),
    ("cell_run_level", "Level of the run, in the unit of the label.", lambda one: one.run_level),
    ("cell_base_level", "Level of the base, in the unit of the label.", lambda one: one.base_level),
    ("cell_blocks", "Blocks of the run that the ratio rests on.", _found(lambda found: float(found.run.blocks))),
    (
        "cell_occasions",
        "Occasions of the run that the ratio rests on; if several, each has one figure.",
        _found(lambda found: float(found.run.occasions)),
    ),
)


def render(gate: Gate) -> str:
    """Return the exposition."""
    lines: list[str] = []
    whole = {"study": gate.run.study_name, "metric": str(gate.metric)}
    verdicts = [(whole | {"verdict": str(one)}, float(one is gate.verdict)) for one in _VERDICTS]
    _family(lines, "verdict", "1 for the verdict on the run, 0 for the others.", verdicts)
    _family(lines, "margin_ratio", "The margin, as a share.", [(whole, gate.margin)])
    cells = (*gate.cells, *gate.others)
    counts = [
        (whole | {"metric": str(metric), "stands": str(one)}, float(gate.count(one, metric)))
        for metric in dict.fromkeys(one.metric for one in cells if not one.part)
        for one in Standing
    ]
    _family(lines, "cells", "Number of cells with this standing.", counts)
    stands = [
        (_labels(gate, one) | {"stands": str(standing)}, float(one.standing is standing))
        for one in (*gate.judged, *(one for one in gate.others if not one.part))
        for standing in Standing
    ]
    _family(lines, "cell_stands", "1 for the cell's standing, 0 for the others.", stands)
    for name, about, take in _CELL_GAUGES:
        _family(lines, name, about, [(_labels(gate, one), v) for one in cells if (v := take(one)) is not None])
    return "\n".join([*lines, "# EOF"]) + "\n"


def _family(lines: list[str], name: str, about: str, samples: list[tuple[dict[str, str], float]]) -> None:
    full = f"{_PREFIX}_{name}"
    lines += [f"# TYPE {full} gauge", f"# HELP {full} {about}"]
    for labels, value in samples:
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{full}{{{shown}}} {_number(value)}")


def _labels(gate: Gate, one: GateCell) -> dict[str, str]:
    return {
        "study": gate.run.study_name,
        "metric": str(one.metric),
        **{name: str(value) for name, value in asdict(one.cell).items()},
        "unit": one.shown.unit,
    }


def _escaped(value: str) -> str:
    return visible(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
