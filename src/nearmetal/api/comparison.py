"""The result of a comparison, for programs and notebooks: a sentence and two tables."""

from dataclasses import asdict, dataclass

import pyarrow as pa

from nearmetal.api.frame import Frame
from nearmetal.gate import words as gate_words
from nearmetal.report import as_html, words
from nearmetal.report.markup import element, together
from nearmetal.results.gated import Gate, GateCell
from nearmetal.results.records import Cell, PathCell, PathVerdict, View
from nearmetal.stats.compare import RatioEstimate
from nearmetal.stats.interval import Interval
from nearmetal.stats.summary import Metric
from nearmetal.units import counted


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """A finding: `says` in words, `verdicts` (a row per path, or one for a whole run), `cells` (a row per figure).

    Ratios are of figures as shown: above 1 is worse for times (`better` is `smaller`) and better for rates. `low` and
    `high` are the ends of their 95 % interval, null where there are too few blocks for one.
    """

    says: str
    verdicts: Frame
    cells: Frame

    def __repr__(self) -> str:
        return f"{self.says}\n\n{self.verdicts!r}\n\n{counted(len(self.cells), 'cell')}: see .cells"

    def _repr_html_(self) -> str:
        """Return sentence and tables as HTML, all text escaped; notebooks call this."""
        tables = (as_html.table_region(one.shown()) for one in (self.verdicts, self.cells))
        return str(together(element("p", self.says), *tables))


# ---- the paths of one run


def of_paths(view: View) -> Comparison:
    """Return the comparison of every path of a run with its baseline."""
    noise = words.noise_sentence(view) + words.launches_sentence(view)
    says = [*words.unfinished(view.unfinished), *(f"{one}." for one in words.mixed(view)), words.blocks_sentence(view)]
    says += [noise, f"Figures from {view.host_label}."]
    return Comparison(
        " ".join(says),
        Frame(f"Verdicts: paths against {view.baseline}", pa.Table.from_pylist([_verdict(o) for o in view.verdicts])),
        Frame(
            "Cells",
            pa.Table.from_pylist(
                [_cell(cell, one) for cell in view.cells for path in view.shown_paths if (one := cell.of(path.label))]
            ),
        ),
    )


def _verdict(one: PathVerdict) -> dict[str, object]:
    return {
        "path": one.path,
        "setting": one.setting,
        "verdict": str(one.verdict),
        "ratio_best": one.ends[0] if one.ends else None,
        "ratio_worst": one.ends[-1] if one.ends else None,
        "cells": one.cells,
        "reason": one.reason,
    }


def _cell(cell: Cell, one: PathCell) -> dict[str, object]:
    found = one.comparison
    return {
        **asdict(cell.group),
        "message_bytes": cell.message_bytes,
        "path": one.path,
        **cell.shown.labels,
        **{str(metric): level.value for metric, level in one.levels.items()},
        **_ratio("", found.headline if found else None),
        **_ratio("median_", found.estimates.get(Metric.MEDIAN) if found else None),
        **_ratio("p99_", found.estimates.get(Metric.P99) if found else None),
        **{name: getattr(found.headline if found else one.headline, name) for name in ("blocks", "occasions")},
        "verdict": str(found.verdict) if found else None,
    }


def _ratio(prefix: str, one: RatioEstimate | None) -> dict[str, object]:
    return {f"{prefix}ratio": one.ratio if one else None, **_ends(prefix, one.interval if one else None)}


def _ends(prefix: str, one: Interval | None) -> dict[str, object]:
    return {f"{prefix}low": one.low if one else None, f"{prefix}high": one.high if one else None}


# ---- two runs


def of_runs(gate: Gate) -> Comparison:
    """Return the comparison of one run with another."""
    changes = "; ".join(str(one) for one in gate.changes) or "nothing that was recorded"
    differs = f"What differs besides the figures: {changes}."
    whole = {
        "run": gate.run.root,
        "base": gate.base.root,
        "verdict": str(gate.verdict),
        "margin": gate.margin,
        "reason": gate_words.verdict(gate),
    }
    mixed = [*(f"{one}." for one in gate_words.mixed(gate)), *gate_words.cautions(gate)]
    said = (gate_words.not_in_base(gate), gate_words.noise(gate), differs, gate_words.figures_from(gate))
    return Comparison(
        " ".join(filter(None, [*gate_words.unfinished(gate), *mixed, *said])),
        Frame("Verdict on the run", pa.Table.from_pylist([whole])),
        Frame("Cells", pa.Table.from_pylist([_gate_cell(one) for one in (*gate.cells, *gate.others)])),
    )


def _gate_cell(one: GateCell) -> dict[str, object]:
    found = one.found
    return {
        **asdict(one.cell),
        "metric": str(one.metric),
        **one.shown.labels,
        "base": one.base_level,
        "run": one.run_level,
        "ratio": found.ratio if found else None,
        **_ends("", found.interval if found else None),
        "verdict": str(one.standing),
        "reason": one.reason,
        "part": one.part,
    }
