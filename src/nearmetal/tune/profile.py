"""A profile: a setting, the evidence that chose it, and where it holds; a JSON file that other verbs read.

docs/reference/profile.md describes the format.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.knobs import mpi
from nearmetal.knobs.knob import canon
from nearmetal.knobs.table import find
from nearmetal.reading import parse_json, read_text

if TYPE_CHECKING:
    from pathlib import Path

PROFILE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why the setting was chosen: held-out figures of the confirmation, never those of the search.

    `ratio` is setting / present over the objective (below 1 is better), `low` and `high` its interval at `level`.
    `cells` maps cells to [ratio, low, high]. `machine` are facts of the machine that was measured, `label` what
    figures from that host are. `to_native` is present / native and setting / native, empty where native was not
    measured.
    """

    method: str
    search_trials: int
    confirm_blocks: int
    ratio: float
    low: float
    high: float
    level: float
    objective: str
    cells: dict[str, list[float]] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    label: str = ""
    to_native: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Profile:
    """A setting that is ready to apply or to export.

    `setting` are the knobs to set, `present` what they were where the profile was made. `workload_class` is
    `latency-bound`, `bandwidth-bound`, `collective` or the user's own word: one setting does not serve all.
    """

    name: str
    workload_class: str
    interfaces: tuple[str, ...]
    setting: dict[str, str]
    present: dict[str, str] = field(default_factory=dict)
    mpi_flavour: str = "openmpi5"
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        if not self.name or not all(letter.isalnum() or letter in "._-" for letter in self.name):
            raise BadInputError(f"{self.name!r} cannot name a profile", hint="use letters, digits, dots, - and _")
        for interface in self.interfaces:
            if not 0 < len(interface) <= 15 or any(letter in "/: \t\n\"'\\$" for letter in interface):
                raise BadInputError(f"{interface!r} is not the name of an interface")
        for knob, value in self.setting.items():
            kind = mpi.find(knob).kind if knob.startswith(mpi.PREFIX) else None
            if (kind.canon(value) if kind else canon(find(knob), value)) != value and knob not in _REFORMATTED:
                raise BadInputError(f"{knob} = {value!r} is not in the form that the kernel prints")

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps({"profile_format": PROFILE_FORMAT, **asdict(self)}, indent=2) + "\n"

    @staticmethod
    def read(path: Path) -> Profile:
        """Read a profile; raise ForeignFileError for anything else, BadInputError for knobs that do not exist."""
        try:
            return _profile(parse_json(read_text(path)))
        except OSError as error:
            raise ForeignFileError(
                f"cannot read the profile {path}: {error.strerror}", hint="`nearmetal tune` writes profiles"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ForeignFileError(f"{path} is not a profile: {error}") from error


def _profile(raw: dict[str, Any]) -> Profile:
    if raw.pop("profile_format") != PROFILE_FORMAT:
        raise ValueError(f"this nearmetal reads format {PROFILE_FORMAT}")
    evidence = raw.pop("evidence")
    setting = {str(knob): str(value) for knob, value in raw.pop("setting").items()}
    interfaces = tuple(map(str, raw.pop("interfaces")))
    return Profile(
        setting=setting, interfaces=interfaces, evidence=Evidence(**evidence) if evidence is not None else None, **raw
    )


# Masks are written as lists of processors in a profile; the kernel prints them otherwise.
_REFORMATTED = frozenset({"nic.rps-cpus", "nic.xps-cpus"})
