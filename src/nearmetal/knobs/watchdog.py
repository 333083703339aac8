"""The watchdog: a separate process that puts everything back when nothing else can.

It is a POSIX shell script in its own session, on the node whose values it guards. It holds the undo script in
memory, so at roll-back time it needs no file, no Python and not the network that is being tuned. It acts on: the
deadline, death of the process that armed it, a lost link, a failed probe of the management address, an interrupt
storm, and SIGTERM, which every process gets when a job is cancelled or a machine shuts down. It undoes first and
reports after that, where it can: a full or broken disk is when it is needed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nearmetal.errors import NearmetalError, TrialError
from nearmetal.hosts.host import Shell, is_far
from nearmetal.knobs.access import run_c


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """When the watchdog acts.

    `deadline_s` counts from arming, or from when that was renewed. `links` are interfaces whose carrier must not stay
    lost for `patience` looks; with `own_links` so are, on each node, those that are written to and have a carrier when
    it is armed.
    `probe` is an address that must answer a ping within `patience` looks. `storm_per_s` caps the interrupts of the
    whole machine (`/proc/stat`, intr); 0 turns that off. `look_ms` is the time between looks.
    """

    deadline_s: int = 120
    links: tuple[str, ...] = ()
    probe: str = ""
    storm_per_s: int = 0
    look_ms: int = 1000
    patience: int = 5
    own_links: bool = False


# Tells whether process $1, which started at $2, still runs.
_LIVES = r"""
lives() {
    who=$1 since=$2
    read -r stat < "/proc/$who/stat" || return 1
    # The name, in parentheses, may hold blanks; field 22 of proc(5) is the 20th after it.
    set -f
    set -- ${stat##*) }
    [ "$1" != Z ] && [ "${20}" = "$since" ]
} 2> /dev/null
"""

# One that puts values back ignores USR1, signal 10 (SigIgn of proc_pid_status(5)), and watches no more.
_ALIVE_SCRIPT = (
    _LIVES
    + r"""
lives "$1" "$2" || exit 1
while read -r name mask; do
    [ "$name" = SigIgn: ] && exit $((0x$mask >> 9 & 1))
done < "/proc/$1/status"
exit 1
"""
)

# Standard input: the undo script, which may be longer than an argument can be. Positional parameters: report file,
# deadline in seconds, seconds between looks, process to watch (or 0), its start time, storm limit a second, looks of
# patience, probe address, hundredths of a second between looks, interfaces. USR2 lets the deadline count anew.
_WATCH_SCRIPT = (
    _LIVES
    + r"""
trap 'exit 0' USR1
trap '' TERM HUP INT PIPE
undo=$(cat)
exec < /dev/null
report=$1 grace=$2 pause=$3 parent=$4 born=$5 storm=$6 patience=$7 probe=$8 least=$9
shift 9
uptime() {
    read -r up rest < /proc/uptime
    echo "${up%.*}"
}
hundredths() {
    read -r up rest < /proc/uptime
    echo "${up%.*}${up#*.}"
}
renew() { deadline=$(($(uptime) + grace)); }
interrupts() {
    while read -r word total rest; do
        [ "$word" = intr ] && { echo "$total"; return; }
    done < /proc/stat
}
restore() {
    trap '' TERM USR1 USR2
    # Undo first, in memory: the disk that the report goes to may be what is broken.
    # Twice where something is left: it may have been busy, or have come into being only by the first time.
    said=$(eval "$undo" 2>&1) || said=$(printf '%s\n' "$said"; eval "$undo" 2>&1)
    said=$(printf '%s\n' "restored because $1" "$said" "undo ended with status $?")
    (umask 077; printf '%s\n' "$said" > "$report") 2> /dev/null ||
        printf '%s\n' "$said" | logger -t nearmetal-watchdog 2> /dev/null
    exit 0
}
trap 'restore "it was told to end"' TERM
lost=0 silent=0 before=$(interrupts) looked=$(hundredths)
trap renew USR2
renew
(read -r stat < "/proc/$$/stat"; set -f; set -- ${stat##*) }; echo "$$ ${20}")
exec > /dev/null 2>&1
while [ "$(uptime)" -lt "$deadline" ]; do
    sleep "$pause" & wait $!
    [ "$parent" = 0 ] || lives "$parent" "$born" || restore "process $parent is gone"
    down=
    for link; do
        [ "$(cat "/sys/class/net/$link/carrier" 2>/dev/null)" = 1 ] || down=$link
    done
    lost=$((${down:+lost + 1} + 0))
    [ "$lost" -lt "$patience" ] || restore "the link of $down is lost"
    if [ "$probe" ]; then
        if ping -c 1 -W 1 "$probe" > /dev/null 2>&1; then silent=0; else silent=$((silent + 1)); fi
        [ "$silent" -lt "$patience" ] || restore "$probe does not answer"
    fi
    if [ "$storm" -gt 0 ]; then
        # A look takes longer than its pause on a busy machine, or for a probe that is silent.
        now=$(interrupts) at=$(hundredths)
        took=$((at - looked > least ? at - looked : least))
        [ $((100 * (now - before))) -le $((storm * took)) ] ||
            restore "$((now - before)) interrupts came in ${took}0 ms"
        before=$now looked=$at
    fi
done
restore "the deadline has passed"
"""
)

# Starts the watcher in its own session; prints what it says when it is ready: its process number and start time. A
# signal that came earlier would be lost.
_ARM_SCRIPT = r"""
watcher=$1
shift
exec 3<&0
ready=$(setsid sh -c "$watcher" nearmetal-watchdog "$@" <&3 3<&- &)
[ "$ready" ] && echo "$ready"
"""

_RENEW_SCRIPT = _LIVES + 'lives "$1" "$2" && kill -s USR2 "$1"'

# Ends the watcher. One that is putting values back continues, and is waited for: 1 says that it is not done yet.
_END_SCRIPT = (
    _LIVES
    + r"""
lives "$1" "$2" && kill -s USR1 "$1"
looks=0
while lives "$1" "$2"; do
    [ "$looks" -lt 300 ] || exit 1
    looks=$((looks + 1))
    sleep 0.05
done
"""
)


@dataclass(frozen=True, slots=True)
class Watchdog:
    """An armed watchdog; `disarm` ends it. `process` is its number on its node, `born` when that started."""

    shell: Shell
    node: str
    process: int
    born: str
    report_path: str

    @staticmethod
    def arm(shell: Shell, node: str, guard: WatchLimits, undo_script: str, report_path: str) -> Watchdog:
        """Start it on a node; raise TrialError when it does not live."""
        parent, born = _visible_self(shell, node)
        fixed = (
            report_path,
            str(guard.deadline_s),
            f"{guard.look_ms / 1000:.3f}",
            parent,
            born,
            str(guard.storm_per_s),
            str(guard.patience),
            guard.probe,
            str(guard.look_ms // 10),
        )
        argv = ("sh", "-c", _ARM_SCRIPT, "arm", _WATCH_SCRIPT, *fixed, *guard.links)
        armed = run_c(shell, argv, node, stdin=undo_script.encode())
        process, _, started = armed.text.strip().partition(" ")
        if not armed.ok or not process.isdecimal() or not started.isdecimal():
            raise TrialError(f"the watchdog did not start, so no setting was changed: {armed.complaint()}")
        return Watchdog(shell, node, int(process), started, report_path)

    def alive(self) -> bool:
        """Return whether it still watches."""
        return run_c(self.shell, ("sh", "-c", _ALIVE_SCRIPT, "alive", *self._arguments), self.node).ok

    def renew(self) -> None:
        """Let its deadline count from now; one that is putting values back continues."""
        run_c(self.shell, ("sh", "-c", _RENEW_SCRIPT, "renew", *self._arguments), self.node)

    def report(self) -> str:
        """Return what it did, or an empty text when it did nothing so far."""
        found = run_c(self.shell, ("cat", "--", self.report_path), self.node)
        return found.text.strip() if found.ok else ""

    def disarm(self) -> str:
        """End it and return what it did, if anything; one that is putting values back is waited for.

        Raise TrialError when it is not done with that after 15 s.
        """
        ended = run_c(self.shell, ("sh", "-c", _END_SCRIPT, "end", *self._arguments), self.node)
        if not ended.ok:
            raise TrialError(
                f"the watchdog, process {self.process}, is still putting values back: {ended.complaint()}",
                hint="`nearmetal rollback` will check later that every setting is restored",
            )
        return self.report()

    @property
    def _arguments(self) -> tuple[str, str]:
        return str(self.process), self.born


def _visible_self(shell: Shell, node: str) -> tuple[str, str]:
    """Return the process to watch on a node and its start time: this one where the node sees it, else ("0", "").

    On a far machine it is the far end of the connection, so that a connection that drops counts as a death.
    """
    if is_far(shell):
        process = shell.lifeline(node)
        stat = shell.read(f"/proc/{process}/stat", node=node).decode(errors="replace") if process else ""
        return (process, _start_time(stat)) if process else ("0", "")
    own = Path("/proc/self/stat").read_text()
    try:
        seen = shell.read(f"/proc/{os.getpid()}/stat", node=node).decode(errors="replace")
    except NearmetalError:
        return "0", ""
    same = _start_time(own) == _start_time(seen) and own.split(")")[0] == seen.split(")")[0]
    return (str(os.getpid()), _start_time(own)) if same else ("0", "")


def _start_time(stat: str) -> str:
    return stat.rpartition(")")[2].split()[19]
