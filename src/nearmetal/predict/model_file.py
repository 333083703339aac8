"""The model file: all machines fitted from one run, and how far predictions from them were off."""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.predict.calibration import JobCase, LogError
from nearmetal.predict.models import INTRA_KIND, NamedMachine
from nearmetal.reading import read_bytes
from nearmetal.store.disk import Disk
from nearmetal.typed import adapter, read_typed

MODEL_VERSION: Final = 3
"""Version 1 has errors of the p99 that are of several launches together, and neither it nor version 2 has jobs."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """All machines fitted from one run.

    `validated` are the errors of held-out cases by class, log(measured / predicted), sorted: intervals come from them.
    `validated_p99` are those of the 99th percentile of a launch's iterations; those of version 1 are to that of several
    launches together, which `of_p99` leaves out. `baseline` is the path that the run's study compares
    others with, empty where it has none. `jobs` are the user's own cases (`--errors`), of which errors of ratios are
    made: to which path is only known where they are used.
    """

    format: Literal["nearmetal-model"]
    version: Literal[1, 2, 3]
    run: str
    machines: tuple[NamedMachine, ...]
    validated: dict[str, tuple[LogError, ...]] = field(default_factory=dict)
    validated_p99: dict[str, tuple[LogError, ...]] = field(default_factory=dict)
    baseline: str = ""
    jobs: tuple[tuple[JobCase, ...], ...] = ()
    figures_from: str = ""
    """What the run was measured on and what its figures are good for; empty in files of older versions."""

    def __post_init__(self) -> None:
        twice = [key for key, times in Counter(machine.key for machine in self.machines).items() if times > 1]
        if twice:
            raise BadInputError(f"it has {' / '.join(twice[0])} twice")
        for of_class, errors in (*self.validated.items(), *self.validated_p99.items()):
            if not all(a <= b for a, b in pairwise(errors)):
                raise BadInputError(f"the errors of the class {of_class!r} are not sorted")

    @property
    def of_p99(self) -> dict[str, tuple[float, ...]]:
        """Return the errors of the 99th percentile of a launch's iterations by class; none where it has others."""
        return self.validated_p99 if self.version > 1 else {}


def write_model(model: ModelFile, path: Path) -> None:
    """Write a model file; it appears whole or not at all."""
    Disk().put_bytes(path, adapter(ModelFile).dump_json(model, indent=1))


def _with_kind(named: NamedMachine) -> NamedMachine:
    """Return a machine of a file from before there were kinds as what its name tells: the path inside a node."""
    return replace(named, kind=INTRA_KIND) if not named.kind and named.path == INTRA_KIND else named


def read_model(path: Path) -> ModelFile:
    """Read a model file; raise ForeignFileError when it is damaged or of another format."""
    try:
        model = read_typed(ModelFile, read_bytes(path))
        return replace(model, machines=tuple(map(_with_kind, model.machines)))
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror}"
        raise BadInputError(text, hint="give a run directory, or a file that --save-model wrote") from error
    except (ValueError, BadInputError) as error:
        raise ForeignFileError(
            f"{path} is not a model file of version 1 to {MODEL_VERSION}: {error}",
            hint="give a run directory, or a file that --save-model of this version wrote",
        ) from error
