"""Files of the kernel: busy polling and packet budgets (`/proc/sys/net/core`), TCP, and halt polling of KVM.

`busy_poll` and `busy_read` are global. 50 us in both made MPI over TCP three to five times slower where the library
waits in poll() (open-mpi/ompi#10929), although two stock tuned profiles set exactly this. TCP's
settings are of a node's network namespace. Halt polling is for hosts of guests: see
`Documentation/virt/kvm/halt-polling.rst` of the kernel.
"""

from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import Access, Pick, file_access
from nearmetal.knobs.knob import FLAG, Kind, Knob, Locate, Numbers, OneOf, Scope, Stage, Target, WholeNumber
from nearmetal.knobs.nic import PARTS


def machine_file(path: str, *, pick: Pick | None = None, choices_path: str = "") -> Locate:
    """Return what locates one file of the machine; `pick` and `choices_path` as of an access."""

    def locate(_shell: Shell, target: Target) -> tuple[Access, ...]:
        return (file_access(target.node, path, pick=pick, choices_path=choices_path),)

    return locate


def sysctl_knob(name: str, path: str, kind: Kind, about: str, scope: Scope = "machine") -> Knob:
    """Return the knob of one file under `/proc/sys`."""
    return Knob(f"host.{name}", about, scope, Stage.HOST, kind, machine_file(f"/proc/sys/{path}"))


def _core(name: str, kind: Kind, about: str) -> Knob:
    return sysctl_knob(name, f"net/core/{name}", kind, about)


def _tcp(name: str, kind: Kind, about: str) -> Knob:
    return sysctl_knob(f"tcp_{name}", f"net/ipv4/tcp_{name}", kind, about, "node")


def _kvm(name: str, kind: WholeNumber, about: str) -> Knob:
    locate = machine_file(f"/sys/module/kvm/parameters/{name}")
    return Knob(f"host.kvm-{name}", about, "machine", Stage.HOST, kind, locate)


_COUNT = WholeNumber(1, 2**31 - 1, "packets")
_BYTES = WholeNumber(0, 2**31 - 1, "bytes")
_IPV4 = "/proc/sys/net/ipv4"
# Of the machine's own namespace: in others it can only be read, and no default there changes it.
_ALLOWED = _IPV4 + "/tcp_allowed_congestion_control"
_SHOW_ALLOWED = "[ ! -w " + _ALLOWED + " ] || cat " + _ALLOWED

POLLING = (
    _core("busy_read", WholeNumber(0, 1_000_000, "us"), "how long a blocking receive polls the queue before it sleeps"),
    _core(
        "busy_poll", WholeNumber(0, 1_000_000, "us"), "how long poll() and select() poll the queue before they sleep"
    ),
    _core("netdev_budget", _COUNT, "packets that one softirq run may process"),
    _core("netdev_budget_usecs", WholeNumber(1, 10_000_000, "us"), "how long one softirq run may process packets"),
    _core("dev_weight", _COUNT, "packets that the backlog of one processor may process per poll"),
    _core("netdev_max_backlog", _COUNT, "packets that may wait for one processor before some are dropped"),
)
TCP = (
    # tcp_cong.c, tcp_set_default_congestion_control: what was the default may be chosen by every user from then on.
    Knob(
        "host.tcp_congestion_control",
        "the algorithm by which TCP finds its rate",
        "node",
        Stage.HOST,
        OneOf(),
        machine_file(f"{_IPV4}/tcp_congestion_control", choices_path=f"{_IPV4}/tcp_available_congestion_control"),
        (f"host.tcp_congestion_control{PARTS}",),
    ),
    Knob(
        f"host.tcp_congestion_control{PARTS}",
        "the algorithms that users may choose",
        "node",
        Stage.HOST,
        OneOf(),
        lambda _shell, target: (Access(target.node, ("sh", "-c", _SHOW_ALLOWED), path=_ALLOWED),),
    ),
    _tcp("rmem", Numbers(3, "bytes"), "smallest, initial and largest receive buffer"),
    _tcp("wmem", Numbers(3, "bytes"), "smallest, initial and largest send buffer"),
    _tcp(
        "limit_output_bytes",
        _BYTES,
        "bytes of one socket in the queues below TCP: trades batching for delay",
    ),
    _tcp("notsent_lowat", WholeNumber(0, 2**32 - 1, "bytes"), "unsent bytes below which a socket accepts more"),
    _tcp("autocorking", FLAG, "small writes wait for the completion of earlier ones"),
    _tcp("slow_start_after_idle", FLAG, "the window shrinks after a connection was idle"),
    _tcp("no_metrics_save", FLAG, "connections do not inherit the metrics of earlier ones"),
    _tcp("timestamps", WholeNumber(0, 2), "twelve bytes per segment, for a better round-trip estimate"),
    _tcp("sack", FLAG, "selective acknowledgement"),
    _tcp("min_tso_segs", WholeNumber(1, 65535, "segments"), "the fewest segments in a paced burst"),
)
KVM = (
    _kvm(
        "halt_poll_ns",
        WholeNumber(0, 10**9, "ns"),
        "how long the host polls for a halted guest: faster wake-up, more CPU",
    ),
    _kvm("halt_poll_ns_grow", WholeNumber(0, 1000), "factor by which polling grows if it was too short"),
    _kvm("halt_poll_ns_grow_start", WholeNumber(0, 10**9, "ns"), "first value when polling grows from 0"),
    _kvm("halt_poll_ns_shrink", WholeNumber(0, 1000), "divisor by which polling shrinks if it was too long"),
)
