"""The lab as a host: every trial runs inside a machine that is restored from a frozen one for it.

The order goes in, the machine runs on its own clock with nothing touching it, the outcome comes out. The trial's body
is the one in the image, which is nearmetal's own code of this very version.
"""

import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from nearmetal import process
from nearmetal.errors import BadInputError, ForeignFileError, NearmetalError, TrialError, UnavailableError
from nearmetal.hosts.far.host import check_options
from nearmetal.hosts.host import ClockProgress, Shell, is_on, whole_number
from nearmetal.hosts.kind import Pace
from nearmetal.hosts.lab import cache, image, wire, wirecheck
from nearmetal.hosts.lab.cluster import WIRE, Cluster, cluster_of, nodes_of, slots_in_memory
from nearmetal.hosts.lab.guest import OUTCOME_NAME
from nearmetal.hosts.lab.machine import Boot, LabMachine, machine_named
from nearmetal.hosts.lab.running import carry_out
from nearmetal.hosts.lab.vm import Vm
from nearmetal.hosts.processors import own_processors
from nearmetal.study.facts import VARIANT, VIRTUAL_TIME
from nearmetal.study.order import Order, Outcome, Scalar
from nearmetal.study.spec import HostSpec
from nearmetal.units import by_key

EMULATOR = "qemu-system-x86_64"
OLDEST_EMULATOR = (10, 0)
_HINT_INSTALL = (
    "Debian 12: `apt install -t bookworm-backports qemu-system-x86` with bookworm-backports in the apt sources; "
    "Debian 13 and later: `apt install qemu-system-x86`"
)
_BOOT_TIMEOUT_S = 240.0
_BUSY_FACTOR = 4.0
_BUSY_ALLOWANCE_S = 60.0
_SLOTS = 2
_VARIANTS = 3
_MACHINES_SHARE = 0.4
"""How much of a trial is spent on its machines and its path, which several launches may share."""
OPTIONS = {
    "machine": "the machine's configuration, one of those that `nearmetal lab status` lists (`base`)",
    "nodes": "number of nodes, 2 to 16, each a machine with its own kernel, processor and port",
    "launches": "with `nodes`: how many launches of a block, on one path, machines run before they end (1)",
    "warm_machines": "with `nodes`: machines first run the first launch once without recording it (false)",
    "variants": "boots of the machine that blocks use in turn (3); each takes 550 MB in the cache",
    "standing_guests": "with `nodes`: start guests before the snapshot; restored machines then already run them (true)",
    "slots": "number of trials side by side (2 if cores and memory allow, 1 with more than two nodes)",
    **WIRE,
}

LABEL = (
    "an emulated machine whose clock counts instructions: sound for comparing paths, moderation and software cost on "
    "that machine, not a forecast of any real machine's microseconds"
)


def find_emulator() -> tuple[str, str]:
    """Return the emulator's path and version; raise UnavailableError when it is missing or too old."""
    program = shutil.which(EMULATOR)
    if program is None:
        raise UnavailableError(f"the lab needs {EMULATOR}, which is not installed", hint=_HINT_INSTALL)
    printed = process.run([program, "--version"], timeout_s=20, check=True).text
    match = re.search(r"version (\d+)\.(\d+)(?:\.\d+)?", printed)
    if match is None:
        raise UnavailableError(f"{program} does not print its version: {printed[:80]!r}", hint=_HINT_INSTALL)
    if (int(match[1]), int(match[2])) < OLDEST_EMULATOR:
        wanted = ".".join(map(str, OLDEST_EMULATOR))
        message = f"{program} is version {match[1]}.{match[2]}, the lab needs {wanted} or later"
        raise UnavailableError(message, hint=_HINT_INSTALL)
    return program, match[0].removeprefix("version ")


@dataclass(frozen=True, slots=True)
class _Ready:
    """What every machine is restored from."""

    boot: Boot
    image_key: str
    snapshot: Path
    snapshot_digest: str
    variant: int


_Which = tuple[int, bool]
"""A snapshot: which of the variants, and whether a guest stands in it."""


class LabHost:
    """Carries trials out in the emulated SR-IOV cluster; safe for use by several threads."""

    kind = "lab"
    label = LABEL

    def __init__(
        self,
        machine: LabMachine,
        *,
        slots: int,
        say: Callable[[str], None],
        variants: int = 1,
        cluster: Cluster | None = None,
        launches: int = 1,
        warm: bool = False,
    ) -> None:
        """Check that an emulator and an image are here; raise UnavailableError otherwise.

        Both are verified, and the machine is booted to its snapshot, when the first trial comes. Block k is carried
        out in snapshot k modulo `variants`. In a `cluster` every node is restored from that one snapshot and carries
        out up to so many `launches` of a block on one path, after one that nobody sees where they shall be `warm`.
        """
        self._cluster = cluster
        self._launches = launches
        self._warm = warm
        self._machine = replace(machine, node=True) if cluster else machine
        self.slots = slots
        """How many machines run side by side: each keeps one core busy."""
        self._say = say
        self._emulator, self._version = find_emulator()
        self._wire = wirecheck.fitting_wire(self._emulator, self._version)
        image.require_built()
        self._variants = variants
        self._image: image.Image | None = None
        self._making: dict[_Which, threading.Lock] = {}
        self._ready: dict[_Which, _Ready] = {}
        self._running: set[Vm] = set()
        self._clocks: dict[str, float] = {}
        self._taken: list[int] = []
        self._lock = threading.Lock()
        self._closed = False
        self.terminal: Path | None = None
        """A listening socket that the console of node 0 is connected to, where a person has it."""

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:  # noqa: ARG002 (see module)
        """Let the machine's own copy of the body carry the order out.

        The machine's end, whatever it is, costs this trial alone.
        """
        (outcome,) = self.carry_out_together([order])
        return outcome

    def together(self, orders: Sequence[Order]) -> list[list[Order]]:
        """Return the orders by the machines that carry them out, each group of one path and `launches` at most.

        Those of one setting follow each other, so that it need not be put back between them. Groups with guests take
        the longest and come first, so that no core is left alone with one.
        """
        groups: list[list[Order]] = []
        for order in orders:
            alike = (group for group in groups if (group[0].path, group[0].nodes) == (order.path, order.nodes))
            group = next((group for group in alike if len(group) < self._launches), None)
            if group is None:
                groups.append([order])
            else:
                group.append(order)
        return sorted(map(_by_setting, groups), key=lambda group: not self._which(group[0])[1])

    def carry_out_together(self, orders: Sequence[Order]) -> Iterator[Outcome]:
        """Carry orders out one after another on the same machines; those after one that fails get others."""
        left = list(orders)
        while left:
            outcomes = self._until_failure(left)
            yield from outcomes
            del left[: len(outcomes)]

    def _until_failure(self, orders: Sequence[Order]) -> list[Outcome]:
        """Return the outcomes on the same machines: of all, or up to the first that failed, be it the unseen one."""
        ahead = orders[:1] if self._warm else []
        ready = self._prepared(self._which(orders[0]))
        ready = replace(ready, boot=replace(ready.boot, terminal=self.terminal))
        outcomes: list[Outcome] = []
        try:
            outcomes += map(_outcome, self._answers(ready, [*ahead, *orders]))
        except (TrialError, ForeignFileError) as error:
            outcomes.append(Outcome.of_error(error))
        facts = self._facts(ready, orders[0])
        numbered = [
            replace(outcome, facts={**outcome.facts, **facts, "lab.launch": number})
            for number, outcome in enumerate(outcomes, start=1)
        ]
        return numbered[len(ahead) :] or numbered

    def prepare(self, orders: Iterable[Order] = ()) -> None:
        """Verify the image, and boot the snapshots that orders need and that are not there, one a core at once.

        An order that comes unprepared prepares its own. An interrupt ends the boots.
        """
        asked = set(map(self._which, orders)) or {(0, False)}
        # What others are made of comes first, so that no core waits for it.
        wanted = sorted(asked | {(variant, False) for variant, _ in asked}, key=lambda which: which[::-1])
        there = set(image.folders("snapshot"))
        with ThreadPoolExecutor(own_processors()) as pool:
            try:
                list(pool.map(self._prepared, wanted))
            except BaseException:
                self.close()
                raise
        if not there.issuperset(image.folders("snapshot")):
            cache.say_old(image.made_with(self._version, self._wire), self._say)

    def _which(self, order: Order) -> _Which:
        guest = self._machine.iommu and self._cluster is not None and self._cluster.has_guests(order.path)
        return order.block % self._variants, guest

    def _prepared(self, which: _Which) -> _Ready:
        """Return image and snapshot, verified; made or booted by the first thread that asks."""
        variant, guest = which
        with self._lock:
            if self._closed:
                raise NearmetalError("the lab is closed")
            self._image = built = self._image or image.current(self._say)
            making = self._making.setdefault(which, threading.Lock())
        with making:
            if which not in self._ready:
                machine = replace(self._machine, guest=guest)
                boot = Boot(self._emulator, machine, built.kernel, built.initrd, self._wire)
                frozen = image.snapshot(
                    built,
                    boot,
                    self._version,
                    self._say,
                    timeout_s=_BOOT_TIMEOUT_S,
                    variant=variant,
                    known=self._known,
                    lower=lambda: self._prepared((variant, False)).snapshot,
                )
                boot = replace(boot, memory=image.memory_of(frozen))
                digest = image.digest_of(frozen.parent)
                self._ready[which] = _Ready(boot, built.manifest.key, frozen, digest, variant)
            return self._ready[which]

    def _answers(self, ready: _Ready, orders: Sequence[Order]) -> Iterator[dict[str, bytes]]:
        # An order that hangs is given several times its own limit: busy virtual time passes slower than processor time.
        limit_s = sum(_BUSY_ALLOWANCE_S + _BUSY_FACTOR * order.timeout_s for order in orders)
        with contextlib.ExitStack() as stack:
            vms: list[Vm] = []
            for started in self._starts(ready, orders, stack):
                stack.enter_context(self._known(started))
                vms.append(started)
            for vm in vms:
                vm.restore(ready.snapshot)
            yield from carry_out(vms, timeout_s=limit_s)

    def _starts(self, ready: _Ready, orders: Sequence[Order], stack: contextlib.ExitStack) -> Iterator[Vm]:
        """Start machines for orders, which `stack` ends."""
        seed = orders[0].seed & 0xFFFFFFFF
        if self._cluster is None:
            text = "\n".join(order.to_json() for order in orders).encode()
            yield stack.enter_context(Vm(ready.boot, order=text, seed=seed, restore=True))
        else:
            memory = stack.enter_context(wire.shared_memory())  # without a name, so it does not outlive the machines
            stack.enter_context(self._watched(memory))
            with _kept_to(stack.enter_context(self._slot())):
                yield from self._cluster.start(ready.boot, orders, seed, memory, stack)

    @contextlib.contextmanager
    def _slot(self) -> Iterator[set[int]]:
        """Give the cores of a slot that is free: machines that wait for each other are best off among themselves."""
        with self._lock:
            slot = min(range(self.slots), key=self._taken.count)
            self._taken.append(slot)
        try:
            yield cores_of(slot, self.slots)
        finally:
            with self._lock:
                self._taken.remove(slot)

    @contextlib.contextmanager
    def _known(self, vm: Vm) -> Iterator[None]:
        """Let `close` end a machine while it runs."""
        with self._lock:
            self._running.add(vm)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(vm)

    @contextlib.contextmanager
    def _watched(self, memory: str) -> Iterator[None]:
        """Let `reached` look at the clock of machines that share this memory."""
        with self._lock:
            self._clocks[memory] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._clocks[memory]

    def reached(self) -> ClockProgress | None:
        """Return how far the cluster that began first has come, and since when; None where none runs."""
        with self._lock:
            for memory, since_s in self._clocks.items():
                return ClockProgress(wire.reached_ns(memory), since_s)
        return None

    @property
    def running_pids(self) -> list[int]:
        """The process ids of the machines that run now."""
        with self._lock:
            return [vm.pid for vm in self._running]

    def close(self) -> None:
        """End every machine that still runs; calling twice does nothing more."""
        self._closed = True
        with self._lock:
            vms = list(self._running)
        for vm in vms:
            with contextlib.suppress(OSError):
                vm.kill()

    def _facts(self, ready: _Ready, order: Order) -> dict[str, Scalar]:
        return {
            "lab.machine": self._machine.name,
            "lab.image": ready.image_key,
            "lab.snapshot": ready.snapshot_digest,
            "lab.standing_guest": ready.boot.machine.guest,
            VARIANT: ready.variant,
            "lab.emulator": self._version,
            VIRTUAL_TIME: True,
            **(self._cluster.facts(order) if self._cluster else {}),
        }


def open_lab(options: Mapping[str, Scalar], say: Callable[[str], None]) -> LabHost:
    """Return the lab that a study's `host.options` describe.

    Raises BadInputError for an option that the lab does not know.
    """
    check_options("lab", options, OPTIONS)
    machine, slots, variants = machine_of(options), slots_of(options), whole_number(options, "variants", _VARIANTS)
    cluster, launches = cluster_of(options, machine, slots), whole_number(options, "launches", 1)
    warm = is_on(options, "warm_machines", default=False)
    if (launches > 1 or warm) and not cluster:
        named = "warm_machines" if warm else "launches"
        raise BadInputError(f"the lab's option {named!r} needs one machine per node", hint="give `nodes` too")
    return LabHost(machine, slots=slots, say=say, variants=variants, cluster=cluster, launches=launches, warm=warm)


def machine_of(options: Mapping[str, Scalar]) -> LabMachine:
    """Return the machine that a study's `host.options` name; raise BadInputError where there is no such."""
    return machine_named(str(options.get("machine", "base")))


def slots_of(options: Mapping[str, Scalar]) -> int:
    """Return how many trials run side by side: as asked, else what cores and memory hold; refuse what is no number."""
    nodes = nodes_of(options)
    # Two machines rarely work at the same time until ranks poll, so that two pairs of them fill two cores.
    most = min(_SLOTS, own_processors()) * 2 // max(2, nodes)
    return whole_number(
        options, "slots", max(1, min(most, slots_in_memory(nodes, machine_of(options)) if nodes else most))
    )


def _by_setting(group: Sequence[Order]) -> list[Order]:
    """Return orders with those of one setting after each other, settings in the order in which they come."""
    found = by_key((str(sorted(order.knobs.items())), order) for order in group)
    return [order for orders in found.values() for order in orders]


def pace_of(host: HostSpec) -> Pace:
    """Return what trials cost in the lab of a study."""
    machine = machine_of(host.options)
    machines = max(1, nodes_of(host.options))  # each keeps a processor busy, and there may be one for all
    launches, unseen = whole_number(host.options, "launches", 1), is_on(host.options, "warm_machines", default=False)
    shared = _MACHINES_SHARE / launches + (1 - _MACHINES_SHARE) * (1 + unseen / launches)
    return Pace(machine.trial_s * machines * shared, machine.slowdown * machines, slots_of(host.options))


def cores_of(slot: int, slots: int) -> set[int]:
    """Return a slot's share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[slot % len(cores) :: slots])


@contextlib.contextmanager
def _kept_to(cores: set[int]) -> Iterator[None]:
    """Keep the programs that this thread starts to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _outcome(files: dict[str, bytes]) -> Outcome:
    try:
        text = files.pop(OUTCOME_NAME).decode()
    except (KeyError, UnicodeDecodeError) as error:
        raise ForeignFileError(f"the lab's answer holds no outcome, only {sorted(files)}") from error
    return Outcome.from_json(text, {name.removeprefix("files/"): content for name, content in files.items()})
