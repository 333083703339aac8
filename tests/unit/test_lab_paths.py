"""Recipes on ports and into guests: the commands they give a shell, without a machine."""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal import native, process
from nearmetal.errors import BadInputError, TrialError, UnavailableError
from nearmetal.hosts.lab import remote
from nearmetal.hosts.lab.machine import CALLER
from nearmetal.paths import ports
from nearmetal.paths.guests import GUEST_PATHS, Hypervisor
from nearmetal.paths.table import PATHS
from nearmetal.process import Finished
from nearmetal.study.order import PathOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LINKS = json.dumps(
    [
        {"ifname": "lo"},
        {"ifname": "eth1", "parentbus": "pci", "parentdev": "0000:02:00.0"},
        {"ifname": "eth0", "parentbus": "pci", "parentdev": "0000:01:00.0"},
        {"ifname": "nm-br0", "linkinfo": {"info_kind": "bridge"}},
    ]
)


@dataclass
class Recorder:
    """A shell that answers like a machine with two ports, and records its commands."""

    links: str = LINKS
    asked: list[str] = field(default_factory=list)
    written: list[tuple[str, bytes]] = field(default_factory=list)
    guests: dict[str, list[str]] = field(default_factory=dict)
    scratch: str = "/tmp/nm-test"
    agent: str = "/tmp/nm-test/agent"

    def run(self, argv: Sequence[str], *, node: str = "", check: bool = True, **_: object) -> Finished:
        line = " ".join(argv)
        self.asked.append(f"{node}: {line}")
        output = ""
        if line == "ip -json -details link show":
            output = self.links
        elif argv[0] == "readlink":
            output = f"../0000:0{argv[1][len('/sys/class/net/eth')]}:10.0\n"
        elif argv[0] == "cat":
            output = "0000:0000:0000:0000:0000:ffff:0a4d:0001\n" if "infiniband" in argv[1] else "1\n"
        elif argv[0] == "ls":
            output = f"{argv[1].split('/')[4]}v{argv[1].split('virtfn')[1].split('/')[0]}\n"
        return Finished(tuple(argv), 0, output.encode(), b"", 1)

    def read(self, path: str, *, node: str = "") -> bytes:
        if path.endswith("/address"):
            return f"52:54:00:00:00:0{int(path.split('/')[4][-1]) + 1}\n".encode()
        return b"1\n"

    def write(self, path: str, data: bytes, *, node: str = "") -> None:
        self.written.append((path, data))

    def give_interface(self, interface: str, node: str, name: str) -> None:
        self.asked.append(f"give {interface} to {node}")

    def boot_guest(self, node: str, devices: Sequence[str]) -> Callable[[], str]:
        self.guests[node] = list(devices)
        return lambda: node


def order(kind: str, **options: str | float | bool) -> PathOrder:
    return PathOrder(kind, kind, dict(options))


def test_ports_are_the_interfaces_on_pci_in_order() -> None:
    assert ports.parse_ports(LINKS) == ("eth0", "eth1")
    assert ports.parse_ports("[]") == ()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"parentbus": "pci"}]'])
def test_a_malformed_interface_list_is_refused(text: str) -> None:
    if text == "{}":
        assert ports.parse_ports(text) == ()
        return
    with pytest.raises(TrialError):
        ports.parse_ports(text)


def test_a_wire_has_a_delay_and_a_rate() -> None:
    options: Mapping[str, float] = {"wire_delay_us": 5, "wire_rate_mbit": 1000}
    assert ports.wire_words(options) == ["delay", "5us", "rate", "1000mbit"]
    assert ports.wire_words({"other": 1}) == []


@pytest.mark.parametrize("value", [0, -1, "5", True])
def test_a_wire_option_must_be_a_positive_number(value: str | int) -> None:
    with pytest.raises(BadInputError):
        ports.wire_words({"wire_delay_us": value})


@pytest.mark.parametrize("kind", ["bridge", "macvlan"])
def test_namespaces_have_no_wire_to_shape(kind: str) -> None:
    with pytest.raises(BadInputError, match="no wire"):
        PATHS[kind].up(Recorder(links="[]"), order(kind, wire_delay_us=5), ["n0", "n1"])


@pytest.mark.parametrize("kind", ["native", "vf", "passthrough"])
def test_a_path_on_ports_fails_with_a_hint_where_ports_exist(kind: str) -> None:
    with pytest.raises(UnavailableError, match="two network ports") as caught:
        PATHS[kind].up(Recorder(links="[]"), order(kind), ["n0", "n1"])
    assert "lab" in caught.value.hint


def test_one_peer_serves_as_every_further_node() -> None:
    shell = Recorder()
    ends = PATHS["native"].up(shell, order("native", one_peer=True, wire_rate_mbit=2000), ["n0", "n1", "n2", "n3"]).ends
    assert [(end.node, end.address) for end in ends] == [("n0", "10.77.0.1"), *[("n1", "10.77.0.2")] * 3]
    assert [line for line in shell.asked if "give" in line] == ["give eth0 to n0", "give eth1 to n1"]
    assert sum("netem" in line for line in shell.asked) == 2
    with pytest.raises(TrialError, match="at most 2 nodes") as caught:
        PATHS["native"].up(shell, order("native"), ["n0", "n1", "n2"])
    assert "one_peer = true" in caught.value.hint
    with pytest.raises(BadInputError, match="true or false"):
        PATHS["native"].up(shell, order("native", one_peer="yes"), ["n0", "n1", "n2"])


def test_a_bridge_is_built_on_every_port() -> None:
    shell = Recorder()
    PATHS["bridge"].up(shell, order("bridge", wire_delay_us=5), ["n0", "n1", "n2"])
    assert ": ip link set eth0 master nm-br0 up" in shell.asked
    assert ": ip link set eth1 master nm-br1 up" in shell.asked
    assert ": ip link set nm-p2 master nm-br0 up" in shell.asked
    assert ": tc qdisc replace dev eth1 root netem delay 5us" in shell.asked


def test_functions_get_their_driver_after_the_link() -> None:
    shell = Recorder()
    made = ports.split_ports(shell, {"eth0": 2, "eth1": 1})
    assert made == {"eth0": ["eth0v0", "eth0v1"], "eth1": ["eth1v0"]}
    first_up = shell.asked.index(": ip link set eth0 up")
    assert shell.asked.index(": ip link set eth1 down") < first_up
    assert shell.asked.index(": ip link set eth1 vf 0 mac 52:54:00:01:02:01") < first_up
    assert [data for path, data in shell.written if path.endswith("sriov_numvfs")] == [b"2\n", b"1\n"]


@pytest.mark.parametrize("count", [0, 8])
def test_a_port_has_seven_functions(count: int) -> None:
    with pytest.raises(TrialError, match="1 to 7"):
        ports.split_ports(Recorder(), {"eth0": count})


@pytest.mark.parametrize("path", GUEST_PATHS, ids=lambda path: path.kind)
def test_a_guest_has_one_nic_and_the_peer_the_other_port(path: object) -> None:
    shell = Recorder()
    assert isinstance(shell, Hypervisor)
    kind = path.kind  # type: ignore[attr-defined]
    endpoints = PATHS[kind].up(shell, order(kind, rx_usecs=0), ["n0", "n1"])
    assert list(shell.guests) == ["n1"]
    assert shell.guests["n1"].count("-device") == 1
    assert "give eth1 to n0" in shell.asked
    assert "n0: ethtool -C eth0 rx-usecs 0" in shell.asked
    assert [end.node for end in endpoints.ends] == ["n0", "n1"]
    assigned = kind in {"guest-vf", "passthrough"}
    assert ("n1: ethtool -C eth0 rx-usecs 0" in shell.asked) is assigned
    assert any("vfio-pci,host=" in word for word in shell.guests["n1"]) is assigned
    assert any(data == b"vfio-pci\n" for _, data in shell.written) is assigned


def test_a_whole_port_goes_to_one_guest() -> None:
    with pytest.raises(TrialError, match="one guest"):
        PATHS["passthrough"].up(Recorder(), order("passthrough"), ["n0", "n1", "n2"])


def test_four_guests_share_a_port() -> None:
    shell = Recorder()
    PATHS["guest-vf"].up(shell, order("guest-vf"), ["n0", "n1", "n2", "n3", "n4"])
    assert len({" ".join(devices) for devices in shell.guests.values()}) in {1, 4}
    assert ("/sys/class/net/eth0/device/sriov_numvfs", b"4\n") in shell.written


def test_a_guest_path_needs_a_hypervisor() -> None:
    class NoHypervisor:
        pass

    with pytest.raises(UnavailableError, match="needs a hypervisor"):
        PATHS["vhost"].up(NoHypervisor(), order("vhost"), ["n0", "n1"])  # type: ignore[arg-type]


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> int:
    """A guest's service on socket pairs instead of vsock; yields its CID."""

    def connect(cid: int) -> socket.socket:
        if cid != 3:
            raise ConnectionResetError(104, "Connection reset by peer")
        here, there = socket.socketpair()
        threading.Thread(target=remote._answer, args=(there,), daemon=True).start()
        return here

    monkeypatch.setattr(remote, "_connect", connect)
    return 3


def remote_run(cid: int, argv: list[str], stdin: bytes = b"", timeout_s: float = 600.0, **env: str) -> remote.Reply:
    return remote.run(cid, argv, env={"PATH": os.environ["PATH"], **env}, stdin=stdin, timeout_s=timeout_s)


def test_a_guest_runs_programs_with_their_streams_and_status(guest: int) -> None:
    reply = remote_run(guest, ["sh", "-c", 'cat; echo "$WORD"; echo no >&2; exit 3'], b"in\0put", WORD="env")
    assert (reply.stdout, reply.stderr, reply.status) == (b"in\0putenv\n", b"no\n", 3)


def test_a_guest_reports_a_missing_program(guest: int) -> None:
    reply = remote_run(guest, ["/nothing/here"])
    assert (reply.stdout, reply.stderr, reply.status) == (b"", b"/nothing/here: No such file or directory\n", 127)


def test_a_guest_ends_a_program_that_takes_too_long(guest: int) -> None:
    reply = remote_run(guest, ["sleep", "600"], timeout_s=0.2)
    assert reply.timed_out


def test_an_unreachable_guest_is_reported(guest: int) -> None:
    reply = remote_run(guest + 1, ["true"])
    assert reply.status == 255
    assert b"CID 4 cannot be reached" in reply.stderr


def test_a_reply_counts_even_if_the_guest_did_not_wait_for_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_: int) -> socket.socket:
        here, there = socket.socketpair()
        _SEND(remote._Link(there), b"2", b"no such file")
        _SEND(remote._Link(there), b"x", b"1")
        there.close()
        return here

    monkeypatch.setattr(remote, "_connect", connect)
    monkeypatch.setattr(remote._Link, "send", _send_but_the_request)
    reply = remote.read(3, "/none", timeout_s=600)
    assert (reply.status, reply.stderr) == (1, b"no such file")


_SEND = remote._Link.send


def _send_but_the_request(link: remote._Link, kind: bytes, content: bytes = b"") -> None:
    if kind != b"r":  # the guest had received the request before it disconnected
        _SEND(link, kind, content)


def test_a_guest_writes_and_reads_files(guest: int, tmp_path: Path) -> None:
    content = bytes(range(256)) * 1024
    path = str(tmp_path / "file")
    assert remote.write(guest, path, b"longer than what replaces it" * 99, timeout_s=600).status == 0
    assert remote.write(guest, path, content, timeout_s=600).status == 0
    assert bytes(remote.read(guest, path, timeout_s=600).stdout) == content
    missing = remote.read(guest, f"{path}/none", timeout_s=600)
    assert (missing.status, missing.stderr) == (1, b"Not a directory")
    refused = remote.write(guest, "/proc/version", b"x", timeout_s=600)
    assert refused.status == 1


def test_a_guest_sends_many_files_at_once_and_leaves_out_unreadable_ones(guest: int, tmp_path: Path) -> None:
    large, empty, missing = (tmp_path / name for name in ("large", "empty", "missing"))
    large.write_bytes(bytes(range(256)) * 1024)
    empty.touch()
    found = remote.read_all(guest, [str(large), str(missing), str(empty), "/proc/version"], timeout_s=600)
    version = Path("/proc/version").read_bytes()
    assert found == {str(large): large.read_bytes(), str(empty): b"", "/proc/version": version}


def test_reading_files_of_an_unreachable_guest_is_an_error(guest: int) -> None:
    with pytest.raises(TrialError, match="CID 4 cannot be reached"):
        remote.read_all(guest + 1, ["/proc/version"], timeout_s=600)


@pytest.fixture(scope="module")
def node() -> str:
    """A node's service on an address of its own; yields the address."""
    address = f"127.177.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # tests of this file may run side by side
    threading.Thread(target=remote.serve, args=(remote.of_node(address),), daemon=True).start()
    return address


def call(*words: str, stdin: bytes = b"", cwd: str | None = None, **env: str) -> Finished:
    environment = {"PATH": os.environ["PATH"], **env}
    return process.run([str(native.build(CALLER)), *words], timeout_s=600, stdin=stdin, cwd=cwd, env=environment)


def test_a_call_has_the_callers_streams_folder_and_environment(node: str, tmp_path: Path) -> None:
    odd = 'a "b"\\c\n\x01\u00e9'
    finished = call(
        node, "cat;", 'pwd; printf %s "$ODD"; echo no >&2; exit 3', stdin=b"in\0put", cwd=str(tmp_path), ODD=odd
    )
    assert finished.stdout == b"in\0put" + f"{tmp_path}\n{odd}".encode()
    assert (finished.stderr, finished.exit_status) == (b"no\n", 3)


def test_a_call_by_argv_splits_and_joins_nothing(node: str) -> None:
    assert call(node, "--", "printf", "%s|", "a b", "", "$HOME").stdout == b"a b||$HOME|"


def test_a_call_ends_like_the_remote_program(node: str) -> None:
    assert call(node, "kill -9 $$").exit_status == 128 + 9
    assert call(node, "--", "/nothing/here").exit_status == 127


def test_a_call_transfers_much_data_in_both_directions_at_once(node: str) -> None:
    much = bytes(range(256)) * 8192
    assert call(node, "--", "cat", stdin=much).stdout == much


def test_a_reply_arrives_even_if_nothing_read_the_input(node: str) -> None:
    unread = bytes(1 << 22)
    for _ in range(20):
        assert remote.run(node, ["true"], env={"PATH": os.environ["PATH"]}, stdin=unread, timeout_s=600).status == 0
        assert remote.read_all(node, ["/proc/version"], timeout_s=600).keys() == {"/proc/version"}
        assert call(node, "exit 3", stdin=unread).exit_status == 3


def test_a_call_names_an_unreachable_machine(node: str) -> None:
    finished = call("127.178.4.2", "true")
    assert (finished.exit_status, finished.stderr) == (255, b"node 127.178.4.2 cannot be reached: Connection refused\n")
    assert call("n999", "true").stderr == b"node n999 cannot be reached: it is not in /etc/hosts\n"
    assert call(node).exit_status == 2


def test_a_guest_ends_a_program_whose_caller_has_disconnected() -> None:
    here, there = socket.socketpair()
    thread = threading.Thread(target=remote._answer, args=(there,))
    thread.start()
    request = {"argv": ["sleep", "600"], "cwd": "/", "env": {"PATH": os.environ["PATH"]}}
    remote._Link(here).send(b"r", json.dumps(request).encode())
    here.shutdown(socket.SHUT_RDWR)
    here.close()
    thread.join(600)
    assert not thread.is_alive()


def test_machines_are_at_work_on_their_ports_at_once() -> None:
    """A port takes 1.9 s to be split, which it mostly waits: 16 nodes one after another took half a minute."""
    found = [ports.Holder(Recorder(), (f"n{i}",), ("eth0",)) for i in range(16)]
    all_here = threading.Barrier(len(found))

    def do(holder: ports.Holder) -> str:
        all_here.wait(600)
        return holder.nodes[0]

    assert ports.on_each(found, do) == [f"n{i}" for i in range(16)]
    assert ports.on_each([], do) == []


def test_a_machine_whose_port_cannot_be_split_is_named() -> None:
    found = [ports.Holder(Recorder(), (f"n{i}",), (f"eth{i}",)) for i in range(3)]
    with pytest.raises(TrialError, match="port eth1 can be split"):
        ports.on_each(found, lambda one: ports.declare_vfs(one.shell, one.ports[0], 9 if "1" in one.ports[0] else 1))


def test_soft_roce_has_its_ends_on_the_machine_itself() -> None:
    shell = Recorder()
    endpoints = PATHS["vf-roce"].up(shell, order("vf-roce"), ["n0", "n1"])
    assert [(end.node, end.interface) for end in endpoints.ends] == [("", "eth0v0"), ("", "eth1v0")]
    assert [end.interface for end in endpoints.beneath] == ["eth0", "eth1"]
    assert ": rdma link add rxe1 type rxe netdev eth1v0" in shell.asked
    PATHS["vf-roce"].down(shell, endpoints)
    assert ": rdma link delete rxe0" in shell.asked


def test_soft_roce_joins_two_ends() -> None:
    with pytest.raises(BadInputError, match="exactly 2 ends, not 3"):
        PATHS["native-roce"].up(Recorder(), order("native-roce"), ["n0", "n1", "n2"])


@pytest.mark.parametrize("kind", ["bridge", "macvlan"])
def test_the_ports_under_a_path_are_moderated_once_it_carries_traffic(kind: str) -> None:
    shell = Recorder()
    PATHS[kind].up(shell, order(kind, rx_usecs=0), ["n0", "n1"])
    positions = [shell.asked.index(f": ethtool -C {port} rx-usecs 0") for port in ("eth0", "eth1")]
    assert min(positions) > max(index for index, line in enumerate(shell.asked) if "ping" in line)


def test_moderation_of_ports_is_refused_where_there_are_none() -> None:
    with pytest.raises(BadInputError, match="asks for rx_usecs, but namespaces have no wire and no port"):
        PATHS["bridge"].up(Recorder(links="[]"), order("bridge", rx_usecs=0), ["n0", "n1"])
