"""How a bench ends: every goal met, or which is missed and by how much; `make bench` tells a miss from a failure."""

from __future__ import annotations

MISSED = 4
"""The status of a bench that ran to its end and misses a goal; 3 is that of one whose peer is not here."""


def short_of(what: str, found: float, goal: float, unit: str = "", *, least: bool = False) -> list[str]:
    """Return a sentence for a figure above its goal (below it, where the goal is the `least`), or none."""
    if (found >= goal) if least else (found <= goal):
        return []
    told = f"{what}: {found:.4g}{unit}, goal at {'least' if least else 'most'} {goal:.4g}{unit}"
    return [f"{told} ({found / goal:.2f} times)" if goal else told]


def worst(statuses: list[int]) -> int:
    """Return the status of parts that are processes of their own: 1 if one broke (killed ones have less than 0)."""
    return max(statuses) if {*statuses} <= {0, MISSED} else 1


def ended(missed: list[str]) -> int:
    """Print what is missed, or that nothing is; return the status."""
    print("\n".join(f"missed: {one}" for one in missed) or "every goal is met", flush=True)
    return MISSED if missed else 0
