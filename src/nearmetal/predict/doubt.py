"""A doubt: what a prediction rests on that the run did not measure.

A prediction is refused where an unmeasured input would decide the answer; every other doubt is reported with it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nearmetal.errors import BadInputError

_FIGURE = re.compile(r"\d[\d.,]*(?: [KMGT]?i?B\b)?")
"""What two sentences that say the same of several launches differ in."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """One thing that was not measured: the share of the program (0..1) that it concerns, and what would mend it.

    `refuse` says that the prediction would be decided by it. `about` is its subject where texts of one subject differ
    in more than figures.
    """

    said: str
    hint: str
    share: float
    refuse: bool = False
    about: str = ""

    @property
    def subject(self) -> str:
        """Return what it has in common with doubts that say the same of other launches or paths."""
        return self.about or _FIGURE.sub("", self.said)


def told_once(found: Iterable[Iterable[Doubt]]) -> list[Doubt]:
    """Return each doubt of several launches, or placements, once: where it is refused, else where it concerns most."""
    worst: dict[str, Doubt] = {}
    for doubt in (doubt for several in found for doubt in several):
        known = worst.get(doubt.subject, doubt)
        worst[doubt.subject] = max(known, doubt, key=lambda one: (one.refuse, one.share))
    return list(worst.values())


def worst(found: Iterable[Iterable[Doubt]]) -> list[Doubt]:
    """Return the doubt that is refused, or of the launch that it concerns most; others say it in other figures."""
    told = [doubt for several in found for doubt in several]
    return [max(told, key=lambda doubt: (doubt.refuse, doubt.share))] if told else []


def refuse_beyond(doubts: Sequence[Doubt], label: str) -> None:
    """Raise BadInputError where what was not measured would decide the prediction."""
    for doubt in doubts:
        if doubt.refuse:
            text = f"{label}: {doubt.said}"
            raise BadInputError(text, hint=f"{doubt.hint}; or predict all the same with --extrapolate")
