"""Processors: governor, energy preference, idle states, and memory settings that move pages under a running rank."""

from collections.abc import Sequence

from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import Access, CommandOutputs, Pick, Reading, file_access, read_all
from nearmetal.knobs.kernel import machine_file, sysctl_knob
from nearmetal.knobs.knob import FLAG, Knob, Locate, OneOf, Stage, Step, Target, WholeNumber
from nearmetal.knobs.nic import PARTS, listing

_CPU = "/sys/devices/system/cpu"
_GOVERNOR = "host.cpu-governor"
MIN_FREE = "host.min_free_kbytes"
_BRACKETED = Pick(".*\\[([a-z]+)\\].*")


def _of_policies(file: str, choices: str) -> Locate:
    def locate(shell: Shell, target: Target) -> tuple[Access, ...]:
        policies = [name for name in listing(shell, target.node, f"{_CPU}/cpufreq") if name.startswith("policy")]
        folders = [f"{_CPU}/cpufreq/{policy}" for policy in policies]
        return tuple(
            file_access(target.node, f"{folder}/{file}", choices_path=f"{folder}/{choices}") for folder in folders
        )

    return locate


# What a governor was told goes with the last processor that has it, and begins anew at the defaults, for all processors
# or for each policy (cpufreq_governor.c, cpufreq_dbs_governor_exit; likewise schedutil and userspace). The second round
# is for values that limit each other, as those of `conservative`.
_TOLD = (
    "cd "
    + _CPU
    + r"""/cpufreq 2> /dev/null || exit
files() {
    for governor in $(cat policy*/scaling_governor | sort -u); do
        for file in "$governor"/* policy*/"$governor"/*; do [ ! -f "$file" ] || echo "$file"; done
    done
    grep -lx userspace policy*/scaling_governor | sed 's/governor$/setspeed/'
}
told() {
    for file in $(files); do ! read -r value < "$file" || all="$all,$file=$value"; done
    all=${all#,}
    echo "${all:-none}"
}
tell() {
    for file in $(files); do
        value=",$1," && value=${value#*",$file="} && value=${value%%,*}
        case ",$1," in *",$file=$value,"*) ;; *) continue ;; esac
        read -r now < "$file" && [ "$now" = "$value" ] || echo "$value" > "$file"
    done
}
"""
)
_SHOW_TOLD = _TOLD + 'echo "parts: $(told)"'
_TELL = _TOLD + '(tell "$1"; tell "$1") 2> /dev/null; [ "$(told)" = "$1" ] || { echo "it is $(told)" >&2; exit 1; }'


def _told(_shell: Shell, target: Target) -> tuple[Access, ...]:
    show, change = ("sh", "-c", _SHOW_TOLD, "told"), ("sh", "-c", _TELL, "tell", "{}")
    return (Access(target.node, show, Pick("parts: (.*)"), change=change, called="what cpufreq governors were told"),)


class IdleLatency(Knob):
    """The idle states that processors may enter, by the latency of leaving them.

    Sets `disable` of every state. (An open `/dev/cpu_dma_latency` does the same until its holder dies; files can be
    journalled.) `Documentation/admin-guide/pm/cpuidle.rst`.
    """

    __slots__ = ()

    def steps(self, shell: Shell, target: Target, value: str) -> tuple[Step, ...]:
        """Return one write a state."""
        latencies_us = _latencies_us(shell, target)
        return tuple(
            Step(access, str(int(latency_us > int(value))))
            for access, latency_us in zip(self.accesses(shell, target), latencies_us, strict=True)
        )

    def read(self, shell: Shell, target: Target, printed: CommandOutputs | None = None) -> Reading:
        """Return the longest latency among the states that are allowed."""
        readings = (printed or CommandOutputs(shell)).read_all(self.accesses(shell, target))
        if not readings:
            return Reading(None, "the machine offers no idle states")
        return Reading(self.told(shell, target, [one.value or "" for one in readings])[0])

    def told(self, shell: Shell, target: Target, values: Sequence[str]) -> Sequence[str]:
        """Return the longest latency among the states that were allowed, by `disable` of each."""
        states = zip(_latencies_us(shell, target), values, strict=True)
        return [str(max((latency_us for latency_us, disabled in states if disabled == "0"), default=0))]


def _states(shell: Shell, target: Target, file: str) -> tuple[Access, ...]:
    """Return a file of every idle state of every processor."""
    cpus = [name for name in listing(shell, target.node, _CPU) if name[3:].isdecimal() and name.startswith("cpu")]
    return tuple(
        file_access(target.node, f"{_CPU}/{cpu}/cpuidle/{state}/{file}")
        for cpu in cpus
        for state in listing(shell, target.node, f"{_CPU}/{cpu}/cpuidle")
        if state.startswith("state")
    )


def _latencies_us(shell: Shell, target: Target) -> list[int]:
    return [int(reading.value or 0) for reading in read_all(shell, _states(shell, target, "latency"))]


KNOBS = (
    # amd_pstate_epp_set_policy and intel_pstate_hwp_set: `performance` makes the preference so, too; the former
    # leaves it so afterwards. While it is set they refuse others, hence the governor goes back first.
    Knob(
        _GOVERNOR,
        "how the clock frequency follows the load",
        "machine",
        Stage.HOST,
        OneOf(),
        _of_policies("scaling_governor", "scaling_available_governors"),
        ("host.cpu-energy-preference", f"{_GOVERNOR}{PARTS}"),
    ),
    Knob(f"{_GOVERNOR}{PARTS}", "what the governors were told", "machine", Stage.HOST, OneOf(), _told),
    Knob(
        "host.cpu-energy-preference",
        "how much a processor that chooses its frequency itself prefers performance (EPP)",
        "machine",
        Stage.HOST,
        OneOf(),
        _of_policies("energy_performance_preference", "energy_performance_available_preferences"),
    ),
    IdleLatency(
        "host.idle-latency-us",
        "the longest allowed wake-up from an idle state; 0 keeps processors polling and out of idle states",
        "machine",
        Stage.HOST,
        WholeNumber(0, 1_000_000, "us"),
        lambda shell, target: _states(shell, target, "disable"),
    ),
    Knob(
        "host.transparent-hugepages",
        "large pages without the program's involvement: fewer TLB misses, but pauses when pages are merged",
        "machine",
        Stage.HOST,
        OneOf(("always", "madvise", "never")),
        machine_file("/sys/kernel/mm/transparent_hugepage/enabled", pick=_BRACKETED),
        (MIN_FREE,),
    ),
    # khugepaged.c, set_recommended_min_free_kbytes: raised for large pages, and lowered without them where nobody had
    # set it. The bounds are those of calculate_min_free_kbytes; far more than that leaves programs no memory.
    Knob(
        MIN_FREE,
        "memory that is kept for allocations which cannot wait, such as received frames; large pages raise it",
        "machine",
        Stage.HOST,
        WholeNumber(128, 262_144, "KiB"),
        machine_file("/proc/sys/vm/min_free_kbytes"),
    ),
    sysctl_knob(
        "numa_balancing", "kernel/numa_balancing", WholeNumber(0, 3), "pages migrate to the processes that use them"
    ),
    sysctl_knob("timer_migration", "kernel/timer_migration", FLAG, "timers migrate away from idle processors"),
)
