"""The receive side scaling table: `ethtool -x`.

ethtool writes two kinds of table: entry i leads to queue i modulo n, and weights. Only the first is offered, and
a table of another kind makes the knob unavailable, because it could not be put back as it was.
"""

from __future__ import annotations

from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import Access, Pick
from nearmetal.knobs.knob import Stage, Target, WholeNumber
from nearmetal.knobs.nic import nic_knob

# Prints n when every entry i of the table is i modulo n. The device is a positional parameter.
_SHOW_SCRIPT = r"""ethtool -x "$1" | awk '
/^[ \t]*[0-9]+:/ { for (i = 2; i <= NF; i++) { entry[n++] = $i; if ($i + 0 > last) last = $i + 0 } }
END {
    for (i = 0; i < n; i++) if (entry[i] != i % (last + 1)) { print "queues: n/a, the table was written by hand"; exit }
    if (n) print "queues: " last + 1
}'
"""


def _locate(_shell: Shell, target: Target) -> tuple[Access, ...]:
    show = ("sh", "-c", _SHOW_SCRIPT, "rss", target.interface)
    pick = Pick("queues: ([0-9]+)", label="queues:")
    return (Access(target.node, show, pick, change=("ethtool", "-X", target.interface, "equal", "{}")),)


KNOBS = (
    nic_knob(
        "rss-equal",
        "number of queues over which received flows are spread; 1 keeps all flows on one processor",
        Stage.STEERING,
        WholeNumber(1, 4096, "queues"),
        _locate,
    ),
)
