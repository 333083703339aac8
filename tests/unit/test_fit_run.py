"""From a run's records to machine models: what a fit takes from the facts of its trials."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from nearmetal.cli.main import run as cli
from nearmetal.cli.predict import command as predict
from nearmetal.errors import BadInputError
from nearmetal.facts.inventory import sharing_facts
from nearmetal.hosts.machine import MachineShell
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.predict.doubts import find_doubts
from nearmetal.predict.fit_run import failed_of, fit_records, fit_run
from nearmetal.predict.models import Cores
from nearmetal.predict.native import Placement
from nearmetal.store.rundir import RunDir
from nearmetal.workloads.processors import count_processors
from tests.fake_fabric import MadeUpHost, make_fabric
from tests.fake_runs import make_run
from tests.unit.simulated import ping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nearmetal.predict.model_file import ModelFile
    from nearmetal.predict.models import NamedMachine, PathModel
    from nearmetal.store.rundir import TrialRecord
    from nearmetal.store.samples import StoredCell
    from nearmetal.study.order import Scalar

ALONE = {"nodes.computers": 2, "nodes.processors": 1}
AUTOGROUPS: dict[str, Scalar] = {"nodes.computers": 1, "nodes.processors": 2, "kernel.autogroup": "1"}
RELAYED = Cores(2, True, True, switch_ps=1_300_000, lead_ps=0, uneven_share=0.39)
NAMESPACES = replace(RELAYED, look_ps=12_000_000)
LEAD_PS = 1_000_000_000
STUDY = """
name = "fitted"
baseline = "veth"
host = { kind = "fake" }
path = [{ name = "veth" }, { name = "shm" }]
workload = [
  { name = "latency", sizes = [8, 1024], iterations = 30 },
  { name = "allreduce", sizes = [8, 1024], iterations = 30 },
]
trials = { min_blocks = 3, max_blocks = 3 }
"""


def of_veth(model: ModelFile) -> NamedMachine:
    (found,) = (one for one in model.machines if one.path == "veth")
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    (folder / "s.toml").write_text(STUDY)
    assert cli(["run", str(folder / "s.toml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize("kind", ["imported", "command", "omb"])
def test_only_samples_of_single_round_trips_are_fitted(measured: RunDir, kind: str) -> None:
    """Means of imported files passed for round trips from ten launches on, and so did what commands print."""
    records = [
        replace(one, order=replace(one.order, workload=replace(one.order.workload, kind=kind)))
        for one in measured.trials()
    ]
    with pytest.raises(BadInputError, match="no back-to-back ping-pong samples"):
        fit_records(measured, records)


def test_messages_under_tracepoints_are_not_fitted(measured: RunDir) -> None:
    """They take longer, and were mixed with those of the same sizes without."""

    def traced(one: TrialRecord, *operations: str) -> TrialRecord:
        options = {**one.order.workload.options, "waterfall": one.order.workload.label in operations}
        return replace(one, order=replace(one.order, workload=replace(one.order.workload, options=options)))

    def fitted(*operations: str) -> NamedMachine:
        return of_veth(fit_records(measured, [traced(one, *operations) for one in measured.trials()]))

    assert fitted("allreduce").machine.measured == ()
    assert fitted().machine.measured
    with pytest.raises(BadInputError, match="no back-to-back ping-pong samples") as error:
        fitted("latency")
    assert "without `pace` and `waterfall`" in error.value.hint


def test_operations_measured_in_two_ways_are_told(tmp_path: Path) -> None:
    """Streams from one buffer and from many were fitted as launches of the same."""
    ways = ('{ name = "bw", sizes = [8, 1024], iterations = 30 }', '{ name = "b", operation = "bw", sizes = [8] }')
    for name, second, told in (
        ("once", ways[1], []),
        ("twice", ways[1].replace(" }", ', options = { buffers = "many" } }'), ["the defaults and buffers = many"]),
    ):
        study = STUDY.replace("workload = [", f"workload = [ {ways[0]}, {second},")
        named = of_veth(fit_run(RunDir.open(make_run(tmp_path / name, study))))
        doubts = [one.said for one in find_doubts([ping(8)], named, Placement.block(2, 1)) if "are mixed" in one.said]
        assert doubts == [f"trials of the path ran with bw under {both}: their times are mixed" for both in told]


@pytest.mark.parametrize(("second", "told"), [(1 << 20, []), (8192, ["8 KiB and 1 MiB"])])
def test_exchanges_after_computing_on_different_memory_are_not_taken_for_the_same(
    tmp_path: Path, second: int, told: list[str]
) -> None:
    """A message costs more after computing on more memory, and exchanges after both were fitted together."""
    exchange = 'operation = "exchange", sizes = [8], iterations = 30'
    ways = ("", ", options = { compute_us = 50 }", f", options = {{ compute_us = 90, working_set = {second} }}")
    rows = "".join(f'{{ name = "exchange-{at}", {exchange}{how} }}, ' for at, how in enumerate(ways))
    study = STUDY.replace("workload = [", f"workload = [ {rows}")
    named = of_veth(fit_run(RunDir.open(make_run(tmp_path, study))))
    doubts = [one.said for one in find_doubts([ping(8)], named, Placement.block(2, 1)) if "are mixed" in one.said]
    expected = [f"trials of the path ran exchange after computing on {both}: their times are mixed" for both in told]
    assert doubts == expected


def test_the_run_of_a_whole_fabric_is_refused_as_one(tmp_path: Path) -> None:
    """It has no trials, so another error asked for a ping-pong that such a run cannot have."""
    run = RunDir.open(make_fabric(tmp_path / "run", MadeUpHost()))
    with pytest.raises(BadInputError, match="is a fabric run: all pairs were measured in one launch"):
        fit_run(run)


@pytest.fixture
def measured(folder: Path) -> RunDir:
    return RunDir.open(folder)


def trials_of(run: RunDir, path: str, kind: str, facts: Mapping[str, Scalar]) -> list[TrialRecord]:
    """Return the trials of a path as if it were of that kind, on nodes of which these facts hold."""
    return [
        replace(
            one,
            order=replace(one.order, path=replace(one.order.path, kind=kind)),
            outcome=replace(one.outcome, facts=one.outcome.facts | facts),
        )
        for one in run.trials()
        if one.order.path.label == path
    ]


def test_streams_both_ways_tell_the_work_of_messages_that_the_kernel_carries(tmp_path: Path) -> None:
    """A message of 16 KiB took 7 us on two processors, which needed 11 for it: that is what it takes of shared ones."""
    bibw = '{ name = "bibw", sizes = [8, 1024], iterations = 30 }'
    run = RunDir.open(make_run(tmp_path / "run", STUDY.replace("workload = [", f"workload = [ {bibw},")))

    def work_ps(kind: str, facts: Mapping[str, Scalar], path: str = "veth") -> tuple[tuple[int, int], ...]:
        (named,) = fit_records(run, trials_of(run, path, kind, facts)).machines
        return named.machine.inter.work_ps

    told = work_ps("veth", AUTOGROUPS)
    cells = [(one, cell) for one in run.trials() for cell in one.cells if one.order.path.label == "veth"]
    windows_ns = [
        np.median(
            [run.values(one, cell) for one, cell in cells if (cell.operation, cell.message_bytes) == ("bibw", size)]
        )
        for size in (8, 1024)
    ]
    # A fake's way outlasts its window of 64 messages, so half of the window's time counts; of that, each end's half.
    assert [size for size, _ in told] == [0, 8, 1024]
    assert [ps for _, ps in told[1:]] == pytest.approx([ns * 1000 / 64 / 2 / 2 for ns in windows_ns], rel=0.01)
    assert work_ps("native", AUTOGROUPS) == work_ps("veth", {}) == (), "a port's streams tell of its wire"
    assert work_ps("shm", AUTOGROUPS, "shm") == (), "no kernel carries those"


@pytest.mark.parametrize(
    ("host", "kind", "facts", "cores"),
    [
        ("lab", "native", {"cpu.count": 1, "kernel.autogroup": "1"}, Cores(1, True, True, lead_ps=0)),  # older version
        ("ssh", "declared", {"cpu.count": 8, "kernel.autogroup": "1"}, Cores(8, False, False)),
        ("lab", "native", {"nodes.computers": 1, "nodes.processors": 1}, Cores(1, True, False)),
        ("lab", "virtio", {"nodes.computers": 1, "nodes.processors": 1}, Cores(1, True, True)),
        ("local", "veth", {"nodes.computers": 1, "nodes.processors": 2, "cpu.count": 64}, Cores(2, True, False)),
        ("local", "veth", AUTOGROUPS, replace(NAMESPACES, way_is_work=True)),
        ("local", "native", AUTOGROUPS, NAMESPACES),  # a port carries messages meanwhile
        ("local", "tap", AUTOGROUPS, RELAYED),  # messages wait for the relay
        ("ssh", "declared", {"nodes.computers": 2, "nodes.processors": 8}, Cores(8, False, False)),
        ("lab", "vf", {**ALONE, "kernel.release": "6.1.0-56-amd64"}, Cores(1, False, False, lead_ps=LEAD_PS)),
        ("lab", "vf", {**ALONE, "kernel.release": "6.6.1"}, Cores(1, False, False)),
        ("ssh", "declared", {**ALONE, "nodes.processors": 8, "kernel.release": "5.14.0"}, Cores(8, False, False)),
        ("ssh", "declared", {"nodes.computers": 1, "nodes.processors": 8}, Cores(8, True, False)),
        ("ssh", "declared", {"nodes.computers": "not offered", "nodes.processors": "not offered"}, None),
    ],
)
def test_nodes_that_share_processors_are_known_from_facts(
    measured: RunDir, host: str, kind: str, facts: dict[str, Scalar], cores: Cores | None
) -> None:
    measured.info = replace(measured.info, host_kind=host)
    assert of_veth(fit_records(measured, trials_of(measured, "veth", kind, facts))).machine.cores == cores


def test_namespaces_share_the_processors_of_this_machine() -> None:
    with NamespaceShell() as shell:
        shell.add_node("n0")
        shell.add_node("n1")
        found = sharing_facts(shell, ["n0", "n1"])
    with MachineShell() as here:
        listed = here.read("/proc/self/status").decode().split("Cpus_allowed_list:")[1].split()[0]
    assert found == {"nodes.computers": 1, "nodes.processors": count_processors(listed)}


class Machines:
    """Far machines, as `sharing_facts` asks them."""

    site = None

    def __init__(
        self, *names: tuple[str, str], faults: Sequence[int] = (), groups: Mapping[str, str] | None = None
    ) -> None:
        self.names = names
        self.faults = list(faults)
        self.groups = groups or {}

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(f"n{index}" for index in range(len(self.names)))

    def read_all(self, paths: Sequence[str], *, node: str) -> dict[str, bytes]:
        if paths == ["/proc/vmstat"]:
            return {paths[0]: self.events(int(node[1:]))} if self.faults else {}
        boot, name = self.names[int(node[1:])]
        values = {"boot_id": boot, "hostname": name, "status": "Name:\tcat\nCpus_allowed_list:\t0-3\n", "online": "0-7"}
        found = {path: values.get(path.rpartition("/")[2], self.groups.get(path)) for path in paths}
        return {path: text.encode() for path, text in found.items() if text is not None}

    def machine_name(self, node: str) -> str:
        return node

    def events(self, index: int) -> bytes:
        kernel = index % len(self.faults)
        self.faults[kernel] += 5
        return b"pgscan_kswapd 7\npgfault %d\npgmajfault 1\n" % self.faults[kernel]


@pytest.mark.parametrize(
    ("names", "faults", "computers"),
    [
        ((("a", "x"), ("b", "y")), (), 2),
        ((("a", "x"), ("a", "x")), (), 1),  # one machine under two names
        ((("a", "n0"), ("a", "n1")), (1000, 8000), 2),  # two machines restored from one snapshot
        ((("a", "n0"), ("a", "n1")), (8000, 1000), 2),
        ((("a", "n0"), ("a", "n1")), (1000,), 1),  # two containers of one kernel
        ((("a", "n0"), ("a", "n1"), ("b", "n2"), ("a", "n3")), (1000,), 2),
        ((("a", "n0"), ("a", "n1")), (), "not offered"),
    ],
)
def test_machines_are_distinguished_by_their_kernels(
    names: tuple[tuple[str, str], ...], faults: tuple[int, ...], computers: int | str
) -> None:
    shell = Machines(*names, faults=faults)
    found = sharing_facts(shell, shell.machines)  # type: ignore[arg-type]
    assert found == {"nodes.computers": computers, "nodes.processors": 4}


_TOP, _OF_V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/cpu/docker/c1"


@pytest.mark.parametrize(
    ("groups", "processors"),
    [
        ({f"{_TOP}/cpu.max": "250000 100000\n"}, 2),  # a container: its own group is the top one
        ({f"{_TOP}/cpu.max": "50000 100000\n"}, 1),
        ({f"{_TOP}/cpu.max": "max 100000\n"}, 4),
        ({f"{_TOP}/cpu.max": "6400000 100000\n"}, 4),
        ({"/proc/self/cgroup": "0::/a b/job\n", f"{_TOP}/a b/cpu.max": "300000 100000\n"}, 3),
        ({"/proc/self/cgroup": "0::/a/job\n", f"{_TOP}/a/cpu.max": "3 1\n", f"{_TOP}/a/job/cpu.max": "2 1\n"}, 2),
        (
            {
                "/proc/self/cgroup": "3:cpuset:/other\n2:cpu,cpuacct:/docker/c1\n0::/\n",
                f"{_OF_V1}/cpu.cfs_quota_us": "200000\n",
                f"{_OF_V1}/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        ({f"{_TOP}/cpu/cpu.cfs_quota_us": "-1\n", f"{_TOP}/cpu/cpu.cfs_period_us": "100000\n"}, 4),
    ],
)
def test_a_quota_of_processor_time_counts_as_processors(groups: dict[str, str], processors: int) -> None:
    """Pods with a limit of 2 on machines of 64 processors were predicted as if 64 ranks had one each."""
    shell = Machines(("a", "x"), groups=groups)
    assert sharing_facts(shell, shell.machines)["nodes.processors"] == processors  # type: ignore[arg-type]


@pytest.mark.parametrize(("listed", "count"), [("0", 1), ("0-1", 2), ("0-3,8,10-11", 7)])
def test_a_list_of_processors_is_counted(listed: str, count: int) -> None:
    assert count_processors(listed) == count


def test_a_ping_pong_that_shows_a_timer_is_reported(tmp_path: Path) -> None:
    """The report called the figure a scheduler tick, but a prediction used it without a warning."""
    facts = {"timer.latency.1024": "1 tick of the scheduler (4 ms)"}
    veth = of_veth(fit_run(RunDir.open(make_run(tmp_path / "run", STUDY, facts=facts))))
    for size, reported in ((1024, True), (700, True), (8, False)):
        doubts = [one.said for one in find_doubts([ping(size)], veth, Placement.block(2, 1))]
        assert any("100 % of messages between nodes" in one and "of 1 KiB, 1 tick" in one for one in doubts) is reported


def test_a_path_measured_on_a_busy_machine_is_reported(measured: RunDir) -> None:
    """Reports had this warning, but predictions from the same run did not."""

    def doubts_of(busy: int) -> list[str]:
        records = [
            replace(one, outcome=replace(one.outcome, counters={"cpu.user": 1000, "others.make": 400 * (at < busy)}))
            for at, one in enumerate(one for one in measured.trials() if one.order.path.kind == "veth")
        ]
        named = of_veth(fit_records(measured, records))
        return [one.said for one in find_doubts([ping(8)], named, Placement.block(2, 1)) if "busy" in one.said]

    assert doubts_of(12) == [
        "most trials of the path were disturbed: 12 of 12 launches ran on a busy machine; in the worst of them make "
        "used 40 % of the processors"
    ]
    assert doubts_of(7)
    assert not doubts_of(6)  # medians leave out half of them


def test_paths_whose_trials_failed_are_reported(tmp_path: Path) -> None:
    """They were silently left out of an answer."""
    study = STUDY.replace('{ kind = "fake" }', '{ kind = "fake", options = { "fail.tap" = "no relay" } }')
    study = study.replace('{ name = "shm" }', '{ name = "shm" }, { name = "tap" }')
    run = make_run(tmp_path / "run", study)
    (tmp_path / "p.toml").write_text('[pattern]\nkind = "halo"\nranks = 2\nsteps = 2\nmessage_bytes = 8\ndims = [2]\n')
    argv = [str(tmp_path / "p.toml"), "--on", str(run), "--replicas", "1"]
    stderr = CliRunner().invoke(predict, argv, catch_exceptions=False).stderr
    assert "warning: tap / as-found / polling is left out: its ping-pong failed in" in stderr
    assert "first because: no relay" in stderr
    opened = RunDir.open(run)
    model = fit_run(opened)
    assert model.baseline == "veth"
    ((key, failed),) = failed_of(opened, model).items()
    assert (key, {one.order.workload.label for one in failed}) == (("tap", "as-found", "polling"), {"latency"})
    assert "left out" not in CliRunner().invoke(predict, [*argv, "--path", "veth"], catch_exceptions=False).stderr


def test_collectives_are_taken_from_the_run_as_measured(measured: RunDir) -> None:
    named = of_veth(fit_run(measured))
    (found,) = named.machine.measured
    assert (found.collective, found.nodes) == ("allreduce", (0, 1))
    assert [size for size, _ in found.times_ps] == [1, 8, 1024]  # up to 64 B a message is one packet
    cells = [
        (run_cell.message_bytes, np.median(measured.values(one, run_cell)))
        for one in measured.trials()
        for run_cell in one.cells
        if run_cell.operation == "allreduce" and one.order.path.label.startswith("veth")
    ]
    for size, times_ps in found.times_ps[1:]:
        medians = [median for message_bytes, median in cells if message_bytes == size]
        middle = np.interp(0.5, times_ps.probabilities, times_ps.values_ps) / 1000
        assert min(medians) <= middle <= max(medians)
    assert all(one.measured[0].times_ps != found.times_ps for one in named.launches)  # each launch has its own


def relabelled(measured: RunDir, **changed: object) -> TrialRecord:
    """Return a ping-pong inside a node as a trial of `veth`, with another workload."""
    ping = next(
        one for one in measured.trials() if one.order.path.label == "shm" and one.order.workload.label == "latency"
    )
    workload = replace(ping.order.workload, **changed)  # type: ignore[arg-type]
    path = replace(ping.order.path, label="veth", kind="veth")
    return replace(ping, order=replace(ping.order, path=path, workload=workload))


@pytest.mark.parametrize("changed", [{"placement": (0, 0)}, {"pace_us": 500}, {"compute_us": 100}])
def test_only_back_to_back_messages_over_the_path_are_fitted(measured: RunDir, changed: dict[str, object]) -> None:
    """Ranks of one node, random pauses and computing once silently went into the model of the path between nodes."""
    records = [one for one in measured.trials() if one.order.path.label.startswith("veth")]
    options = relabelled(measured).order.workload.options
    other = relabelled(measured, **(changed if "placement" in changed else {"options": options | changed}))
    expected = of_veth(fit_records(measured, records)).machine
    assert of_veth(fit_records(measured, [*records, other])).machine == expected


@pytest.fixture(scope="module")
def exchanging(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a run with exchanges back to back, and of 128 KiB after computing."""
    folder = tmp_path_factory.mktemp("exchanging")
    exchanges = """
  { name = "exchange", sizes = [8, 131072], iterations = 30 },
  { name = "computed", operation = "exchange", sizes = [131072], iterations = 30, options = { compute_us = 20 } },
"""
    (folder / "s.toml").write_text(
        STUDY.replace('  { name = "allreduce", sizes = [8, 1024], iterations = 30 },', exchanges)
    )
    assert cli(["run", str(folder / "s.toml"), "--out", str(folder / "run")]) == 0
    return RunDir.open(folder / "run")


def test_exchanges_give_the_cost_of_crossing_unless_both_ends_share_a_processor(exchanging: RunDir) -> None:
    """Only runs of the lab had it: between namespaces, messages that crossed were replayed 0.5 to 3 us too fast."""

    def crossing(**facts: Scalar) -> list[tuple[int, ...]]:
        records = [
            replace(one, outcome=replace(one.outcome, facts=one.outcome.facts | facts))
            for one in exchanging.trials()
            if one.order.path.kind == "veth"
        ]
        named = of_veth(fit_records(exchanging, records))
        machines = (named.machine, *named.launches)
        assert {one.inter.copy_fs_per_byte for one in machines} == {0}, "nothing was streamed both ways"
        return [tuple(size for size, _ in one.inter.crossing_ps) for one in machines]

    eager = of_veth(fit_records(exchanging, exchanging.trials())).machine.inter.eager_up_to_bytes
    wire = {"lab.wire_delay_us": 2.0, "lab.wire_rate_mbit": 1000.0}
    for apart in ({}, ALONE, {**ALONE, "nodes.processors": 8}):
        assert set(crossing(**apart)) == set(crossing(**apart, **wire)) == {(8, eager, eager + 1, 131072)}
    assert set(crossing(**{**ALONE, "nodes.computers": 1})) == {()}
    (inside,) = (one for one in fit_records(exchanging, exchanging.trials()).machines if one.path == "shm")
    assert {one.inter.crossing_ps for one in (inside.machine, *inside.launches)} == {()}


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a run with computing beside messages; what it shows is made up by `interrupted`."""
    folder = tmp_path_factory.mktemp("beside")
    of = "iterations = 40, warmup = 20, options = { compute_us = 90 } }"
    own = "".join(f'  {{ name = "{name}", sizes = [8, 1024], {of},\n' for name in ("after_exchange", "one_way"))
    (folder / "s.toml").write_text(STUDY.replace("workload = [\n", f"workload = [\n{own}"))
    assert cli(["run", str(folder / "s.toml"), "--out", str(folder / "run")]) == 0
    return RunDir.open(folder / "run")


def test_computing_beside_messages_shows_what_those_take(beside: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """In guests each exchange interrupts both ends for 20 us, which no run showed: CG was 11 % too fast."""
    took_ns = {"after_exchange": (0, 4_000), "one_way": (15_000, 25_000)}
    rows = RunDir.rows

    def interrupted(run: RunDir, record: TrialRecord, cell: StoredCell) -> pa.Table:
        table = rows(run, record, cell)
        if cell.operation not in took_ns:
            return table
        rank, warm = (table[name].to_numpy() for name in ("rank", "warmup"))
        longer = np.array(took_ns[cell.operation])[rank] * ~warm + 90_000 + 500 * (rank == 1)
        return table.set_column(table.schema.get_field_index("ns"), "ns", pa.array(longer))

    monkeypatch.setattr(RunDir, "rows", interrupted)
    monkeypatch.setattr("nearmetal.predict.path_samples.LEAST_ALONE", 21)
    with pytest.raises(BadInputError, match="has a warm-up of 20, which computes alone") as refused:
        fit_run(beside)
    assert "warmup = 21 or more" in str(refused.value.hint)
    monkeypatch.setattr("nearmetal.predict.path_samples.LEAST_ALONE", 20)

    def fitted(**facts: Scalar) -> PathModel:
        records = [
            replace(one, outcome=replace(one.outcome, facts=one.outcome.facts | facts)) for one in beside.trials()
        ]
        named = of_veth(fit_records(beside, records))
        assert len(named.launches) == 6
        (beside_messages,) = {
            (one.inter.trailing_ps, one.inter.send_work_ps, one.inter.receive_work_ps)
            for one in (named.machine, *named.launches)
        }
        assert beside_messages[0] == named.machine.inter.trailing_ps
        return named.machine.inter

    path = fitted(**ALONE)
    assert path.trailing_ps == ((8, 2_000_000), (1024, 2_000_000))
    limit = (path.eager_up_to_bytes, 15_000_000)
    assert path.send_work_ps == ((0, 15_000_000), (8, 15_000_000), (1024, 15_000_000), limit)
    assert path.receive_work_ps == ((0, 25_000_000), (8, 25_000_000), (1024, 25_000_000))
    carried = fitted(**AUTOGROUPS)
    assert (carried.trailing_ps, carried.send_work_ps) == (path.trailing_ps, path.send_work_ps)
    one = fitted(**{**ALONE, "nodes.computers": 1})
    assert (one.trailing_ps, one.send_work_ps, one.receive_work_ps) == ((), (), ())


def test_messages_above_the_eager_limit_say_nothing_about_cold_paths(exchanging: RunDir) -> None:
    """Requests and grants would be counted with them, and streams of large messages have modes of their own."""
    named = of_veth(fit_records(exchanging, exchanging.trials()))
    assert {one.inter.cold for one in (named.machine, *named.launches)} == {()}


def test_trials_of_a_changed_machine_are_reported(measured: RunDir) -> None:
    """`compare` refuses them; one model was fitted to both, as if all had the first trial's kernel and MPI."""

    def mixed(*changes: dict[str, Scalar], label: str = "latency") -> list[str]:
        records = [one for one in measured.trials() if one.order.path.kind == "veth"]
        last = records[-1].order.block
        for changed in changes:
            records = [
                replace(one, outcome=replace(one.outcome, facts=one.outcome.facts | changed))
                if one.order.block == last and one.order.workload.label == label
                else one
                for one in records
            ]
        named = of_veth(fit_records(measured, records))
        doubts = find_doubts([ping(8)], named, Placement.block(2, 1))
        return [one.said for one in doubts if "their times are mixed" in one.said]

    before = measured.trials()[0].outcome.facts
    assert not mixed()
    (doubt,) = mixed({"kernel.release": "6.8.0-new"})
    assert "trials of the path ran with kernel" in doubt
    assert "6.8.0-new" in doubt
    assert str(before.get("kernel.release", "")) in doubt
    assert len(mixed({"kernel.release": "6.8.0-new"}, {"mpi.version": "9.9"})) == 2


def test_a_launch_without_the_exchanges_of_the_others_gets_no_model_of_its_own(tmp_path: Path) -> None:
    """If the trial of an exchange failed, the launch was replayed as if computing added nothing to messages."""
    exchange = 'operation = "exchange", sizes = [8], iterations = 30'
    cold = f'{{ name = "exchange", {exchange} }}, {{ name = "cold", {exchange}, options = {{ compute_us = 50 }} }}'
    (tmp_path / "s.toml").write_text(STUDY.replace("workload = [", f"workload = [{cold},"))
    assert cli(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "run")]) == 0
    run = RunDir.open(tmp_path / "run")
    records = [one for one in run.trials() if one.order.path.kind == "veth"]
    assert len(of_veth(fit_records(run, records)).launches) == 6
    failed = next(one for one in records if one.order.workload.number("compute_us"))
    left = of_veth(fit_records(run, [one for one in records if one is not failed]))
    assert len(left.launches) == 5


@pytest.mark.parametrize(("mpi", "inside"), [("openmpi", 4096 - 64), ("mpich", 512)])
def test_a_given_eager_limit_applies_between_nodes(measured: RunDir, mpi: str, inside: int) -> None:
    """It was also applied inside a node, where the limit differs."""
    records = [replace(one, order=replace(one.order, mpi=mpi)) for one in measured.trials()]
    machine = of_veth(fit_records(measured, records, eager_up_to_bytes=512)).machine
    assert machine.intra is not None
    assert (machine.inter.eager_up_to_bytes, machine.intra.eager_up_to_bytes) == (512, inside)


@pytest.mark.parametrize(
    ("mpi", "version", "divided"),
    [("openmpi", "5.0.11", True), ("openmpi", "4.1.4", False), ("mpich", "5.0.2", True), ("mpich", "4.3.0", False)],
)
def test_newer_mpis_divide_collectives_by_nodes(measured: RunDir, mpi: str, version: str, divided: bool) -> None:
    records = []
    for one in measured.trials():
        outcome = replace(one.outcome, facts={**one.outcome.facts, "mpi.version": version})
        records.append(replace(one, order=replace(one.order, mpi=mpi), outcome=outcome))
    named = of_veth(fit_records(measured, records))
    assert {one.by_nodes for one in (named.machine, *named.launches)} == {divided}


def test_a_path_with_too_few_sizes_is_named(measured: RunDir) -> None:
    """In a run with many paths, the error named none."""
    ping = next(one for one in measured.trials() if one.order.workload.label == "latency")
    record = replace(ping, cells=ping.cells[:1])
    named = f"{record.order.path.label} / {record.order.setting} / polling"
    with pytest.raises(BadInputError, match=f"{named}: a path needs .* at least 2 sizes, there are 1"):
        fit_records(measured, [record])


def test_streams_of_pairs_inside_a_node_do_not_count_for_the_wire(measured: RunDir) -> None:
    """Rank i sends to rank i + n/2: with four ranks placed round-robin on two nodes, every pair is inside one."""
    records = [one for one in measured.trials() if one.order.path.label == "veth"]

    def port(*placement: int) -> int:
        ping = relabelled(measured, label="rate", placement=placement)
        rate = replace(ping, cells=tuple(replace(cell, operation="message_rate", ranks=4) for cell in ping.cells))
        return of_veth(fit_records(measured, [*records, rate])).machine.port_fs_per_byte

    ping = relabelled(measured)
    fastest = max(cell.message_bytes * 64 * 2 / np.median(measured.values(ping, cell)) for cell in ping.cells)
    assert port(0, 1, 0, 1) == 0
    assert port(0, 0, 1, 1) == round(1e6 / fastest)  # of two pairs with windows of 64 messages


def test_the_path_inside_a_node_is_listed_only_if_requested(folder: Path) -> None:
    """It was once listed as the fastest path between nodes."""
    (folder.parent / "halo.toml").write_text('[pattern]\nkind = "halo"\nranks = 2\nsteps = 1\nmessage_bytes = 8\n')

    def paths(*argv: str) -> set[str]:
        argv = (str(folder.parent / "halo.toml"), "--on", str(folder), "--replicas", "1", "--format", "json", *argv)
        found = CliRunner().invoke(predict, argv, catch_exceptions=False)
        return {row["path"] for row in json.loads(found.stdout)}

    assert paths() == {"veth"}
    assert paths("--path", "shm", "--per-node", "2") == {"shm"}
