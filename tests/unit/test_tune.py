"""The search: its parts on small spaces with a known optimum."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from bench.support.surface import Simulation, Surface, read_recording

from nearmetal.errors import BadInputError, ForeignFileError, TrialError
from nearmetal.report.tuning import alternatives, mattered, sentences
from nearmetal.study.order import Outcome, TrialStatus
from nearmetal.study.spec import parse_study
from nearmetal.tune.explain import explain, front, pareto_front
from nearmetal.tune.measure import ChangedSettingError, StudyTrials
from nearmetal.tune.method import Grid, OneAtATime, Sampler
from nearmetal.tune.model import Model
from nearmetal.tune.objective import Objective
from nearmetal.tune.race import CONTENDERS, RACE_BLOCKS, TOLERANCE, Race, screen_blocks, survivors
from nearmetal.tune.search import Confirmation, Laboratory, SearchStep, confirm, search, step_line
from nearmetal.tune.space import AS_FOUND, Axis, Space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from nearmetal.stats.interval import FloatArray
    from nearmetal.study.order import Order, Scalar
    from nearmetal.tune.method import Method
    from nearmetal.tune.space import Point

AXES = (Axis("nic.rx-usecs", ("3", "0", "10", "50")), Axis("nic.gro", ("on", "off")), Axis("nic.mtu", ("1500", "9000")))
SPACE = Space.of(AXES)
EFFECT = {"nic.rx-usecs": {"0": -0.2, "10": 0.1, "50": 0.5}, "nic.gro": {"off": -0.05}, "nic.mtu": {"9000": 0.02}}
BEST = SPACE.point({"nic.rx-usecs": "0", "nic.gro": "off"})
LATENCY = Objective()


def _laboratory(noise: float = 0.01, *, seed: int = 1, flat: bool = False) -> Laboratory:
    rng = np.random.default_rng(seed)

    def measure(setting: Mapping[str, str], _block: int) -> Iterator[tuple[str, float]]:
        cost = 0.0 if flat else sum(EFFECT[knob].get(value, 0.0) for knob, value in setting.items())
        for cell in ("latency 8 B", "latency 64 KiB"):
            yield cell, 1e4 * math.exp(cost + noise * rng.standard_normal())

    return Laboratory(SPACE, measure, LATENCY, seed)


def _methods(seed: int) -> list[Method]:
    return [Race(SPACE, seed=seed), Grid(SPACE, blocks=3, seed=seed), OneAtATime(SPACE, blocks=3, seed=seed)]


class TestSpace:
    def test_point_of_zeros_is_the_present_setting(self) -> None:
        assert SPACE.setting(SPACE.present) == {}
        assert len(SPACE.points) == 16

    def test_settings_and_points_agree(self) -> None:
        for point in SPACE.points:
            assert SPACE.point(SPACE.setting(point)) == point

    def test_illegal_settings_are_left_out_but_never_the_present_one(self) -> None:
        space = Space.of(AXES, lambda setting: setting["nic.gro"] == "off")
        assert space.present in space.points
        assert len(space.points) == 9

    def test_too_large_a_space_is_refused(self) -> None:
        with pytest.raises(BadInputError, match="settings"):
            Space.of([Axis(f"k{i}", tuple(map(str, range(10)))) for i in range(6)])


class TestObjective:
    def test_longer_is_worse_whatever_the_names_say(self) -> None:
        costs = LATENCY.log_costs({"separate": 2.0, "bandwidth": 0.5}, {"separate": 1.0, "bandwidth": 1.0})
        assert costs["separate"] == pytest.approx(math.log(2))
        assert costs["bandwidth"] == pytest.approx(-math.log(2))
        assert LATENCY.cost(costs) == pytest.approx(0.0)

    def test_weights_follow_the_first_matching_pattern(self) -> None:
        objective = Objective({"*p99": 3.0, "*median": 1.0})
        assert objective.aim({"a/p99": 0.1, "a/median": -0.1, "irq": 9.0}) == pytest.approx(0.05)

    def test_a_violated_limit_is_penalised_and_named(self) -> None:
        objective = Objective({"a": 1.0}, limits={"*": 0.02})
        assert objective.cost({"a": -0.1, "b": 0.0}) == pytest.approx(-0.1)
        assert objective.cost({"a": -0.1, "b": 0.1}) > 0.2
        assert objective.broken({"a": -0.1, "b": 0.03}) == ("b",)


class TestFront:
    def test_dominated_points_are_left_out(self) -> None:
        fast, slow, both, bad, same = ((number,) for number in range(5))
        costs = {fast: (0.1, 0.9), slow: (0.9, 0.1), both: (0.5, 0.5), bad: (0.6, 0.6), same: (0.5, 0.5)}
        assert pareto_front(costs) == (fast, slow, both)

    def test_an_improvement_below_one_step_does_not_count(self) -> None:
        assert pareto_front({(0,): (0.0, 0.0), (1,): (-0.004, 0.2), (2,): (-0.3, 0.2)}, worth=0.01) == ((0,), (2,))

    def test_workloads_that_disagree_are_both_on_the_front(self) -> None:
        def measure(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            off = setting.get("nic.gro") == "off"
            yield "latency/latency/8 B/mean", 100.0 * (0.8 if off else 1.0)
            yield "stream/bw/64 KiB/mean", 100.0 * (1.3 if off else 1.0)
            yield "latency/interrupts-per-s", 50.0

        found = search(Laboratory(SPACE, measure, LATENCY, 1), Grid(SPACE, blocks=2, seed=1), max_trials=200)
        made = front(SPACE, found.notes)
        assert made.objectives == ("latency", "stream", "interrupts-per-s")
        assert made.disagree
        assert {SPACE.setting(point).get("nic.gro", "on") for point in made.settings} == {"on", "off"}
        assert len(made.settings) == 2
        shown = [alternatives(SPACE, found), *mattered(SPACE, LATENCY, found)]
        assert all(table.rows and "below 0 % " in table.note for table in shown), "+26 % of a stream reads as a gain"


@pytest.mark.parametrize("number", range(3), ids=["race", "grid", "one-at-a-time"])
class TestEveryMethod:
    def test_finds_the_best_setting(self, number: int) -> None:
        found = search(_laboratory(), _methods(1)[number], max_trials=500)
        assert SPACE.setting(found.winner) == SPACE.setting(BEST)

    def test_is_a_function_of_its_seed(self, number: int) -> None:
        first, second = (search(_laboratory(), _methods(7)[number], max_trials=500) for _ in range(2))
        assert first == second

    def test_stays_within_its_trials(self, number: int) -> None:
        found = search(_laboratory(), _methods(1)[number], max_trials=10)
        assert found.trials <= 10 + 9

    def test_a_setting_that_fails_is_never_recommended(self, number: int) -> None:
        laboratory = _laboratory()
        inner = laboratory.measure

        def refusing(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            if setting.get("nic.rx-usecs") == "0":
                raise TrialError("the link went down")
            yield from inner(setting, block)

        laboratory.measure = refusing
        found = search(laboratory, _methods(2)[number], max_trials=500)
        assert SPACE.setting(found.winner).get("nic.rx-usecs") != "0"
        assert any("link went down" in note.reason for note in found.notes)


def test_a_value_that_must_be_at_fault_is_not_tried_again() -> None:
    method = Grid(SPACE, blocks=1, seed=1)
    usecs, gro, both = ({"nic.rx-usecs": "0"}, {"nic.gro": "off"}, {"nic.rx-usecs": "0", "nic.gro": "off"})
    method.tell({SPACE.point(both): None})
    assert len(SPACE.points) - len(method.standing()) == 1, "either value may be at fault"
    method.tell({SPACE.point(gro): -0.1, SPACE.point(usecs): None})
    failed = set(SPACE.points) - method.standing()
    assert {SPACE.setting(point).get("nic.rx-usecs") for point in failed} == {"0"}
    assert len(failed) == 4


def test_a_grid_gives_every_setting_as_many_blocks() -> None:
    """A block that ended in the next pass asked for some settings again, and so left others of that pass out."""
    for blocks in (2, 3, 5):
        for seed in range(5):
            grid, asked = Grid(SPACE, blocks=blocks, seed=seed), Counter["Point"]()
            while block := grid.ask():
                assert len(set(block)) == len(block)
                asked.update(block)
                grid.tell(dict.fromkeys(block, 0.1))
            assert asked == Counter({point: blocks for point in SPACE.points if any(point)})


class TestRace:
    @pytest.mark.parametrize(("points", "blocks"), [(16, 16), (288, 19), (5000, 40)])
    def test_a_large_space_is_screened_longer_within_a_share_of_its_grid(self, points: int, blocks: int) -> None:
        assert screen_blocks(points) == blocks

    def test_needs_fewer_trials_than_the_grid(self) -> None:
        raced = search(_laboratory(), Race(SPACE, seed=1), max_trials=500)
        swept = search(_laboratory(), Grid(SPACE, blocks=5, seed=1), max_trials=500)
        assert raced.trials < swept.trials

    def test_hopeless_settings_are_dropped(self) -> None:
        laboratory, hopeless = _laboratory(), SPACE.point({"nic.rx-usecs": "50"})
        (whole,) = laboratory.block(0, (hopeless,), hopeless_above=0.1)
        (cut,) = laboratory.block(1, (hopeless,), hopeless_above=0.1)
        assert (whole.cut, cut.cut) == (False, True)
        assert list(cut.log_costs) == ["latency 8 B"]
        assert cut.cost is not None
        assert cut.cost > 0.1

    def test_the_model_predicts_settings_it_has_not_seen(self) -> None:
        seen = [p for p in SPACE.points if p not in {BEST, SPACE.present}]
        truth = {p: sum(EFFECT[k].get(v, 0.0) for k, v in SPACE.setting(p).items()) for p in SPACE.points}
        posterior = Model(SPACE).posterior([(i, point, truth[point]) for i, point in enumerate(seen)])
        assert posterior.mean[SPACE.points.index(BEST)] == pytest.approx(truth[BEST], abs=0.04)
        assert posterior.mean[SPACE.points.index(SPACE.present)] == pytest.approx(0.0, abs=1e-9)

    def test_an_outlier_of_the_present_setting_does_not_mislead_the_model(self) -> None:
        """One launch that is 1.6 times as slow makes the other five of its block look fast."""

        def believed(hiccup: float) -> FloatArray:
            rng = np.random.default_rng(1)
            observed = [
                (block, point, -0.1 * point[0] + rng.normal(0.0, 0.02) - hiccup * (block == 3))
                for block in range(8)
                for point in [SPACE.points[i] for i in rng.permutation(len(SPACE.points))[:6]]
                if point != SPACE.present
            ]
            return Model(SPACE).posterior(observed).mean

        assert np.abs(believed(0.5) - believed(0.0)).max() < 0.01

    def test_drifting_contenders_rarely_displace_the_best(self) -> None:
        """Each drifts independently (AR 0.7, sd 3 %); the best is 1 % better. Student's t would drop it in 15 %."""
        dropped, races = 0, 150
        for seed in range(races):
            own = np.random.default_rng(seed).normal(0.0, 0.03, (CONTENDERS + 1, RACE_BLOCKS))
            for block in range(1, RACE_BLOCKS):
                own[:, block] = 0.7 * own[:, block - 1] + math.sqrt(1 - 0.7**2) * own[:, block]
            costs = own[1:] - own[0]
            costs[1:] += TOLERANCE
            racing = list(range(CONTENDERS))
            for blocks in range(1, RACE_BLOCKS + 1):
                stay = survivors(costs[racing, :blocks])
                racing = [one for one, stays in zip(racing, stay, strict=True) if stays]
            dropped += 0 not in racing
        assert dropped / races < 0.08

    def test_a_disastrous_value_is_left_behind(self) -> None:
        laboratory, race = _laboratory(), Race(SPACE, seed=3)
        search(laboratory, race, max_trials=60)
        last = search(laboratory, race, max_trials=500).notes
        assert "50" not in {SPACE.setting(note.point).get("nic.rx-usecs") for note in last}

    @pytest.mark.parametrize("others", [0, 2])
    def test_two_values_that_a_driver_refuses_together_leave_each_alone_to_win(self, others: int) -> None:
        """The model expects most of the two together; the race left all else behind, and found nothing better."""
        space = Space.of(
            [Axis("a", ("0", "1")), Axis("b", ("0", "1")), *(Axis(f"c{n}", ("u", "v")) for n in range(others))]
        )
        for seed in range(4):
            rng = np.random.default_rng(seed)

            def measure(
                setting: Mapping[str, str], _block: int, rng: np.random.Generator = rng
            ) -> Iterator[tuple[str, float]]:
                better = len({"a", "b"} & setting.keys())
                if better == 2:
                    raise TrialError("the driver takes a or b, not both")
                yield "latency 8 B", 1e4 * math.exp(-0.1 * better + 0.02 * rng.standard_normal())

            found = search(Laboratory(space, measure, LATENCY, seed), Race(space, seed=seed), max_trials=400)
            assert len({"a", "b"} & space.setting(found.winner).keys()) == 1

    def test_one_failure_of_the_present_setting_costs_one_trial(self) -> None:
        laboratory = _laboratory()
        inner, hiccups = laboratory.measure, [TrialError("the launch did not end")]

        def shaky(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            if not setting and block == 1 and hiccups:
                raise hiccups.pop()
            yield from inner(setting, block)

        laboratory.measure = shaky
        found = search(laboratory, OneAtATime(SPACE, blocks=3, seed=1), max_trials=500)
        assert SPACE.setting(found.winner) == SPACE.setting(BEST)

    @pytest.mark.parametrize("lost", [(2,), (2, 3)], ids=["once", "twice in a row"])
    def test_a_block_whose_present_setting_failed_twice_is_measured_again(self, lost: tuple[int, ...]) -> None:
        """It ended a search of hours, and again at each `--resume`, which recalls the launches that failed."""
        laboratory = _laboratory()
        inner = laboratory.measure

        def shaky(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            if not setting and block in lost:
                raise TrialError("the launch did not end:\nlast words")
            yield from inner(setting, block)

        laboratory.measure = shaky
        steps: list[SearchStep] = []
        method = OneAtATime(SPACE, blocks=3, seed=1)
        if len(lost) > 1:
            with pytest.raises(TrialError, match="failed twice in block 4: the launch did not end"):
                search(laboratory, method, max_trials=500, watch=steps.append)
            return
        found = search(laboratory, method, max_trials=500, watch=steps.append)
        assert SPACE.setting(found.winner) == SPACE.setting(BEST)
        assert [step.blocks for step in steps if not step.notes] == [3]
        assert step_line(SPACE, steps[2]).endswith(
            "measured again, because the present setting failed twice in block 3: the launch did not end"
        )
        whole = search(_laboratory(), OneAtATime(SPACE, blocks=3, seed=1), max_trials=500)
        assert len(found.notes) == len(whole.notes)

    def test_a_block_of_the_proof_without_a_present_setting_is_left_out_and_told(self) -> None:
        laboratory = _laboratory(0.001)
        inner = laboratory.measure

        def shaky(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            if not setting and block == 101:
                raise TrialError("the launch did not end")
            yield from inner(setting, block)

        laboratory.measure = shaky
        made = confirm(laboratory, BEST, first_block=100)
        assert made.recommended
        assert made.reason.endswith(
            "; another block is left out: the present setting failed twice in block 102: the launch did not end"
        )

    def test_a_present_setting_that_always_fails_ends_the_search(self) -> None:
        def broken(_setting: Mapping[str, str], _block: int) -> Iterator[tuple[str, float]]:
            raise TrialError("no MPI")

        with pytest.raises(TrialError, match="present setting failed twice in block 1: no MPI"):
            search(Laboratory(SPACE, broken, LATENCY, 1), Race(SPACE, seed=1), max_trials=50)

    def test_a_search_whose_settings_all_failed_compares_nothing(self) -> None:
        """A full disk kept every setting from being held; that no setting seemed better was the answer, with exit 0."""
        laboratory = _laboratory()
        inner = laboratory.measure

        def shaky(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            if setting and fails(setting):
                raise TrialError("cannot write the journal: No space left on device:\nlast words")
            yield from inner(setting, block)

        laboratory.measure = shaky
        fails: Callable[[Mapping[str, str]], bool] = lambda _: True  # noqa: E731
        with pytest.raises(TrialError, match="every setting that was tried failed, so none was compared with the pres"):
            search(laboratory, Grid(SPACE, blocks=3, seed=1), max_trials=500)
        fails = lambda setting: "nic.mtu" in setting  # noqa: E731
        found = search(laboratory, Grid(SPACE, blocks=3, seed=1), max_trials=500)
        all_said = sentences(SPACE, found, Confirmation(recommended=False, reason="none"))
        said = [line for line in all_said if "left the search" in line]
        assert len(said) == 4
        assert said[0].endswith(" left the search: cannot write the journal: No space left on device")
        assert all("nic.mtu=9000" in line for line in said)


class TestConfirmation:
    def test_a_real_winner_is_recommended_with_its_interval(self) -> None:
        made = confirm(_laboratory(), BEST, first_block=100)
        assert made.recommended
        assert made.interval is not None
        assert made.interval.low < math.exp(-0.25) < made.interval.high
        assert set(made.cells) == {"latency 8 B", "latency 64 KiB"}

    def test_nothing_is_recommended_on_a_flat_surface(self) -> None:
        made = [confirm(_laboratory(seed=seed, flat=True), BEST, first_block=0) for seed in range(40)]
        assert sum(one.recommended for one in made) <= 4

    def test_ratio_to_native_is_measured_in_the_same_blocks(self) -> None:
        laboratory = _laboratory(0.001)
        laboratory.native = lambda block: iter([("latency 8 B", 5e3 + block), ("only native has this", 1.0)])
        made = confirm(laboratory, BEST, first_block=100)
        assert made.to_native is not None
        before, after = made.to_native
        assert before.value == pytest.approx(2.0, rel=0.03)
        assert after.value == pytest.approx(2.0 * math.exp(-0.25), rel=0.03)
        assert made.trials == 3 * made.blocks

    def test_a_failure_of_native_is_told_and_leaves_the_proof_of_the_winner(self) -> None:
        """One launch of the baseline that failed ended the whole search, and did so again at each `--resume`."""

        def native(block: int) -> Iterator[tuple[str, float]]:
            yield "latency 8 B", 5e3
            if block == 101:
                raise TrialError("the launch did not end\nlast words")

        laboratory = _laboratory(0.001)
        laboratory.native = native
        made = confirm(laboratory, BEST, first_block=100)
        assert made.recommended
        assert made.to_native is not None
        assert made.to_native[0].value == pytest.approx(2.0, rel=0.03)
        assert made.trials == 3 * made.blocks
        said = sentences(SPACE, search(laboratory, Grid(SPACE, blocks=1, seed=1), max_trials=99), made)
        assert f"the baseline failed in 1 of {made.blocks} blocks: the launch did not end" in said

    @pytest.mark.parametrize("limit", [0.02, 0.03, 0.05, 0.07])
    def test_a_limit_that_is_just_met_is_kept(self, limit: float) -> None:
        """Logarithms of it went 1e-18 beyond."""

        def measure(setting: Mapping[str, str], _block: int) -> Iterator[tuple[str, float]]:
            yield "l/a/8 B/mean", 800.0 if setting else 1000.0
            yield "l/cpu-share", 1.0 + limit if setting else 1.0

        objective = Objective({"*/mean": 1.0}, {"*/cpu-share": limit})
        assert confirm(Laboratory(SPACE, measure, objective, 1), BEST, first_block=0).recommended

    @pytest.mark.parametrize(
        ("limits", "weights", "reason"),
        [
            ({"*/cpu-share": 0.02}, {"*/mean": 1.0}, "better, but not shown to keep its limit in */cpu-share"),
            ({"l/*/mena": 0.02}, {"*/mean": 1.0}, "better, but not shown to keep its limit in l/*/mena"),
            ({}, {"*/mean": 1.0, "l/*/p95": 5.0}, "better on fresh blocks; no figure has the weight of l/*/p95"),
            ({"stream/*/mean": 0.02}, {"*/mean": 1.0}, "better on fresh blocks"),  # of another class
        ],
    )
    def test_a_pattern_that_matches_no_figure_is_told(
        self, limits: dict[str, float], weights: dict[str, float], reason: str
    ) -> None:
        """A limit on what no launch counts, or of a mistyped name, was taken for kept."""

        def measure(setting: Mapping[str, str], _block: int) -> Iterator[tuple[str, float]]:
            yield "l/a/8 B/mean", 800.0 if setting else 1000.0

        made = confirm(Laboratory(SPACE, measure, Objective(weights, limits), 1), BEST, first_block=0)
        assert made.reason == reason
        assert made.recommended == reason.startswith("better on")

    @pytest.mark.parametrize(("failures", "recommended"), [(1, True), (2, False)])
    def test_one_failure_of_the_winner_is_left_out_and_reported(self, failures: int, recommended: bool) -> None:
        laboratory = _laboratory()
        inner, left = laboratory.measure, [TrialError("the launch did not end\nlast words")] * failures

        def shaky(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            if setting and left:
                raise left.pop()
            yield from inner(setting, block)

        laboratory.measure = shaky
        made = confirm(laboratory, BEST, first_block=0)
        assert made.recommended is recommended
        assert "the winner failed: the launch did not end" in made.reason

    def test_the_present_setting_needs_no_confirmation(self) -> None:
        made = confirm(_laboratory(), SPACE.present, first_block=0)
        assert not made.recommended
        assert made.trials == 0

    @pytest.mark.parametrize(
        ("more", "noise", "reason"),
        [
            (0.10, 0.001, "better, but beyond its limit in irq"),
            (0.01, 0.001, ""),
            (
                0.0,
                0.05,
                "better, but not shown to keep its limit in irq",
            ),  # the estimate meets it, the interval does not
            (0.03, 0.05, "better, but not shown to keep its limit in irq"),  # nor is it shown to violate it
        ],
    )
    def test_limits_are_judged_by_the_ends_of_intervals(self, more: float, noise: float, reason: str) -> None:
        rng = np.random.default_rng(3)

        def measure(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            better = bool(setting)
            yield "latency", (100.0 - 30.0 * better) * (1 + block / 1000)
            yield "irq", 100.0 * (1 + more * better) * math.exp(rng.normal(0.0, noise))

        laboratory = Laboratory(SPACE, measure, Objective({"latency": 1.0}, limits={"irq": 0.02}), 1)
        made = confirm(laboratory, BEST, first_block=0)
        assert made.recommended is (reason == "")
        assert made.reason.startswith(reason or "better on fresh blocks")

    def test_figures_that_a_launch_lacks_are_left_out_and_named(self) -> None:
        """A median in the gap between two modes is refused: the search ended in a KeyError, or cut the trial."""

        def measure(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            yield "ping/8/mean", (100.0 - 30.0 * bool(setting)) * (1 + block / 1000)
            if block % 3 != (1 if setting else 2):
                yield "ping/8/median", (90.0 + 90.0 * bool(setting)) * (1 + block / 900)

        laboratory = Laboratory(SPACE, measure, LATENCY, 1)
        notes = [note for block in range(3) for note in laboratory.block(block, (BEST,), hopeless_above=9.0)]
        assert [list(note.log_costs) for note in notes] == [["ping/8/mean", "ping/8/median"], *[["ping/8/mean"]] * 2]
        assert not any(note.cut for note in notes)
        assert explain(SPACE, notes, LATENCY)[0]
        laboratory.native = lambda block: iter([("ping/8/mean", 50.0), *[("ping/8/median", 50.0)] * (block % 2)])
        made = confirm(laboratory, BEST, first_block=0)
        assert made.recommended
        assert made.ratio == pytest.approx(0.7)
        assert made.reason == "better on fresh blocks; judged without ping/8/median, which some blocks lack"
        assert made.to_native is not None
        assert made.to_native[1].value == pytest.approx(1.4, rel=0.01)

    def test_a_limit_on_a_figure_that_only_the_present_setting_has_is_not_met(self) -> None:
        def measure(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            yield "ping/8/mean", (100.0 - 30.0 * bool(setting)) * (1 + block / 1000)
            if not setting:
                yield "ping/8/median", 90.0 + block

        for pattern, kept in (("*/mean", True), ("*/median", False)):
            objective = Objective(limits={pattern: 0.02})
            made = confirm(Laboratory(SPACE, measure, objective, 1), BEST, first_block=0)
            assert made.recommended is kept
            assert made.reason.endswith("; judged without ping/8/median, which some blocks lack")
            assert made.reason.startswith(
                "better on" if kept else "better, but not shown to keep its limit in ping/8/med"
            )

    def test_a_block_without_any_weighted_figure_is_a_failure(self) -> None:
        def measure(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            yield "ping/8/mean", 100.0 + block
            if not setting or block % 2:
                yield "ping/8/median", 90.0 + block

        laboratory = Laboratory(SPACE, measure, Objective({"*/median": 1.0}), 1)
        made = confirm(laboratory, BEST, first_block=0)
        assert "the winner failed: it gave no figure that the objective weighs" in made.reason
        laboratory.measure = lambda _setting, block: iter([("ping/8/mean", 100.0 + block)])
        assert laboratory.block(1, (BEST,)) == []
        with pytest.raises(TrialError, match="present setting failed twice in block 3: it gave no figure that the"):
            laboratory.block(2, (BEST,))

    def test_a_tail_that_gets_worse_for_a_better_mean_is_named_without_a_limit(self) -> None:
        def measure(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
            yield "ping/latency/8/mean", (100.0 - 30.0 * bool(setting)) * (1 + block / 1000)
            yield "ping/latency/8/p99", (100.0 + 45.0 * bool(setting)) * (1 + block / 900)
            yield "ping/cpu-share", 1.0 + bool(setting)

        made = confirm(Laboratory(SPACE, measure, Objective({"*/mean": 1.0}), 1), BEST, first_block=0)
        assert made.recommended
        assert made.reason == "better on fresh blocks, but worse in ping/latency/8/p99 1.450 times"


def _surface_file(place: Path, **changes: object) -> Path:
    knobs = {"a": ["0", "1"], "b": ["x", "y", "z"]}
    figures = [[[1000 + 100 * s + block, 50 + s] for s in range(6)] for block in range(3)]
    raw = {
        "surface_format": 1,
        "about": "made up",
        "knobs": knobs,
        "present": {"a": "1", "b": "x"},
        "cells": ["l", "m"],
    }
    place.write_text(json.dumps({**raw, "figures_ns": figures, **changes}))
    return place


class TestSurface:
    def test_settings_are_read_in_the_order_of_the_space(self, tmp_path: Path) -> None:
        recording = read_recording(_surface_file(tmp_path / "s.json"))
        here: Point = recording.space.point({"b": "z"})
        assert np.exp(recording.log_figures[0, recording.space.points.index(here), 0]) == pytest.approx(1500)

    @pytest.mark.parametrize(
        "changes", [{"surface_format": 2}, {"cells": ["l"]}, {"figures_ns": []}, {"present": {}}, {"knobs": []}]
    )
    def test_foreign_files_are_refused(self, tmp_path: Path, changes: dict[str, object]) -> None:
        with pytest.raises(ForeignFileError, match="not a recorded surface"):
            read_recording(_surface_file(tmp_path / "s.json", **changes))

    def test_flat_surface_has_no_effect_and_the_same_noise(self, tmp_path: Path) -> None:
        surface = Surface.of(read_recording(_surface_file(tmp_path / "s.json")))
        assert surface.costs(LATENCY).min() < -0.05
        assert not surface.flat().costs(LATENCY).any()
        assert np.array_equal(surface.flat().residuals, surface.residuals)
        assert (surface.flat().spread == surface.spread[surface.space.points.index((0, 0))]).all()

    def test_noise_follows_the_order_of_the_recording(self, tmp_path: Path) -> None:
        order = [[5, 3, 1, 0, 2, 4], [0, 1, 2, 3, 4, 5], [4, 5, 0, 1, 3, 2]]
        noise = np.random.default_rng(1).integers(-9, 9, size=(3, 6, 2))
        figures = (1000 + noise).tolist()
        surface = Surface.of(read_recording(_surface_file(tmp_path / "s.json", order=order, figures_ns=figures)))
        simulated, again = (Simulation(surface, np.random.default_rng(4)) for _ in range(2))
        values = [simulated.trial(surface.space.present)["l"] for _ in range(36)]
        assert values[:18] == values[18:], "it starts over at the end of the recording"
        assert values[:3] == [again.trial(surface.space.present)["l"] for _ in range(3)]
        first = surface.residuals[0] * surface.spread[surface.space.points.index(surface.space.point({"b": "z"}))]
        assert surface.in_order
        assert np.isfinite(first).all()

    def test_an_order_that_leaves_settings_out_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ForeignFileError, match="every setting once"):
            read_recording(_surface_file(tmp_path / "s.json", order=[[0, 1, 2, 3, 4, 4]] * 3))


def test_optuna_samplers_have_the_same_interface() -> None:
    pytest.importorskip("optuna", reason="the extra `tune` is not installed")
    found = search(_laboratory(), Sampler(SPACE, trials=25, seed=1), max_trials=500)
    assert found.trials <= 2 * 25
    assert SPACE.setting(found.winner).get("nic.rx-usecs") == "0"


def test_effects_are_reported_per_knob() -> None:
    found = search(_laboratory(0.001), Grid(SPACE, blocks=2, seed=1), max_trials=500)
    (first, *_), interactions = explain(SPACE, found.notes, LATENCY)
    assert first.knobs == ("nic.rx-usecs",)
    assert first.share > 0.8
    assert first.by_value["50"] == pytest.approx(0.5, abs=0.05)
    assert all(pair.share < 0.1 for pair in interactions)


MOVED = """
format = 1
name = "moved"
baseline = "bare"
[[path]]
name = "bare"
kind = "veth"
[[path]]
name = "veth"
[[workload]]
name = "latency"
[tune]
[tune.knobs]
"nic.gro" = ["on", "off"]
"""


class Recalled:
    """Launches that return the given facts, one after another."""

    def __init__(self, *facts: dict[str, Scalar]) -> None:
        self.facts = list(facts)
        self.looks: list[dict[str, list[Scalar]]] = []

    def launch(self, order: Order, check: Callable[[Outcome], None]) -> tuple[Outcome, list[object]]:
        self.looks.append(order.look)
        outcome = Outcome(TrialStatus.VALID, facts=self.facts.pop(0))
        check(outcome)
        return outcome, []


def recalled(*facts: dict[str, Scalar], present: Mapping[str, str]) -> tuple[Recalled, StudyTrials]:
    study = parse_study(MOVED, "moved.toml")
    assert study.tune is not None
    launches = Recalled(*facts)
    return launches, StudyTrials(study, study.tune, study.tune.searches[0], launches, present)  # type: ignore[arg-type]


def test_a_present_value_that_changes_during_a_search_is_reported() -> None:
    """Each setting was compared with the present one of its moment, and only the last value was kept."""
    facts: list[dict[str, Scalar]] = [{"knob.was.nic.gro": was, "knob.was.nic.mtu": "1500"} for was in ("on", "off")]
    _, trials = recalled(*facts, present={"nic.gro": "on", "nic.mtu": AS_FOUND})
    for block in range(2):
        assert trials.warnings() == []
        assert list(trials({"nic.gro": "off"}, block)) == []
    assert trials.warnings() == [
        "nic.gro was on when the search began and off later: another program sets it, so settings were compared with "
        "different present ones"
    ]
    assert trials.was == {"nic.gro": "off", "nic.mtu": "1500"}


def test_a_launch_of_another_present_setting_ends_the_search() -> None:
    """What another program, or a second search, had set meanwhile was measured as the present setting."""
    facts: list[dict[str, Scalar]] = [
        {"knob.found.nic.gro": now, "knob.found.nic.mtu": "9000"} for now in ("on", "off")
    ]
    launches, trials = recalled(*facts, {}, {}, present={"nic.gro": "on", "nic.mtu": AS_FOUND})
    assert list(trials({}, 0)) == []
    with pytest.raises(
        ChangedSettingError, match=r"nic\.gro is off and was on when the search began: another program set it"
    ):
        list(trials({}, 1))
    assert [*trials({"nic.gro": "off"}, 2), *trials.native(2)] == []
    asked = {"nic.gro": [], "nic.mtu": []}
    assert launches.looks == [asked, asked, {}, {}]


def test_the_machine_of_a_profile_is_that_of_the_tuned_path() -> None:
    """The baseline's nodes may be other machines, and its launch may be the last."""
    facts: list[dict[str, Scalar]] = [{"kernel.release": release} for release in ("of the guests", "of the hosts")]
    _, trials = recalled(*facts, present={})
    assert [*trials({}, 0), *trials.native(0)] == []
    assert trials.machine == {"kernel.release": "of the guests"}


def test_what_an_adaptive_mode_changes_is_nobody_elses() -> None:
    """Drivers that show what they adapt to would end every search, and be said to have been set by a program."""
    facts: list[dict[str, Scalar]] = []
    for usecs in ("8", "64"):
        facts.append({"knob.found.nic.rx-usecs": usecs, "knob.found.nic.adaptive-rx": "on"})
        facts.append({"knob.was.nic.rx-usecs": usecs, "knob.was.nic.adaptive-rx": "on"})
    _, trials = recalled(*facts, present={"nic.rx-usecs": "8", "nic.adaptive-rx": "on"})
    for block in range(2):
        assert [*trials({}, block), *trials({"nic.rx-usecs": "0", "nic.adaptive-rx": "off"}, block)] == []
    assert trials.warnings() == []
