"""`nearmetal place TRACE|PATTERN --on RUN`: the data path and the rank mapping to choose."""

import math
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from nearmetal import limits
from nearmetal.cli.break_even import find_break_even, print_break_even, two_machines
from nearmetal.cli.progress import warn
from nearmetal.cli.replay import Replay, prepare, replay_options, tell_doubts, traced_by_run
from nearmetal.cli.values import PATH
from nearmetal.errors import BadInputError
from nearmetal.predict.calibration import class_of, errors_of, known_ratio_errors
from nearmetal.predict.doubt import Doubt, told_once
from nearmetal.predict.launcher_files import WRITERS, cautions_of, commented
from nearmetal.predict.measured import CHOSEN, DEFAULT, measure_gain, placement_study, traced_program
from nearmetal.predict.models import NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.place import IN_ORDER, Candidate, Hosts, Judge, Slots, geometric, in_order, recommend
from nearmetal.predict.trace_file import read_trace
from nearmetal.report import as_table
from nearmetal.report.prediction_json import PLACEMENT_SUFFIX, PlacedJson, PlacementFile, check_place, save
from nearmetal.report.prediction_text import doubted, gained, measured_on, placements
from nearmetal.report.schema import made
from nearmetal.report.terminal import Console
from nearmetal.run.guests import measuring, open_host
from nearmetal.store.disk import Disk
from nearmetal.store.rundir import RunDir
from nearmetal.units import as_percent, counted, is_whole

_HOST = re.compile(r"[\w.-]+")
_CHECK_BLOCKS = 5
_REMEDY = "The default needs no file; --check measures both"


def parse_hosts(text: str) -> Slots:
    """Read `n0:16,n1:16` (one slot where no number is given); raise BadInputError otherwise."""
    names: list[str] = []
    counts: list[int] = []
    for part in text.split(","):
        name, colon, count = part.strip().partition(":")
        if not _HOST.fullmatch(name) or (colon and not is_whole(count, limits.RANKS.value())):
            raise BadInputError(f"{part!r} is not a host", hint="write --hosts n0:16,n1:16")
        names.append(name)
        counts.append(int(count or 1))
    return Slots(tuple(names), tuple(counts))


@click.command(name="place")
@click.argument("program", type=PATH)
@replay_options
@click.option("--hosts", required=True, help="Hosts and their slots, such as 'n0:16,n1:16'.")
@click.option("--dims", help="The process grid of a Cartesian program, such as '4x2x2'.")
@click.option(
    "--tries",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="How many rank swaps to try in simulation.",
)
@click.option(
    "--launcher",
    type=click.Choice(sorted(WRITERS)),
    default="openmpi",
    show_default=True,
    help="The launcher that will read the mapping.",
)
@click.option(
    "--break-even",
    "pair",
    nargs=2,
    help="Two paths: also show the share of inter-node messages at which they break even.",
)
@click.option("--check", is_flag=True, help="Measure the recommended placement against the default one.")
@click.option("--check-blocks", type=click.IntRange(min=3), help=f"Launches of each [default: {_CHECK_BLOCKS}].")
@click.option(
    "--check-figure", default="", help="Regular expression for the run time that the program prints, in seconds."
)
@click.option("-o", "--output", type=PATH, help="Write the launcher's file here.")
@click.option("--save", "kept", type=PATH, help="Save to NAME.placement.json for `serve`.")
def command(
    *,
    program: Path,
    hosts: str,
    dims: str | None,
    tries: int,
    launcher: str,
    pair: tuple[str, str] | None,
    check: bool,
    check_blocks: int | None,
    check_figure: str,
    output: Path | None,
    kept: Path | None,
    **given: Any,
) -> None:
    """Recommend a data path and a rank mapping for PROGRAM, and write it for the launcher.

    With --check the traced program is also run under the recommended and under the default placement, on the
    recommended path of the run's own host, and the measured gain is shown next to the predicted one. The first of
    --hosts is the study's first node, and so on.
    """
    check_place(kept, PLACEMENT_SUFFIX)
    checked = _asked_check(program, given["source"], check_blocks, check_figure, check=check)
    slots = parse_hosts(hosts)
    replay = _as_messages(prepare([program], given))
    schedule = replay.schedules[0]
    slots.check(schedule.ranks)
    grid = _grid(dims, schedule.ranks, slots, hosts)
    both = two_machines(replay, pair) if pair else None
    found = _recommended(replay, slots, grid, tries)
    doubts = _doubts(replay, found, in_order(schedule.ranks, slots))
    tell_doubts(doubts)
    candidates = _candidates(found)
    alike = _alike(replay, found)
    _print(candidates, alike, measured_on(replay.model))
    even = find_break_even(*both, in_order(schedule.ranks, slots), replay) if both else None
    if even:
        print_break_even(even)
    written, said = WRITERS[launcher](found[0][1].host_of, slots), cautions_of(launcher, found[0][1].host_of, slots)
    for caution in said:
        warn(caution)
    evidence = [*_evidence(candidates[0]), *said]
    if checked:
        evidence += _check(found, checked, (check_blocks or _CHECK_BLOCKS, check_figure))
    if kept is not None:
        save(
            kept,
            PlacementFile,
            replay.name,
            replay.model,
            candidates=candidates,
            hosts=slots.names,
            host_of=tuple(found[0][1].host_of.tolist()),
            launcher=launcher,
            launcher_file=commented(launcher, evidence, written),
            doubts=(*(said for said, _ in doubted(doubts)), *alike),
            break_even=even,
        )
    _write(output, commented(launcher, evidence, written))


def _asked_check(
    program: Path, source: Path, blocks: int | None, figure: str, *, check: bool
) -> tuple[RunDir, tuple[str, ...]] | None:
    """Return what --check needs, None without it; raise BadInputError for an option that then changes nothing."""
    if check:
        return _checked_program(program, source)
    if blocks or figure:
        text = f"{'--check-blocks' if blocks else '--check-figure'} has no effect without --check"
        raise BadInputError(text, hint="give both, or neither")
    return None


def _as_messages(replay: Replay) -> Replay:
    """Return it with collectives as messages: their measured times are those of one placement.

    Raise BadInputError where hosts have several guests.
    """
    if (replay.changes.vms_per_host or 1) > 1:
        raise BadInputError("place maps ranks to nodes, not to guests of hosts", hint="leave --vms-per-host out")

    def plain(named: NamedMachine) -> NamedMachine:
        machine, *launches = (replace(one, measured=()) for one in (named.machine, *named.launches))
        return replace(named, machine=machine, launches=tuple(launches))

    return replace(replay, machines=[plain(named) for named in replay.machines])


def _write(output: Path | None, text: str) -> None:
    if output is None:
        click.echo(text, nl=False)
    else:
        Disk().put_bytes(output, text.encode())


def _recommended(
    replay: Replay, slots: Slots, grid: tuple[int, ...], tries: int
) -> list[tuple[NamedMachine, Candidate]]:
    """Return the candidates of every machine, the best first."""
    found: list[tuple[NamedMachine, Candidate]] = []
    for named in replay.machines:
        judge = Judge(tuple(replay.schedules), named.replayed, replay.seed, replay.replicas)
        found += [(named, candidate) for candidate in recommend(judge, slots, dims=grid, tries=tries)]
    return _ranked(found)


def _ranked(found: list[tuple[NamedMachine, Candidate]]) -> list[tuple[NamedMachine, Candidate]]:
    """Return candidates, the fastest first; one that gains nothing on the default of its machine comes behind that.

    Its median may be the smaller one all the same, where launches differ more than placements do.
    """
    defaults = {named: candidate for named, candidate in found if candidate.method == IN_ORDER}

    def key(one: tuple[NamedMachine, Candidate]) -> tuple[float, bool]:
        named, candidate = one
        default = defaults[named]
        loses = candidate is not default and _gains(candidate, default)[0] <= 0
        return (max(candidate.median_ns, default.median_ns) if loses else candidate.median_ns, loses)

    return sorted(found, key=key)


def _doubts(replay: Replay, found: list[tuple[NamedMachine, Candidate]], launched: Hosts) -> dict[str, list[Doubt]]:
    """Return what is doubtful of each machine, with the ranks as launched and in its fastest placement."""
    fastest = {named.name: (named, candidate) for named, candidate in reversed(found)}
    doubts = {named.name: replay.doubts(named, Placement.of_hosts(launched)) for named in replay.machines}
    for where, (named, candidate) in fastest.items():
        more = replay.doubts(named, Placement.of_hosts(candidate.host_of))
        doubts[where] = told_once((doubts[where], more))
    return doubts


def _checked_program(program: Path, source: Path) -> tuple[RunDir, tuple[str, ...]]:
    """Return the run whose host measures, and the program; raise BadInputError where there is neither."""
    if program.suffix == ".toml":
        raise BadInputError("a pattern is not a program and cannot be measured", hint="--check needs a trace")
    if traced_by_run(program):
        text = f"{program} was traced by a run, whose applications --check does not launch"
        raise BadInputError(text, hint="give the directory of a trace of your own: nearmetal trace -- mpirun ...")
    if not source.is_dir():
        raise BadInputError(f"{source} is a model file, which cannot run trials", hint="--check needs a run directory")
    return RunDir.open(source), traced_program(read_trace(program))


def _check(
    found: list[tuple[NamedMachine, Candidate]], checked: tuple[RunDir, tuple[str, ...]], how: tuple[int, str]
) -> list[str]:
    """Measure the fastest placement against the default one of its machine, print both gains, and return the last line.

    Return nothing where both are the same.
    """
    named, chosen = found[0]
    default = next(one for other, one in found if other == named and one.method == IN_ORDER)
    run, program = checked
    console = Console(stderr=True)
    if np.array_equal(chosen.host_of, default.host_of):
        console.print("The recommended placement is the default one, so there is nothing to check.")
        return []
    blocks, figure = how
    placements = {DEFAULT: default.host_of, CHOSEN: chosen.host_of}
    study = placement_study(run.study(), named, program, placements, figure)
    with closing(open_host(study, warn)) as host, measuring(study):
        gain = measure_gain(study, host, blocks, console.print)
    console.print(f"gain of {chosen.method} on in-order, {named.path}: predicted {gained(_gains(chosen, default))}")
    span = (
        ""
        if gain.low is None or gain.high is None
        else f" [{as_percent(gain.low, 1, '+')}, {as_percent(gain.high, 1, '+')}]"
    )
    clock = "the program's own figure" if figure else "the wall clock, start-up included"
    measured = f"measured {as_percent(gain.share, 1, '+')}{span}: {blocks} paired launches by {clock}; 95 % interval"
    console.print(measured)
    return [measured]


def _grid(dims: str | None, ranks: int, slots: Slots, hosts: str) -> tuple[int, ...]:
    """Return the process grid, () for none; warn of one that no blocks of these hosts fill."""
    grid = _parse_dims(dims, ranks)
    if grid and geometric(grid, slots) is None:
        warn(
            f"no blocks of a grid of {dims} fill {hosts}\n"
            "hint: give hosts with equal numbers of slots that divide the grid"
        )
    return grid


def _parse_dims(text: str | None, ranks: int) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = text.split("x")
    if not all(is_whole(part, limits.RANKS.value()) and int(part) > 0 for part in parts):
        raise BadInputError(f"{text!r} is not a process grid", hint="write --dims 4x2x2")
    dims = tuple(map(int, parts))
    if math.prod(dims) != ranks:
        message = f"a grid of {text} has {counted(math.prod(dims), 'rank')}, the program {ranks}"
        raise BadInputError(message, hint="--dims is the process grid of the program itself")
    return dims


def _candidates(found: list[tuple[NamedMachine, Candidate]]) -> tuple[PlacedJson, ...]:
    default = {named: candidate for named, candidate in found if candidate.method == IN_ORDER}
    return tuple(made(PlacedJson, one, name=named.name, gain=_gains(one, default[named])) for named, one in found)


def _alike(replay: Replay, found: list[tuple[NamedMachine, Candidate]]) -> list[str]:
    """Say which paths are not shown to be slower than that of the first candidate, each with its fastest placement."""
    best, chosen = found[0]
    ratios = known_ratio_errors(replay.model.jobs, best)
    fastest = {named: candidate for named, candidate in reversed(found) if named != best}
    alike = []
    for named, candidate in reversed(fastest.items()):
        errors = errors_of(ratios, class_of(named, Placement.of_hosts(candidate.host_of), ratios))
        span = errors.around(np.log([max(1.0, candidate.median_ns) / max(1.0, chosen.median_ns)]))
        if span is None or span[0] <= 1:
            alike.append(named.name)
    text = f"not shown to be slower than {best.name}, as far as earlier predictions of ratios were off"
    return [f"{', '.join(alike)}: {text}"] if alike else []


def _print(candidates: tuple[PlacedJson, ...], alike: Sequence[str], measured: Sequence[str]) -> None:
    console = Console(stderr=True)
    as_table.draw(console, [placements(candidates)])
    for said in alike:
        console.print(f"{said}. `nearmetal predict` gives the ratios.")
    for said in measured:
        console.print(said)
    best = candidates[0]
    if best.method == IN_ORDER:
        console.print(
            f"The order at hand, {IN_ORDER} on {best.name}, is the best one known: no other gains on it there."
        )
    elif not _is_shown(best):
        console.print(
            f"{best.method} is not shown to be faster than the launcher's default on {best.name}: "
            f"{gained(best.gain)} in 95 % of replays. {_REMEDY}."
        )


def _is_shown(best: PlacedJson) -> bool:
    return best.method == IN_ORDER or best.gain[1] > 0


def _evidence(best: PlacedJson) -> list[str]:
    """Return the lines that a launcher's file begins with: what it is, and whether it is shown to gain anything."""
    name = f"{best.method} on {best.name}, by nearmetal place"
    if best.method == IN_ORDER:
        return [f"{name}: what launchers do by default; no other placement gains on it in replays"]
    lines = [f"{name}: gain {gained(best.gain)} on the launcher's default in replays (middle, 95 %)"]
    return lines if _is_shown(best) else [*lines, f"That is not shown to be faster. {_REMEDY}."]


def _gains(candidate: Candidate, default: Candidate) -> tuple[float, float, float]:
    """Median of the paired ratios (both used the same random numbers), and the range of their middle 95 %.

    Its ends are ratios of replicas: a line between two would leave out the one replica of ten that loses.
    """
    gains = 1 - candidate.makespan_ns / np.maximum(default.makespan_ns, 1)
    low, high = np.quantile(gains, 0.025, method="lower"), np.quantile(gains, 0.975, method="higher")
    return float(np.median(gains)), float(low), float(high)
