"""Optuna's samplers as methods, for comparison and for those who prefer them; the extra `tune` installs Optuna."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.errors import UnavailableError
from nearmetal.tune.method import Method

if TYPE_CHECKING:
    from types import ModuleType

    from nearmetal.tune.method import Costs
    from nearmetal.tune.space import Point, Space


class Sampler(Method):
    """One setting a block, chosen by an Optuna sampler."""

    def __init__(self, space: Space, *, trials: int, seed: int, kind: str = "tpe") -> None:
        super().__init__(space)
        optuna = _optuna()
        makers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        self.name = f"optuna-{kind}"
        self._left = trials
        self._optuna = optuna
        self._study = optuna.create_study(sampler=makers[kind](seed=seed), direction="minimize")
        self._study.enqueue_trial({axis.knob: axis.values[0] for axis in space.axes})
        self._legal = set(space.points)
        self._asked: dict[Point, object] = {}

    def ask(self) -> tuple[Point, ...]:
        """Return the sampler's next setting; the present one is told as 0 without a trial, illegal ones as failed."""
        while self._left > 0:
            self._left -= 1
            trial = self._study.ask()
            values = {axis.knob: trial.suggest_categorical(axis.knob, axis.values) for axis in self._space.axes}
            point = self._space.point(values)
            if point == self._space.present:
                self._study.tell(trial, 0.0)
            elif point not in self._legal or point in self._tally.failed:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._asked = {point: trial}
                return (point,)
        return ()

    def tell(self, costs: Costs) -> None:
        """Pass the cost on."""
        super().tell(costs)
        for point, cost in costs.items():
            trial = self._asked.pop(point)
            if cost is None:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(trial, cost)


def _optuna() -> ModuleType:
    try:
        import optuna  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise UnavailableError(
            "Optuna is not installed", hint="pip install 'nearmetal[tune]', or use --method race"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    module: ModuleType = optuna
    return module
