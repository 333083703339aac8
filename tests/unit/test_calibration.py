"""Intervals that include the model's error, made from validated cases by class."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from bench.support.coverage import coverage

from nearmetal.predict.calibration import (
    GUEST,
    OWN,
    RELAY,
    RULED,
    SHARED,
    TIMED,
    Errors,
    JobCase,
    ValidatedCase,
    class_of,
    errors_of,
    known_ratio_errors,
    lab_cases,
    p99_errors,
    ratio_errors,
    run_errors,
    shipped_jobs,
    validated_cases,
)
from nearmetal.predict.doubts import _of_a_relay, _of_guests, _of_processors
from nearmetal.predict.doubts_of_messages import _of_the_rule
from nearmetal.predict.machine_file import parse_moderation
from nearmetal.predict.models import UNBOUNDED, Cores, Distribution, Machine, NamedMachine, PathModel, Segment
from nearmetal.predict.moderation import StageSetting
from nearmetal.predict.native import Placement
from nearmetal.units import by_key
from nearmetal.workloads.parallel import GUEST_KINDS

PATH = PathModel((Segment(UNBOUNDED, 1),))


def test_the_shipped_cases_match_the_docs_page() -> None:
    cases = validated_cases()
    assert len(cases) == 2 * 136
    assert {case.occasion for case in cases} == {"2026-11-28T06:52", "2026-11-28T10:03"}
    counts = {name: sum(case.case_class == name for case in cases) for name in (OWN, SHARED, RELAY)}
    assert counts == {OWN: 2 * 42, SHARED: 2 * 64, RELAY: 2 * 30}
    own = [case for case in cases if case.case_class == OWN]
    for occasion, found in (("2026-11-28T06:52", 0.0488), ("2026-11-28T10:03", 0.0264)):
        errors = [abs(case.predicted_ms / case.measured_ms - 1) for case in own if case.occasion == occasion]
        assert np.median(errors) == pytest.approx(found, abs=0.001)
    assert {case.path for case in cases if case.case_class == RELAY} == {"tap"}


def as_long_as_predicted(case_class: str) -> tuple[list[float], list[float]]:
    """Return how many times as long as predicted programs took: medians in namespaces, cases of the lab; rising."""
    by_program = by_key((one.application, one.run_error) for one in validated_cases() if one.case_class == case_class)
    lab = (1 / (1 + case.error) for case in lab_cases() if case.case_class == case_class)
    return sorted(math.exp(median(errors)) for errors in by_program.values()), sorted(lab)


def test_the_doubt_about_shared_processors_states_the_errors_of_the_stored_cases() -> None:
    """It stated those of cases that had been measured again since."""
    namespaces, lab = as_long_as_predicted(SHARED)
    named = NamedMachine("p", "as-found", "polling", Machine(PATH, PATH, cores=Cores(1)))
    (doubt,) = _of_processors(named, Placement.block(4, 2))
    for of in (lab, namespaces):
        assert f"{100 * (1 - of[0]):.0f} % less to {100 * (of[-1] - 1):.0f} % more" in doubt.said
    assert len(namespaces) == 8


def test_the_doubt_about_a_relay_states_the_errors_of_the_stored_cases() -> None:
    """In the lab, three programs were 17 to 21 % too slow over `tap`, without a word."""
    namespaces, lab = as_long_as_predicted(RELAY)
    (doubt,) = _of_a_relay(NamedMachine("mine", "as-found", "polling", Machine(PATH, PATH), kind="tap"))
    assert f"{100 * (1 - namespaces[0]):.0f} % less to {100 * (namespaces[-1] - 1):.0f} % more than" in doubt.said
    assert f"{100 * (1 - lab[-1]):.0f} to {100 * (1 - lab[0]):.0f} % less in the lab" in doubt.said
    assert (len(namespaces), len(lab)) == (8, 7)
    assert list(_of_a_relay(NamedMachine("tap2", "as-found", "polling", Machine(PATH, PATH), kind="veth"))) == []


def test_the_doubts_about_guests_and_rules_state_the_errors_of_the_lab() -> None:
    cases = lab_cases()
    guests = [1 / (1 + one.error) for one in cases if one.case_class == GUEST]
    inter = replace(PATH, copy_fs_per_byte=1)
    named = NamedMachine("p", "as-found", "polling", Machine(PATH, inter), kind="guest-vf")
    (doubt,) = _of_guests(named)
    took = f"took {100 * (1 - min(guests)):.0f} % less to {100 * (max(guests) - 1):.0f} % more than predicted"
    assert f"{took}, although it was measured what messages take" in doubt.said
    assert "`one_way` and `after_exchange` too" in str(doubt.hint)
    staged = replace(named, machine=replace(named.machine, stage=StageSetting(parse_moderation("dim-eqe"))))
    assert "--validate" in str(next(_of_guests(staged)).hint)
    beside = replace(inter, send_work_ps=((0, 9),), receive_work_ps=((0, 9),), trailing_ps=((8, 9),))
    (doubt,) = _of_guests(replace(named, machine=replace(named.machine, inter=beside)))
    assert doubt.said.endswith(took)
    ruled = [one.error for one in cases if one.by_rule_ms]
    (doubt,) = _of_the_rule(1.0)
    said = f"{-100 * min(ruled):.0f} % too fast to {100 * max(ruled):.0f} % too slow, of the middle case "
    assert said + f"{100 * median(map(abs, ruled)):.0f} % off" in doubt.said


@pytest.mark.parametrize(
    ("kind", "cores", "per_node", "expected"),
    [
        ("native", Cores(1, one_computer=True), 1, SHARED),
        ("native", Cores(4, one_computer=True), 1, OWN),
        ("native", Cores(2), 4, SHARED),
        ("native", Cores(4), 4, OWN),
        ("native", None, 4, OWN),
        ("tap", Cores(64), 1, RELAY),
        ("virtio", Cores(64), 1, GUEST),
    ],
)
def test_the_class_of_a_prediction(kind: str, cores: Cores | None, per_node: int, expected: str) -> None:
    named = NamedMachine("p", "as-found", "polling", Machine(PATH, PATH, cores=cores), kind=kind)
    assert class_of(named, Placement.block(4, per_node)) == expected


def test_a_rule_and_a_timer_are_classes_where_they_have_cases() -> None:
    stage, placement = StageSetting(parse_moderation("dim-eqe")), Placement.block(2, 1)
    for residual, timed in (((-60, -60, 0, 0), True), ((-40, -40, 0, 0), False), (None, False)):
        drawn = residual and Distribution((0.0, 0.4, 0.5, 1.0), residual)
        inter = PathModel((Segment(64, 100, residual=None), Segment(UNBOUNDED, 100, residual=drawn)))
        plain = NamedMachine("p", "as-found", "polling", Machine(PATH, inter), kind="virtio")
        ruled = replace(plain, machine=replace(plain.machine, stage=stage))
        assert class_of(plain, placement, {RULED, TIMED}) == (TIMED if timed else GUEST)
        assert class_of(ruled, placement, {RULED, TIMED}) == RULED
        assert {class_of(one, placement, known) for one in (plain, ruled) for known in ((), {OWN, GUEST})} == {GUEST}


def test_predictions_in_the_lab_have_the_errors_of_the_lab() -> None:
    """Those for guests were of all classes of namespaces: 0.80 to 1.28 times as long as predicted."""
    elsewhere, lab = run_errors("local"), run_errors("lab")
    assert elsewhere == run_errors()
    assert set(elsewhere) == {OWN, SHARED, RELAY}
    assert lab[RELAY] == elsewhere[RELAY], "too few of its own"
    assert set(lab) == {*elsewhere, GUEST, RULED, TIMED}
    moderated = [case for case in lab_cases() if case.by_rule_ms]
    assert lab[RULED] == pytest.approx(sorted(-math.log1p(case.error) for case in moderated))
    assert len(lab[TIMED]) == len(moderated)
    guests = [-math.log1p(one.error) for one in lab_cases() if one.path in GUEST_KINDS and not one.by_rule_ms]
    assert lab[GUEST] == pytest.approx(sorted(guests))
    own, of_all = (errors_of(table, GUEST).span() or (0.0, 0.0) for table in (lab, elsewhere))
    assert own[1] / own[0] < 0.85 * of_all[1] / of_all[0]


def test_p99s_in_the_lab_have_its_errors_in_classes_with_cases_enough() -> None:
    found: dict[str, list[float]] = defaultdict(list)
    for case in lab_cases():
        if case.p99_ms and case.predicted_p99_ms:
            found[case.case_class].append(math.log(case.p99_ms / case.predicted_p99_ms))
        if case.p99_ms and case.by_rule_p99_ms:
            found[RULED].append(math.log(case.p99_ms / case.by_rule_p99_ms))
    shipped, lab = p99_errors(), p99_errors("lab")
    assert p99_errors("ssh") == shipped
    for name in (*shipped, GUEST, RULED, TIMED):
        assert lab.get(name) == (pytest.approx(sorted(found[name])) if len(found[name]) >= 19 else shipped.get(name))
    assert GUEST in lab


def test_ratios_in_the_lab_are_to_the_port_under_the_same_rule() -> None:
    port = NamedMachine("native", "tuned", "polling", Machine(PATH, PATH), host="lab")
    by_path = {(one.where, one.program, one.letter, one.path, one.setting): one for one in lab_cases()}
    expected: dict[str, list[float]] = {RULED: [], GUEST: []}
    for case in lab_cases():
        bare = by_path.get((*case.job, "native", case.setting))
        if bare and case.path != "native":
            kind = RULED if case.by_rule_ms else case.case_class
            expected.setdefault(kind, []).append(math.log1p(bare.error) - math.log1p(case.error))
    found = known_ratio_errors((), port)
    for kind in (RULED, GUEST):
        assert found[kind] == pytest.approx(sorted(expected[kind]))
    assert RULED not in known_ratio_errors((), replace(port, host="local"))
    assert known_ratio_errors((), replace(port, setting="mine")) == found, "to the port without moderation"


def test_an_interval_keeps_the_sign_of_earlier_errors() -> None:
    """If predictions were up to a half too short, the interval extends up, not down."""
    errors = Errors(SHARED, tuple(np.log(np.linspace(1.0, 1.5, 99))))
    low, high = errors.interval(np.full(20, 1_000_000)) or (0, 0)
    assert low == pytest.approx(1_020_000, rel=0.01)
    assert high == pytest.approx(1_480_000, rel=0.01)
    wider = errors.interval(np.array([800_000, 1_000_000, 1_250_000] * 10)) or (0, 0)
    assert wider[0] < low
    assert wider[1] > high


def test_too_few_cases_give_no_interval_and_an_unknown_class_uses_all() -> None:
    assert Errors(GUEST, (0.0,) * 18).span() is None
    assert Errors(GUEST, (0.0,) * 18).interval(np.array([1])) is None
    assert Errors(GUEST, (0.0,) * 19).span() == (1.0, 1.0)
    assert len(errors_of(run_errors(), GUEST).logs) == 2 * 136
    assert len(errors_of(ratio_errors(shipped_jobs(), ("veth", "", "")), OWN).logs) == 2 * 28


def test_errors_of_ratios_are_relative_to_the_bare_path_of_each_job() -> None:
    vf, port, other = ((path, setting, "polling") for path, setting in (("vf", "a"), ("native", "a"), ("native", "b")))
    jobs = [
        [JobCase(OWN, vf, 0.5), JobCase(OWN, port, 0.2), JobCase(OWN, other, 0.1)],
        [JobCase(OWN, vf, 0.5), JobCase(SHARED, other, 0.1)],  # its path, under another setting
        [JobCase(RELAY, vf, 0.5), JobCase(RELAY, ("tap", "a", "polling"), 0.9)],  # neither
        [JobCase(GUEST, vf, 0.5)],
    ]
    found = ratio_errors(jobs, port)
    assert {name: pytest.approx(logs) for name, logs in found.items()} == {OWN: (-0.1, 0.3, 0.4), RELAY: (0.4,)}


def test_ratios_to_a_path_take_no_errors_of_pairs_without_it() -> None:
    """Guests that all took 30 % longer than predicted had no error of their ratio to the port."""
    keys = [(path, "tuned", "polling") for path in ("native", "vf", "virtio")]
    port, function, _ = (NamedMachine(*key, Machine(PATH, PATH)) for key in keys)
    guests = [[JobCase(GUEST, key, 0.3) for key in keys[1:]] for _ in range(20)]
    assert known_ratio_errors(guests, port) == ratio_errors(shipped_jobs(), keys[0])
    assert known_ratio_errors(guests, function)[GUEST] == (0.0,) * 20
    both = [[JobCase(OWN, keys[0], 0.0), *job] for job in guests]
    assert known_ratio_errors(both, port)[GUEST] == (0.3,) * 40


def test_the_chance_of_staying_within_a_loss_counts_errors() -> None:
    errors = Errors(OWN, tuple(np.log(np.linspace(0.8, 1.2, 99))))
    for predicted, limit, chance in ((1.0, 1.1, 0.75), (1.0, 2.0, 0.995), (1.5, 1.1, 0.005)):
        # 99 cases do not make it certain
        assert errors.chance_below(np.log([predicted]), limit) == pytest.approx(chance, abs=0.02 * (chance == 0.75))
    assert errors.chance_below(np.log([0.1, 0.2, 10.0, 20.0]), 1.1) == pytest.approx(0.5)


def test_coverage_leaves_one_application_out() -> None:
    usual = [(name, math.log(1 + k / 1000)) for name in "abc" for k in range(20)]
    inside, n, width = coverage([*usual, *(("odd", math.log(2 + k / 10)) for k in range(4))])
    assert n == 64
    assert inside <= 60
    only_usual, _, _ = coverage(usual)
    assert only_usual >= 54
    assert width < 2.5


def test_coverage_skips_an_application_with_too_few_others() -> None:
    few = [("b", 0.0)] * 2
    inside, judged, _ = coverage([*[("a", 0.0)] * 20, *few])
    assert (inside, judged) == (2, 2)  # two others give no interval for the 20 cases of a
    assert coverage(few)[:2] == (0, 0)


def test_an_interval_leaves_out_as_many_errors_as_conformal_ranks_do() -> None:
    """A twentieth of 39 errors and the new one are two: the second at either end bounds nine tenths."""
    errors = Errors(OWN, tuple(k / 100 for k in range(39)))
    factors = (math.exp(0.01), math.exp(0.37))
    assert errors.span() == pytest.approx(factors)
    assert errors.interval(np.array([1000])) == pytest.approx([1000 * one for one in factors])
    assert errors.interval(np.array([0])) == pytest.approx(factors)  # a program of no time takes a nanosecond


def test_the_chance_at_a_limit_counts_what_just_reaches_it() -> None:
    errors = Errors(OWN, (-1.0, 0.0, 1.0))
    assert errors.chance_below(np.array([0.0]), 1.0) == 2.5 / 4
    assert errors.chance_below(np.array([0.0, 2.0]), 1.0) == 1.5 / 4  # two of three, and none


def test_the_error_of_a_case_is_what_it_took_against_its_prediction() -> None:
    case = ValidatedCase(OWN, "a", "S", 2, "spread", "veth", 4, 30.0, 10.0, 1.0, 2.0)
    assert case.run_error == math.log(3)
    assert case.p99_error == math.log(1 / 2)
