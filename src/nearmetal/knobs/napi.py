"""What follows the interrupt: deferral of interrupts, GRO flushing, threaded NAPI, receive and transmit steering.

`net/core/dev.c`, napi_complete_done: with napi_defer_hard_irqs > 0 the interrupt stays masked that many times for
gro_flush_timeout; a timeout of 0 disables the deferral whatever the count. The sysfs files set every NAPI of
the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import Access, CommandOutputs, Pick, Reading
from nearmetal.knobs.knob import FLAG, CpuList, Knob, OneOf, Stage, Step, Target, WholeNumber, joined, parse_cpus
from nearmetal.knobs.nic import PARTS, interface_file, nic_knob, queue_files
from nearmetal.study.order import Scalar
from nearmetal.units import ranges

_INT_MAX = 2**31 - 1
_NO_CPUS = "none"
_WORD_DIGITS = 8


@dataclass(frozen=True, slots=True)
class CpuMask:
    """Processors, or queues, that the kernel takes as a mask; a setting names them by a list as `0-3`, or `none`."""

    of: str = "processors"

    def canon(self, value: Scalar) -> str:
        """Return the list in its shortest form: a mask would be read as another list."""
        text = str(value).strip()
        try:
            return text if text == _NO_CPUS else CpuList().canon(text)
        except ValueError as error:
            raise ValueError(f"takes {self.about()}") from error

    def about(self) -> str:
        """Return the form."""
        return f"a list of {self.of} such as 0-3,8, or {_NO_CPUS}"


class Steering(Knob):
    """The processors of every queue of one NIC, or the queues."""

    __slots__ = ()

    def steps(self, shell: Shell, target: Target, value: str) -> tuple[Step, ...]:
        """Return one write a queue: the mask."""
        return tuple(Step(access, mask_of(value)) for access in self.accesses(shell, target))

    def read(self, shell: Shell, target: Target, printed: CommandOutputs | None = None) -> Reading:
        """Return the processors, in the form in which a setting names them."""
        readings = (printed or CommandOutputs(shell)).read_all(self.accesses(shell, target))
        return joined([replace(one, value=cpus_of(one.value)) if one.value else one for one in readings])

    def told(self, shell: Shell, target: Target, values: Mapping[str, str]) -> Sequence[str]:
        """Return the same of masks."""
        del shell, target
        return [cpus_of(mask) for mask in values.values()]


def mask_of(cpus: str) -> str:
    """Return the mask of a list of processors: words of 32 bits in hexadecimal, the highest first."""
    digits = f"{sum(1 << cpu for cpu in ([] if cpus == _NO_CPUS else parse_cpus(cpus))):x}"
    return as_wide(digits, digits)


def cpus_of(mask: str) -> str:
    """Return the list of processors of a mask that the kernel printed."""
    bits = int(mask.replace(",", ""), 16)
    return ranges(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1) or _NO_CPUS


def as_wide(mask: str, printed: str) -> str:
    """Return a mask with as many digits as one that the kernel printed: its width follows the number of processors."""
    digits = mask.replace(",", "").rjust(len(printed.replace(",", "")), "0")
    first = len(digits) % _WORD_DIGITS or _WORD_DIGITS
    return ",".join((digits[:first], *(digits[i : i + _WORD_DIGITS] for i in range(first, len(digits), _WORD_DIGITS))))


THREADS = f"nic.threaded-napi{PARTS}"
"""What a device's NAPI threads were told. They go with their NAPIs, or with the mode, and begin anew."""

# The processors, policy, priority and niceness of each, in the order of the NAPIs' numbers, which may be new. Before
# Linux 5.17 names are cut to 15 characters, so that threads of a long one are not seen.
_THREADS_SCRIPT = r"""
threads() {
    for file in /proc/[0-9]*/comm; do
        read -r name < "$file" || continue
        case $name in "napi/$1-"*[!0-9]*) continue ;; "napi/$1-"*) file=${file%/comm} ;; *) continue ;; esac
        echo "${name##*-} ${file#/proc/}"
    done 2> /dev/null | sort -n | sed 's/.* //'
}
told() {
    cpus=$(sed -n 's/^Cpus_allowed_list:[[:blank:]]*//p' "/proc/$1/status")
    set -- $(sed 's/.*) //' "/proc/$1/stat")
    echo "$cpus/${39}/${38}/${17}"
}
all() {
    all=
    for thread in $(threads "$1"); do all="$all;$(told "$thread")"; done
    echo "${all#;}"
}
"""
_SHOW_THREADS = (
    _THREADS_SCRIPT + 'all=$(all "$1"); [ "$all" ] || { echo "a thread of its NAPIs does not exist." >&2; exit; }\n'
    'echo "parts: $all"'
)
_TELL_THREADS = (
    _THREADS_SCRIPT
    + r"""rest=$2
for thread in $(threads "$1"); do
    now=${rest%%;*} rest=${rest#*;}
    IFS=/
    set -- "$1" "$2" "$thread" $now
    unset IFS
    [ "$(told "$3")" != "$now" ] || continue
    case $5 in 1) policy=-f ;; 2) policy=-r ;; 3) policy=-b ;; 5) policy=-i ;; *) policy=-o ;; esac
    taskset -pc "$4" "$3" && chrt "$policy" -p "$6" "$3" && renice -n "$7" -p "$3"
done > /dev/null
[ "$(all "$1")" = "$2" ] || { echo "it is $(all "$1")" >&2; exit 1; }
"""
)


def _threads(_shell: Shell, target: Target) -> tuple[Access, ...]:
    show = ("sh", "-c", _SHOW_THREADS, "threads", target.interface)
    change = ("sh", "-c", _TELL_THREADS, "threads", target.interface, "{}")
    called = f"what NAPI threads of {target.interface} were told"
    return (Access(target.node, show, Pick("parts: (.*)"), change=change, called=called),)


KNOBS = (
    nic_knob(
        "napi-defer-hard-irqs",
        "empty polls before the interrupt is armed again; works only with gro-flush-timeout-ns",
        Stage.VALUE,
        WholeNumber(0, _INT_MAX, "polls"),
        interface_file("napi_defer_hard_irqs"),
    ),
    nic_knob(
        "gro-flush-timeout-ns",
        "how long received segments wait to be merged, and how long the deferral lasts",
        Stage.VALUE,
        WholeNumber(0, 2**62, "ns"),
        interface_file("gro_flush_timeout"),
    ),
    nic_knob(
        "threaded-napi",
        "packets are processed by a kernel thread that can be placed and prioritised",
        Stage.MODE,
        FLAG,
        interface_file("threaded"),
        disturbs=(THREADS,),
    ),
    Knob(THREADS, "what its threads were told", "interface", Stage.MODE, OneOf(), _threads),
    Steering(
        "nic.rps-cpus",
        "processors that take over protocol work from each receive queue",
        "interface",
        Stage.STEERING,
        CpuMask(),
        queue_files("rx-", "rps_cpus"),
    ),
    nic_knob(
        "rps-flow-cnt",
        "flows of each receive queue that follow the processor of their program (RFS); a power of two",
        Stage.STEERING,
        WholeNumber(0, 2**30, "flows"),
        queue_files("rx-", "rps_flow_cnt"),
    ),
    Steering(
        "nic.xps-cpus",
        "processors whose traffic uses each transmit queue",
        "interface",
        Stage.STEERING,
        CpuMask(),
        queue_files("tx-", "xps_cpus"),
    ),
    Steering(
        "nic.xps-rxqs",
        "receive queues whose answers use each transmit queue",
        "interface",
        Stage.STEERING,
        CpuMask("receive queues"),
        queue_files("tx-", "xps_rxqs"),
    ),
)
