"""A search as JSON, for programs that ask `nearmetal serve`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nearmetal.report.schema import made
from nearmetal.stats.interval import Interval
from nearmetal.typed import JsonFloat

if TYPE_CHECKING:
    from nearmetal.tune.recall import RecalledClass, RecalledSearch
    from nearmetal.tune.search import SearchStep
    from nearmetal.tune.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTrialJson:
    """One trial of a setting: its log cost against the present one of its block, null where it failed."""

    setting: dict[str, str]
    cost: JsonFloat | None
    cut: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBlockJson:
    """One block; `standing` counts the settings that are still in the search after it."""

    block: int
    launches: int
    leader: dict[str, str]
    standing: int
    trials: list[SearchTrialJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofJson:
    """The winner against the present setting on fresh blocks; below 1 is better."""

    recommended: bool
    reason: str
    blocks: int
    ratio: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchClassJson:
    """One class: its blocks, the setting that the search chose, and the proof; null as long as they are not there."""

    name: str
    winner: dict[str, str] | None
    proof: ProofJson | None
    blocks: list[SearchBlockJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchJson:
    """A search as far as its launches go."""

    search_format: Literal[1]
    name: str
    study: str
    host_label: str
    path: str
    method: str
    launches: int
    ended: bool
    classes: list[SearchClassJson]


def searched(of: RecalledSearch) -> SearchJson:
    """Return a search."""
    return made(
        SearchJson,
        of,
        of.info,
        search_format=1,
        study=of.info.study_name,
        classes=[_class(of.made.space, one) for one in of.classes] if of.made else [],
    )


def _class(space: Space, one: RecalledClass) -> SearchClassJson:
    return SearchClassJson(
        name=one.name,
        winner=space.setting(one.found.winner) if one.found else None,
        proof=made(ProofJson, one.proof) if one.proof else None,
        blocks=[_block(space, step) for step in one.steps],
    )


def _block(space: Space, step: SearchStep) -> SearchBlockJson:
    return SearchBlockJson(
        block=step.blocks,
        launches=step.trials,
        leader=space.setting(step.leader),
        standing=len(step.standing),
        trials=[made(SearchTrialJson, note, setting=space.setting(note.point)) for note in step.notes],
    )
