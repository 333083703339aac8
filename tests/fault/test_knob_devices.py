"""Knobs, roll-back and watchdog on real devices of the kernel: veth and tap in network namespaces."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import BadInputError, NearmetalError, QuarantinedError, TrialError
from nearmetal.hosts.machine import MachineShell
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.knobs import lasting, rollback, session
from nearmetal.knobs.access import KnobError
from nearmetal.knobs.folder import open_journals
from nearmetal.knobs.guards import rivals
from nearmetal.knobs.hold import KNOB_UNPROVEN, hold
from nearmetal.knobs.identity import Place, Present, claim, present
from nearmetal.knobs.inventory import rows
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.table import FAMILIES, find
from nearmetal.knobs.watchdog import Watchdog, WatchLimits
from nearmetal.paths.path import Endpoint, Endpoints
from undoing import WAYS, check_undone, process_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nearmetal.study.order import Scalar

pytestmark = pytest.mark.netns

NODE = "n0"
V0 = Target(NODE, "v0")
ENDS = Endpoints((Endpoint(NODE, "v0", "10.0.0.1"), Endpoint(NODE, "v1", "10.0.0.2")), "10.0.0.0/24")
_STATE = """ip link set v1 up
cd /sys/class/net && grep -s '' v[01]/mtu v[01]/gro_flush_timeout v[01]/napi_defer_hard_irqs
for device in v0 v1; do ethtool -k $device; done"""
# Waits in the shell for a condition, until pytest times out.
_UNTIL = 'until [ "$("$@")" = "$0" ]; do sleep 0.05; done'


@pytest.fixture(scope="module")
def machine() -> Iterator[NamespaceShell]:
    try:
        shell = NamespaceShell()
    except NearmetalError as error:
        pytest.skip(error.message)
    with shell:
        shell.add_node(NODE)
        veth = ("ip", "link", "add", "v0", "numrxqueues", "2", "type", "veth", "peer", "name", "v1", "numrxqueues", "2")
        shell.run(veth, node=NODE)
        for device in ("v0", "v1"):
            shell.run(["ip", "link", "set", device, "up"], node=NODE)
        yield shell


@pytest.fixture(scope="module")
def found(machine: NamespaceShell) -> str:
    return _state(machine)


@pytest.fixture
def shell(machine: NamespaceShell, found: str) -> Iterator[NamespaceShell]:
    """Yield the machine, and check that every test leaves it as it was."""
    yield machine
    assert _state(machine) == found


def _needs_ethtool(shell: NamespaceShell) -> None:
    if not shell.run(["sh", "-c", "command -v ethtool"], check=False).ok:
        pytest.skip("ethtool is not installed")


def _state(shell: NamespaceShell) -> str:
    return shell.run(["sh", "-c", _STATE], node=NODE, check=False).text


def _until(shell: NamespaceShell, value: str, *argv: str) -> bool:
    return shell.run(["sh", "-c", _UNTIL, value, *argv], node=NODE, check=False, timeout_s=600).ok


def _mtu(shell: NamespaceShell) -> str | None:
    return find("nic.mtu").read(shell, V0).value


SAFE_VALUES = {
    "nic.mtu": "1400",
    "nic.txqueuelen": "500",
    "nic.napi-defer-hard-irqs": "2",
    "nic.gro-flush-timeout-ns": "20000",
    "nic.rps-cpus": "0",
    "nic.rps-flow-cnt": "1024",
    "nic.xps-rxqs": "0",
    "nic.tso": "off",
    "nic.gso": "off",
    "nic.gro": "on",
    "nic.tx-checksum": "off",
    "nic.rx-udp-gro-forwarding": "on",
    "nic.channels-rx": "2",
    "host.tcp_autocorking": "0",
    "host.tcp_rmem": "4096 65536 1048576",
    "host.tcp_congestion_control": "reno",
    "host.tcp_limit_output_bytes": "65536",
}


def test_programs_of_the_machine_are_no_rivals_in_a_namespace_of_a_trial(shell: NamespaceShell, tmp_path: Path) -> None:
    """NetworkManager was said to be running and to have changed perhaps what it cannot see."""
    program = tmp_path / "NetworkManager"
    shutil.copy(shutil.which("sleep") or "", program)
    helper = shell.start([str(program), "600"], node=NODE)
    try:
        assert _until(shell, "NetworkManager", "sh", "-c", "cat /proc/[0-9]*/comm | grep -m 1 -x NetworkManager")
        assert plan(shell, {"nic.mtu": 1400}, [V0]).rivals == ()
        assert [one.program for one in rivals(shell, NODE, ["nic.mtu"])] == ["NetworkManager"]
    finally:
        helper.stop()


def test_features_that_a_word_does_not_bring_are_named(shell: NamespaceShell, tmp_path: Path) -> None:
    """`nic.tso` read back as on without segmentation of TCP: that of AccECN, in Linux 6.18, needs no checksums."""
    _needs_ethtool(shell)
    both = {"nic.tx-checksum": "off", "nic.tso": "on"}
    # An older Linux turns the word off with its features, which is refused.
    with suppress(KnobError), hold(shell, ENDS, both, tmp_path) as held:
        assert "tx-tcp-segmentation" in str(held.facts[f"{KNOB_UNPROVEN}nic.tso"])
    with hold(shell, ENDS, {"nic.tso": "on"}, tmp_path) as held:
        assert f"{KNOB_UNPROVEN}nic.tso" not in held.facts


@pytest.mark.parametrize("name", SAFE_VALUES)
def test_every_knob_of_veth_is_held_and_restored(shell: NamespaceShell, tmp_path: Path, name: str) -> None:
    knob = find(name)
    target = V0 if name.startswith("nic.") else Target(NODE)
    before = knob.read(shell, target)
    if before.value is None:
        pytest.skip(f"{name}: {before.reason}")
    ends = Endpoints(ENDS.ends[:1], ENDS.subnet)
    with hold(shell, ends, {name: SAFE_VALUES[name]}, tmp_path) as held:
        assert knob.read(shell, target).value == SAFE_VALUES[name]
        assert held.facts == {f"knob.{name}": SAFE_VALUES[name], f"knob.was.{name}": before.value}
    assert knob.read(shell, target).value == before.value


@pytest.mark.parametrize("name", ["nic.tso", "nic.sg", "nic.tx-checksum"])
@pytest.mark.parametrize("by", WAYS)
def test_features_that_one_word_sets_together_are_restored_one_by_one(
    shell: NamespaceShell, tmp_path: Path, name: str, by: str
) -> None:
    """They all came on with TSO, while the session ended as if everything were back: igb has mangled IDs off."""
    _needs_ethtool(shell)

    def features() -> str:
        return shell.run(["ethtool", "-k", "v0"], node=NODE).text

    off = ["tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation"]
    shell.run(["ethtool", "-K", "v0", *(word for one in off for word in (one, "off"))], node=NODE)
    before = features()
    assert all(f"{one}: off" in before for one in off)
    begun = session.begin(shell, plan(shell, {name: "off"}, [V0]), tmp_path)
    begun.apply()
    assert features() != before
    assert f"{name} of n0/v0" not in begun.disturbed()
    check_undone(shell, begun, by, features, before, node=NODE)
    shell.run(["ethtool", "-K", "v0", *(word for one in off for word in (one, "on"))], node=NODE)


def test_features_are_told_by_the_word_that_sets_them(shell: NamespaceShell, tmp_path: Path) -> None:
    """A roll-back named `nic.tso-parts`, and `knobs` said that `sh -c` sets it."""
    _needs_ethtool(shell)
    begun = session.begin(shell, plan(shell, {"nic.sg": "off"}, [V0]), tmp_path)
    begun.apply()
    assert begun.disturbed()["nic.gso of n0/v0"].startswith("on -> off")
    assert "-parts of" not in begun.undo_script
    undone, _ = begun.restore()
    assert sorted(undone.put_back) == ["nic.gso of n0/v0", "nic.sg of n0/v0"]
    shown = list(rows(shell, [V0]))
    assert not [row.knob for row in shown if row.knob.endswith("-parts") or row.support.startswith("sh ")]


def test_a_list_of_knobs_asks_for_what_ethtool_prints_once(
    shell: NamespaceShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ethtool -c` of an interface was run 23 times, on far machines by ssh."""
    _needs_ethtool(shell)
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(shell, "run", lambda argv, **how: asked.append(argv) or type(shell).run(shell, argv, **how))
    assert [row for row in rows(shell, [V0]) if row.value is not None]
    of_ethtool = [argv for argv in asked if argv[0] == "ethtool" and argv[1] != "-i"]
    assert len(of_ethtool) == len(set(of_ethtool)) > 3, of_ethtool


@pytest.mark.parametrize("key", ["new", "old"])
def test_features_are_put_back_whatever_their_journal_calls_them(
    shell: NamespaceShell, tmp_path: Path, key: str
) -> None:
    """Journals named features by the script that sets them, which the next version may have changed."""
    _needs_ethtool(shell)
    before = shell.run(["ethtool", "-k", "v0"], node=NODE).text
    intended = plan(shell, {"nic.tso": "off"}, [V0])
    if key == "old":
        intended = replace(intended, cells=tuple(replace(cell, key=cell.access.keys[-1]) for cell in intended.cells))
    begun = session.begin(shell, intended, tmp_path)
    begun.apply()
    begun.journal.close()
    assert ("sh -c" in begun.journal.path.read_text()) == (key == "old")
    assert not rollback.roll_back(shell, begun.journal.path).unproven
    assert shell.run(["ethtool", "-k", "v0"], node=NODE).text == before


@pytest.mark.parametrize("setting", [{"nic.gso": "off"}, {"nic.sg": "on"}])
@pytest.mark.parametrize("by", WAYS)
def test_a_feature_that_waits_for_another_waits_again(
    shell: NamespaceShell, tmp_path: Path, setting: dict[str, Scalar], by: str
) -> None:
    """`off [requested on]` came back as `off`, and stayed so when the other came on."""
    _needs_ethtool(shell)

    def features() -> str:
        return shell.run(["ethtool", "-k", "v0"], node=NODE).text

    shell.run(["ethtool", "-K", "v0", "sg", "off"], node=NODE)
    before = features()
    assert "generic-segmentation-offload: off [requested on]" in before
    begun = session.begin(shell, plan(shell, setting, [V0]), tmp_path)
    begun.apply()
    assert features() != before
    check_undone(shell, begun, by, features, before, node=NODE)
    shell.run(["ethtool", "-K", "v0", "sg", "on"], node=NODE)


@pytest.mark.parametrize("name", ["nic.rx-gro-list", "nic.gro", "nic.tso"])
def test_what_a_device_refuses_is_not_asked_for_any_more(shell: NamespaceShell, tmp_path: Path, name: str) -> None:
    """A macvlan refuses these, but `off [requested on]` remained, and the session ended as if nothing had changed."""
    _needs_ethtool(shell)
    made = shell.run(["ip", "link", "add", "link", "v0", "name", "m2", "type", "macvlan"], node=NODE, check=False)
    if not made.ok:
        pytest.skip(made.complaint())
    before = shell.run(["ethtool", "-k", "m2"], node=NODE).text
    for value in ("on", "off"):
        begun = session.begin(shell, plan(shell, {name: value}, [Target(NODE, "m2")]), tmp_path)
        with suppress(KnobError):
            begun.apply()
        assert not begun.restore()[0].unproven
        assert shell.run(["ethtool", "-k", "m2"], node=NODE).text == before
    shell.run(["ip", "link", "del", "m2"], node=NODE)


@pytest.mark.parametrize("length", ["0", "700"])
def test_a_transmit_queue_may_have_no_length(shell: NamespaceShell, tmp_path: Path, length: str) -> None:
    """`ip link` does not print a length of 0: it could neither be set nor put back, nor could another in its place."""
    shell.run(["ip", "link", "set", "v0", "txqueuelen", length], node=NODE)
    with hold(shell, Endpoints(ENDS.ends[:1], ENDS.subnet), {"nic.txqueuelen": 700 - int(length)}, tmp_path) as held:
        assert held.facts == {"knob.nic.txqueuelen": str(700 - int(length)), "knob.was.nic.txqueuelen": length}
    assert find("nic.txqueuelen").read(shell, V0).value == length
    shell.run(["ip", "link", "set", "v0", "txqueuelen", "1000"], node=NODE)


@pytest.mark.parametrize("by", WAYS)
def test_the_largest_frames_of_what_is_built_on_a_port_are_restored_with_its_own(
    shell: NamespaceShell, tmp_path: Path, by: str
) -> None:
    """The kernel lowers them with the port's and leaves them so; the session ended as if everything were back."""
    for name in ("m0", "m1"):
        made = shell.run(["ip", "link", "add", "link", "v0", "name", name, "type", "macvlan"], node=NODE, check=False)
        if not made.ok:
            pytest.skip(made.complaint())

    def largest() -> list[str | None]:
        return [find("nic.mtu").read(shell, Target(NODE, name)).value for name in ("v0", "m0", "m1")]

    shell.run(["ip", "link", "set", "m1", "mtu", "1450"], node=NODE)
    begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [V0]), tmp_path)
    begun.apply()
    assert largest() == ["1400"] * 3
    assert begun.disturbed() == {"nic.mtu of n0/m0": "1500 -> 1400", "nic.mtu of n0/m1": "1450 -> 1400"}
    check_undone(shell, begun, by, largest, ["1500", "1500", "1450"], node=NODE)
    for name in ("m0", "m1"):
        shell.run(["ip", "link", "del", name], node=NODE)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("mtu", [1400, 9000])
def test_a_bridge_still_follows_the_frames_of_its_ports(
    shell: NamespaceShell, tmp_path: Path, by: str, mtu: int
) -> None:
    """It was given the old largest frame as its own, and followed its ports no more."""

    def largest(name: str) -> str | None:
        return find("nic.mtu").read(shell, Target(NODE, name)).value

    made = shell.run(["ip", "link", "add", "b0", "type", "bridge"], node=NODE, check=False)
    if not made.ok:
        pytest.skip(made.complaint())
    shell.run(["ip", "link", "set", "v0", "master", "b0"], node=NODE)
    begun = session.begin(shell, plan(shell, {"nic.mtu": mtu}, [V0]), tmp_path)
    begun.apply()
    assert largest("b0") == str(mtu)
    check_undone(shell, begun, by, lambda: str(largest("b0")), "1500", node=NODE)
    shell.run(["ip", "link", "set", "v0", "mtu", "1300"], node=NODE)
    assert largest("b0") == "1300"
    shell.run(["ip", "link", "set", "v0", "mtu", "1500"], node=NODE)
    shell.run(["ip", "link", "del", "b0"], node=NODE)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("mtu", [1400, 9000])
def test_a_largest_packet_of_ipv6_is_restored(shell: NamespaceShell, tmp_path: Path, by: str, mtu: int) -> None:
    """The kernel sets it to the largest frame with each change of that, and it stayed so."""
    built = shell.run(["ip", "link", "add", "link", "v0", "name", "m6", "type", "macvlan"], node=NODE, check=False).ok
    files = [f"/proc/sys/net/ipv6/conf/{name}/mtu" for name in ("v0", *["m6"] * built)]

    def packets() -> str:
        return " ".join(shell.read(file, node=NODE).decode().strip() for file in files)

    if built:
        shell.run(["ip", "link", "set", "m6", "up"], node=NODE)
    for number, file in enumerate(files):
        shell.write(file, f"{1300 + number}\n".encode(), node=NODE)
    before = packets()
    begun = session.begin(shell, plan(shell, {"nic.mtu": mtu}, [V0]), tmp_path)
    begun.apply()
    assert packets().startswith(str(mtu))
    check_undone(shell, begun, by, packets, before, node=NODE)
    shell.write(files[0], b"1500\n", node=NODE)
    assert [cell.knob for cell in plan(shell, {"nic.mtu": mtu}, [V0]).cells].count("nic.ipv6-mtu") == built
    if built:
        shell.run(["ip", "link", "del", "m6"], node=NODE)


@pytest.mark.xdist_group("memory")  # there is one of it: two ways at once undid each other's settings
@pytest.mark.parametrize("by", WAYS)
def test_memory_that_is_kept_free_is_as_it_was_after_other_large_pages(tmp_path: Path, by: str) -> None:
    """The kernel raises it for large pages, and does not lower it without them where somebody had set it."""
    free, pages = Path("/proc/sys/vm/min_free_kbytes"), Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if os.geteuid() != 0 or not os.access(free, os.W_OK) or not os.access(pages, os.W_OK):
        pytest.skip("needs root and a machine whose memory is its own")
    found, large = free.read_text(), pages.read_text().partition("[")[2].partition("]")[0]
    other = "always" if large == "never" else "never"
    try:
        free.write_text("33792\n")
        with MachineShell() as shell:
            intended = plan(shell, {"host.transparent-hugepages": other}, [Target("")])
            begun = session.begin(shell, intended, tmp_path)
            begun.apply()
            check_undone(shell, begun, by, free.read_text, "33792\n")
    finally:
        pages.write_text(large)
        free.write_text(found)


@pytest.mark.xdist_group("tcp")  # there is one list of what is allowed
@pytest.mark.parametrize("by", WAYS)
def test_what_users_may_choose_of_tcp_is_as_it_was_after_another_default(tmp_path: Path, by: str) -> None:
    """The kernel lets users choose what was the default once, and the session ended as if everything were back."""
    algorithm, allowed, available = (
        Path(f"/proc/sys/net/ipv4/tcp_{name}congestion_control") for name in ("", "allowed_", "available_")
    )
    barred = set(available.read_text().split()) - set(allowed.read_text().split())
    if os.geteuid() != 0 or not barred:
        pytest.skip("needs root and an algorithm that users may not choose")
    found = [file.read_text() for file in (algorithm, allowed)]
    with MachineShell() as shell:
        wanted: dict[str, Scalar] = {"host.tcp_congestion_control": min(barred)}
        begun = session.begin(shell, plan(shell, wanted, [Target("")]), tmp_path)
        try:
            begun.apply()
        except KnobError as error:
            begun.restore()
            pytest.skip(f"another namespace than the machine's: {error.message}")
        assert min(barred) in allowed.read_text().split()
        check_undone(shell, begun, by, lambda: [file.read_text() for file in (algorithm, allowed)], found)


def test_frames_of_what_is_built_on_a_port_in_another_namespace_are_not_lowered(
    shell: NamespaceShell, tmp_path: Path
) -> None:
    """The kernel lowered them with the port's, and they stayed so; the session ended as if everything were back."""
    port = shell.run(["cat", "/sys/class/net/v0/ifindex"], node=NODE).text.strip()
    for node in ("n8", "n9"):
        shell.add_node(node)
    # In n8 a port has the number of v0, and a macvlan in n9 as well.
    shell.run(["ip", "link", "add", "p8", "index", port, "type", "veth", "peer", "name", "q8"], node="n8")
    for node, below, name in (("n8", "p8", "m8"), (NODE, "v0", "m9")):
        link = ["ip", "link", "add", "link", below, "name", name, "mtu", "1450", "type", "macvlan"]
        made = shell.run(link, node=node, check=False)
        if not made.ok:
            pytest.skip(made.complaint())
    process = process_on(shell, "n9")
    shell.run(["ip", "link", "set", "m8", "netns", process], node="n8")
    assert plan(shell, {"nic.mtu": 1400}, [V0]).cells
    shell.run(["ip", "link", "set", "m9", "netns", process], node=NODE)
    with pytest.raises(KnobError, match=r"nic\.mtu 1400 on n0/v0 would lower .* restore: m9 \(1450\) in /") as refused:
        plan(shell, {"nic.mtu": 1400}, [V0])
    assert "ip link set m9 mtu 1400" in refused.value.hint
    # lsns prints nothing of this namespace now and then, here every other time.
    lsns, asked = tmp_path / "lsns", tmp_path / "asked"
    lsns.write_text(f'#!/bin/sh\nif rm {asked} 2> /dev/null; then exec {shutil.which("lsns")} "$@"; fi\n: > {asked}\n')
    lsns.chmod(0o755)
    silent = ["env", f"PATH={tmp_path}:{os.environ['PATH']}", "sh", "-c", lasting._ELSEWHERE_SCRIPT, "elsewhere", "v0"]
    for _ in ("of the first interface", "of the second"):
        assert [line.split()[1:] for line in shell.run(silent, node=NODE).text.splitlines()] == [["m9", "1450"]]
        asked.touch()
    for harmless in (1450, 1600):
        assert plan(shell, {"nic.mtu": harmless}, [V0]).cells
    for name in ("m8", "m9"):
        shell.run(["ip", "link", "del", name], node="n9")


@pytest.fixture
def queues(shell: NamespaceShell) -> Iterator[list[str]]:
    """Make q0 with two of its four receive queues, steered to processor 0; yield their files."""
    _needs_ethtool(shell)
    veth = ("ip", "link", "add", "q0", "numrxqueues", "4", "type", "veth", "peer", "name", "q1", "numrxqueues", "4")
    shell.run(veth, node=NODE)
    shell.run(["ip", "link", "set", "q0", "up"], node=NODE)
    shell.run(["ethtool", "-L", "q0", "rx", "2"], node=NODE)
    files = [f"/sys/class/net/q0/queues/rx-{number}/rps_cpus" for number in range(4)]
    for file in files[:2]:
        shell.write(file, b"1\n", node=NODE)
    yield files
    shell.run(["ip", "link", "del", "q0"], node=NODE)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize(
    ("setting", "held"),
    [
        ({"nic.channels-rx": 4, "nic.rps-cpus": "1"}, ["2", "2", "2", "2"]),
        ({"nic.channels-rx": 1, "nic.rps-cpus": "1"}, ["2"]),
        ({"nic.channels-rx": 1}, ["1"]),
    ],
)
def test_queues_that_come_and_go_have_the_setting_and_then_what_they_had(
    shell: NamespaceShell, tmp_path: Path, queues: list[str], setting: dict[str, Scalar], held: list[str], by: str
) -> None:
    """New queues were left as they were, a setting of fewer failed, and those that came back were called another's."""

    def steering() -> list[str]:
        found = shell.run(["sh", "-c", 'cat -- "$@" 2> /dev/null', "cat", *queues], node=NODE, check=False)
        return [mask.lstrip("0,") or "0" for mask in found.text.split()]

    begun = session.begin(shell, plan(shell, setting, [Target(NODE, "q0")]), tmp_path)
    begun.apply()
    begun.settle()
    assert steering() == held
    assert begun.facts()["knob.nic.channels-rx"] == str(len(held))
    if "nic.rps-cpus" in setting:
        assert begun.facts()["knob.nic.rps-cpus"] == "1"
    if by == "script":
        finished = shell.run(["sh", "-c", begun.undo_script], node=NODE, check=False)
        assert (finished.exit_status, steering()) == (0, ["1", "1"])
        assert "gone" not in finished.text
    if by == "another process":
        begun.journal.close()
        assert not rollback.roll_back(shell, begun.journal.path).unproven
    else:
        assert not begun.restore()[0].unproven
    assert steering() == ["1", "1"]


@pytest.mark.parametrize("by", WAYS)
def test_what_else_leads_to_queues_comes_back_with_them(shell: NamespaceShell, tmp_path: Path, by: str) -> None:
    """Flows followed their programs no more, and answers left by other queues."""
    _needs_ethtool(shell)
    made = "numrxqueues 3 numtxqueues 3 type veth peer name s1 numrxqueues 3 numtxqueues 3"
    shell.run(["ip", "link", "add", "s0", *made.split()], node=NODE)
    for number in range(3):
        shell.write(f"/sys/class/net/s0/queues/rx-{number}/rps_flow_cnt", f"{1024 << number}\n".encode(), node=NODE)
        shell.write(f"/sys/class/net/s0/queues/tx-{number}/xps_rxqs", f"{number + 1}\n".encode(), node=NODE)

    def leading() -> str:
        return shell.run(["sh", "-c", "cd /sys/class/net/s0/queues && grep -s '' */[rx]ps_*"], node=NODE).text

    before = leading()
    intended = plan(shell, {"nic.channels-rx": 1, "nic.channels-tx": 1}, [Target(NODE, "s0")])
    begun = session.begin(shell, intended, tmp_path)
    begun.apply()
    assert "rx-1" not in leading()
    check_undone(shell, begun, by, leading, before, node=NODE)
    shell.run(["ip", "link", "del", "s0"], node=NODE)


def test_frames_too_small_for_ipv6_are_refused_where_they_would_cost_an_address(
    shell: NamespaceShell, tmp_path: Path
) -> None:
    """The kernel removed the address, and the session ended as if everything were back."""
    shell.run(["ip", "-6", "address", "add", "fd00::5/64", "dev", "v0", "nodad"], node=NODE)
    with pytest.raises(KnobError, match=r"on n0/v0 would remove fd00::5/64 on v0, .*1280"):
        plan(shell, {"nic.mtu": 1279}, [V0])
    for mtu in (1280, 1279):
        ends = Endpoints(ENDS.ends[mtu < 1280 :][:1], ENDS.subnet)  # v1 has no address but the link's
        with hold(shell, ends, {"nic.mtu": mtu}, tmp_path) as held:
            assert held.facts["knob.nic.mtu"] == str(mtu)
    assert "fd00::5/64" in shell.run(["ip", "-6", "address", "show", "dev", "v0"], node=NODE).text
    shell.run(["ip", "-6", "address", "del", "fd00::5/64", "dev", "v0"], node=NODE)


def test_what_frames_cost_ipv6_for_good_is_refused(shell: NamespaceShell) -> None:
    """Routes lost their own largest packets, and what is built on a port its addresses and routes."""
    script = """ip -6 route add fd00:6::/64 dev v0 mtu 1400 && ip -6 route add fd00:7::/64 dev v0 mtu lock 1401 &&
    ip link add link v0 name m7 type macvlan && ip link set m7 up && ip -6 address add fd00:8::1/64 dev m7 nodad"""
    made = shell.run(["sh", "-c", script], node=NODE, check=False)
    if not made.ok:
        pytest.skip(made.complaint())
    kept = "would change mtu 1400 of the route to fd00:6::/64 on v0, which no"
    for mtu, said in (
        (1400, kept),
        (1300, kept),
        (
            1200,
            "would remove the route to fd00:6::/64 on v0, the route to fd00:7::/64 on v0, fd00:8::1/64 on m7, which",
        ),
    ):
        with pytest.raises(KnobError, match=said):
            plan(shell, {"nic.mtu": mtu}, [V0])
    for mtu in (1401, 9000):
        assert plan(shell, {"nic.mtu": mtu}, [V0]).cells
    shell.run(["sh", "-c", "ip link del m7; ip -6 route del fd00:6::/64; ip -6 route del fd00:7::/64"], node=NODE)


def test_settings_of_ipv6_that_small_frames_would_reset_are_named() -> None:
    """An interface that was to take no advertisements of routers took them after the session."""

    def refusal(shell: MachineShell) -> str:
        shell.run(["ip", "link", "add", "v8", "type", "veth", "peer", "name", "v9"])
        lasting.refuse_loss_of_ipv6(shell, Target("", "v8"), 1200)
        shell.write("/proc/sys/net/ipv6/conf/v8/accept_ra", b"0\n")
        with pytest.raises(KnobError) as refused:
            lasting.refuse_loss_of_ipv6(shell, Target("", "v8"), 1200)
        return refused.value.message

    said = _said_in_a_new_namespace(refusal)
    if not said:
        pytest.skip("making a network namespace needs root")
    assert said.startswith("nic.mtu 1200 on v8 would remove accept_ra = 0 on v8, which no roll-back could restore")


def test_tap_rounds_as_known(shell: NamespaceShell, tmp_path: Path) -> None:
    _needs_ethtool(shell)
    made = shell.run(["ip", "tuntap", "add", "t0", "mode", "tap"], node=NODE, check=False)
    if not made.ok:
        pytest.skip(made.complaint())
    ends = Endpoints((Endpoint(NODE, "t0", "10.0.0.3"),), ENDS.subnet)
    with hold(shell, ends, {"nic.rx-frames": 132}, tmp_path) as held:
        assert held.facts == {"knob.nic.rx-frames": "64", "knob.was.nic.rx-frames": "0"}
    assert find("nic.rx-frames").read(shell, Target(NODE, "t0")).value == "0"
    shell.run(["ip", "link", "del", "t0"], node=NODE)


def test_the_drivers_error_reaches_the_user(shell: NamespaceShell, tmp_path: Path) -> None:
    _needs_ethtool(shell)
    with pytest.raises(KnobError, match="Operation not supported"), hold(shell, ENDS, {"nic.rx-usecs": 0}, tmp_path):
        pytest.fail("veth has no coalescing")
    with pytest.raises(BadInputError, match="takes 0 to 2"), hold(shell, ENDS, {"nic.channels-rx": 9}, tmp_path):
        pytest.fail("above the maximum")


def test_every_knob_is_read_or_gives_the_reason(shell: NamespaceShell) -> None:
    for knob in (knob for family in FAMILIES.values() for knob in family):
        reading = knob.read(shell, V0)
        assert (reading.value is None) == bool(reading.reason), knob.name


def test_undo_script_has_the_same_effect_as_undo(shell: NamespaceShell, tmp_path: Path) -> None:
    intended = plan(shell, {"nic.mtu": 1400, "nic.napi-defer-hard-irqs": 1}, [V0])
    begun = session.begin(shell, intended, tmp_path)
    begun.apply()
    shell.run(["ip", "link", "set", "v0", "txqueuelen", "1000"], node=NODE)
    finished = shell.run(["sh", "-c", begun.undo_script], node=NODE)
    assert "put back: nic.mtu of n0/v0 to 1500" in finished.text
    assert shell.run(["sh", "-c", begun.undo_script], node=NODE).text == ""
    begun.restore()


def test_undo_script_leaves_values_set_by_another_program(shell: NamespaceShell, tmp_path: Path) -> None:
    begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [V0]), tmp_path)
    begun.apply()
    shell.run(["ip", "link", "set", "v0", "mtu", "1300"], node=NODE)
    finished = shell.run(["sh", "-c", begun.undo_script], node=NODE, check=False)
    assert finished.exit_status == 4
    assert "left, another program set it: nic.mtu of n0/v0, now 1300" in finished.text
    assert _mtu(shell) == "1300"
    shell.run(["ip", "link", "set", "v0", "mtu", "1500"], node=NODE)
    begun.restore()


@pytest.fixture
def renamed(shell: NamespaceShell) -> Iterator[Callable[[str], None]]:
    """Make r0 and s0, and yield what happens to them; s0 has the largest frame that the session gives to r0."""

    def script(text: str) -> None:
        shell.run(["sh", "-c", text], node=NODE, check=False)

    script("for d in r s; do ip link add ${d}0 type veth peer name ${d}1; done; ip link set s0 mtu 1400")
    script("ip link add link r0 name m7 type macvlan")
    yield script
    script("for d in r1 s1 x0 m7; do ip link del $d; done")


RENAMED = "that interface is now called x0"


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("ip link set r0 name x0", RENAMED),
        ("ip link set r0 name x0; ip link set s0 name r0", RENAMED),
        ("ip link del r1; ip link add r0 mtu 1400 type veth peer name r1", "nic.mtu of n0/r0, which was 1500"),
        ("ip link del m7", "nic.mtu of n0/m7, which was 1500"),
    ],
    ids=["renamed", "names exchanged", "made anew", "macvlan gone"],
)
def test_a_device_that_has_the_name_now_is_left_alone(
    shell: NamespaceShell, tmp_path: Path, renamed: Callable[[str], None], deed: str, told: str, by: str
) -> None:
    """The other one was given the old values, and the session ended as if everything were back."""
    if not (shell.run(["ip", "link", "show", "m7"], node=NODE, check=False).ok or "m7" not in deed):
        pytest.skip("no macvlan here")
    begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [Target(NODE, "r0")]), tmp_path)
    begun.apply()
    renamed(deed)
    links = ["sh", "-c", "ip -o link | grep ' [rsx][01]@'"]
    before = shell.run(links, node=NODE).text
    if by == "script":
        finished = shell.run(["sh", "-c", begun.undo_script], node=NODE, check=False)
        assert finished.exit_status == 4
        assert f"gone: nic.mtu of n0/{'m7' if 'm7' in deed else 'r0'}" in finished.text
    try:
        if by == "another process":
            begun.journal.close()
            undone = rollback.roll_back(shell, begun.journal.path)
        else:
            undone, _ = begun.restore()
    except QuarantinedError as error:
        found = error.message
    else:
        found = "; ".join(undone.unproven)
    assert told in found
    if "m7" not in deed:
        assert shell.run(links, node=NODE).text == before


@pytest.mark.parametrize("by", ["undo", "another process"])
def test_a_device_in_another_namespace_keeps_the_journal_open_until_it_is_back(
    shell: NamespaceShell, tmp_path: Path, by: str
) -> None:
    """It was called gone, and the journal ended: what was set stayed, and nobody knew what it had been before."""
    here, there = f"{by[0]}6", f"{by[0]}7"
    for node in (here, there):
        shell.add_node(node)

    def link(node: str, *words: str) -> str:
        return shell.run(["ip", "link", *words], node=node).text

    link(here, "add", "t0", "index", "106", "type", "veth", "peer", "name", "t1")
    # A neighbour of the same driver, but not of the same address, was always there.
    link(there, "add", "other", "type", "veth", "peer", "name", "other1")
    begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [Target(here, "t0")]), tmp_path)
    begun.apply()
    link(here, "set", "t0", "netns", process_on(shell, there), "name", "eth9")
    if by == "another process":
        begun.journal.close()
    with pytest.raises(QuarantinedError) as stuck:
        begun.restore() if by == "undo" else rollback.roll_back(shell, begun.journal.path)
    told = f"nic.mtu of {here}/t0, which was 1500: that interface is eth9 in the network namespace /proc/"
    assert told in stuck.value.message
    assert "mtu 1400" in link(there, "show", "eth9"), "it is for others to use there"
    assert open_journals(tmp_path) == [begun.journal.path]
    link(there, "set", "eth9", "netns", process_on(shell, here), "name", "t0")
    assert rollback.roll_back(shell, begun.journal.path).put_back == (f"nic.mtu of {here}/t0",)
    assert "mtu 1500" in link(here, "show", "t0")
    assert open_journals(tmp_path) == []


def test_a_device_that_is_gone_is_not_taken_for_one_of_its_address_elsewhere(
    shell: NamespaceShell, tmp_path: Path
) -> None:
    _needs_ethtool(shell)
    shell.add_node("n5")
    veth = ["ip", "link", "add", "t0", "type", "veth", "peer", "name", "t1"]
    shell.run(veth, node=NODE)
    address = shell.run(["cat", "/sys/class/net/t0/address"], node=NODE).text.strip()
    shell.run(["ip", "link", "add", "twin", "address", address, "type", "bridge"], node="n5")
    begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [Target(NODE, "t0")]), tmp_path)
    begun.apply()
    shell.run(["ip", "link", "del", "t0"], node=NODE)
    assert begun.restore()[0].gone == ("nic.mtu of n0/t0, which was 1500",)


def test_another_name_of_an_interface_is_refused_with_its_own(shell: NamespaceShell) -> None:
    """ethtool and ip take such a name, and no file has it."""
    shell.run(["ip", "link", "property", "add", "dev", "v0", "altname", "long0"], node=NODE)
    with pytest.raises(NearmetalError, match="n0/long0 is another name of the interface v0") as refused:
        plan(shell, {"nic.mtu": 1400}, [Target(NODE, "long0")])
    assert refused.value.hint == "name it v0"
    shell.run(["ip", "link", "property", "del", "dev", "v0", "altname", "long0"], node=NODE)


def _said_in_a_new_namespace(deed: Callable[[MachineShell], str]) -> str:
    """Return what a process says in a network namespace that it makes, empty where it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            if libc.unshare(_NEW_NETWORK) == 0:
                with MachineShell() as shell:
                    os.write(theirs, deed(shell).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as output:
        said = output.read()
    os.waitpid(child, 0)
    return said


_NEW_NETWORK = 0x40000000


def _refusal(shell: MachineShell) -> str:
    shell.run(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "v1"])
    with pytest.raises(NearmetalError) as refused:
        plan(shell, {"nic.mtu": 1400}, [Target("", "eth0")])
    return refused.value.message


@pytest.mark.skipif(os.geteuid() != 0, reason="making a network namespace needs root")
def test_interfaces_of_another_namespace_below_sys_are_not_touched() -> None:
    """Values below /sys were those of the other namespace's interface of that name, and were set there."""
    assert "/sys shows the interfaces of another network namespace than that of eth0" in _said_in_a_new_namespace(
        _refusal
    )


class TestWatchdog:
    @pytest.mark.parametrize(
        ("guard", "because"),
        [
            (WatchLimits(deadline_s=1, look_ms=50), "the deadline has passed"),
            (WatchLimits(links=("v0",), look_ms=50, patience=2), "the link of v0 is lost"),
            (WatchLimits(storm_per_s=20, look_ms=50), "interrupts came in"),
            (WatchLimits(probe="10.99.99.99", look_ms=50, patience=1), "10.99.99.99 does not answer"),
        ],
        ids=["deadline", "link", "storm", "probe"],
    )
    def test_acts_and_the_trial_does_not_count(
        self, shell: NamespaceShell, tmp_path: Path, guard: WatchLimits, because: str
    ) -> None:
        def body() -> None:
            with hold(shell, ENDS, {"nic.mtu": 1400}, tmp_path, guard=guard):
                if guard.links:
                    shell.run(["ip", "link", "set", "v1", "down"], node=NODE)
                assert _until(shell, "1500", "cat", "/sys/class/net/v0/mtu")

        with pytest.raises(TrialError, match=because):
            body()

    def test_nothing_is_used_that_was_set_after_it_acted(self, shell: NamespaceShell, tmp_path: Path) -> None:
        """On a busy machine it acted before a value was written, which then stayed with nobody to put it back."""
        at_once = WatchLimits(deadline_s=0, look_ms=50)
        begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [V0]), tmp_path, guard=at_once)
        assert _until(shell, "", "sh", "-c", f"cat /proc/{begun.watchdogs[0].process}/cmdline 2>/dev/null")
        with pytest.raises(TrialError, match="acted, or is gone, before the setting was complete"):
            begun.apply()
        assert "the deadline has passed" in begun.restore()[1]

    def test_does_not_watch_while_it_restores(self, shell: NamespaceShell, tmp_path: Path) -> None:
        go, began = tmp_path / "go", tmp_path / "began"
        slow = f"touch {began}; until [ -e {go} ]; do sleep 0.05; done"
        dog = Watchdog.arm(shell, NODE, WatchLimits(deadline_s=0, look_ms=50), slow, str(tmp_path / "report"))
        assert _until(shell, str(began), "ls", str(began))
        assert not dog.alive()
        go.touch()
        assert "undo ended with status 0" in dog.disarm()

    def test_is_silent_without_faults(self, shell: NamespaceShell, tmp_path: Path) -> None:
        with hold(shell, ENDS, {"nic.mtu": 1400}, tmp_path, guard=WatchLimits(links=("v0",), look_ms=50)):
            assert _mtu(shell) == "1400"
        assert _mtu(shell) == "1500"

    def test_ends_when_disarmed(self, shell: NamespaceShell, tmp_path: Path) -> None:
        dog = Watchdog.arm(shell, NODE, WatchLimits(look_ms=50), "exit 0", str(tmp_path / "report"))
        assert dog.alive()
        assert dog.disarm() == ""
        # An empty command line is that of a process that has ended, whether or not its parent has noticed.
        assert _until(shell, "", "sh", "-c", f"cat /proc/{dog.process}/cmdline 2>/dev/null")

    def test_restores_even_if_it_cannot_write_its_report(self, shell: NamespaceShell, tmp_path: Path) -> None:
        begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [V0]), tmp_path)
        begun.apply()
        for place in (tmp_path / "moved away" / "report", Path("/proc/nowhere"), tmp_path):
            shell.run(["ip", "link", "set", "v0", "mtu", "1400"], node=NODE)
            Watchdog.arm(shell, NODE, WatchLimits(deadline_s=0, look_ms=50), begun.undo_script, str(place))
            assert _until(shell, "1500", "cat", "/sys/class/net/v0/mtu"), place
        begun.restore()

    def test_accepts_an_undo_script_longer_than_an_argument_can_be(self, shell: NamespaceShell, tmp_path: Path) -> None:
        # Linux allows 128 KiB per argument; 150 interrupts with an affinity each need more.
        begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [V0]), tmp_path)
        begun.apply()
        long = f": {'x' * 60 * 5000}\n{begun.undo_script}"
        report = tmp_path / "report"
        Watchdog.arm(shell, NODE, WatchLimits(deadline_s=0, look_ms=50), long, str(report))
        assert _until(shell, "undo ended with status 0", "tail", "-n", "1", str(report))
        assert _mtu(shell) == "1500"
        begun.restore()

    def test_ends_only_after_restoring_everything(self, shell: NamespaceShell, tmp_path: Path) -> None:
        slow = f"touch {tmp_path}/began; sleep 0.3; touch {tmp_path}/done"
        dog = Watchdog.arm(shell, NODE, WatchLimits(deadline_s=0, look_ms=50), slow, str(tmp_path / "report"))
        assert _until(shell, str(tmp_path / "began"), "ls", str(tmp_path / "began"))
        assert "undo ended with status 0" in dog.disarm()
        assert (tmp_path / "done").exists()

    def test_hears_sigterm_as_soon_as_it_is_armed(self, shell: NamespaceShell, tmp_path: Path) -> None:
        """It ignored the signal until it had read its undo script, or died of it: nothing was put back."""
        for number in range(20):
            report = tmp_path / str(number)
            dog = Watchdog.arm(shell, NODE, WatchLimits(look_ms=50), ": " + "x" * 50_000, str(report))
            status = shell.read(f"/proc/{dog.process}/status", node=NODE).decode()
            (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
            assert int(caught, 16) >> (signal.SIGTERM - 1) & 1, number
            dog.disarm()

    def test_restores_on_sigterm_from_another_process(self, shell: NamespaceShell, tmp_path: Path) -> None:
        # A cancelled job or a shutdown sends SIGTERM to it and to the process that it guards.
        begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [V0]), tmp_path, guard=WatchLimits(look_ms=50))
        begun.apply()
        shell.run(["kill", str(begun.watchdogs[0].process)], node=NODE)
        assert _until(shell, "1500", "cat", "/sys/class/net/v0/mtu")
        assert "restored because it was told to end" in begun.restore()[1]

    def test_restores_when_its_parent_is_killed(self, shell: NamespaceShell, tmp_path: Path) -> None:
        _needs_ethtool(shell)
        orphan = Path(__file__).parents[1] / "knob_orphan.py"
        source = str(Path(session.__file__).parents[2])
        argv = [sys.executable, str(orphan), "v0", str(tmp_path)]
        ended = shell.run(argv, node=NODE, env={"PYTHONPATH": source}, check=False)
        assert ended.exit_status in {-9, 137}, ended.complaint()
        (journal,) = open_journals(tmp_path)
        report = f"{journal}.0.watchdog"
        assert _until(shell, "undo ended with status 0", "tail", "-n", "1", report)
        assert "is gone" in Path(report).read_text()
        assert _mtu(shell) == "1500"


def test_roll_back_in_another_process_on_real_devices(shell: NamespaceShell, tmp_path: Path) -> None:
    begun = session.begin(shell, plan(shell, {"nic.mtu": 1400, "host.tcp_autocorking": 0}, [V0]), tmp_path)
    begun.apply()
    begun.journal.close()
    undone = rollback.roll_back(shell, begun.journal.path)
    assert undone.put_back == ("nic.mtu of n0/v0", "host.tcp_autocorking of n0")
    assert not undone.foreign + undone.gone + undone.stuck


def test_a_namespace_with_a_reused_number_is_not_mistaken_for_the_old_one() -> None:
    """The kernel reuses the numbers of namespaces; settings that one left changed do not belong to the next."""
    known: dict[str, str] = {}
    for _ in range(1000):
        network = _said_in_a_new_namespace(lambda shell: present(shell).place.network)
        if not network:
            pytest.skip("making a network namespace needs root")
        number = network.partition(" ")[0]
        if number in known:
            break
        known[number] = network
    else:
        pytest.fail("the kernel reused no number")
    then, now = (Place("m", "h", "b", one, "mnt:[1]") for one in (known[number], network))
    assert claim(then, Present(now, 1.0), 0.0)[0] == "elsewhere"
    assert claim(now, Present(now, 1.0), 0.0)[0] == "mine"
