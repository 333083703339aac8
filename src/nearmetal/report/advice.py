"""From a run to what is worth trying next: one rule a remedy, each with evidence from this run. Pure.

A rule speaks only where the run's own counters or facts give it a reason, under the first setting that was measured.
Where a study measured what the remedy gains for a small message's latency, `gain` is that ratio and `source` the study;
it orders the list and promises nothing.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from nearmetal.errors import BadInputError
from nearmetal.report.steps import but_slower
from nearmetal.results.evidence import count_of, per_iteration
from nearmetal.results.records import SettingContrast
from nearmetal.results.series import launched_of
from nearmetal.stats.equivalence import Finding
from nearmetal.stats.summary import HEADLINE
from nearmetal.store.rundir import TrialRecord
from nearmetal.study.facts import BETWEEN
from nearmetal.study.spec import PathSpec, SettingSpec, Study
from nearmetal.tune.profile import PROFILE_FORMAT, of_setting
from nearmetal.units import counted, format_size

_LADDER = "studies/nasa-ladder.toml in the lab"
_OF_THIS_RUN = "this run"
_STOLEN = 0.01
_FEW_SWITCHES = 1.0
_SHARED_INTERRUPTS = 1.5
"""A round trip brings two messages, a frame each at least: with fewer interrupts an iteration frames waited for one."""


_NIC_INTERRUPTS = r"irq\.(?!\d+\.(virtio\d+-(req|stats|config|reporting)|nvme|ahci|megasas|mpt3|xhci|i8042|ttyS))\d+.*"
"""Interrupts of devices that may be network cards, whatever their drivers call them: those of disks are told apart."""
_NEVER_ADAPTIVE = frozenset({"igb", "igbvf", "ixgbe", "ixgbevf", "gve"})
"""Drivers without an adaptive mode to turn off: a setting of what is not there is refused."""
_LOST = r"link\..+_dropped|tcp\..+\.RetransSegs"
_SHAPERS = frozenset({"tbf", "htb", "hfsc", "cbq", "cake", "netem", "taprio", "cbs"})
"""Queueing disciplines that may send later than the card could (tc(8)); fq, fq_codel and their like do not."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One remedy for one path: why it may help here, what it gained elsewhere (None: not measured), how to try it."""

    path: str
    remedy: str
    evidence: str
    attempt: str
    gain: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class PathEvidence:
    """What a rule looks at: one path of the study and its valid trials, of one setting."""

    study: Study
    path: PathSpec
    trials: tuple[TrialRecord, ...]
    contrasts: tuple[SettingContrast, ...] = ()

    def count(self, pattern: str) -> float:
        """Return the median over trials of a counter, per iteration; 0 where no trial recorded counters."""
        return median([per_iteration(one, pattern) for one in self.trials] or [0.0])

    def share(self, part: str) -> float:
        """Return the share of processor ticks that a pattern of `cpu.` counters takes, over all trials."""
        whole = sum(count_of(one, r"cpu\.\w+") for one in self.trials)
        return sum(count_of(one, part) for one in self.trials) / whole if whole else 0.0

    def facts(self, ending: str) -> dict[str, object]:
        """Return the facts whose names end so, over all trials."""
        return {k: v for one in self.trials for k, v in one.outcome.facts.items() if k.endswith(ending)}

    @property
    def has_nic(self) -> bool:
        """Return if the path ends in a network card: a virtual cable or a macvlan has no rings and no moderation."""
        kinds = set(self.facts(".kind").values())
        return self.study.host.kind != "local" and ("physical" in kinds or not kinds)

    @property
    def of_round_trips(self) -> PathEvidence:
        """Return the same with the launches of ping-pong alone, of two messages an iteration: for moderation."""
        names = {w.name for w in self.study.workload if (w.operation or w.name) == "latency" or w.kind == "sockperf"}
        return replace(self, trials=tuple(t for t in self.trials if names.issuperset(launched_of(t).split(BETWEEN))))


def _card(seen: PathEvidence) -> Iterator[Advice]:
    """Find an emulated card, or a user-space back end, where vhost would do."""
    better = {"e1000": ("`vhost` instead of an emulated card", 3.2), "virtio": ("`vhost` instead of user space", 1.6)}
    remedy, gain = better.get(seen.path.recipe, ("", 1.0))
    exits = seen.count(r"kvm\.exits")
    evidence = f"{exits:.1f} KVM exits per iteration"
    backends = [name for name, value in seen.facts(".backend").items() if value == "qemu"]
    if not remedy and backends:
        remedy, gain = "`vhost` instead of the emulator's own back end", 1.6
        evidence = f"{', '.join(backends)} is `qemu` in libvirt's description"
    if remedy and (exits or backends):
        attempt = _with_path(seen, "vhost", "libvirt: <driver name='vhost'/> in the guest's <interface>")
        yield Advice(seen.path.name, remedy, evidence, attempt, gain, _LADDER)


def _function(seen: PathEvidence) -> Iterator[Advice]:
    """Find a software path into a guest where a virtual function would bypass the hypervisor."""
    exits = seen.count(r"kvm\.exits")
    if seen.path.recipe == "vhost" and exits:
        evidence = f"{exits:.1f} KVM exits per iteration"
        elsewhere = "libvirt: <interface type='hostdev'> of a VF, and its guest as another path"
        attempt = _with_path(seen, "guest-vf", elsewhere)
        yield Advice(seen.path.name, "an SR-IOV virtual function instead of vhost", evidence, attempt, 1.5, _LADDER)


def _with_path(seen: PathEvidence, kind: str, elsewhere: str) -> str:
    """Return what tries another recipe: a look at the run that has it, in the lab a command, else what to change."""
    there = [path.name for path in seen.study.path if path.recipe == kind]
    if there:
        return f"it is the path `{there[0]}` of this run: nearmetal compare RUN/"
    if seen.study.host.kind != "lab":
        return elsewhere
    added = f'\\n[[path]]\\nname = "{kind}"\\n'
    return f"printf '{added}' | cat RUN/study.toml - > {kind}.toml && nearmetal run {kind}.toml"


def _with_setting(seen: PathEvidence, name: str, knobs: str) -> str:
    """Return the command that runs the study of `RUN` with one more setting; each trial restores what it changed."""
    present = "" if "setting" in seen.study.model_fields_set else '[[setting]]\\nname = "as-found"\\n'
    added = f'\\n{present}[[setting]]\\nname = "{name}"\\nknobs = {knobs}\\n'
    return f"printf '{added}' | cat RUN/study.toml - > {name}.toml && nearmetal run {name}.toml"


def _measured_setting(seen: PathEvidence) -> Iterator[Advice]:
    """Find a further setting of this study whose mean is shown to be faster than the first's and slower nowhere."""
    for setting in seen.study.setting[1:]:
        found = [one.comparison for one in seen.contrasts if one.setting == setting.name]
        better = sum(one.headline.finding is Finding.FASTER for one in found)
        if not better or any(one.headline.finding is Finding.SLOWER for one in found):
            continue
        # The estimate of an undecided cell may be anything.
        costs = [one.cost(HEADLINE) for one in found if one.headline.finding is not Finding.UNDECIDED]
        first = seen.study.setting[0].name
        sets = ", ".join(f"{knob} = {value}" for knob, value in setting.knobs.items())
        yield Advice(
            seen.path.name,
            f"setting `{setting.name}`: {sets or 'every knob as it was found'}",
            f"faster than `{first}` in {better} of {len(found)} cells of this run{but_slower(found)}",
            _with_profile(seen, setting),
            float(f"{math.exp(-sum(map(math.log, costs)) / len(costs)):.3g}"),
            f"{_OF_THIS_RUN}, geometric mean over its decided cells",
        )


def _with_profile(seen: PathEvidence, setting: SettingSpec) -> str:
    """Return the commands that write a setting as a profile, and use that; `apply` rolls back what nobody confirms."""
    if not setting.knobs:
        return "leave the knobs alone; there is nothing to apply"
    flavour, version = (next(map(str, seen.facts(f"mpi.{name}").values()), "") for name in ("flavour", "version"))
    try:
        made = of_setting(setting.name, setting.knobs, flavour or seen.study.mpi.flavour, version)
    except BadInputError as error:
        return f"no profile can hold it: {error.message}"
    known = {name: asdict(made)[name] for name in ("name", "workload_class", "interfaces", "setting", "mpi_flavour")}
    written = f"{setting.name}.json"
    steps = [f"echo {shlex.quote(json.dumps({'profile_format': PROFILE_FORMAT, **known}))} > {written}"]
    if any(knob.startswith("mpi.") for knob in made.setting):
        steps.append(f"nearmetal export {written} --to module --out .")
    if not all(knob.startswith("mpi.") for knob in made.setting):
        where = " -i INTERFACE" if any(knob.startswith("nic.") for knob in made.setting) else ""
        steps.append(f"nearmetal apply {written} --host HOST{where}")
    return " && ".join(steps)


def _moderation(seen: PathEvidence) -> Iterator[Advice]:
    """Find fewer interrupts than messages: the NIC waits for company, and latency pays."""
    tried = {str(one.knobs["nic.rx-usecs"]).strip() for one in seen.study.setting if "nic.rx-usecs" in one.knobs}
    trips = seen.of_round_trips
    interrupts = trips.count(_NIC_INTERRUPTS)
    if seen.has_nic and 0 < interrupts < _SHARED_INTERRUPTS and tried.isdisjoint({"0", "1"}):
        remedy = "no interrupt moderation while small messages matter"
        evidence = f"{interrupts:.2f} device interrupts per iteration for two messages{_of_sizes(trips.trials)}"
        cards = {str(name).partition(" ")[0] for name in seen.facts(".driver").values()}
        cards = cards or ({"igb"} if seen.study.host.kind == "lab" else cards)
        fixed = "" if cards and cards <= _NEVER_ADAPTIVE else '"nic.adaptive-rx" = "off", '
        attempt = _with_setting(seen, "rx0", f'{{ {fixed}"nic.rx-usecs" = 0 }}')
        yield Advice(seen.path.name, remedy, evidence, attempt, 5.5, "studies/sriov-gap.toml in the lab, at 8 B")


def _of_sizes(trials: Sequence[TrialRecord]) -> str:
    """Return of which sizes the messages of launches are, empty where they do not say."""
    sizes = sorted({size for one in trials for size in one.order.workload.numbers("sizes")})
    if not sizes:
        return ""
    return f" of {format_size(sizes[0])}" + (f" to {format_size(sizes[-1])}" if len(sizes) > 1 else "")


def _polling(seen: PathEvidence) -> Iterator[Advice]:
    """Find ranks that sleep and wake for each message, but not those that share a processor of the lab's nodes."""
    lab = seen.study.host.kind == "lab"
    blocking = {
        w.name
        for w in seen.study.workload
        if w.progress == "blocking" and not (lab and len(set(w.placed)) < len(w.placed))
    }
    own = replace(seen, trials=tuple(t for t in seen.trials if t.order.workload.label in blocking))
    switches = own.count(r"sched\.context_switches")
    if blocking and switches > _FEW_SWITCHES:
        evidence = f"{switches:.1f} context switches per iteration of {', '.join(sorted(blocking))}"
        attempt = "sed -E 's/(progress *= *).blocking./\\1\"polling\"/g' RUN/study.toml > polling.toml "
        attempt += "&& nearmetal run polling.toml"
        yield Advice(seen.path.name, "polling ranks, where each has a core to itself", evidence, attempt)


def _pinning(seen: PathEvidence) -> Iterator[Advice]:
    """Find virtual processors that wait for a real one."""
    stolen = seen.share(r"cpu\.steal")
    free = [k for k, v in seen.facts(".vcpus_pinned").items() if v == 0]
    if stolen > _STOLEN or free:
        signs = [f"{100 * stolen:.1f} % of processor time was stolen"] if stolen > _STOLEN else []
        signs += [f"no vCPU is pinned ({', '.join(free)})"] if free else []
        attempt = "nearmetal guests --libvirt URI names every vCPU without a pin, with its `virsh vcpupin`"
        yield Advice(seen.path.name, "vCPUs pinned to cores of their own", "; ".join(signs), attempt)


def _pages(seen: PathEvidence) -> Iterator[Advice]:
    """Find guests in ordinary pages."""
    plain = [k for k, v in seen.facts(".hugepages").items() if v is False]
    if plain:
        attempt = "libvirt: <memoryBacking><hugepages/></memoryBacking>"
        yield Advice(seen.path.name, "huge pages for the guest", f"{', '.join(plain)} is false", attempt)


def _losses(seen: PathEvidence) -> Iterator[Advice]:
    """Find frames that were dropped, and segments sent again."""
    lost = round(sum(count_of(one, _LOST) / (1 + launched_of(one).count(BETWEEN)) for one in seen.trials))
    if seen.has_nic and lost > len(seen.trials):
        attempt = _with_setting(seen, "rings", '{ "nic.ring-rx" = 4096 }')
        evidence = f"{lost} drops and retransmits in {counted(len(seen.trials), 'trial')}"
        yield Advice(seen.path.name, "longer receive rings", evidence, attempt)


def _shaper(seen: PathEvidence) -> Iterator[Advice]:
    """Find interfaces whose queueing discipline holds frames back, unless the path's own options shape its wire."""
    asked = any(option.startswith("wire_") for option in seen.path.options)
    held = [(k, str(v)) for k, v in seen.facts(".qdisc").items() if v in _SHAPERS and not (asked and v == "netem")]
    for name, discipline in held:
        node, interface = name.removesuffix(".qdisc").split(".", 1)
        machine = next(iter(seen.facts(f"machine.{node.removeprefix('n')}").values()), node)
        evidence = (
            f"{interface} on {machine} has the queueing discipline {discipline}, which can limit rate or add delay"
        )
        attempt = f"`tc -s qdisc show dev {interface}` on {machine} prints its limits, and how many frames it dropped"
        yield Advice(seen.path.name, "the interface without its traffic shaper", evidence, attempt)


def _governor(seen: PathEvidence) -> Iterator[Advice]:
    """Find processors that change their clock."""
    slow = {str(v) for v in seen.facts("cpu.governor").values()} - {"performance", "not offered"}
    if slow:
        attempt = _with_setting(seen, "full-clock", '{ "host.cpu-governor" = "performance" }')
        yield Advice(seen.path.name, "a constant clock", f"the governor is {', '.join(slow)}", attempt)


RULES: tuple[Callable[[PathEvidence], Iterator[Advice]], ...] = (
    _measured_setting,
    _card,
    _function,
    _moderation,
    _polling,
    _pinning,
    _pages,
    _losses,
    _shaper,
    _governor,
)
"""Every rule: a new one is one function and one row."""


def advise(study: Study, records: Sequence[TrialRecord], contrasts: Sequence[SettingContrast] = ()) -> list[Advice]:
    """Return what is worth trying on every path but the baseline, or on it alone; the largest known gain first.

    `contrasts` are what the view's settings gain.
    """
    subjects = [path for path in study.path if path.name != study.baseline] or study.path
    valid = [one for one in records if one.valid]
    found: list[Advice] = []
    for path in subjects:
        own = [one for one in valid if one.order.path.name == path.name]
        measured = {one.order.setting for one in own}
        for setting in [one.name for one in study.setting if one.name in measured][:1]:
            of_setting = tuple(one for one in own if one.order.setting == setting)
            seen = PathEvidence(study, path, of_setting, tuple(one for one in contrasts if one.path == path.name))
            told = [advice for rule in RULES for advice in rule(seen)]
            found += [_under(setting, one) if len(measured) > 1 else one for one in told]
    return sorted(found, key=lambda one: -(one.gain or 1.0))


def _under(setting: str, one: Advice) -> Advice:
    """Return advice that names the setting of its counters, where it does not compare settings itself."""
    return one if one.source.startswith(_OF_THIS_RUN) else replace(one, evidence=f"{one.evidence} (under `{setting}`)")
