"""Trials of a study as the `measure` of a search: one launch a workload, its cells as figures."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from nearmetal.errors import BadInputError, ForeignFileError, NearmetalError, TrialError
from nearmetal.hosts.host import Host
from nearmetal.knobs.coalesce import adapts
from nearmetal.knobs.hold import KNOB_UNPROVEN, KNOB_WAS
from nearmetal.knobs.look import FOUND
from nearmetal.run.schedule import keep
from nearmetal.run.trial import carry_out
from nearmetal.stats.summary import HEADLINE, Metric, Summary
from nearmetal.store.record import started_now
from nearmetal.store.rundir import TrialRecord
from nearmetal.store.samples import StoredCell
from nearmetal.store.searchdir import SearchDir
from nearmetal.study import plan
from nearmetal.study.facts import KNOB_RIVAL, describes_machine
from nearmetal.study.order import Order, Outcome, Scalar, TrialStatus
from nearmetal.study.spec import PathSpec, SettingSpec, Study, TuneClass, TuneSpec
from nearmetal.tune.space import AS_FOUND
from nearmetal.units import NS_PER_S, format_size

_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")

# ---- the launches of a search, kept on disk, so that one that was interrupted continues where it stopped
# A search is a pure function of its seed and of its launches' results. So only the launches are kept, in the order of
# the requests: a continued search requests the same ones again, gets the earlier ones from the disk, and runs the first
# that is not there. Figures always come from the records on disk, also those of a fresh launch, hence a search ends
# alike whether or not it was interrupted.


class NotLaunchedError(NearmetalError):
    """A search that is only read requests a launch that was never run."""


class ChangedSettingError(NearmetalError):
    """The present setting is not the one that the search began with; the launch that found it is not kept."""


class Launches:
    """Carries launches out, or recalls them; each gets the next number. Without a host they are recalled alone."""

    def __init__(self, host: Host | None, kept: SearchDir) -> None:
        self._host = host
        self._kept = kept
        self._known = {record.order.trial: record for record in kept.trials()}
        self._asked = 0

    @property
    def recalled(self) -> int:
        """Return how many launches were on disk when this was made."""
        return len(self._known)

    def launch(
        self, order: Order, check: Callable[[Outcome], None] = lambda _outcome: None
    ) -> tuple[Outcome, list[tuple[StoredCell, Summary]]]:
        """Return what an order gave, now or before the interruption; `check` may refuse a new one before it is kept.

        Raise what the host and the disk raise, and TrialError for samples that say nothing.
        """
        order = replace(order, trial=self._asked)
        self._asked += 1
        record = self._known.get(order.trial) or self._carry_out(order, check)
        if record.order.to_json() != order.to_json():
            raise ForeignFileError(
                f"launch {order.trial} of {self._kept.root} is not the one that this search asks for",
                hint="other libraries made it, or a lost launch before it was measured again; start a new search",
            )
        try:
            cells = [(cell, self._kept.summary(record, cell)) for cell in record.cells]
        except BadInputError as error:
            raise TrialError(f"{order.workload.label}: {error.message}", hint=error.hint) from error
        return record.outcome, cells

    def _carry_out(self, order: Order, check: Callable[[Outcome], None]) -> TrialRecord:
        if self._host is None:
            raise NotLaunchedError(f"launch {order.trial} of {self._kept.root} is missing")
        started_utc = started_now()
        outcome = self._host.carry_out(order, carry_out)
        check(outcome)
        return keep(self._kept, order, outcome, 1, started_utc)


# ---- measure


def tuned_path(study: Study, tune: TuneSpec) -> PathSpec:
    """Return the path that is tuned, of a study that was checked."""
    others = [path for path in study.path if path.name != study.baseline] or list(study.path)
    return next((path for path in study.path if path.name == tune.path), others[0])


class StudyTrials:
    """Carries trials of a study out for a search: called with a setting and a block, it yields cell by cell.

    Every setting of a block gets the same seed of the trial, so that they differ in the setting alone. Each workload
    yields means and, where n allows, medians and p99s of its operations, then what it cost:
    `WORKLOAD/interrupts-per-s` and `WORKLOAD/cpu-share`, of all machines together.
    """

    def __init__(
        self, study: Study, tune: TuneSpec, kind: TuneClass, launches: Launches, present: Mapping[str, str]
    ) -> None:
        chosen = [one for one in study.workload if not kind.workloads or one.name in kind.workloads]
        self._study = study.model_copy(update={"workload": chosen})
        self._path = tuned_path(study, tune)
        self._launches = launches
        self._present = present
        self.was: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.machine: dict[str, str] = {}
        self.doubts: dict[str, str] = {}
        self.rivals: dict[str, str] = {}

    def __call__(self, setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
        """Yield the figures of one trial of every workload on the tuned path."""
        yield from self._figures(self._path, setting, block)

    def native(self, block: int) -> Iterator[tuple[str, float]]:
        """Yield the figures of the baseline as found; nothing when the baseline itself is tuned."""
        if self._path.name != self._study.baseline:
            baseline = next(path for path in self._study.path if path.name == self._study.baseline)
            yield from self._figures(baseline, {}, block)

    def warnings(self) -> list[str]:
        """Return what a reader of the result must know, as sentences."""
        doubts = [f"the read-back of {knob} is unreliable: {reason}" for knob, reason in self.doubts.items()]
        doubts += [
            f"{knob} was {old} when the search began and {self.was[knob]} later: another program sets it, so settings "
            "were compared with different present ones"
            for knob, old in self.moved.items()
        ]
        return doubts + [f"{rival} is running and may have changed {knobs}" for rival, knobs in self.rivals.items()]

    def _figures(self, path: PathSpec, setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
        looked: dict[str, list[Scalar]] = {} if setting or path != self._path else {knob: [] for knob in self._present}
        for planned in orders(self._study, path, setting, block):
            order = replace(planned, look=looked)
            outcome, cells = self._launches.launch(order, self._check_present)
            if outcome.timed_out:  # a busy machine, more often than the setting
                outcome, cells = self._launches.launch(order, self._check_present)
            if path == self._path:  # the baseline may be of other machines
                self._keep_facts(outcome)
            if outcome.status is not TrialStatus.VALID:
                raise TrialError(f"{order.workload.label}: {outcome.reason}", hint=outcome.hint)
            for cell, summary in cells:
                name = f"{order.workload.label}/{cell.operation}/{format_size(cell.message_bytes)}"
                for metric in Metric:
                    figure_ns, refused = summary.figure(metric)
                    if figure_ns is not None:
                        yield f"{name}/{metric}", figure_ns
                    elif metric is HEADLINE:
                        raise TrialError(f"{name}: {refused}")
            yield from _costs_of_launch(order, outcome)

    def _check_present(self, outcome: Outcome) -> None:
        """Raise ChangedSettingError where a launch of the present setting found another one."""
        found = _facts_of(outcome, FOUND)
        for knob, old in self._present.items():
            now = found.get(knob, old)
            if AS_FOUND not in {old, now} and now != old and not adapts(knob, found):
                text = f"{knob} is {now} and was {old} when the search began: another program set it"
                raise ChangedSettingError(text, hint="put it back and resume the search, or start a new one")

    def _keep_facts(self, outcome: Outcome) -> None:
        """Keep what trials told about the machine, about values as they were found, and about read-backs."""
        was = _facts_of(outcome, KNOB_WAS)
        for knob, old in was.items():
            if self.was.setdefault(knob, self._began(knob) or old) != old and not adapts(knob, was):
                self.moved.setdefault(knob, self.was[knob])
            self.was[knob] = old
        for name, value in outcome.facts.items():
            if name.startswith(KNOB_UNPROVEN):
                self.doubts[name.removeprefix(KNOB_UNPROVEN)] = str(value)
            elif name.startswith(KNOB_RIVAL):
                self.rivals[name.removeprefix(KNOB_RIVAL)] = str(value)
            elif describes_machine(name) or name.startswith(("guest.", "below.")):
                self.machine[name] = str(value)

    def _began(self, knob: str) -> str:
        """Return what a knob was when the search began, if that was one value on all interfaces."""
        old = self._present.get(knob, AS_FOUND)
        return "" if old == AS_FOUND else old


def _facts_of(outcome: Outcome, kind: str) -> dict[str, str]:
    return {name.removeprefix(kind): str(value) for name, value in outcome.facts.items() if name.startswith(kind)}


def orders(study: Study, path: PathSpec, setting: Mapping[str, str], block: int) -> list[Order]:
    """Return the launches of one trial: one for each workload of a study."""
    named = SettingSpec(name="tuned" if setting else AS_FOUND, knobs=dict(setting))
    alone = study.model_copy(update={"path": [path], "baseline": path.name, "setting": [named]})
    return [order for order in plan.block(alone, block) if not order.path.again]


def _costs_of_launch(order: Order, outcome: Outcome) -> Iterator[tuple[str, float]]:
    """Yield what a launch cost its machines, for hosts that count.

    Interrupts are those of devices and the network's receive softirqs, which stand for them where a device is virtual.
    At least one is counted, because only ratios are used.
    """
    counted = outcome.counters
    ticks = {state: counted.get(f"cpu.{state}", 0) for state in (*_BUSY, "idle", "iowait")}
    if not any(ticks.values()) or not outcome.elapsed_ns:
        return
    devices = sum(n for name, n in counted.items() if name.startswith("irq.") and name.split(".")[1].isdecimal())
    interrupts = devices + counted.get("softirq.NET_RX", 0)
    yield f"{order.workload.label}/interrupts-per-s", max(1, interrupts) * NS_PER_S / outcome.elapsed_ns
    yield f"{order.workload.label}/cpu-share", max(1, sum(ticks[state] for state in _BUSY)) / sum(ticks.values())
