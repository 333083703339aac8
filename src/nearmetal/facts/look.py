"""A first look at a machine that measures with another one: what is there, what leads to the other, what disturbs.

One short `sh` script, look.sh, answers everything, so a look costs one round trip. It changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from nearmetal.paths.links import LOWER
from nearmetal.process import Finished
from nearmetal.workloads.mpi.table import FLAVOURS

TOOLS = ("sockperf", "iperf3", "nuttcp", "ib_write_lat")
"""Programs that are looked for on PATH."""

_SCRIPT = LOWER + (files("nearmetal.facts") / "look.sh").read_text()
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class MachineLook:
    """What one machine reported. Text is empty, and a count 0, where the machine does not offer it.

    `identity` differs between machines and between the network namespaces of one; `address` is the other machine's as
    this one resolves it, `interface` what leads there or was named, `gateway` the router on the way, `own` that
    interface's IPv4 address and `verbs` its RDMA device; `rdma` are all such devices.
    """

    host: str
    identity: str
    system: str
    kernel: str
    cpu: str
    cpus: int
    load: float
    virtual: str
    governor: str
    address: str
    interface: str
    gateway: str
    own: str
    driver: str
    adaptive: bool
    rdma: tuple[str, ...]
    verbs: str
    mpi: str
    compiler: bool
    tools: frozenset[str]

    @property
    def what(self) -> str:
        """Return what it is: a bare machine, or a virtual one and whose."""
        return f"virtual machine ({self.virtual})" if self.virtual else "bare machine"

    @property
    def nic(self) -> str:
        """Return the interface that leads to the other machine, with its driver."""
        return f"{self.interface} ({self.driver or 'no driver: a software device'})" if self.interface else "none"


def look(run: Callable[..., Finished], other: str, mpi_prefix: str, interface: str = "") -> MachineLook:
    """Look at the machine on which `run` runs a command; `other` is the other machine as this one knows it.

    It looks at the `interface` that is named, else at the one that leads to the other. Raises what `run` raises when
    the machine cannot be reached.
    """
    argv = ["sh", "-c", _SCRIPT, "sh", other, interface, mpi_prefix, *TOOLS]
    finished = run(argv, timeout_s=_TIMEOUT_S)
    return parse(finished.stdout.decode(errors="replace"))


_TEXTS = (
    *("host", "identity", "system", "kernel", "cpu", "governor"),
    *("address", "interface", "gateway", "own", "driver", "verbs"),
)


def parse(text: str) -> MachineLook:
    """Parse the script's output: lines of `key=value`, of which `tool` may come several times."""
    pairs = [line.partition("=")[::2] for line in text.splitlines() if "=" in line]
    answers = {key: value.strip() for key, value in pairs}
    return MachineLook(
        **{name: answers.get(name, "") for name in _TEXTS},
        cpus=int(answers["cpus"]) if answers.get("cpus", "").isdecimal() else 0,
        load=_decimal(answers.get("load", "")),
        virtual=(answers["virtual"] or "unknown hypervisor") if "virtual" in answers else "",
        adaptive=answers.get("adaptive") == "on",
        rdma=tuple(answers.get("rdma", "").split()),
        mpi=_flavour(answers.get("launcher", "")),
        compiler="compiler" in answers,
        tools=frozenset(value for key, value in pairs if key == "tool"),
    )


def _flavour(launcher: str) -> str:
    return next((one.name for one in FLAVOURS.values() if one.launcher_version.search(launcher)), "")


def _decimal(text: str) -> float:
    whole, _, part = text.partition(".")
    return float(text) if whole.isdecimal() and part.isdecimal() else 0.0
