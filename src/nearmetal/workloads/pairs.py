"""Client and server pairs: who talks to whom, servers that are waited for, and the one launch of all clients.

Rank 2k of the placement is the client of pair k, rank 2k+1 its server. All pairs run at the same time. Standard
library only.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from nearmetal.errors import BadInputError, TimedOutError, TrialError, UnavailableError, meant
from nearmetal.hosts.host import Helper, Shell, name_of
from nearmetal.packages import packages_of
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import Order, Scalar, WorkloadOrder
from nearmetal.units import as_percent
from nearmetal.workloads.program_group import LOG, Command, group_argv, overlap, read_log
from nearmetal.workloads.program_group_run import LATE
from nearmetal.workloads.workload import Launch

COMMON_OPTIONS = frozenset({"operation", "sizes", "iterations", "warmup"})
"""What every order carries; a tool that has no use for one of them leaves it alone."""

LEAST_OVERLAP = 0.7
"""Share of the time in which all pairs must have run together for their sum to mean anything."""

HINT_SHOW = "`nearmetal show RUN --trial N` prints the launch line and all output"
_SERVER_TIMEOUT_S = 10.0
_POLL_S = 0.02
_LISTENING = {"tcp": "0A", "udp": "07"}
_TIMEOUT_MARGIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Pair:
    """One client and its server; `port` is a port that no other pair of the trial uses, nor the next above it."""

    number: int
    client: Endpoint
    server: Endpoint
    port: int


def pair_count(workload: WorkloadOrder) -> int:
    """Return the number of pairs; raise BadInputError for an odd number of ranks."""
    ranks = len(workload.placement)
    if ranks < 2 or ranks % 2:
        raise workload.invalid(f"{workload.kind} takes pairs of ranks, not {ranks} ranks")
    for client, server in zip(workload.placement[::2], workload.placement[1::2], strict=True):
        if client == server:
            message = f"{workload.kind} measures between the two ranks of a pair, and both are on node {client}"
            raise workload.invalid(message, hint=f"placement = {[0, 1] * (ranks // 2)}")
    return ranks // 2


def pairs_of(order: Order, endpoints: Endpoints, first_port: int) -> tuple[Pair, ...]:
    """Return the pairs; raise BadInputError when a pair has no network between its two ends."""
    placement = order.workload.placement
    pairs = []
    for number in range(pair_count(order.workload)):
        client, server = (endpoints.ends[placement[2 * number + side]] for side in (0, 1))
        if not endpoints.networked or client.address == server.address:
            message = f"workload {order.workload.label!r} needs a network between two nodes, pair {number} has none"
            hint = "name a path that connects two nodes, and place each rank pair on two nodes"
            raise BadInputError(message, hint=hint)
        pairs.append(Pair(number, client, server, first_port + 2 * number))
    return tuple(pairs)


def check_halves(workload: WorkloadOrder, program: str) -> None:
    """Raise BadInputError where a program that pairs rank k with rank k + n/2 would pair ranks of one node of several.

    Their messages would take shared memory, and the figure would be that of no path.
    """
    half = len(workload.placement) // 2
    if workload.halves_share_a_node:
        message = f"{program} pairs rank k with rank k + {half}, and some of these are on one node"
        raise workload.invalid(message, hint=f"placement = {[0] * half + [1] * half}")


def check_options(workload: WorkloadOrder, known: Collection[str]) -> None:
    """Raise BadInputError for an option that the workload does not have."""
    unknown = sorted(set(workload.options) - COMMON_OPTIONS - set(known))
    if unknown:
        message = f"{workload.kind} has no option {unknown[0]!r}"
        raise workload.invalid(message, hint=meant(unknown[0], sorted(known)))


def text_option(workload: WorkloadOrder, name: str, default: str, allowed: Collection[str] = ()) -> str:
    """Return an option that is text; raise BadInputError when it is something else or not among `allowed`."""
    value = workload.options.get(name, default)
    if not isinstance(value, str) or (allowed and value not in allowed):
        wanted = f"one of {', '.join(sorted(allowed))}" if allowed else "text"
        raise workload.invalid(f"option {name!r} is {wanted}, not {value!r}")
    return value


WHERE_IS = ("sh", "-c", 'command -v "$1"', "sh")
"""Prints where a program is: which(1) is a package of its own that small installations lack."""


def require_program(shell: Shell, node: str, program: str, package: str) -> None:
    """Raise UnavailableError unless a node has a program."""
    if not shell.run([*WHERE_IS, program], node=node, check=False).ok:
        raise UnavailableError(f"{program} is not installed on {name_of(shell, node)}", hint=packages_of(package))


def printed_version(shell: Shell, node: str, *argv: str) -> str:
    """Return the line in which a program says its version: the first with a digit, on either of its outputs."""
    finished = shell.run(argv, node=node, check=False)
    lines = (finished.stdout + b"\n" + finished.stderr).decode(errors="replace").splitlines()
    return next((line.strip()[:80] for line in lines if any(map(str.isdigit, line))), "unknown")


def start_server(shell: Shell, argv: Sequence[str], node: str, port: int, protocol: str = "tcp") -> Helper:
    """Start a server on a node and wait until it listens; raise TrialError with its words when it does not."""
    helper = shell.start(argv, node=node)
    deadline = time.monotonic() + _SERVER_TIMEOUT_S
    while not _listens(shell, node, port, protocol):
        ended = helper.ended()
        if ended is not None:
            raise TrialError(f"the server on {name_of(shell, node)} ended: {ended.complaint()}")
        if time.monotonic() > deadline:
            raise TrialError(
                f"the server {argv[0]} on {name_of(shell, node)} does not listen on {protocol} port {port} "
                f"after {_SERVER_TIMEOUT_S:g} s",
                hint="another program may hold the port, or this version may lack an option",
            )
        time.sleep(_POLL_S)
    return helper


def _listens(shell: Shell, node: str, port: int, protocol: str) -> bool:
    """Return whether something waits on a port, from the kernel's own tables: connecting would use up the server."""
    wanted = f":{port:04X}"
    for table in (protocol, f"{protocol}6"):
        finished = shell.run(["cat", f"/proc/net/{table}"], node=node, check=False)
        for line in finished.text.splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[1].endswith(wanted) and fields[3] == _LISTENING[protocol]:
                return True
    return False


def launch_group(
    shell: Shell,
    order: Order,
    commands: Sequence[Command],
    facts: dict[str, Scalar],
    *,
    node: str,
    files: dict[str, str] | None = None,
) -> Launch:
    """Return the launch of all commands from one node; `files` are what they leave besides their output, by name."""
    folder = f"{shell.scratch}/{node}"
    own = [replace(command, node="") if command.node == node else command for command in commands]
    left = {command.stdout: f"{folder}/{command.stdout}" for command in own}
    return Launch(
        group_argv(shell, node, max(1.0, order.timeout_s - _TIMEOUT_MARGIN_S), own),
        node,
        {},
        {**left, **(files or {}), LOG: f"{folder}/{LOG}"},
        facts,
    )


def check_ended(workload: WorkloadOrder, finished: Finished) -> None:
    """Raise TrialError unless the group, and so every command, ended well."""
    check_in_time(workload, finished)
    if not finished.ok:
        raise TrialError(f"{workload.kind} failed: {finished.complaint()}", hint=HINT_SHOW)


def check_in_time(workload: WorkloadOrder, finished: Finished) -> None:
    """Raise TimedOutError where a program of the group did not end before the trial's time was up."""
    if finished.exit_status == LATE:
        hint = "raise `trials.timeout`, or ask for less"
        raise TimedOutError(f"{workload.kind} was not done in time: {finished.complaint()}", hint=hint)


def check_clients(workload: WorkloadOrder, finished: Finished, files: dict[str, bytes]) -> None:
    """Raise TrialError unless all ended well, and pairs that share the port ran at about the same time."""
    check_ended(workload, finished)
    ran = read_log(files[LOG])
    for step in {one.step for one in ran}:
        share = overlap([one for one in ran if one.step == step])
        if share < LEAST_OVERLAP:
            least = as_percent(LEAST_OVERLAP)
            message = f"the pairs overlapped for only {as_percent(share)} of the time; at least {least} is needed"
            raise TrialError(message, hint="make each run longer (option `seconds`)")
