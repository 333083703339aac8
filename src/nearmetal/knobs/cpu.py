"""Processors: governor, energy preference, idle states, and memory settings that move pages under a running rank."""

from collections.abc import Iterable, Mapping, Sequence

from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import Access, CommandOutputs, Pick, Reading, file_access, read_all
from nearmetal.knobs.kernel import machine_file, sysctl_knob
from nearmetal.knobs.knob import FLAG, Knob, Locate, OneOf, Stage, Step, Target, WholeNumber, joined
from nearmetal.knobs.nic import PARTS, listing

_CPU = "/sys/devices/system/cpu"
_GOVERNOR = "host.cpu-governor"
MIN_FREE = "host.min_free_kbytes"
_SOME = Pick("(.*[0-9].*)")
_BRACKETED = Pick(".*\\[([a-z]+)\\].*")


def _of_policies(file: str, choices: str) -> Locate:
    def locate(shell: Shell, target: Target) -> tuple[Access, ...]:
        policies = [name for name in listing(shell, target.node, f"{_CPU}/cpufreq") if name.startswith("policy")]
        folders = [f"{_CPU}/cpufreq/{policy}" for policy in policies]
        return tuple(
            file_access(target.node, f"{folder}/{file}", choices_path=f"{folder}/{choices}") for folder in folders
        )

    return locate


class OfPolicies(Knob):
    """A file of every policy of cpufreq but those whose processors are all offline.

    The kernel neither reads nor writes these (cpufreq.c, policy_is_inactive). They remain among the accesses, for a
    processor that is taken offline under a setting comes back with that, so that a roll-back must ask for it.
    """

    __slots__ = ()

    def steps(self, shell: Shell, target: Target, value: str) -> tuple[Step, ...]:
        """Return one write a policy."""
        return tuple(Step(access, value) for access in _of_processors(shell, self.accesses(shell, target)))

    def read(self, shell: Shell, target: Target, printed: CommandOutputs | None = None) -> Reading:
        """Return the value of the policies that have processors."""
        accesses = _of_processors(shell, self.accesses(shell, target))
        return joined((printed or CommandOutputs(shell)).read_all(accesses))


def _of_processors(shell: Shell, accesses: Sequence[Access]) -> list[Access]:
    """Return the accesses to policies that have processors; without any, `affected_cpus` is empty, or busy."""
    cpus = [file_access(one.node, f"{one.path.rpartition('/')[0]}/affected_cpus", pick=_SOME) for one in accesses]
    readings = zip(accesses, read_all(shell, cpus), strict=True)
    return [access for access, reading in readings if reading.value is not None]


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
        accesses = self.accesses(shell, target)
        latency_us = _latencies_us(shell, target, [access.key for access in accesses])
        there = [access for access in accesses if access.key in latency_us]
        return tuple(Step(access, str(int(latency_us[access.key] > int(value)))) for access in there)

    def read(self, shell: Shell, target: Target, printed: CommandOutputs | None = None) -> Reading:
        """Return the longest latency among the states that are allowed."""
        accesses = self.accesses(shell, target)
        readings = (printed or CommandOutputs(shell)).read_all(accesses)
        found = {one.key: now.value for one, now in zip(accesses, readings, strict=True) if now.value is not None}
        if not found:
            return joined(readings) if readings else Reading(None, "the machine offers no idle states")
        return Reading(self.told(shell, target, found)[0])

    def told(self, shell: Shell, target: Target, values: Mapping[str, str]) -> Sequence[str]:
        """Return the longest latency among the states that were allowed, by `disable` of each."""
        latencies_us = _latencies_us(shell, target, values)
        return [str(max((latency_us for key, latency_us in latencies_us.items() if values[key] == "0"), default=0))]


def _states(shell: Shell, target: Target) -> tuple[Access, ...]:
    """Return `disable` of every idle state of every processor."""
    cpus = [name for name in listing(shell, target.node, _CPU) if name[3:].isdecimal() and name.startswith("cpu")]
    return tuple(
        file_access(target.node, f"{_CPU}/{cpu}/cpuidle/{state}/disable")
        for cpu in cpus
        for state in listing(shell, target.node, f"{_CPU}/{cpu}/cpuidle")
        if state.startswith("state")
    )


def _latencies_us(shell: Shell, target: Target, keys: Iterable[str]) -> dict[str, int]:
    """Return the latencies of states by their `disable`; those of a processor that has been taken offline are gone."""
    beside = {key: file_access(target.node, f"{key.removesuffix('disable')}latency") for key in keys}
    readings = zip(beside, read_all(shell, beside.values()), strict=True)
    return {key: int(reading.value) for key, reading in readings if reading.value is not None}


KNOBS = (
    # amd_pstate_epp_set_policy and intel_pstate_hwp_set: `performance` makes the preference so, too; the former
    # leaves it so afterwards. While it is set they refuse others, hence the governor goes back first.
    OfPolicies(
        _GOVERNOR,
        "how the clock frequency follows the load",
        "machine",
        Stage.HOST,
        OneOf(),
        _of_policies("scaling_governor", "scaling_available_governors"),
        ("host.cpu-energy-preference", f"{_GOVERNOR}{PARTS}"),
    ),
    Knob(f"{_GOVERNOR}{PARTS}", "what the governors were told", "machine", Stage.HOST, OneOf(), _told),
    OfPolicies(
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
        _states,
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
