"""Real namespaces of this machine: nodes, paths, and nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nearmetal import process
from nearmetal.errors import NearmetalError, TrialError, UnavailableError
from nearmetal.facts import counters, proof
from nearmetal.hosts import namespaces
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.paths import links
from nearmetal.paths.table import PATHS
from nearmetal.process import run as run_process
from nearmetal.study.order import PathOrder
from tests.hanging import Hanging

pytestmark = pytest.mark.netns


def nodes(shell: NamespaceShell, count: int) -> list[str]:
    names = [f"n{i}" for i in range(count)]
    for name in names:
        shell.add_node(name)
    return names


def test_a_node_has_its_own_name_network_and_shared_memory(shell: NamespaceShell) -> None:
    nodes(shell, 2)
    assert shell.run(["hostname"], node="n1").text == "n1\n"
    assert "eth" not in shell.run(["ip", "-br", "link"], node="n1").text
    shell.write("/dev/shm/mine", b"1", node="n0")
    with pytest.raises(NearmetalError, match="cannot read"):
        shell.read("/dev/shm/mine", node="n1")
    assert not Path("/dev/shm/mine").exists()


@pytest.mark.parametrize(("most", "held", "message"), [(64, 60, "ulimit -n"), (2048, 1100, "")])
def test_many_open_files_fail_only_at_their_limit(most: int, held: int, message: str) -> None:
    """select(2) accepts no descriptor above 1023, and a node has four."""
    script = """import os, resource, sys
from nearmetal.errors import UnavailableError
from nearmetal.hosts import namespaces
from nearmetal.hosts.namespaces import NamespaceShell
most, held = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
kept = [os.dup(0) for _ in range(held - 10)]
try:
    with NamespaceShell() as shell:
        shell.add_node("n0")
        print(shell.run(["hostname"], node="n0").text)
except UnavailableError as error:
    print(error.render())
"""
    ran = run_process([sys.executable, "-c", script, str(most), str(held)], timeout_s=600)
    assert (message or "n0") in ran.text, ran.complaint()


def test_the_agent_replaces_ssh(shell: NamespaceShell) -> None:
    nodes(shell, 2)
    output = shell.run([shell.agent, "-x", "n1", "hostname; echo", "'a  b'"], node="n0").text
    assert output == "n1\na  b\n"
    assert not shell.run([shell.agent, "n7", "true"], node="n0", check=False).ok


def test_names_with_special_characters_are_refused(shell: NamespaceShell) -> None:
    for name in ("", "a b", "$(id)", "../x", "N1", "x" * 40):
        with pytest.raises(TrialError, match="cannot be the name"):
            shell.add_node(name)


@pytest.mark.parametrize("kind", [kind for kind in PATHS if PATHS[kind].kind in ("veth", "bridge", "macvlan", "tap")])
def test_traffic_takes_the_path_and_no_other(shell: NamespaceShell, kind: str) -> None:
    names = nodes(shell, 2)
    try:
        ends = PATHS[kind].up(shell, PathOrder(kind, kind), names)
    except UnavailableError as error:
        pytest.skip(error.render())
    before = counters.read_counters(shell, names)
    shell.run(["ping", "-q", "-c", "50", "-i", "0.002", ends.ends[1].address], node="n0")
    counted = counters.difference(before, counters.read_counters(shell, names))
    evidence = proof.of_counters(counted, ends)
    proof.check(evidence, ends, least_packets=100)
    assert set(evidence.moved_packets) == {"n0.eth0", "n1.eth0"}
    assert sum(evidence.stray_packets.values()) == 0
    PATHS[kind].down(shell, ends)


@pytest.mark.parametrize("kind", ["veth", "bridge", "macvlan", "tap"])
def test_large_frames_cross_every_path_once_its_ends_take_them(shell: NamespaceShell, kind: str) -> None:
    ends = PATHS[kind].up(shell, PathOrder(kind, kind), nodes(shell, 2))
    for end in ends.ends:
        assert shell.read(f"/sys/class/net/{end.interface}/mtu", node=end.node) == b"1500\n"
        shell.run(["ip", "link", "set", "dev", end.interface, "mtu", "9000"], node=end.node)
    links.refuse_narrow(shell, ends)


def test_a_bridge_that_drops_large_frames_is_named_before_the_launch(shell: NamespaceShell) -> None:
    ends = PATHS["bridge"].up(shell, PathOrder("bridge", "bridge"), nodes(shell, 2))
    shell.run(["ip", "link", "set", "dev", "nm-p1", "mtu", "1500"])
    links.refuse_narrow(shell, ends)
    for end in ends.ends:
        shell.run(["ip", "link", "set", "dev", end.interface, "mtu", "9000"], node=end.node)
    with pytest.raises(TrialError, match="frames of 9000 bytes, the MTU of eth0 on n0, do not reach n1; short ones do"):
        links.refuse_narrow(shell, ends)


@pytest.mark.parametrize("kind", ["bridge", "macvlan"])
def test_switched_paths_join_many_nodes(shell: NamespaceShell, kind: str) -> None:
    names = nodes(shell, 4)
    ends = PATHS[kind].up(shell, PathOrder(kind, kind), names)
    shell.run(["ping", "-q", "-c", "2", "-i", "0.01", ends.ends[2].address], node="n3")


@pytest.mark.parametrize("kind", ["veth", "tap"])
def test_a_cable_has_two_ends(shell: NamespaceShell, kind: str) -> None:
    with pytest.raises(TrialError, match="exactly 2 nodes, not 3"):
        PATHS[kind].up(shell, PathOrder(kind, kind), nodes(shell, 3))


def test_traffic_outside_the_path_is_not_accepted(shell: NamespaceShell) -> None:
    names = nodes(shell, 2)
    ends = PATHS["veth"].up(shell, PathOrder("veth", "veth"), names)
    before = counters.read_counters(shell, names)
    shell.run(["ping", "-q", "-c", "3", "-i", "0.01", "127.0.0.1"], node="n0")
    counted = counters.difference(before, counters.read_counters(shell, names))
    with pytest.raises(TrialError, match="did not take the path"):
        proof.check(proof.of_counters(counted, ends), ends, least_packets=100)


def test_a_path_whose_peer_is_unplugged_never_comes_up(shell: NamespaceShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.paths.links.LINK_TIMEOUT_S", 0.5)
    names = nodes(shell, 2)
    shell.run(["ip", "link", "add", "nm-v0", "type", "veth", "peer", "name", "nm-v1"])
    shell.run(["ip", "link", "add", "nm-v2", "type", "veth", "peer", "name", "nm-v3"])
    from nearmetal.paths import links

    with pytest.raises(TrialError, match="did not answer") as caught:
        links.configure(shell, names, ["nm-v0", "nm-v3"])
    assert caught.value.hint


def test_a_forbidden_ping_is_not_reported_as_a_link_that_is_down(shell: NamespaceShell) -> None:
    """Dropping the capability from the bounding set removes it from ping too, as in a container without NET_RAW."""
    names = nodes(shell, 2)
    entered = shell._enter

    def without(node: str = "") -> list[str]:
        return [*entered(node), *(("setpriv", "--bounding-set", "-net_raw") if node == "n0" else ())]

    shell._enter = without  # type: ignore[method-assign]
    with pytest.raises(TrialError, match=r"(?s)n0 cannot ping n1: ping .*not permitted") as caught:
        PATHS["veth"].up(shell, PathOrder("veth", "veth"), names)
    assert "NET_RAW" in caught.value.hint


def test_a_command_on_a_node_starts_no_second_program_to_get_there(shell: NamespaceShell) -> None:
    nodes(shell, 1)
    assert shell._enter("n0").count("nsenter") == 1
    assert shell.run(["hostname"], node="n0").text == "n0\n"


@pytest.mark.parametrize("user", [0, 1000])
def test_files_of_a_node_are_its_own_and_root_starts_no_program_for_them(
    user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the programs of a short trial were started to read counters. Only root may move a thread there."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    monkeypatch.setattr(os, "geteuid", lambda: user)  # a cradle in a user namespace needs more steps to get there
    setting, started, threads = "/proc/sys/net/ipv4/conf/lo/tag", [], set(threading.enumerate())
    with NamespaceShell() as shell:
        nodes(shell, 2)
        spawn = process.spawn
        monkeypatch.setattr(process, "spawn", lambda *given, **how: started.append(given) or spawn(*given, **how))
        shell.write(setting, b"7\n", node="n0")
        assert bool(started) == bool(user)
        read = [shell.read(setting, node=name) for name in ("n0", "n1", "")]
        found = shell.read_all(["/proc/net/dev", "/proc/self/status", "/none", setting], node="n0")
        assert set(found) == {"/proc/net/dev", "/proc/self/status", setting}
        assert b"Cpus_allowed_list" in found["/proc/self/status"]
        assert [line.split()[0] for line in found["/proc/net/dev"].splitlines()[2:]] == [b"lo:"]
        for refused in (lambda: shell.read("/none", node="n1"), lambda: shell.write("/proc/none", b"1", node="n1")):
            with pytest.raises(NearmetalError, match=r"cannot (read /none|write /proc/none) on n1: .*No such file"):
                refused()
        with pytest.raises(TrialError, match="there is no node 'n2'"):
            shell.read(setting, node="n2")
    assert read == [b"7\n", b"0\n", b"0\n"]
    assert (len(started) > 6) == bool(user)
    assert set(threading.enumerate()) <= threads, "they would keep the namespaces"


def test_a_timeout_leaves_no_process(shell: NamespaceShell, tmp_path: Path) -> None:
    nodes(shell, 1)
    hanging = Hanging(tmp_path)
    assert shell.run(hanging.argv, node="n0", timeout_s=0.3, check=False).timed_out
    shell.close()
    assert not hanging.running()


def test_sigkill_leaves_nothing(tmp_path: Path) -> None:
    hanging = Hanging(tmp_path)
    program = (
        "import sys,time\nfrom nearmetal.hosts.namespaces import NamespaceShell\n"
        f"s = NamespaceShell(); s.add_node('n0'); s.start({hanging.argv}, node='n0')\n"
        "print('up', flush=True); time.sleep(6000)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    if child.stdout.readline() != b"up\n":
        pytest.skip("namespaces cannot be made here")
    while not hanging.running():
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    while hanging.running():  # until the kernel has ended it
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "limit_s", "said"),
    [
        ("exec sleep 100000", 0.001, "sh did not answer within 0.001 s"),
        ("exit 1", 60.0, "sh ended without a word"),
        ("echo not permitted >&2", 60.0, "not permitted"),
    ],
)
def test_namespaces_that_do_not_come_up_have_their_reason(
    script: str, limit_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "_ANCHOR_TIMEOUT_S", limit_s)
    with pytest.raises(UnavailableError, match=f"does not allow nearmetal to create namespaces: {said}\n"):
        namespaces._Anchor.start(["sh", "-c", script])
