"""What no roll-back could restore: writes with which the kernel changes, for good, more than what is written."""

import shlex
from collections.abc import Iterable

from nearmetal.errors import listed
from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import KnobError, run_c
from nearmetal.knobs.guards import NAMESPACES, UPPER_SCRIPT, above
from nearmetal.knobs.identity import vanishes
from nearmetal.knobs.knob import Target
from nearmetal.knobs.nic import LRO, MTU
from nearmetal.paths.links import LOWER_SCRIPT

LRO_OFF = (LRO[0], "off")


def refuse_lasting(shell: Shell, target: Target, knob: str, value: str, present: Iterable[str]) -> None:
    """Raise KnobError for such a write; `present` are the values that it overwrites."""
    if knob == MTU and any(one != value for one in present):
        _refuse_end_of_following(shell, target)
        if any(int(value) < int(one) for one in present):
            refuse_loss_of_ipv6(shell, target, int(value))
            _refuse_lowering_elsewhere(shell, target, int(value))
    if (knob, value) == LRO_OFF:
        _refuse_lro_elsewhere(shell, target)


# Prints what is built on interface $1 in other network namespaces: where, name and largest frame. sysfs shows only what
# is in its own. An interface's index belongs to a namespace; lsns tells by which number the other one knows this. It
# prints less, and complains of nothing, when a process ends while it reads (3 % of calls beside short processes): with
# this namespace not among what it prints, it is asked again.
_ELSEWHERE_SCRIPT = (
    NAMESPACES
    + r"""
index=$(ip -o link show dev "$1" | sed 's/:.*//')
others | while read -r place; do
    there ip -d -o link show | awk -v at="@if$index:" '
        index($2, at) && / (macvlan|macvtap|ipvlan|ipvtap|vlan) / {
            for (i = 3; i < NF; i++) { if ($i == "mtu") mtu = $(i + 1); if ($i == "link-netnsid") id = $(i + 1) }
            print substr($2, 1, index($2, "@") - 1), mtu, id
        }' |
        while read -r name mtu id; do
            known= asked=0
            while [ -z "$known" ] && [ $asked -lt 20 ]; do
                known=$(there lsns -n -t net -o NS,NETNSID | awk -v own="$own" '$1 == own { print $2 }')
                asked=$((asked + 1))
            done
            [ "${known:-$id}" != "$id" ] || echo "$place $name $mtu"
        done
done
"""
)

LEAST_IPV6_MTU = 1280

# Prints what IPv6 loses for good on interfaces $4 ... with frames of $1 bytes: below $2 bytes their addresses, their
# routes and, where $3 is set, what is not set as in `default`; else the largest packets of routes that have one of
# their own, which the kernel lowers with the frames, and raises with them above what they were.
_LOSS_SCRIPT = r"""
new=$1 least=$2 settings=$3 conf=/proc/sys/net/ipv6/conf
shift 3
for name; do
    mtu=$(ip -o link show dev "$name" | sed -n 's/.* mtu \([0-9]*\) .*/\1/p')
    [ "${mtu:-0}" -gt "$new" ] && [ -e "$conf/$name" ] || continue
    routes=$(ip -6 -o route show table all dev "$name" | grep -v ' proto \(kernel\|ra\) ')
    if [ "$new" -ge "$least" ]; then
        echo "$routes" | awk -v new="$new" -v was="$mtu" -v name="$name" '{
            for (i = 2; i < NF; i++) if ($i == "mtu" && $(i + 1) + 0 >= new && $(i + 1) + 0 < was)
                print "mtu " $(i + 1) " of the route to " $1 " on " name
        }'
        continue
    fi
    ip -6 -o address show dev "$name" scope global | awk -v name="$name" '{ print $4 " on " name }'
    echo "$routes" | awk -v name="$name" 'NF { print "the route to " $1 " on " name }'
    [ -z "$settings" ] || (cd "$conf/$name" && grep -s '' *) | grep -v '^\(mtu\|stable_secret\):' |
        grep -vxF -e "$(cd "$conf/default" && grep -s '' *)" | sed "s/:/ = /; s/$/ on $name/"
done
"""


def refuse_loss_of_ipv6(shell: Shell, target: Target, mtu: int) -> None:
    """Raise KnobError for frames so small that the kernel takes something of IPv6 away for good.

    It does so on what is built on the interface, too. What is of the link comes back with the frames.
    """
    lasting = "" if vanishes(shell, target.node) else "yes"
    argv = ("sh", "-c", _LOSS_SCRIPT, "loss", str(mtu), str(LEAST_IPV6_MTU), lasting)
    lost = run_c(shell, (*argv, target.interface, *above(shell, target)), target.node).text.splitlines()
    if lost and mtu < LEAST_IPV6_MTU:
        raise KnobError(
            f"nic.mtu {mtu} on {target} would remove {', '.join(listed(lost))}, which no roll-back could restore: "
            f"IPv6 needs frames of {LEAST_IPV6_MTU} bytes",
            hint="remove them first if they are not needed",
        )
    if lost:
        raise KnobError(
            f"nic.mtu {mtu} on {target} would change {', '.join(listed(lost))}, which no roll-back could restore: IPv6 "
            "lowers them with the frames, and raises them to the old frames",
            hint="the kernel leaves a route with `mtu lock` alone",
        )


def _refuse_lowering_elsewhere(shell: Shell, target: Target, mtu: int) -> None:
    """Raise KnobError for frames smaller than those of what is built on the interface in other network namespaces.

    The kernel lowers theirs with the interface's and does not raise them again, and a namespace may be gone by then.
    """
    found = run_c(shell, ("sh", "-c", _ELSEWHERE_SCRIPT, "elsewhere", target.interface), target.node).text
    lines = [line.split() for line in found.splitlines()]
    if larger := [line for line in lines if int(line[2]) > mtu]:
        place, name, _ = larger[0]
        raise KnobError(
            f"nic.mtu {mtu} on {target} would lower that of interfaces in other network namespaces, "
            f"which no roll-back could restore: {', '.join(f'{name} ({of}) in {at}' for at, name, of in larger)}",
            hint=f"lower those first, such as with `nsenter --net={place} ip link set {name} mtu {mtu}`, "
            "or stop what uses them",
        )


# Prints something of a bridge with frames like the smallest of its ports': it may follow these. One that was given
# others follows them no more already.
_FOLLOWS_SCRIPT = r"""
[ -d "/sys/class/net/$1/bridge" ] || exit 0
least=$(cat /sys/class/net/"$1"/lower_*/mtu 2> /dev/null | sort -n | head -n 1)
[ "${least:-1500}" != "$(cat "/sys/class/net/$1/mtu")" ] || echo "that $1 has the smallest frames of its ports"
"""


def _refuse_end_of_following(shell: Shell, target: Target) -> None:
    """Raise KnobError for the frames of a bridge that may still follow those of its ports.

    Given some of its own it follows them no more, and the kernel has no way back (br_device.c, br_change_mtu).
    """
    if run_c(shell, ("sh", "-c", _FOLLOWS_SCRIPT, "follows", target.interface), target.node).text:
        raise KnobError(
            f"nic.mtu on {target} would end that this bridge follows the frames of its ports, which no roll-back could "
            "restore",
            hint="set nic.mtu on its ports, whose smallest it has",
        )


# Prints something of an interface with LRO that is built on one of another network namespace: sysfs does not show that.
_LRO_SCRIPT = r"""
ethtool -k "$1" | grep -q '^large-receive-offload: on' && cd "/sys/class/net/$1" || exit 0
[ "$(cat iflink)" = "$(cat ifindex)" ] || [ -e "$(echo lower_*)" ] ||
    echo "LRO of the interface below $1, in another network namespace"
"""


def _refuse_lro_elsewhere(shell: Shell, target: Target) -> None:
    """Raise KnobError where LRO would be switched off below the interface, in another network namespace.

    The kernel does that with what is off above (dev.c, netdev_sync_lower_features), and does not undo it.
    """
    if lost := run_c(shell, ("sh", "-c", _LRO_SCRIPT, "lro", target.interface), target.node).text.strip():
        raise KnobError(
            f"nic.lro off on {target} would switch off {lost}, which no roll-back could restore",
            hint="set it on that interface instead, where that is",
        )


def script_of_losses(interface: str, knob: str, value: str) -> str:
    """Return a shell command that prints what would be lost with a write, for scripts; empty where nothing can be.

    A script does not restore LRO of what is below.
    """
    name = shlex.quote(interface)
    if (knob, value) == LRO_OFF:
        lower, elsewhere = map(shlex.quote, (LOWER_SCRIPT, _LRO_SCRIPT))
        has_it = 'ethtool -k "$one" | sed -n "s/^large-receive-offload: on.*/LRO of $one/p"'
        return f"{{ for one in $(sh -c {lower} lower {name}); do {has_it}; done; sh -c {elsewhere} lro {name}; }}"
    if knob != MTU:
        return ""
    follows, upper, loss, elsewhere = map(shlex.quote, (_FOLLOWS_SCRIPT, UPPER_SCRIPT, _LOSS_SCRIPT, _ELSEWHERE_SCRIPT))
    of_ipv6 = f"sh -c {loss} loss {value} {LEAST_IPV6_MTU} yes $(sh -c {upper} upper {name})"
    smaller = f"""awk '$3 > {value} {{ print "frames of " $3 " on " $2 " in " $1 }}'"""
    of_bridge = f"[ {value} = $(cat /sys/class/net/{name}/mtu) ] || sh -c {follows} follows {name}"
    return f"{{ {of_bridge}; {of_ipv6}; sh -c {elsewhere} elsewhere {name} | {smaller}; }}"
