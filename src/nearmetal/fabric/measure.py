"""A whole fabric on a host, kept in a run directory: one launch for all pairs, a second for the re-tests."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from nearmetal.errors import BadInputError, ExitCode, ForeignFileError, TrialError
from nearmetal.fabric.detect import FEW_NODES, MIN_NODES, REPEATS, screen
from nearmetal.fabric.figures import pairs_of
from nearmetal.hosts.host import Host
from nearmetal.hosts.ssh import machines_named
from nearmetal.run.trial import carry_out
from nearmetal.store.record import started_now
from nearmetal.store.rundir import RunDir
from nearmetal.study.order import Order, PathOrder, Scalar, TrialStatus, WorkloadOrder
from nearmetal.study.spec import PathSpec, Study
from nearmetal.units import NS_PER_S, counted
from nearmetal.workloads import rounds
from nearmetal.workloads.fabric import ROUNDS, SAMPLES, Fabric
from nearmetal.workloads.fabric_file import FabricFile, read_fabric_file
from nearmetal.workloads.rounds import Pair, Round, pair_of

# ---- the rounds of the re-tests
# Each suspect several times, with all other nodes active.


def again_rounds(
    nodes: int, links: Collection[Pair], suspected: Collection[int], *, repeats: int, seed: int
) -> list[Round]:
    """Return rounds in which each link is measured `repeats` times and each suspected node as often.

    Few nodes all meet each other in each repetition, which so has a fit of its own. Of more, a suspected node meets a
    partner above suspicion, drawn anew each time. Every round is filled up with pairs of the remaining nodes, drawn at
    random: they keep the load of the screen and are the controls. With links, one more round in each repetition is of
    such pairs alone, in which the ends of links meet others. One repetition of all comes before the next, so that
    a short disturbance meets few re-tests of one suspect.
    """
    if MIN_NODES <= nodes <= FEW_NODES:
        return rounds.all_pairs(nodes) * repeats if links or suspected else []
    drawn = random.Random(seed)
    wanted = sorted({(min(pair), max(pair)) for pair in links})
    doubtful = sorted(set(suspected))
    coloured = edge_colouring(nodes, wanted)
    again: list[Round] = []
    for _ in range(repeats):
        once = [list(pairs) for pairs in coloured]
        _add_nodes(once, nodes, doubtful, frozenset(wanted), drawn)
        others = [()] if wanted else []
        again += [_filled(pairs, nodes, frozenset(doubtful), drawn) for pairs in (*once, *others)]
    return again


def edge_colouring(nodes: int, links: Sequence[Pair]) -> list[list[Pair]]:
    """Return the links in rounds of disjoint pairs, each in the first round where both its nodes are free.

    At most 2 d - 1 rounds when no node has more than d links, where d are needed: the greedy bound.
    """
    taken: list[set[int]] = [set() for _ in range(nodes)]
    rounds: list[list[Pair]] = []
    for a, b in links:
        number = 0
        while number in taken[a] or number in taken[b]:
            number += 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append((a, b))
        taken[a].add(number)
        taken[b].add(number)
    return rounds


def _add_nodes(
    rounds: list[list[Pair]], nodes: int, doubtful: Sequence[int], links: frozenset[Pair], drawn: random.Random
) -> None:
    """Put each doubtful node into the first round where it and a partner above suspicion are free."""
    partners = [node for node in range(nodes) if node not in set(doubtful)]
    busy = [{node for pair in pairs for node in pair} for pairs in rounds]
    for node in doubtful:
        drawn.shuffle(partners)
        usable = [other for other in partners if (min(node, other), max(node, other)) not in links]
        if not usable:
            continue
        for number in range(len(rounds) + 1):
            if number == len(rounds):
                rounds.append([])
                busy.append(set())
            partner = next((other for other in usable if other not in busy[number]), None)
            if node not in busy[number] and partner is not None:
                rounds[number].append((node, partner))
                busy[number] |= {node, partner}
                break


def _filled(pairs: Sequence[Pair], nodes: int, doubtful: frozenset[int], drawn: random.Random) -> Round:
    """Return the round with all other nodes paired at random, those above suspicion among themselves first."""
    busy = {node for pair in pairs for node in pair}
    free = [node for node in range(nodes) if node not in busy]
    drawn.shuffle(free)
    free.sort(key=lambda node: node in doubtful)
    fillers = zip(free[::2], free[1::2], strict=False)
    return tuple(pair_of(a, b) for a, b in (*pairs, *fillers))


# ---- measure


MOST_NODES = 4096
"""As many as a study's `placement` may name."""
WHOLE, RETESTS = 0, 1
"""The trials of a fabric's run."""


class FabricError(TrialError):
    """The fabric could not be measured, or not to its end; what was measured is kept."""

    exit_code = ExitCode.PARTIAL


def whole_order(study: Study, path_name: str, nodes: int, *, bisection: bool) -> Order:
    """Return the order for all pairs of the first `nodes` nodes on a path; raise BadInputError where there is none.

    The study's workload of kind `fabric`, if it has one, says the sizes and counts, and how many nodes when `nodes` is
    0. A path that names its machines has as many.
    """
    path = _path(study, path_name)
    workload = next((one for one in study.workload if one.kind == Fabric.kind), None)
    options: dict[str, Scalar | list[Scalar]] = dict(workload.options) if workload else {}
    listed = len(str(path.options.get("nodes", "")).split()) or len(machines_named(study.host))
    count = nodes or (len(workload.placed) if workload else 0) or listed
    if count < 2:
        raise BadInputError(
            "the number of nodes is missing" if count == 0 else f"{count} node has no pairs",
            hint="--nodes N with N from 2 up, or a workload of kind 'fabric' with a placement",
        )
    if count > MOST_NODES:
        raise BadInputError(f"{count:,} nodes are too many", hint=f"--nodes N with N up to {MOST_NODES:,}")
    order = Order(
        trial=WHOLE,
        block=0,
        path=PathOrder(path.name, path.recipe, dict(path.options)),
        workload=WorkloadOrder(
            workload.name if workload else Fabric.kind,
            Fabric.kind,
            {"bisection": True, **options} if bisection else {**options, "bisection": False},
            tuple(range(count)),
            workload.progress if workload else "polling",
        ),
        mpi=study.mpi.flavour,
        seed=study.seed,
        timeout_s=study.trials.timeout / NS_PER_S,
    )
    Fabric().check(order.workload)
    return order


def passed_over(study: Study) -> list[str]:
    """Return in words what the study asks for and `whole_order` leaves out."""
    fabrics = [one.name for one in study.workload if one.kind == Fabric.kind]
    only = f"of {len(fabrics)} workloads of kind {Fabric.kind!r} only {fabrics[0]} is measured" if fabrics[1:] else ""
    names = ", ".join(one.name for one in study.setting)
    knobs = f"a fabric is measured as found: the knobs of setting {names} are not set"
    return [one for one in (only, knobs if all(one.knobs for one in study.setting) else "") if one]


def _path(study: Study, name: str) -> PathSpec:
    for path in study.path:
        if path.name == (name or study.baseline):
            return path
    raise BadInputError(f"the study has no path {name!r}", hint=f"it has: {', '.join(p.name for p in study.path)}")


def measure(order: Order, margin: float, host: Host, run: RunDir, say: Callable[[str], None]) -> None:
    """Measure all pairs, then the suspects again; every launch is kept in the run, a failed one with its reason.

    Raise FabricError when a launch fails.
    """
    plan = rounds.all_pairs(len(order.workload.placement))
    say(f"measuring {len(order.workload.placement)} nodes in {counted(len(plan), 'round')} of disjoint pairs")
    file = _launch(order, host, run)
    found = screen(pairs_of(file, rounds.ALL), margin)
    if not found.suspects:
        return
    links, nodes = found.suspected_links, found.suspected_nodes
    again = again_rounds(found.nodes, links, nodes, repeats=REPEATS, seed=order.seed)
    what = counted(len(found.suspects), "direction" if found.nodes < MIN_NODES else "suspect")
    say(f"{what} stood out; measuring again {REPEATS} times, in {counted(len(again), 'round')}")
    lines: list[Scalar] = [*rounds.to_lines((rounds.AGAIN, one) for one in again)]
    options = {**order.workload.options, ROUNDS: lines}
    _launch(replace(order, trial=RETESTS, workload=replace(order.workload, options=options)), host, run)


def _launch(order: Order, host: Host, run: RunDir) -> FabricFile:
    started_utc = started_now()
    outcome = host.carry_out(order, carry_out)
    file: FabricFile | None = None
    if outcome.status is TrialStatus.VALID and SAMPLES not in outcome.files:  # of a host that computes its answers
        why = f"host kind {host.kind!r} measures no fabric"
        outcome = replace(outcome, status=TrialStatus.FAILED, reason=why, hint="name another host", files={})
    if outcome.status is TrialStatus.VALID:
        try:
            file = read_fabric_file(outcome.files[SAMPLES])
        except ForeignFileError as error:
            outcome = replace(outcome, status=TrialStatus.FAILED, reason=error.message, hint=error.hint)
    run.append(order, outcome, [], attempt=1, started_utc=started_utc)
    if file is None:
        raise FabricError(outcome.reason or "the launch failed and printed nothing", hint=outcome.hint)
    return file
