"""Two machines, perhaps against two others: from what each offers to a study that measures what there is. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nearmetal.errors import UnavailableError
from nearmetal.facts.look import MachineLook
from nearmetal.hosts.ssh import parse_login
from nearmetal.packages import packages_of
from nearmetal.run.estimate import estimate
from nearmetal.study.draft import block, entries, node_tables
from nearmetal.study.order import Scalar, name_of
from nearmetal.study.spec import NodeSpec, parse_study
from nearmetal.units import NS_PER_S, format_size
from nearmetal.workloads.mpi.mpich import MPICH

LEAST_BLOCKS, MOST_BLOCKS = 5, 40
"""An interval needs some launches; beyond the upper number another machine state says more than another launch."""
BUSY = 0.5
"""The load of a processor from which a machine is called busy."""
_LEAST_BANDWIDTH_BYTES = 1024
_BANDWIDTH_BYTES = 64 * 1024 * 1024
_LEAST_VERBS_BYTES = 2
_LEAST_SOCKPERF_BYTES, _MOST_SOCKPERF_BYTES = 14, 65_000


@dataclass(frozen=True, slots=True)
class MachinePair:
    """Two machines that exchange messages: one data path."""

    first: NodeSpec
    second: NodeSpec

    @property
    def name(self) -> str:
        """Return the path's name in the study."""
        return f"{self.first.name}-{self.second.name}"[:40]

    @property
    def nodes(self) -> tuple[NodeSpec, NodeSpec]:
        """Return both machines."""
        return self.first, self.second

    def reach(self, node: NodeSpec) -> str:
        """Return how `node` finds the other machine of the pair."""
        return _known_as(self.second if node is self.first else self.first)


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """What is to be measured: the subject first, then the baseline where there is one."""

    pairs: tuple[MachinePair, ...]
    sizes: tuple[int, ...]
    budget_s: float
    options: Mapping[str, Scalar]

    @property
    def name(self) -> str:
        """Return the study's name."""
        return f"between-{self.pairs[0].name}"[:40].rstrip("-._+")

    @property
    def nodes(self) -> list[NodeSpec]:
        """Return all machines, pair by pair."""
        return [node for pair in self.pairs for node in pair.nodes]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A study's text, what it measures, and what is left out with the reason."""

    text: str
    measured: tuple[str, ...]
    left_out: tuple[str, ...]


def node_named(word: str, known: Mapping[str, NodeSpec]) -> NodeSpec:
    """Return the machine that a word on the command line stands for: a known node, or `[USER@]HOST[:PORT]`.

    Raises BadInputError for a word that is neither.
    """
    if word in known:
        return known[word]
    login = parse_login(word)
    # Studies and runs have no name that begins with an underscore or ends as the second name of a baseline.
    short = name_of(login.short[:40].lstrip("_")) or "machine"
    return NodeSpec(name=short, address=login.address, user=login.user, port=login.port)


def check_looks(pairs: Sequence[MachinePair], looks: Mapping[str, MachineLook]) -> None:
    """Raise with every reason for which these machines cannot be measured: UnavailableError, all reasons at once."""
    problems = [problem for pair in pairs for problem in _problems(pair, looks)]
    if problems:
        raise UnavailableError(
            "these machines cannot be measured:\n  " + "\n  ".join(problems),
            hint="give each machine's address on the measured network as `reach` in a file for --hosts",
        )


def _problems(pair: MachinePair, looks: Mapping[str, MachineLook]) -> Iterable[str]:
    first, second = (looks[node.name] for node in pair.nodes)
    if first.identity == second.identity:
        yield f"{pair.first.name} and {pair.second.name} are one machine ({first.host}), with no network between"
        return
    for node, seen in zip(pair.nodes, (first, second), strict=True):
        if not seen.address:
            yield f"{node.name} cannot resolve the name {pair.reach(node)!r}"
        elif not seen.interface:
            yield f"{node.name} has no route to {seen.address}"
        elif seen.interface == "lo":
            yield f"{node.name} reaches {seen.address} over its loopback: it is one of its own addresses"
        elif ":" in seen.address and not seen.own:
            yield f"{node.name} has no IPv4 address on {seen.interface}, which MPI over TCP needs"


def propose(asked: LinkRequest, looks: Mapping[str, MachineLook]) -> Proposal:
    """Return the study of everything that all machines offer; raise UnavailableError where they offer nothing.

    The number of blocks is what fits into the budget of time by the usual estimate, at least `LEAST_BLOCKS`.
    """
    flavour, workloads, left_out = _mpi(asked, looks)
    small = sorted({max(size, _LEAST_SOCKPERF_BYTES) for size in asked.sizes if size <= _MOST_SOCKPERF_BYTES})
    lacking = _lacking(asked, looks, "sockperf")
    if lacking:
        left_out.append(f"TCP round trips: no sockperf on {lacking}; {packages_of('sockperf')}")
    else:
        too_large = [size for size in asked.sizes if size > _MOST_SOCKPERF_BYTES]
        left_out += _sizes_out("TCP round trips", too_large, f"sockperf sends at most {_MOST_SOCKPERF_BYTES} B")
        if small:
            workloads.append(("tcp", {"kind": "sockperf", "sizes": small, "options": {"seconds": 1}}))
    if why := _no_verbs(asked, looks):
        left_out.append(f"verbs: {why}")
    else:
        sizes = sorted({max(size, _LEAST_VERBS_BYTES) for size in asked.sizes})
        workloads.append(("verbs", {"kind": "perftest", "operation": "ib_write_lat", "sizes": sizes}))
    if not workloads:
        raise UnavailableError(
            "these machines have nothing to measure with:\n  " + "\n  ".join(left_out),
            hint="install an MPI on each machine, or name it: -o mpi_prefix=DIRECTORY",
        )
    measured = tuple(_words(name, entry) for name, entry in workloads)
    return Proposal(_within_budget(asked, looks, flavour, workloads), measured, tuple(left_out))


_Workload = tuple[str, dict[str, object]]


def _mpi(asked: LinkRequest, looks: Mapping[str, MachineLook]) -> tuple[str, list[_Workload], list[str]]:
    """Return the flavour of MPI that all machines have, its workloads, and why there are none."""
    seen = [looks[node.name] for node in asked.nodes]
    flavours = {one.mpi for one in seen}
    if len(flavours) != 1 or "" in flavours or not all(one.compiler for one in seen):
        each = ", ".join(f"{one.host}: {one.mpi or 'none'}{'' if one.compiler else ' without mpicc'}" for one in seen)
        return "openmpi", [], [f"MPI: the machines do not have the same MPI with its mpicc ({each})"]
    named = [[node.interface or looks[node.name].interface for node in pair.nodes] for pair in asked.pairs]
    if unlike := [names for names in named if len(set(names)) > 1 and flavours == {MPICH.name}]:
        each = ", ".join(map(" and ".join, unlike))
        return MPICH.name, [], [f"MPI: MPICH takes one name of an interface for both machines, but they have {each}"]
    large = [size for size in asked.sizes if size >= _LEAST_BANDWIDTH_BYTES]
    too_small = [size for size in asked.sizes if size not in large]
    found: list[_Workload] = [("latency", {"sizes": list(asked.sizes), "iterations": 1000})]
    if large:
        iterations = max(10, min(200, _BANDWIDTH_BYTES // (64 * max(large))))
        found.append(("bw", {"sizes": large, "iterations": iterations, "warmup": 5}))
    why = f"it is measured from {format_size(_LEAST_BANDWIDTH_BYTES)} on"
    return flavours.pop(), found, _sizes_out("MPI bandwidth", too_small, why)


def _sizes_out(what: str, sizes: Sequence[int], why: str) -> list[str]:
    """Return that something is not measured at these sizes, nothing without any."""
    return [f"{what} of {', '.join(map(format_size, sizes))}: {why}"] if sizes else []


def _lacking(asked: LinkRequest, looks: Mapping[str, MachineLook], tool: str) -> str:
    return ", ".join(node.name for node in asked.nodes if tool not in looks[node.name].tools)


def _no_verbs(asked: LinkRequest, looks: Mapping[str, MachineLook]) -> str:
    """Return why RDMA writes cannot be measured on the interfaces that are compared, or ''."""
    seen = {node.name: looks[node.name] for node in asked.nodes}
    if without := [name for name, one in seen.items() if not one.rdma]:
        return f"no RDMA device on {', '.join(without)}"
    if others := [f"{one.interface} of {name}" for name, one in seen.items() if not one.verbs]:
        return f"`rdma link show` names no device for {', '.join(others)}"
    lacking = _lacking(asked, looks, "ib_write_lat")
    return f"no ib_write_lat on {lacking}; {packages_of('perftest')}" if lacking else ""


_WORDS = {
    "latency": "MPI ping-pong latency",
    "bw": "MPI bandwidth",
    "tcp": "TCP round trips (sockperf)",
    "verbs": "latency of RDMA writes (ib_write_lat)",
}


def _words(name: str, entry: Mapping[str, object]) -> str:
    sizes = entry["sizes"]
    assert isinstance(sizes, list)
    return f"{_WORDS[name]}: {', '.join(map(format_size, sizes))}"


def _within_budget(
    asked: LinkRequest, looks: Mapping[str, MachineLook], flavour: str, workloads: Sequence[_Workload]
) -> str:
    one = estimate(parse_study(_text(asked, looks, flavour, workloads, LEAST_BLOCKS), "the proposal"))[0] / LEAST_BLOCKS
    fitting = int(asked.budget_s * NS_PER_S / one) if one else MOST_BLOCKS
    return _text(asked, looks, flavour, workloads, max(LEAST_BLOCKS, min(MOST_BLOCKS, fitting)))


def _text(
    asked: LinkRequest, looks: Mapping[str, MachineLook], flavour: str, workloads: Sequence[_Workload], most_blocks: int
) -> str:
    subject, baseline = asked.pairs[0], asked.pairs[-1]
    against = f", against {' and '.join(n.name for n in baseline.nodes)}" if baseline is not subject else ""
    title = f"Between {subject.first.name} and {subject.second.name}{against}"
    lines = [
        "# Written by `nearmetal between`; change it as you like and run it with `nearmetal run`.",
        *entries({"format": 1, "name": asked.name, "title": title, "baseline": baseline.name}),
        *block("[host]", {"kind": "ssh", "options": dict(asked.options)}),
        *block("[mpi]", {"flavour": flavour}),
    ]
    lines += node_tables([_placed(node, looks[node.name]) for node in asked.nodes])
    for pair in asked.pairs:
        options: dict[str, Scalar] = {"nodes": " ".join(node.name for node in pair.nodes)}
        options |= {"routed": True} if any(looks[node.name].gateway for node in pair.nodes) else {}
        lines += block("[[path]]", {"name": pair.name, "kind": "declared", "options": options})
    for name, entry in workloads:
        lines += block("[[workload]]", {"name": name, **entry})
    # A pair alone has nothing to decide, and so ends after the least blocks.
    least = LEAST_BLOCKS if baseline is not subject else most_blocks
    return "\n".join([*lines, *block("[trials]", {"min_blocks": least, "max_blocks": most_blocks}), ""])


def _known_as(node: NodeSpec) -> str:
    return node.reach or node.address or node.name


def _placed(node: NodeSpec, seen: MachineLook) -> NodeSpec:
    """Return a machine with what a look found: launchers of MPI take no IPv6 address for a host's name."""
    reach = {"reach": seen.own} if ":" in _known_as(node) else {}
    return node.model_copy(update={"interface": node.interface or seen.interface, **reach})


def doubts(asked: LinkRequest, looks: Mapping[str, MachineLook]) -> list[str]:
    """Return what may be wrong with the answer for reasons that a look shows, the largest first."""
    seen = {node.name: looks[node.name] for node in asked.nodes}
    busy = [f"{name} {one.load:g}" for name, one in seen.items() if one.load > BUSY * (one.cpus or 1)]
    kinds = {(one.kernel, one.cpu) for one in seen.values()}
    adaptive = [name for name, one in seen.items() if one.adaptive]
    lazy = [name for name, one in seen.items() if one.governor not in {"", "performance"}]
    found = []
    if busy:
        found.append(f"machines were busy before the first trial (load of the last minute: {', '.join(busy)})")
    if len(asked.pairs) > 1 and len(kinds) > 1:
        found.append("the machines differ in kernel or CPU, so the ratio is not only that of the network")
    if adaptive:
        found.append(f"interrupt moderation is adaptive on {', '.join(adaptive)}: latency depends on the message rate")
    if lazy:
        found.append(f"the CPU frequency changes on {', '.join(lazy)} (the governor is not `performance`)")
    return [*found, "one occasion: another hour or boot may differ by more than the interval says"]
