"""What a run directory says of a fabric: everything that is drawn, printed or compared, read again at any time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nearmetal.errors import BadInputError, ForeignFileError, command_line
from nearmetal.fabric.detect import RetestedSuspect, Screen, confirm, screen, unconfirmed
from nearmetal.fabric.figures import Bisection, bisection_of, latency_table, pairs_of, window_table
from nearmetal.fabric.measure import RETESTS, WHOLE, FabricError
from nearmetal.results.evidence import disturbed
from nearmetal.stats.interval import FloatArray
from nearmetal.store.rundir import RunDir, RunInfo, TrialRecord
from nearmetal.units import rounded
from nearmetal.workloads.fabric import ROUNDS, SAMPLES, Fabric
from nearmetal.workloads.fabric_file import FabricFile, read_fabric_file
from nearmetal.workloads.rounds import AGAIN, ALL


@dataclass(frozen=True, slots=True)
class Survey:
    """A measured fabric.

    `window` is how many messages are in flight. `latency_us[i, j]` is half the median round trip, `rate[i, j]` the rate
    from i to j in 10^6 bytes a second by the median window (None where it was not measured), of suspected links those
    of their re-tests; both have shape (nodes, nodes) and a diagonal of NaN. `retested` says whether the suspects, if
    any, were measured again; `rounds` counts them by phase. `disturbed` says which launch ran on a busy
    machine.
    """

    info: RunInfo
    path: str
    names: tuple[str, ...]
    margin: float
    message_bytes: tuple[int, int]
    window: int
    latency_us: FloatArray
    rate: FloatArray | None
    screened: Screen
    findings: tuple[RetestedSuspect, ...]
    retested: bool
    bisection: Bisection | None
    rounds: dict[str, int]
    disturbed: tuple[str, ...]

    @property
    def named(self) -> tuple[RetestedSuspect, ...]:
        """Return what is more than a suspicion, the worst first."""
        return tuple(sorted((one for one in self.findings if one.named), key=lambda one: -one.ratio))

    @property
    def passes(self) -> tuple[int, int]:
        """Return how many rounds measured all pairs, and how many suspects again."""
        return self.rounds[ALL], self.rounds.get(AGAIN, 0)

    @property
    def complete(self) -> bool:
        """Return whether nothing is left to measure."""
        return self.retested or not self.screened.suspects


def survey(run: RunDir) -> Survey:
    """Read a fabric's run; raise BadInputError when it holds none, FabricError when its launch failed."""
    records = {record.order.trial: record for record in run.trials() if record.order.workload.kind == Fabric.kind}
    whole = records.get(WHOLE)
    again = records.get(RETESTS)
    if again is not None and ROUNDS not in again.order.workload.options:
        message = f"{run.root} is the run of a study with several launches, not of one fabric"
        raise BadInputError(message, hint=f"`{command_line('compare', run.root)}` reads it")
    if whole is None:
        raise BadInputError(
            f"{run.root} contains no measured fabric",
            hint="it was interrupted, or is another kind of run: `nearmetal fabric STUDY` measures a fabric",
        )
    if not whole.valid:
        raise FabricError(whole.outcome.reason, hint=whole.outcome.hint)
    margin = run.study().margin
    file = _file(run, whole)
    pairs = pairs_of(file, ALL)
    screened = screen(pairs, margin)
    retested = again is not None and again.valid
    counted = dict(file.header.phases)
    findings = unconfirmed(screened)
    if again is not None and again.valid:
        retests = _file(run, again)
        counted |= dict(retests.header.phases)
        findings = confirm(screened, pairs_of(retests, AGAIN))
    windows = _settled(window_table(pairs), "bandwidth", screened, findings) if pairs.has_bandwidth else None
    window_bytes = file.header.bandwidth_bytes * file.header.bandwidth_window
    return Survey(
        info=run.info,
        path=whole.order.path.label,
        names=_names(whole, file.header.processors),
        margin=margin,
        message_bytes=(file.header.latency_bytes, file.header.bandwidth_bytes),
        window=file.header.bandwidth_window,
        latency_us=_settled(latency_table(pairs), "latency", screened, findings) / 2e3,
        rate=None if windows is None else window_bytes * 1e3 / windows,
        screened=screened,
        findings=findings,
        retested=retested,
        bisection=bisection_of(file),
        rounds=counted,
        disturbed=tuple(_disturbed((("first", whole), ("second", again)))),
    )


def _disturbed(launches: Iterable[tuple[str, TrialRecord | None]]) -> Iterator[str]:
    for name, record in launches:
        if record is not None and (why := disturbed(record.outcome.counters).why):
            yield f"The {name} launch ran on a busy machine: {why}."


def _settled(table: FloatArray, metric: str, screened: Screen, findings: Sequence[RetestedSuspect]) -> FloatArray:
    """Return a table in which the re-tests of suspected links stand for what the first pass saw of them.

    They are put at the level of the first pass, since the launches may differ as a whole: the fit times their ratio.
    """
    fit = next((one for one in screened.fits if one.metric == metric), None)
    settled = table.copy()
    for one in findings:
        a, b = one.suspect.a, one.suspect.b
        if fit is not None and one.suspect.metric == metric and one.suspect.role == "link" and one.retests:
            settled[a, b] = np.exp(fit.split.overall + fit.split.row[a] + fit.split.column[b]) * one.ratio
            if fit.symmetric:
                settled[b, a] = settled[a, b]
    return settled


def _file(run: RunDir, record: TrialRecord) -> FabricFile:
    files = run.files("fabric", record)
    if SAMPLES not in files:
        message = f"{run.root} lacks the samples of trial {record.order.trial}"
        raise ForeignFileError(message, hint="restore its folder fabric/ from a backup, or measure the fabric again")
    return read_fabric_file(files[SAMPLES])


def _names(record: TrialRecord, processors: Sequence[str]) -> tuple[str, ...]:
    """Return each node's name: the host's for it, else what its MPI says, made different where two say the same.

    A host that builds all nodes on one machine names that one alone.
    """
    facts = record.outcome.facts
    machines = [str(facts.get(f"machine.{index}", "")) for index in range(len(processors))]
    given = machines if all(machines) else processors
    # They come from a file: nothing in them may speak to a terminal.
    names = ["".join(c if c.isprintable() else "?" for c in name) for name in given]
    if len(set(names)) == len(names):
        return tuple(names)
    return tuple(f"{name}#{index}" for index, name in enumerate(names))


@dataclass(frozen=True, slots=True)
class FabricMetric:
    """How a metric is shown: its name, unit, and which way is better."""

    key: str
    name: str
    unit: str
    larger_is_better: bool


METRICS = (
    FabricMetric("latency", "latency (half a round trip)", "us", larger_is_better=False),
    FabricMetric("bandwidth", "bandwidth, row to column", "MB/s", larger_is_better=True),
)


def table_of(of: Survey, metric: FabricMetric) -> FloatArray | None:
    """Return a metric's table, None when it was not measured."""
    return of.latency_us if metric.key == "latency" else of.rate


def slowness(of: Survey, metric: FabricMetric) -> FloatArray:
    """Return how many times slower each pair is than the median pair, shape (nodes, nodes), the diagonal NaN."""
    table = table_of(of, metric)
    if table is None:
        return np.full_like(of.latency_us, np.nan)
    middle = float(np.nanmedian(table))
    return middle / table if metric.larger_is_better else table / middle


def aggregated(table: FloatArray, side: int) -> FloatArray:
    """Return the worst entry of each block, shape (k, k) with k = min(side, nodes); a block without entries is NaN."""
    nodes = table.shape[0]
    k = min(side, nodes)
    filled = np.where(np.isnan(table), -np.inf, table)
    edges = np.arange(k) * nodes // k
    worst = np.maximum.reduceat(np.maximum.reduceat(filled, edges, axis=0), edges, axis=1)
    return np.where(np.isinf(worst), np.nan, worst)


def sentence(of: Survey, finding: RetestedSuspect) -> str:
    """Return what is slow and by how much, such as `node n3: what it sends takes 2.1 times as long as is typical`."""
    one = finding.suspect
    a, b = of.names[one.a], of.names[one.b] if one.b >= 0 else ""
    times = f"{rounded(finding.ratio if finding.named else float(np.exp(one.log_excess)))} times"
    takes = "takes" if finding.named else "once took"
    told = finding.named and finding.one_sided and one.role != "direction"
    less = any(other.named and other.suspect.is_reverse_of(one) for other in of.findings)
    only = f"; the reverse direction {'takes less' if less else 'does not'}" if told else ""
    link = f"link {a} {'-' if one.metric == 'latency' else '->'} {b}"
    subject = {
        "node": f"node {a}: a message to or from it {takes} {times} as long as is typical",
        "send": f"node {a}: what it sends {takes} {times} as long as is typical{only}",
        "receive": f"node {a}: what it receives {takes} {times} as long as is typical{only}",
        "link": f"{link}: {takes} {times} as long as is typical of its two nodes, by {one.metric}{only}",
        "direction": f"link {a} -> {b}: {takes} {times} as long as the reverse direction",
    }
    return subject[one.role]
