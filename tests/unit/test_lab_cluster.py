"""A cluster of the lab without an emulator: the commands to its machines, recipes, launchers and connections."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

import labs
from nearmetal.cli.main import run as cli
from nearmetal.errors import BadInputError, TrialError, UnavailableError
from nearmetal.facts import proof
from nearmetal.hosts.far.shell import NodesShell
from nearmetal.hosts.far.stream import LostError
from nearmetal.hosts.host import HYPERVISOR, OnNode, Site, machines_of
from nearmetal.hosts.lab import cluster, nodes, remote, wire
from nearmetal.hosts.lab.lab import cores_of, slots_of
from nearmetal.hosts.lab.machine import MACHINES, MANAGEMENT, Boot, emulator_argv
from nearmetal.paths import ports
from nearmetal.paths.guests import GUEST_PATHS
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.paths.table import PATHS
from nearmetal.process import Finished
from nearmetal.run import trial
from nearmetal.run.estimate import estimate
from nearmetal.run.trial import StandingPath, carry_out
from nearmetal.study.order import Order, PathOrder, Proof, WorkloadOrder
from nearmetal.study.shipped import read_study
from nearmetal.workloads.mpi.mpi import Job, Mpi
from nearmetal.workloads.mpi.openmpi import launch
from nearmetal.workloads.processors import processors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nearmetal.knobs.session import Session
    from nearmetal.study.order import Scalar

RUN = Path("/run")
LINKS = '[{"ifname": "lo"}, {"ifname": "eth0", "parentbus": "pci"}, {"ifname": "mgmt0", "parentbus": "pci"}]'


@pytest.mark.parametrize("wrong", [1, 17, 2.5, "2", True, 0])
def test_a_cluster_has_2_to_16_nodes(wrong: Scalar) -> None:
    with pytest.raises(BadInputError, match="from 2 to 16"):
        cluster.nodes_of({"nodes": wrong})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["n2"], "there is no node 'n2' on path 'native'\nhint: one of: n0, n1"),
        (["g0"], "there is no node 'g0' on path 'native'\nhint: one of: n0, n1"),
        (["n3", "--path", "vhost"], "there is no node 'n3' on path 'vhost'\nhint: one of: n0, n1, g0, g1"),
        (["--path", "veth"], "path 'veth' does not connect machines of the lab\nhint: one of: native, vf, macvlan"),
        (["--path", "natve"], "there is no path 'natve'\nhint: did you mean 'native'?"),
    ],
)
def test_a_shell_needs_an_existing_node(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["lab", "shell", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_nodes_one_machine_holds_all() -> None:
    assert cluster.nodes_of({}) == 0
    assert cluster.cluster_of({}, MACHINES["base"], 1) is None


def test_more_machines_than_memory_are_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_available_mib", lambda: 7167)
    with pytest.raises(UnavailableError, match=r"need 7168 MiB of memory, .* and 7167 MiB are available") as caught:
        cluster.cluster_of({"nodes": 8}, MACHINES["base"], 2)
    assert "fewer `nodes`" in caught.value.hint
    monkeypatch.setattr(cluster, "_available_mib", lambda: 7168)
    assert cluster.cluster_of({"nodes": 8}, MACHINES["base"], 2) == cluster.Cluster(8)


@pytest.mark.parametrize("name", MACHINES)
def test_the_memory_of_a_machine_is_estimated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_available_mib", lambda: 1 << 20)
    assert cluster.cluster_of({"nodes": 2}, MACHINES[name], 1) is not None


def test_a_node_has_a_port_on_each_of_two_wires() -> None:
    boot = Boot("qemu", replace(MACHINES["base"], node=True), RUN / "kernel", RUN / "initrd", RUN / "wire.so")
    line = " ".join(emulator_argv(boot, RUN, seed=1, restore=False))
    assert "hubport,id=h0,hubid=0" in line
    assert "hubport,id=h1,hubid=1" in line
    assert f"lab.management={MANAGEMENT}" in line
    assert "-plugin" not in line  # it boots alone


def order(*placement: int, **options: Scalar) -> Order:
    return Order(0, 0, PathOrder("native", "native", dict(options)), WorkloadOrder("w", "engine", placement=placement))


def test_a_paths_wire_options_are_applied() -> None:
    link = cluster.Cluster(2)._link(order(0, 1, wire_delay_us=5, wire_rate_mbit=10_000))
    assert (link.delay_ns, link.rate_mbps) == (5000, 10_000)
    assert cluster.Cluster(2)._link(order(0, 1)) == wire.Link(2000, 1000, 1 << 20, 0)
    with pytest.raises(TrialError, match="wire_delay_us is 0, not a number above 0"):
        cluster.Cluster(2)._link(order(0, 1, wire_delay_us=0))


def test_the_hosts_wire_options_are_the_default_of_paths() -> None:
    asked: dict[str, Scalar] = {"nodes": 2, "wire_delay_us": 3, "wire_loss_percent": 0.5, "wire_queue_kib": 64}
    made = cluster.cluster_of(asked, MACHINES["base"], 1)
    assert made is not None
    assert made._link(order(0, 1)) == wire.Link(3000, 1000, 65536, 5000)
    assert made._link(order(0, 1, wire_delay_us=7)).delay_ns == 7000
    assert made.facts(order(0, 1))["lab.wire_loss_percent"] == 0.5


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"wire_loss_percent": 101}, "up to 100"),
        ({"wire_queue_kib": 0}, "above 0"),
        ({"wire_rate_mbit": True}, "wire_rate_mbit is True"),
        ({"wire_delay_us": "2"}, "wire_delay_us is '2'"),
        ({"wire_delay_us": 0.1, "wire_rate_mbit": 10_000}, "after 167 ns, but machines need 600 ns"),
    ],
)
def test_impossible_wires_are_refused(asked: dict[str, Scalar], match: str) -> None:
    with pytest.raises(BadInputError, match=match):
        cluster.cluster_of({"nodes": 2, **asked}, MACHINES["base"], 1)


def test_one_machine_has_no_wires_of_its_own_to_shape() -> None:
    with pytest.raises(BadInputError, match="'wire_queue_kib' needs one machine per node"):
        cluster.cluster_of({"wire_queue_kib": 64}, MACHINES["base"], 1)
    with pytest.raises(BadInputError, match="wire_loss_percent works only where nodes are machines"):
        ports.wire_words({"wire_loss_percent": 1})


def test_a_launch_refuses_a_path_that_is_not_its_own() -> None:
    standing = StandingPath(PathOrder("vf", "vf"), Endpoints((), ""))
    outcome = carry_out(Machines(), order(0, 1), standing)
    assert "path 'native' cannot be used where path 'vf' stands" in outcome.reason


def test_a_setting_is_put_back_where_the_next_launch_has_another() -> None:
    tuned = replace(order(0, 1), knobs={"nic.rx-usecs": 0})
    standing = StandingPath(following=(tuned, order(0, 1)))
    assert (standing.ends_setting(tuned), standing.ends_setting(order(0, 1))) == (False, True)
    assert standing.end() == "restored"
    standing.kept[1] = cast("Session", object())
    assert standing.end() == "kept for the next launch"
    standing.following = ()
    assert not standing.ends_setting(tuned)
    assert standing.end() == "discarded with the machine"


@pytest.mark.parametrize("disposable", [True, False])
def test_a_watchdog_guards_only_machines_that_outlive_the_trial(
    monkeypatch: pytest.MonkeyPatch, disposable: bool
) -> None:
    own = {"site": Site("cache", "state"), "machine_name": str, "disposable": disposable}
    far = type("Far", (Machines,), own)
    guards: list[object] = []

    def hold(*_: object, guard: object, **__: object) -> None:
        guards.append(guard)
        raise TrialError("far enough")

    monkeypatch.setattr(trial, "hold", hold)
    monkeypatch.setattr(trial.places, "refuse_unfinished_on", lambda *_, **__: None)
    outcome = carry_out(far(), order(0, 1), StandingPath(PathOrder("native", "native"), ENDS))
    assert outcome.reason == "far enough"
    assert [guard is None for guard in guards] == [disposable]


def test_machines_that_carry_out_several_launches_make_each_cheaper() -> None:
    study, _ = read_study(Path(__file__).parents[2] / "studies" / "sriov-gap.toml")
    alone = study.model_copy(update={"host": study.host.model_copy(update={"options": {"nodes": 2}})})
    assert estimate(study)[0] < estimate(alone)[0]


def test_two_pairs_of_machines_share_two_cores_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    monkeypatch.setattr(cluster, "_available_mib", lambda: 1 << 20)
    assert [slots_of({"nodes": nodes} if nodes else {}) for nodes in (0, 2, 3, 16)] == [2, 2, 1, 1]
    assert [cores_of(slot, 2) for slot in range(3)] == [{3}, {5}, {3}]
    assert cores_of(0, 1) == {3, 5}


@pytest.mark.parametrize(("free_mib", "slots"), [(5648, 2), (5647, 1), (1000, 1)])
def test_trials_run_one_by_one_if_memory_is_too_small_for_two(
    monkeypatch: pytest.MonkeyPatch, free_mib: int, slots: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    monkeypatch.setattr(cluster, "_available_mib", lambda: free_mib)
    assert slots_of({"nodes": 2, "machine": "kvm"}) == slots
    assert slots_of({"nodes": 2, "machine": "kvm", "slots": 2}) == 2


def test_as_many_machines_start_as_a_trial_needs() -> None:
    facts = cluster.Cluster(4).facts
    assert [facts(order(*placement))["lab.nodes"] for placement in ((0, 1), (0, 0), (0, 1, 2))] == [2, 2, 3]


@dataclass
class Machines:
    """A shell whose nodes are machines with one port each; it records their commands."""

    links: str = LINKS
    asked: list[str] = field(default_factory=list)
    guests: dict[str, list[str]] = field(default_factory=dict)
    scratch: str = "/tmp/nm-test"
    agent: str = "/tmp/nm-test/agent"

    @property
    def machines(self) -> tuple[str, ...]:
        return ("n0", "n1")

    def run(self, argv: Sequence[str], *, node: str = "", **_: object) -> Finished:
        line = " ".join(argv)
        self.asked.append(f"{node}: {line}")
        output = self.links if line == "ip -json -details link show" else ""
        if argv[0] == "readlink":
            output = "../0000:01:10.0\n"
        elif argv[0] == "ls":
            output = "eth7\n"
        return Finished(tuple(argv), 0, output.encode(), b"", 1)

    def read(self, path: str, *, node: str = "") -> bytes:
        return f"52:54:00:0a:00:0{node[-1]}\n".encode() if path.endswith("/address") else b"1\n"

    def read_all(self, paths: Sequence[str], *, node: str = "") -> dict[str, bytes]:
        return {path: self.read(path, node=node) for path in paths}

    def start(self, argv: Sequence[str], *, node: str = "") -> None:
        self.asked.append(f"{node}: start {' '.join(argv)}")

    def write(self, path: str, data: bytes, *, node: str = "") -> None:
        self.asked.append(f"{node}: {data.decode().strip()} > {path}")

    def boot_guest(self, node: str, devices: Sequence[str]) -> Callable[[], str]:
        self.guests[node] = list(devices)
        self.asked.append(f"{node}: boot")

        def known() -> str:
            self.asked.append(f"{node}: booted")
            return f"g{node[1:]}"

        return known


def path(kind: str, **options: Scalar) -> PathOrder:
    return PathOrder(kind, kind, dict(options))


def test_the_management_port_is_never_part_of_a_path() -> None:
    assert ports.parse_ports(LINKS) == ("eth0",)


def test_every_node_builds_its_own_end_of_a_bridge() -> None:
    shell = Machines()
    ends = PATHS["bridge"].up(shell, path("bridge", rx_usecs=0), ["n0", "n1"])
    for node in ("n0", "n1"):
        assert f"{node}: ip link set eth0 master nm-br0 up" in shell.asked
        assert f"{node}: ip link add nm-p0 type veth peer name nm-n0" in shell.asked
        assert f"{node}: ethtool -C eth0 rx-usecs 0" in shell.asked
    assert not any(line.startswith(": ip link") for line in shell.asked)
    assert ends.ends == (Endpoint("n0", "nm-n0", "10.77.0.1"), Endpoint("n1", "nm-n0", "10.77.0.2"))
    assert Endpoint("n1", "eth0") in ends.beneath


def test_functions_of_different_machines_have_different_addresses() -> None:
    shell = Machines()
    ends = PATHS["vf"].up(shell, path("vf"), ["n0", "n1"])
    assert [end.interface for end in ends.ends] == ["eth7", "eth7"]
    given = [line for line in shell.asked if " vf 0 mac " in line]
    assert given == [f"n{node}: ip link set eth0 vf 0 mac 52:54:00:01:0{node}:01" for node in (0, 1)]
    PATHS["vf"].down(shell, ends)
    assert "n1: 0 > /sys/class/net/eth0/device/sriov_numvfs" not in shell.asked  # `cat` printed nothing: there are none


def test_native_is_the_port_under_its_own_name() -> None:
    ends = PATHS["native"].up(Machines(), path("native"), ["n0", "n1"])
    assert ends.ends[1] == Endpoint("n1", "eth0", "10.77.0.2")


@pytest.mark.parametrize("kind", [path.kind for path in GUEST_PATHS])
def test_every_machine_has_a_guest_and_all_boot_at_once(kind: str) -> None:
    shell = Machines()
    ends = PATHS[kind].up(shell, path(kind, rx_usecs=0), ["n0", "n1"])
    assert ends.ends == (Endpoint("g0", "eth0", "10.77.0.1"), Endpoint("g1", "eth0", "10.77.0.2"))
    assert [line for line in shell.asked if "boot" in line] == ["n0: boot", "n1: boot", "n0: booted", "n1: booted"]
    assert {Endpoint("n0", "eth0"), Endpoint("n1", "eth0"), Endpoint("n1", "nm-g0")} <= set(ends.beneath)
    place = "g" if kind in {"guest-vf", "passthrough"} else "n"
    assert [line for line in shell.asked if "rx-usecs" in line] == [
        f"{place}{node}: ethtool -C eth0 rx-usecs 0" for node in (0, 1)
    ]
    macs = {mac for words in shell.guests.values() for mac in re.findall(r"mac=([^,]+)", " ".join(words))}
    given = {line.split()[-1] for line in shell.asked if " mac " in line or "set eth0 address" in line}
    assert len(macs | given) == 2  # each of the two measured cards has an address of its own


def test_one_end_may_be_bare() -> None:
    shell = Machines()
    ends = PATHS["vhost"].up(shell, path("vhost", ends="one", rx_usecs=0), ["n0", "n1"])
    assert [end.node for end in ends.ends] == ["n0", "g1"]
    assert list(shell.guests) == ["n1"]
    assert Endpoint("n0", "eth0") not in ends.beneath  # the bare machine is an end itself
    assert [line for line in shell.asked if "rx-usecs" in line] == [
        f"n{node}: ethtool -C eth0 rx-usecs 0" for node in (0, 1)
    ]
    PATHS["vhost"].down(shell, ends)
    assert "n1: ip -brief link show type bridge" in shell.asked  # the machine's, not its guest's


def test_ends_that_do_not_exist_are_refused() -> None:
    with pytest.raises(BadInputError, match="both"):
        PATHS["vhost"].up(Machines(), path("vhost", ends="two"), ["n0", "n1"])


def test_a_nodes_shell_cannot_have_nodes() -> None:
    view = OnNode(Machines(), "n1")
    assert machines_of(view) == (HYPERVISOR,)
    with pytest.raises(UnavailableError):
        view.add_node("n2")
    with pytest.raises(UnavailableError):
        view.give_interface("eth0", "n1", "eth1")


def test_what_is_done_in_a_nodes_shell_is_done_on_the_node() -> None:
    shell = Machines()
    view = OnNode(shell, "n1")
    view.run(["true"])
    view.run(["true"], node=HYPERVISOR)
    view.run(["true"], node="n0")
    view.start(["relay"])
    view.write("/file", b"content")
    assert shell.asked == ["n1: true", "n1: true", "n0: true", "n1: start relay", "n1: content > /file"]
    assert view.read_all(["/address"]) == {"/address": view.read("/address")} == {"/address": b"52:54:00:0a:00:01\n"}


ENDS = Endpoints((Endpoint("n0", "eth0", "10.77.0.1"), Endpoint("n1", "eth0", "10.77.0.2")), "10.77.0.0/24")
MOVED = {"n0.eth0": 900, "n1.eth0": 900}


def test_a_launcher_may_use_the_management_port_and_a_workload_may_not() -> None:
    proof.check(Proof(MOVED, {"n0.lo": 100, f"n0.{MANAGEMENT}": 200}), ENDS, 800)
    with pytest.raises(TrialError, match="did not keep to the path"):
        proof.check(Proof(MOVED, {f"n0.{MANAGEMENT}": 5000}), ENDS, 800)
    with pytest.raises(TrialError, match="did not keep to the path"):
        proof.check(Proof(MOVED, {"n0.eth1": 1}), ENDS, 800)


def test_open_mpi_launches_over_management_and_measures_over_the_path() -> None:
    job = Job(("n0", "n1"), ("prog",), remote_shell="agent", interface="eth0", subnet="10.77.0.0/24")
    words = launch(Mpi("openmpi", "4.1.4", "mpirun"), replace(job, management="10.78.0.0/24")).argv
    assert words[words.index("oob_tcp_if_include") + 1] == "10.78.0.0/24"
    assert words[words.index("btl_tcp_if_include") + 1] == "10.77.0.0/24"
    words = launch(Mpi("openmpi", "5.0.1", "mpirun"), replace(job, management="10.78.0.0/24")).argv
    assert words[words.index("prte_if_include") - 1] == "--prtemca"
    assert "oob_tcp_if_include" not in launch(Mpi("openmpi", "4.1.4", "mpirun"), job).argv


def test_ranks_on_machines_of_their_own_do_not_share_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert processors(Machines(), ("n0", "n1")) == 0
    assert processors(Machines(), ("n0", "n0", "n1")) == 1


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A node's service on this machine's loopback; yields its name."""
    with labs.node_service(monkeypatch) as name:
        yield name


def test_the_far_shell_runs_programs_on_a_lab_node(served: str, tmp_path: Path) -> None:
    machine = nodes.machine_of(served)
    machine.connect()
    finished = machine.run(["sh", "-c", "cat; echo no >&2; exit 3"], stdin=b"in\0put")
    assert (finished.stdout, finished.stderr, finished.exit_status) == (b"in\0put", b"no\n", 3)
    content = bytes(range(256)) * 1000
    machine.write(str(tmp_path / "file"), content)
    assert (tmp_path / "file").read_bytes() == content
    late = machine.run(["sleep", "600"], timeout_s=0.2)
    assert late.timed_out
    machine.close()


def test_a_background_program_ends_with_its_shell(served: str) -> None:
    with NodesShell([nodes.machine_of(served)], [served], remote_shell=b"none") as shell:
        shell.add_node("n0")
        assert shell.machines == ("n0",)
        helper = shell.start(["sh", "-c", "echo $$; exec sleep 600"], node="n0")
        (pid,) = helper.first_lines(1, 20)
        assert Path(f"/proc/{pid}").exists()
    for _ in iter(Path(f"/proc/{pid}").exists, False):
        pass


def test_a_node_without_a_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_SERVING_S", 0.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # so that no other test serves there; it never listens
        monkeypatch.setattr(remote, "PORT", silent.getsockname()[1])
        with pytest.raises(LostError, match=r"node 127\.0\.0\.1 cannot be reached"):
            nodes.machine_of("127.0.0.1").connect()
