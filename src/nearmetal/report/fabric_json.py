"""A fabric as JSON; docs/reference/fabric-json.md describes every key."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from nearmetal.fabric.against import Against
from nearmetal.fabric.detect import RetestedSuspect
from nearmetal.fabric.survey import Survey, sentence
from nearmetal.fabric.unseen import unseen
from nearmetal.report import schema
from nearmetal.report.schema import made
from nearmetal.stats.interval import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFindingJson:
    """A node or link that stood out."""

    what: str
    metric: str
    role: str
    nodes: list[str]
    screen_ratio: float
    ratio: float
    range: list[float]
    retests: int
    beyond: int
    p_value: float
    p_sign: float
    one_sided: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricJson:
    """A fabric as `nearmetal fabric --format json` prints it: docs/reference/fabric-json.md."""

    fabric_format: Literal[1]
    study: str
    host: str
    created_utc: str
    path: str
    margin: float
    latency_bytes: int
    bandwidth_bytes: int
    nodes: tuple[str, ...]
    rounds: dict[str, int]
    complete: bool
    named: list[FabricFindingJson]
    suspected: list[FabricFindingJson]
    not_retested_links: int
    unseen: tuple[str, ...]
    latency_us: list[list[float | None]]
    bandwidth_mb_per_s: list[list[float | None]] | None
    bisection_mb_per_s: dict[str, float] | None


def as_json(of: Survey) -> str:
    """Return a survey as one JSON object on one line."""
    found = made(
        FabricJson,
        of,
        of.info,
        fabric_format=1,
        study=of.info.study_name,
        host=of.info.host_label,
        latency_bytes=of.message_bytes[0],
        bandwidth_bytes=of.message_bytes[1],
        nodes=of.names,
        named=[_finding(of, one) for one in of.named],
        suspected=[_finding(of, one) for one in of.findings if not one.named],
        not_retested_links=of.screened.dropped,
        unseen=unseen(of),
        latency_us=_rows(of.latency_us),
        bandwidth_mb_per_s=None if of.rate is None else _rows(of.rate),
        bisection_mb_per_s=asdict(of.bisection) if of.bisection else None,
    )
    return schema.as_json(found, indent=None)


def _finding(of: Survey, one: RetestedSuspect) -> FabricFindingJson:
    suspect = one.suspect
    return made(
        FabricFindingJson,
        one,
        suspect,
        what=sentence(of, one),
        nodes=[of.names[suspect.a]] + ([of.names[suspect.b]] if suspect.b >= 0 else []),
        screen_ratio=float(np.exp(suspect.log_excess)),
        range=[one.low, one.high],
    )


def _rows(table: FloatArray) -> list[list[float | None]]:
    return [[None if np.isnan(value) else round(value, 3) for value in row] for row in table.tolist()]


def against_json(compared: Sequence[Against], ours: Survey, base: Survey) -> str:
    """Return a comparison of two surveys as one JSON object on one line."""
    whole = {
        "fabric_against_format": 1,
        "path": ours.path,
        "base_path": base.path,
        "host": ours.info.host_label,
        "base_host": base.info.host_label,
        "margin": ours.margin,
        "disturbed": ours.disturbed,
        "base_disturbed": base.disturbed,
        "metrics": [_against(one) for one in compared],
    }
    return json.dumps(whole, allow_nan=False)


def _against(one: Against) -> dict[str, object]:
    """Return how two fabrics differ in one metric; `ratio` is ours / base."""
    found = one.estimate
    return {
        "metric": one.metric.key,
        "unit": one.metric.unit,
        "ratio": found.ratio,
        "interval": [found.interval.low, found.interval.high] if found.interval else None,
        "method": found.method,
        "verdict": found.finding,
        "nodes": [asdict(node) for node in one.nodes],
    }
