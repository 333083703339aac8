"""Guests of a lab cluster without an emulator: how they boot, wait in a snapshot, get a NIC and become nodes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import labs
from nearmetal import process
from nearmetal.errors import BadInputError, NearmetalError, TrialError, UnavailableError
from nearmetal.hosts import plain_files
from nearmetal.hosts.far.stream import open_program
from nearmetal.hosts.lab import cluster, kvm, nodes, remote
from nearmetal.hosts.lab.frames import NodeId
from nearmetal.hosts.lab.machine import MACHINES, STANDING_PATHS
from nearmetal.paths.guests import GUEST_PATHS
from nearmetal.process import Finished
from nearmetal.study.order import PathOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A node's service on this machine's loopback; yields its name."""
    with labs.node_service(monkeypatch) as name:
        yield name


@dataclass
class Console:
    """A machine of the lab whose guest prints this on its console; nothing is started."""

    output: bytes = b""
    ended: Callable[[], Finished | None] = lambda: None
    started: list[str] = field(default_factory=list)
    scratch: str = "/tmp/nm-test"

    def start(self, argv: Sequence[str], *, node: str = "") -> Console:
        self.started += argv
        return self

    def read(self, path: str, *, node: str = "") -> bytes:
        if not self.output:
            raise NearmetalError(f"cannot read {path}")
        return self.output


@pytest.fixture
def with_kvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvm, "_DEVICE", Path("/dev/null"))
    monkeypatch.setattr(kvm, "BOOT_TIMEOUT_S", 0.0)


def test_a_machine_without_kvm_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvm, "_DEVICE", Path("/dev/kvm-of-nobody"))
    console = Console()
    with pytest.raises(UnavailableError, match="node g0 must be a guest") as caught:
        kvm.start(console, "g0", [], {})  # type: ignore[arg-type]
    assert 'machine = "kvm"' in caught.value.hint
    assert console.started == []


@pytest.mark.usefixtures("with_kvm")
def test_a_guest_gets_its_identity_and_is_up_when_its_service_answers() -> None:
    console = Console(output=f"[ 1.0] booting\n{remote.READY}\n".encode())
    booting = kvm.start(console, "g1", ["-device", "igb"], {"address": "10.78.0.102"})  # type: ignore[arg-type]
    booting.wait(lambda: True)
    line = " ".join(console.started)
    assert "lab.name=g1 lab.scratch=/tmp/nm-test lab.address=10.78.0.102" in line
    assert "-device igb" in line


@pytest.mark.usefixtures("with_kvm")
@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (None, r"^guest g0 did not come up: it did not answer within 0 s; its console: \[ 1.0\] Kernel panic$"),
        (Finished(("qemu",), 1, b"", b"no such card", 1), r"no such card.*; its console: \[ 1.0\] Kernel panic$"),
    ],
)
def test_a_guest_that_does_not_come_up_is_reported_with_its_last_output(ended: Finished | None, reason: str) -> None:
    console = Console(output=b"[ 1.0] Kernel panic\n", ended=lambda: ended)
    booting = kvm.start(console, "g0", [], {})  # type: ignore[arg-type]
    with pytest.raises(TrialError, match=reason):
        booting.wait(lambda: True)


@pytest.mark.usefixtures("with_kvm")
def test_a_guest_becomes_a_node_behind_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All machines are this one."""
    waited_for: list[str] = []
    for script in ("_TAP", "_NEIGHBOUR", "_ROUTE"):
        monkeypatch.setattr(kvm, script, "true\n")
    monkeypatch.setattr(kvm.BootingGuest, "wait", lambda *_: None)
    monkeypatch.setattr(nodes, "open_shell", lambda _: open_program(("sh",)))
    monkeypatch.setattr(remote, "reach", waited_for.append)
    monkeypatch.setattr(remote, "finished", lambda _, argv, **how: process.run(argv, **how))
    with nodes.ClusterShell(NodeId(0, 2)) as shell:
        for node in ("n0", "n1"):
            shell.add_node(node)
        monkeypatch.setattr(shell, "start", lambda *_, **__: Console())
        known = shell.boot_guest("n1", ["-device", "igb"])
        assert shell.machines == ("n0", "n1")
        assert known() == "g1"
        assert waited_for == ["n1", "g1"]
        assert shell.machines == ("n0", "n1")  # a guest is a node, not a machine whose counters are read
        assert shell.run(["sh", "-c", "echo $TMPDIR"], node="g1").text == f"{shell.scratch}/g1\n"


def test_paths_into_guests_use_the_snapshot_with_guests_unless_one_end_is_bare() -> None:
    assert {path.kind for path in GUEST_PATHS} == STANDING_PATHS
    machines = cluster.Cluster(2)
    assert machines.has_guests(PathOrder("vhost", "vhost"))
    assert not machines.has_guests(PathOrder("vhost", "vhost", {"ends": "one"}))  # its node 0 has no guest
    assert not machines.has_guests(PathOrder("native", "native"))
    fresh = cluster.cluster_of({"nodes": 2, "standing_guests": False}, MACHINES["kvm"], 1)
    assert fresh is not None
    assert not fresh.has_guests(PathOrder("vhost", "vhost"))
    with pytest.raises(BadInputError, match="standing_guests"):
        cluster.cluster_of({"nodes": 2, "standing_guests": 0}, MACHINES["kvm"], 1)


@dataclass
class MachineWithGuest(Console):
    """A machine with a booted guest; its emulator gives these answers."""

    answers: bytes = b""
    asked: list[str] = field(default_factory=list)
    written: list[bytes] = field(default_factory=list)

    def run(self, argv: Sequence[str], **_: object) -> None:
        self.asked += argv

    def write(self, path: str, data: bytes, **_: object) -> None:
        assert path == f"{kvm._MONITOR}.in"
        self.written.append(data)

    def read(self, path: str, *, node: str = "") -> bytes:
        return self.answers if path == str(kvm._ANSWERS) else super().read(path)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch, with_kvm: None) -> MachineWithGuest:
    monkeypatch.setattr(kvm, "stands", lambda: True)
    return MachineWithGuest(output=f"{remote.READY}\n".encode(), answers=b'{"QMP": {}}\n{"return": {}}\n{"retu')


def test_a_booted_guest_is_named_and_its_nic_plugged_in(standing: MachineWithGuest) -> None:
    devices = ["-netdev", "tap,id=net,vhost=on", "-device", "virtio-net-pci,netdev=net"]
    booting = kvm.managed(standing, "g1", devices, "10.78.0.2", "10.78.0.102")  # type: ignore[arg-type]
    booting.wait(lambda: True)
    lines = [json.loads(order)["arguments"]["command-line"] for order in standing.written]
    assert lines == ["netdev_add tap,id=net,vhost=on", "device_add virtio-net-pci,netdev=net"]
    assert standing.started == []  # it runs already
    assert "g1" in standing.asked


def test_a_nic_that_cannot_be_plugged_in_fails_the_trial_with_the_reason(standing: MachineWithGuest) -> None:
    standing.answers += b'rn": "Error: vfio 0000:01:10.0: no such group"}\n'
    booting = kvm.managed(standing, "g1", ["-device", "vfio-pci"], "10.78.0.2", "10.78.0.102")  # type: ignore[arg-type]
    with pytest.raises(TrialError, match=r"(?s)guest g1 did not come up: .*no such group"):
        booting.wait(lambda: False)


def test_a_guests_random_numbers_follow_from_its_seed(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stirred: list[bytes] = []
    monkeypatch.setattr(plain_files, "reseed", stirred.append)
    assert remote.reseed(served, b"luck", timeout_s=600).status == 0
    assert stirred == [b"luck"]


class WaitingGuest:
    """A guest that has to be waited for."""

    def wait(self, answers: Callable[[], bool]) -> None:
        while not answers():
            pass


@pytest.mark.usefixtures("with_kvm")
def test_a_booted_guest_is_seeded_once_it_has_its_nic(monkeypatch: pytest.MonkeyPatch) -> None:
    card, answer = "/sys/class/net/eth0/address", remote.Reply()
    stirred: list[tuple[str, int]] = []

    def reseed(name: str, data: bytes, **_: object) -> remote.Reply:
        stirred.append((name, len(data)))
        return answer

    looks: list[dict[str, bytes]] = [{card: b"mac"}, {}, {card: b"mac"}, {}, {}]
    monkeypatch.setattr(nodes.ClusterShell, "add_node", lambda *_: None)
    monkeypatch.setattr(nodes.ClusterShell, "machines", ("n0", "n1"))
    monkeypatch.setattr(kvm, "stands", lambda: True)
    monkeypatch.setattr(kvm, "managed", lambda *_: WaitingGuest())
    monkeypatch.setattr(remote, "read_all", lambda *_, **__: looks.pop())
    monkeypatch.setattr(remote, "reseed", reseed)
    known = nodes.ClusterShell(NodeId(0, 2)).boot_guest("n1", ["-device", "vfio-pci"])
    answer.status = 0
    assert known() == "g1"
    assert stirred == [("g1", 16)]
    assert len(looks) == 2  # polled until it was there
    answer.status, answer.stderr = 255, bytearray(b"out of reach")
    with pytest.raises(TrialError, match="cannot give guest g1 its seed: out of reach"):
        known()
