"""The machine below the guests, as far as it confounds a measurement; read through a shell."""

from __future__ import annotations

from nearmetal.facts.guests import DEEP_IDLE_US, HypervisorFacts
from nearmetal.hosts.host import Shell

# Lines of `KIND NAME NUMBER`; one command, because each may cost a round trip.
_LOOK = r"""
for file in /sys/class/net/*/mtu; do
    name=${file%/mtu}; [ -r "$file" ] && echo "mtu ${name##*/} $(cat "$file")"
done
for file in /proc/[0-9]*/comm; do
    read -r name < "$file" 2>/dev/null && [ "$name" = irqbalance ] && echo "running irqbalance 1"
done
for state in /sys/devices/system/cpu/cpu0/cpuidle/state*; do
    [ -r "$state/latency" ] && [ "$(cat "$state/disable")" = 0 ] || continue
    echo "idle $(cat "$state/name") $(cat "$state/latency")"
done
true
"""


def look_below(shell: Shell) -> HypervisorFacts:
    """Return what the machine itself says; what it does not offer (idle states in a guest, say) is left out."""
    return parse_look(shell.run(["sh", "-c", _LOOK]).text)


def parse_look(text: str) -> HypervisorFacts:
    """Read what the look prints; pure."""
    rows = [words for line in text.splitlines() if len(words := line.split()) == 3 and words[2].isdecimal()]
    idle = {name: int(value) for kind, name, value in rows if kind == "idle" and int(value) >= DEEP_IDLE_US}
    return HypervisorFacts(
        mtus={name: int(value) for kind, name, value in rows if kind == "mtu"},
        irqbalance=any(kind == "running" for kind, _, _ in rows),
        deep_idle=idle,
    )
