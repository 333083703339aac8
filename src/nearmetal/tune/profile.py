"""A profile: a setting, the evidence that chose it, and where it holds; a JSON file that other verbs read.

docs/reference/profile.md describes the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.knobs import mpi
from nearmetal.knobs.knob import canon
from nearmetal.knobs.table import find
from nearmetal.reading import parse_json, read_text
from nearmetal.study.order import Scalar
from nearmetal.typed import read_typed

PROFILE_FORMAT = 1
_HINT = "`nearmetal tune` writes profiles"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,80}")
_CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}")
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")
_VALUE = re.compile(r"-?[A-Za-z0-9][A-Za-z0-9 ,._:+-]{0,255}")
MOST_LABEL = 400


@dataclass(frozen=True, slots=True)
class ProfileEvidence:
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
    evidence: ProfileEvidence | None = None

    def __post_init__(self) -> None:
        self._check_words()
        for knob, value in self.setting.items():
            if _canonical(knob, value) != value:
                raise BadInputError(f"{knob} = {value!r} is not in the form that the kernel prints")

    def _check_words(self) -> None:
        """Raise BadInputError for text that an export could not write without a tool taking it for something else."""
        if not _NAME.fullmatch(self.name) or ".." in self.name:
            raise BadInputError(f"{self.name[:80]!r} cannot name a profile", hint="use letters, digits and . _ + -")
        if not _CLASS.fullmatch(self.workload_class):
            message = f"{self.workload_class[:80]!r} cannot name a class of workloads"
            raise BadInputError(message, hint="use letters, digits, - and _")
        if self.mpi_flavour not in (*mpi.FLAVOURS, "openmpi"):
            raise BadInputError(f"{self.mpi_flavour[:80]!r} is not an MPI", hint=f"one of {', '.join(mpi.FLAVOURS)}")
        for interface in self.interfaces:
            if not _INTERFACE.fullmatch(interface) or ".." in interface:
                raise BadInputError(f"{interface[:80]!r} is not the name of an interface")
        for knob, value in self.setting.items():
            if not _VALUE.fullmatch(value):
                raise BadInputError(f"{knob[:80]} = {value[:80]!r} is not a knob value")
        label = self.evidence.label if self.evidence else ""
        if not label.isprintable() or len(label) > MOST_LABEL:
            message = f"the evidence's label {label[:80]!r} is not one line of text"
            raise BadInputError(message, hint="the profile was not made by tune")

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps({"profile_format": PROFILE_FORMAT, **asdict(self)}, indent=2) + "\n"

    @staticmethod
    def read(path: Path, content: Callable[[Path], str] = read_text) -> Profile:
        """Read a profile; raise ForeignFileError for anything else, BadInputError for knobs that do not exist.

        `content` gives the file's text; the verb that acts upon them refuses files that others may have written.
        """
        try:
            return _profile(parse_json(content(path)))
        except OSError as error:
            raise ForeignFileError(f"cannot read the profile {path}: {error.strerror}", hint=_HINT) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ForeignFileError(f"{path} is not a profile: {error}", hint=_HINT) from error


def of_setting(name: str, knobs: Mapping[str, Scalar], flavour: str, version: str) -> Profile:
    """Return a study's setting as a profile without evidence, for the MPI that it was measured with."""
    setting = {knob: _canonical(knob, value) for knob, value in knobs.items()}
    return Profile(name, "any", (), setting, mpi_flavour=mpi.dialect(flavour, version))


def _canonical(knob: str, value: Scalar) -> str:
    return canon(mpi.find(knob) if knob.startswith(mpi.PREFIX) else find(knob), value)


def _profile(raw: dict[str, Any]) -> Profile:
    if missing := sorted({"profile_format", "setting"} - raw.keys()):
        raise ValueError(f"it lacks {missing[0]!r}")
    if raw.pop("profile_format") != PROFILE_FORMAT:
        raise ValueError(f"this nearmetal reads format {PROFILE_FORMAT}")
    raw["setting"] = {knob: str(value) for knob, value in raw["setting"].items()}
    if unknown := sorted(raw.keys() - {one.name for one in fields(Profile)}):
        raise ValueError(f"it has a field {unknown[0][:80]!r}, which no profile has")
    return read_typed(Profile, json.dumps(raw))
