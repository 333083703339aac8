"""Knobs of a NIC that `ethtool` or `ip` prints one a line, and what all families of NIC knobs share.

A change of queues resets the RSS table, affinity and per-queue values. For a new ring size most drivers take the link
down for a moment; several round up to a power of two.
"""

import itertools

from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import BLANKS, Access, Pick, file_access, run_c
from nearmetal.knobs.knob import SWITCH, Kind, Knob, Locate, OneOf, Stage, Target, WholeNumber

NUMBER = "([0-9]+)"
SWITCH_WORD = "(on|off)"
PARTS = "-parts"
"""How the name of a knob ends whose value is that of the knob before it in parts, saved and put back with that."""


def known_as(name: str) -> str:
    """Return the name by which people know a knob: that of the whole for its parts."""
    return name.removesuffix(PARTS)


def labelled(label: str, value: str = NUMBER, *, after: str = "") -> Pick:
    """Return the pick of a line `label: value`."""
    return Pick(f"{BLANKS}{label}:{BLANKS}{value}{BLANKS}", after, f"{BLANKS}{label}:")


def ethtool(show: str, pick: Pick, change: tuple[str, str], *, ceiling: Pick | None = None) -> Locate:
    """Return what locates a parameter that `ethtool SHOW DEV` prints and `ethtool CHANGE[0] DEV CHANGE[1] {}` sets."""

    def locate(_shell: Shell, target: Target) -> tuple[Access, ...]:
        device = target.interface
        set_argv = ("ethtool", change[0], device, change[1], "{}")
        return (Access(target.node, ("ethtool", show, device), pick, change=set_argv, ceiling=ceiling),)

    return locate


def interface_file(name: str) -> Locate:
    """Return what locates `/sys/class/net/DEV/NAME`."""

    def locate(_shell: Shell, target: Target) -> tuple[Access, ...]:
        return (file_access(target.node, f"/sys/class/net/{target.interface}/{name}"),)

    return locate


def queue_files(prefix: str, name: str) -> Locate:
    """Return what locates `/sys/class/net/DEV/queues/PREFIX*/NAME`, one access a queue."""

    def locate(shell: Shell, target: Target) -> tuple[Access, ...]:
        folder = f"/sys/class/net/{target.interface}/queues"
        queues = [entry for entry in listing(shell, target.node, folder) if entry.startswith(prefix)]
        return tuple(file_access(target.node, f"{folder}/{queue}/{name}") for queue in queues)

    return locate


def listing(shell: Shell, node: str, folder: str) -> list[str]:
    """Return the names in a directory, by number where they end in one; empty when it does not exist."""
    names = run_c(shell, ("ls", "--", folder), node).text.split()
    return sorted(names, key=lambda name: (len(name), name))


def vectors(shell: Shell, target: Target) -> list[str]:
    """Return the numbers of a NIC's own interrupts; none for devices without.

    Those of a virtio NIC, which alone has `features`, are of what is above it. Above others is a port of the bus.
    """
    device = f"/sys/class/net/{target.interface}/device"
    if own := listing(shell, target.node, f"{device}/msi_irqs"):
        return own
    virtio = run_c(shell, ("cat", "--", f"{device}/features"), target.node).ok
    return listing(shell, target.node, f"{device}/../msi_irqs") if virtio else []


def nic_knob(
    name: str, about: str, stage: Stage, kind: Kind, locate: Locate, *, disturbs: tuple[str, ...] = ()
) -> Knob:
    """Return a knob of an interface."""
    return Knob(f"nic.{name}", about, "interface", stage, kind, locate, disturbs)


MTU, IPV6_MTU = "nic.mtu", "nic.ipv6-mtu"
LRO = ("nic.lro", f"nic.lro{PARTS}")
"""Switched off, it goes off on what the interface is built on as well, and stays so there."""

_NOW = "Current hardware settings"
_BY_QUEUE = tuple(
    f"nic.{name}"
    for name in (
        "rss-equal",
        f"rss-table{PARTS}",
        f"rss-key{PARTS}",
        "irq-affinity",
        "xps-cpus",
        "xps-rxqs",
        "rps-cpus",
        "rps-flow-cnt",
    )
)


def _ring(name: str, label: str, about: str) -> Knob:
    locate = ethtool("-g", labelled(label, after=_NOW), ("-G", name), ceiling=labelled(label))
    return nic_knob(f"ring-{name}", about, Stage.SHAPE, WholeNumber(1, 65536, "descriptors"), locate)


def _channels(name: str, label: str, about: str) -> Knob:
    locate = ethtool("-l", labelled(label, after=_NOW), ("-L", name), ceiling=labelled(label))
    return nic_knob(f"channels-{name}", about, Stage.SHAPE, WholeNumber(0, 4096, "queues"), locate, disturbs=_BY_QUEUE)


def _pause(name: str, label: str, stage: Stage, about: str, disturbs: tuple[str, ...] = ()) -> Knob:
    locate = ethtool("-a", labelled(label, SWITCH_WORD), ("-A", name))
    return nic_knob(f"pause-{name}", about, stage, SWITCH, locate, disturbs=disturbs)


# "[requested on]" follows a feature that waits for another one; "[fixed]" must not match.
_NOT_FIXED = f"{SWITCH_WORD}( \\[requested o[nf]+\\])?{BLANKS}"


# One word of ethtool may stand for several features of the kernel, of which drivers begin with some off, as igb with
# mangled IDs of TSO. Setting the word sets them all, so they are saved beside it. The device, the word as it is printed
# and the features to set are positional parameters; of a feature that waits for another, what was requested counts. A
# word without parts stands for itself: on and off do not tell what was requested.
_PARTS_SCRIPT = r"""ethtool -k "$1" | awk -v of="$2:" '
/^[^ \t]/ { within = index($0, of) == 1 }
within && !/\[fixed\]/ {
    whole = !/^[ \t]/; sub(/:$/, "", $1); value = $3 == "[requested" ? substr($4, 1, length($4) - 1) : $2
    if (whole) itself = $1 "=" value; else all = all (all ? "," : "") $1 "=" value
}
END { if (all || itself) print "parts: " (all ? all : itself) }
'
"""
_SET_PARTS_SCRIPT = r"""set -f
IFS='=,'
ethtool -K "$1" $3
"""


def _offload(
    name: str, printed: str, about: str, setter: str = "", disturbs: tuple[str, ...] = (), *, example: str = ""
) -> tuple[Knob, Knob]:
    """Return the knob of a word, and that of its parts; `example` is one of several.

    The latter is disturbed even by a write that fails: what was asked for stays asked for.
    """
    pick = Pick(f"{printed}: {_NOT_FIXED}", label=f"{printed}:")
    locate = ethtool("-k", pick, ("-K", setter or printed))
    others = tuple(f"nic.{other}" for other in (f"{name}{PARTS}", *disturbs))
    return nic_knob(name, about, Stage.MODE, SWITCH, locate, disturbs=others), _parts(name, printed, example)


def waiting(shell: Shell, word: Access) -> list[str]:
    """Return the features below a word of `ethtool -k` that were asked for and are off, because they need another.

    The word is on while one of its features is, such as the one of a newer kernel that no card computes.
    """
    lines = run_c(shell, word.show, word.node).text.splitlines()
    begins = next((i for i, line in enumerate(lines) if line.startswith(word.pick.label)), len(lines))
    below = itertools.takewhile(lambda line: line[:1].isspace(), lines[begins + 1 :])
    return [line.split(":")[0].strip() for line in below if line.endswith("off [requested on]")]


def _parts(name: str, printed: str, example: str = "") -> Knob:
    def locate(_shell: Shell, target: Target) -> tuple[Access, ...]:
        show = ("sh", "-c", _PARTS_SCRIPT, "parts", target.interface, printed)
        change = ("sh", "-c", _SET_PARTS_SCRIPT, "parts", target.interface, printed, "{}")
        called = f"ethtool -K {target.interface} {printed} by feature"
        return (Access(target.node, show, Pick("parts: (.*)", label="parts:"), change=change, called=called),)

    together = f"what `nic.{name}` sets together, such as `{example}=on,...`"
    about = together if example else f"what was asked of `nic.{name}`, which may wait for another feature"
    return nic_knob(f"{name}{PARTS}", about, Stage.MODE, OneOf(), locate)


def _word(name: str) -> Pick:
    return Pick(f".* {name} ([0-9]+).*", label=".*: ")


def _mtu(_shell: Shell, target: Target) -> tuple[Access, ...]:
    show = ("ip", "-d", "-o", "link", "show", "dev", target.interface)
    change = ("ip", "link", "set", "dev", target.interface, "mtu", "{}")
    return (Access(target.node, show, _word("mtu"), change=change, ceiling=_word("maxmtu"), floor=_word("minmtu")),)


def _ipv6_mtu(_shell: Shell, target: Target) -> tuple[Access, ...]:
    return (file_access(target.node, f"/proc/sys/net/ipv6/conf/{target.interface}/mtu"),)


# The receive side scaling table: prints n when every entry i leads to queue i modulo n. ethtool also makes tables that
# begin at another queue (`start`) and such in blocks (`weight`, as igb's own): these are saved beside it, as first
# queue and number, 2+4, or as the lengths of the blocks. Those of any other kind could not be put back. A table that
# is the kernel's default follows a change of queues, one that was set forbids fewer.
_RSS_SCRIPT = r"""ethtool -x "$1" | awk '
/ RX ring/ { for (i = 2; i <= NF; i++) if ($i == "RX") rings = $(i - 1) + 0 }
/^[ \t]*[0-9]+:/ { for (i = 2; i <= NF; i++) { entry[n++] = $i; if ($i + 0 > last) last = $i + 0 } }
END {
    first = entry[0] + 0; equal = n; blocks = n
    for (i = 0; i < n; i++) {
        if (entry[i] != first + i % (last + 1 - first)) equal = 0
        if (i && entry[i] < entry[i - 1]) blocks = 0
        length_of[entry[i]]++
    }
    if (!n) exit
    for (i = 0; i <= last; i++) lengths = lengths (i ? "," : "") length_of[i] + 0
    if (equal && !first) print "queues: " last + 1 (last + 1 == (n < rings ? n : rings) ? " by default" : "")
    else print "queues: n/a, its table is in an order of its own"
    print "parts: " (equal && first ? first "+" last + 1 - first : blocks && !equal ? lengths : "none")
}'
"""
_SET_RSS_SCRIPT = r"""case $2 in
none) exit 1 ;;
*+*) ethtool -X "$1" equal "${2#*+}" start "${2%+*}" ;;
*) IFS=,; ethtool -X "$1" weight $2 ;;
esac
"""


def _rss(_shell: Shell, target: Target) -> tuple[Access, ...]:
    show = ("sh", "-c", _RSS_SCRIPT, "rss", target.interface)
    pick = Pick("queues: ([0-9]+)( by default)?", label="queues:")
    set_table = ("ethtool", "-X", target.interface)
    default = Pick("queues: [0-9]+ (by default)")
    change, reset = (*set_table, "equal", "{}"), (*set_table, "default")
    return (Access(target.node, show, pick, change=change, default=default, reset=reset),)


def _rss_table(_shell: Shell, target: Target) -> tuple[Access, ...]:
    show = ("sh", "-c", _RSS_SCRIPT, "rss", target.interface)
    change = ("sh", "-c", _SET_RSS_SCRIPT, "rss", target.interface, "{}")
    return (Access(target.node, show, Pick("parts: (.*)"), change=change, called=f"ethtool -X {target.interface}"),)


RINGS = (
    _ring("rx", "RX", "receive descriptors: long rings absorb bursts, short ones stay in cache"),
    _ring("tx", "TX", "transmit descriptors"),
)
CHANNELS = (
    _channels("rx", "RX", "receive queues"),
    _channels("tx", "TX", "transmit queues"),
    _channels("combined", "Combined", "queues that receive and transmit"),
)
RSS = (
    nic_knob(
        "rss-equal",
        "number of queues over which received flows are spread; 1 keeps all flows on one processor",
        Stage.STEERING,
        WholeNumber(1, 4096, "queues"),
        _rss,
    ),
    nic_knob(f"rss-table{PARTS}", "a table of another order", Stage.STEERING, OneOf(), _rss_table),
    # i40e_main.c, i40e_reconfig_rss_queues: fewer queues discard the key that was set.
    nic_knob(
        f"rss-key{PARTS}",
        "the key by which flows are spread",
        Stage.STEERING,
        OneOf(),
        ethtool("-x", Pick("([0-9a-f:]{5,})", "RSS hash key:"), ("-X", "hkey")),
    ),
)
_LRO, _GRO_HW = ("lro", "lro-parts"), ("rx-gro-hw", "rx-gro-hw-parts")
"""What the kernel turns off without checksums of the NIC, and one of them for the other."""
OFFLOADS = (
    *_offload("rx-checksum", "rx-checksumming", "the NIC verifies checksums", "rx", (*_LRO, *_GRO_HW)),
    *_offload(
        "tx-checksum",
        "tx-checksumming",
        "the NIC computes checksums; segmentation needs it",
        "tx",
        ("tso", "tso-parts"),
        example="tx-checksum-ipv4",
    ),
    *_offload(
        "sg",
        "scatter-gather",
        "a frame may consist of several buffers; segmentation needs it",
        "sg",
        ("tso", "tso-parts", "gso", "gso-parts"),
        example="tx-scatter-gather",
    ),
    *_offload(
        "tso",
        "tcp-segmentation-offload",
        "the NIC segments large sends: saves CPU, raises bandwidth",
        "tso",
        example="tx-tcp6-segmentation",
    ),
    *_offload("gso", "generic-segmentation-offload", "the kernel segments large sends late", "gso"),
    *_offload(
        "gro",
        "generic-receive-offload",
        "received segments are merged before they enter the stack",
        "gro",
        _GRO_HW,
    ),
    *_offload(
        "lro",
        "large-receive-offload",
        "the NIC merges received segments; not for bridges",
        "lro",
        _GRO_HW,
    ),
    *_offload(
        "rx-gro-hw",
        "rx-gro-hw",
        "the NIC merges received segments by the rules of GRO",
        disturbs=_LRO,
    ),
    *_offload("rx-gro-list", "rx-gro-list", "received segments are chained instead of merged"),
    *_offload("rx-udp-gro-forwarding", "rx-udp-gro-forwarding", "GRO for UDP traffic that is forwarded to guests"),
    *_offload("tx-nocache-copy", "tx-nocache-copy", "copies of sent data bypass the cache"),
)
PAUSE = (
    _pause(
        "autoneg",
        "Autonegotiate",
        Stage.MODE,
        "the link partners negotiate pause frames",
        ("nic.pause-rx", "nic.pause-tx"),
    ),
    _pause(
        "rx", "RX", Stage.SHAPE, "the NIC stops sending when the switch asks it to: no loss, but other flows wait too"
    ),
    _pause("tx", "TX", Stage.SHAPE, "the NIC asks the switch to stop when its ring is full"),
)
LINK = (
    nic_knob(
        "mtu",
        "the largest frame: larger means fewer frames per message; every port on the way must agree",
        Stage.SHAPE,
        WholeNumber(68, 65535, "bytes"),
        _mtu,
    ),
    nic_knob(
        "ipv6-mtu",
        "the largest packet of IPv6, at most nic.mtu; a change of that resets it",
        Stage.STEERING,
        WholeNumber(1280, 65535, "bytes"),
        _ipv6_mtu,
    ),
    nic_knob(
        "txqueuelen",
        "frames that may wait for the NIC before some are dropped",
        Stage.VALUE,
        WholeNumber(0, 1_000_000, "frames"),
        interface_file("tx_queue_len"),  # `ip link` does not print 0
    ),
)
