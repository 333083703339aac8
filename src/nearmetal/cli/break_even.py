"""The break-even of two paths for `nearmetal place`: from which share of messages between nodes the other is faster."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nearmetal.cli.replay import Replay
from nearmetal.errors import BadInputError
from nearmetal.predict.calibration import LEVEL, class_of, errors_of, known_ratio_errors, ranks_of_a_computer
from nearmetal.predict.doubt import refuse_beyond
from nearmetal.predict.doubts_of_messages import INSIDE, of_sizes
from nearmetal.predict.models import PS_PER_NS, Distribution, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.place import EXCHANGES, BreakEven, break_even
from nearmetal.predict.simulate import simulate
from nearmetal.report import as_table
from nearmetal.report.prediction_json import BreakEvenJson
from nearmetal.report.schema import made
from nearmetal.report.tables import Table
from nearmetal.report.terminal import Console
from nearmetal.units import as_percent, format_duration, format_size

_RANKS = Placement.block(4, 2)
"""Where the ranks of both curves are, as in `break_even`."""


def two_machines(replay: Replay, pair: tuple[str, str]) -> tuple[NamedMachine, NamedMachine]:
    """Return the machines of two paths; raise BadInputError where one is no path, or names several machines."""
    if pair[0] == pair[1]:
        raise BadInputError(f"--break-even compares two paths, not {pair[0]} with itself", hint="name another one")
    return _only(replay, pair[0]), _only(replay, pair[1])


def _only(replay: Replay, path: str) -> NamedMachine:
    """Return the machine of a path that --setting and --progress leave; raise BadInputError for none or several."""
    found = [named for named in replay.machines if named.path == path]
    if len(found) == 1:
        return found[0]
    if not found:
        known = ", ".join(sorted({named.path for named in replay.machines}))
        raise BadInputError(f"there is no path {path} for --break-even", hint=f"there are {known}")
    settings = sorted({named.setting for named in found})
    modes = sorted({named.progress for named in found})
    hints = [f"--setting {settings[0]} (of {', '.join(settings)})"] if len(settings) > 1 else []
    hints += [f"--progress {modes[0]} (of {', '.join(modes)})"] if len(modes) > 1 else []
    raise BadInputError(f"--break-even: {path} was measured under {len(found)} settings", hint=" ".join(hints))


def find_break_even(
    first: NamedMachine, second: NamedMachine, host_of: NDArray[np.uint32], replay: Replay
) -> BreakEvenJson:
    """Return both paths over all shares, for the mean message of all launches and the compute time between messages."""
    seen = [simulate(one, first.machine, Placement.of_hosts(host_of), seed=replay.seed) for one in replay.schedules]
    messages = sum(one.messages for one in seen)
    if messages == 0:
        text = f"{replay.name} sends no message, so its paths have no break-even share"
        raise BadInputError(text, hint="leave --break-even out")
    compute_ns = sum(one.compute_ns for one in seen) // messages
    message_bytes = sum(one.message_bytes for one in seen) // messages
    compute = Distribution((0.0,), (EXCHANGES * compute_ns * PS_PER_NS,))
    between = as_percent(sum(one.inter_messages for one in seen) / messages)
    share = f"In this program {between} of messages are between nodes "
    share += f"if hosts are filled one after another.{_crowded(first, second)}"
    share += "".join(_far_from_measured(message_bytes, named, replay) for named in (first, second))
    ratios = known_ratio_errors(replay.model.jobs, first)
    errors = errors_of(ratios, class_of(second, _RANKS, ratios))
    span = errors.span()
    assert span is not None, "cases ship for an interval of each class"
    # The compute of `seen` is that of the machine already, so it must not be scaled again.
    as_seen = [replace(one.machine, compute_scale=1.0) for one in (first, second)]
    found = break_even(
        *as_seen,
        message_bytes=message_bytes,
        compute=compute,
        replicas=replay.replicas,
        seed=replay.seed,
        errors=span,
    )
    known = (
        f"{as_percent(LEVEL)} of validated pairs of paths ({errors.of}) were {span[0]:.2f} to {span[1]:.2f} times the "
    )
    known += "predicted ratio, and smaller differences count as none"
    return made(
        BreakEvenJson,
        found,
        first=first.path,
        second=second.path,
        message_bytes=int(message_bytes),
        compute_ns=float(compute_ns),
        said=f"{_verdict(first.path, second.path, found)}: {known}. {share}",
    )


def _far_from_measured(message_bytes: int, named: NamedMachine, replay: Replay) -> str:
    """Say where the mean message goes in the curves but no measured size is near, as inside a node if none does there.

    Raise BadInputError where it is so far beyond that it would decide the answer.
    """
    one = np.array([1])
    both = ((INSIDE, named.machine.intra), ("between nodes", named.machine.inter))
    found = [doubt for where, path in both if path for doubt in of_sizes(where, path, one * message_bytes, one, 1)]
    if not replay.extrapolate:
        refuse_beyond(found, f"--break-even, {named.name}")
    return "".join(f" On {named.path}, {doubt.said}." for doubt in found)


def _crowded(*pair: NamedMachine) -> str:
    """Say where ranks of the curves share processors, which the program's own ranks may not do."""
    cores = [(one.path, one.machine.cores, ranks_of_a_computer(one, _RANKS)) for one in pair]
    crowded = [path for path, its, there in cores if its is not None and there > its.count]
    if not crowded:
        return ""
    return f" The curves are of two ranks on each of two nodes, which share processors ({', '.join(crowded)})."


def print_break_even(found: BreakEvenJson) -> None:
    """Draw both curves on standard error."""
    longest = max(*found.first_ns, *found.second_ns)
    rows = (
        (as_percent(share), _curve(first_ns, second_ns, longest), format_duration(first_ns), format_duration(second_ns))
        for share, first_ns, second_ns in zip(found.shares, found.first_ns, found.second_ns, strict=True)
    )
    title = f"{found.first} against {found.second}: messages of {format_size(found.message_bytes)}, "
    title += f"{format_duration(found.compute_ns)} of compute per message"
    head = ("between nodes", "", found.first, found.second)
    table = Table(title, head, tuple(rows), found.said, left=2, ends_in_figures=True)
    as_table.draw(Console(stderr=True), [table])


def _curve(first_ns: float, second_ns: float, longest_ns: float, width: int = 32) -> str:
    """Draw one line of the picture: 1 and 2 where the two paths are, X where they meet."""
    line = [" "] * (width + 1)
    at = [round(width * ns / longest_ns) for ns in (first_ns, second_ns)]
    line[at[0]], line[at[1]] = "1", "2"
    if at[0] == at[1]:
        line[at[0]] = "X"
    return "".join(line).rstrip()


def _verdict(first: str, second: str, found: BreakEven) -> str:
    if not found.differ:
        return "neither is shown to be faster at any share"
    below, above = (first, second) if found.first_faster_below else (second, first)
    if found.share is None:
        return f"{below} is faster wherever the two are shown to differ"
    if found.crossings > 1:
        crossings = f"{found.crossings} times, first at {as_percent(found.share)}"
        return f"neither is faster on one side: the curves cross {crossings}"
    return f"{below} is faster below {as_percent(found.share)} of messages between nodes, {above} above"
