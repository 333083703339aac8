"""Far machines that refuse, hang and vanish."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import far_machines
import nearmetal
from nearmetal.cli.main import run
from nearmetal.cli.reach import open_as_before
from nearmetal.cli.rollback import put_everything_back, settle_far
from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.hosts.far import machine
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.shell import MachinesShell, Memory
from nearmetal.hosts.far.stream import LostError, open_program
from nearmetal.hosts.host import Site
from nearmetal.knobs import rollback, session
from nearmetal.knobs.folder import host_lock, journal_folder, open_journals, survey
from nearmetal.knobs.hold import hold
from nearmetal.knobs.journal import EndState, read_state
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.rollback import UnfinishedError
from nearmetal.knobs.watchdog import WatchLimits
from nearmetal.paths import links
from nearmetal.paths.table import find_path
from nearmetal.run.guests import open_host
from nearmetal.run.preflight import rehearse
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.study.spec import HostSpec, NodeSpec, parse_study
from nearmetal.workloads.mpi.far import find_there
from nearmetal.workloads.mpi.openmpi import OPENMPI
from tests.hanging import Hanging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.host import Shell, Way
    from nearmetal.hosts.ssh.connect import SshAddress
    from nearmetal.study.order import Scalar

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

DECLARED = Order(
    0,
    0,
    PathOrder("p", "declared"),
    WorkloadOrder("l", "engine", {"operation": "latency", "sizes": [8], "iterations": 30}, progress="blocking"),
    timeout_s=600.0,
)
PATIENCE_S = 600.0
STUDY = """
format = 1
name = "far"
baseline = "p"
[host]
kind = "ssh"
[[host.node]]
name = "m0"
[[path]]
name = "p"
kind = "declared"
[[workload]]
name = "latency"
sizes = [8]
"""


@pytest.fixture
def far(tmp_path: Path) -> Iterator[far_machines.Far]:
    with far_machines.two_machines(tmp_path) as made:
        yield made


def eventually(happened: object, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_ends_in_different_subnets_are_measured_where_the_path_is_said_to_be_routed(far: far_machines.Far) -> None:
    """As pods of different nodes: each has an address of its own network, and the other's is reached by a route."""
    own = {node: far.inside.run(["ip", "-4", "-o", "addr", "show", "eth0"], node=node).text for node in ("n0", "n1")}
    addresses = {node: text.split()[3].partition("/")[0] for node, text in own.items()}
    for node, other in (("n0", "n1"), ("n1", "n0")):
        far.inside.run(["ip", "-4", "addr", "flush", "dev", "eth0"], node=node)
        far.inside.run(["ip", "addr", "add", f"{addresses[node]}/32", "dev", "eth0"], node=node)
        far.inside.run(["ip", "route", "add", addresses[other], "dev", "eth0", "src", addresses[node]], node=node)
    outcome = far.host.carry_out(DECLARED, carry_out)
    assert f"the interfaces of path 'p' are in 2 networks: {addresses['n0']}/32, {addresses['n1']}/32" in outcome.reason
    assert "`routed = true`" in outcome.hint
    routed = dataclasses.replace(DECLARED, path=PathOrder("p", "declared", {"routed": True}))
    outcome = far.host.carry_out(routed, carry_out)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    wrong = dataclasses.replace(DECLARED, path=PathOrder("p", "declared", {"routed": "yes"}))
    assert "option 'routed' must be true or false, not 'yes'" in far.host.carry_out(wrong, carry_out).reason


def test_the_port_of_a_bridge_may_carry_what_the_bridge_carries(far: far_machines.Far) -> None:
    """As those of a bond or below a VLAN do: its packets are no other route."""
    words = "link add br0 type bridge", "link set br0 up", "addr flush dev eth0", "link set eth0 master br0"
    for line in (*words, "addr add 10.77.0.1/24 dev br0"):
        far.inside.run(["ip", *line.split()], node="n0")
    bridged = PathOrder("p", "declared", {"interface.0": "br0", "interface.1": "eth0"})
    workload = dataclasses.replace(DECLARED.workload, options={**DECLARED.workload.options, "iterations": 3000})
    outcome = far.host.carry_out(dataclasses.replace(DECLARED, path=bridged, workload=workload), carry_out)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.proof.moved_packets.keys() == {"n0.br0", "n1.eth0"}
    assert outcome.proof.stray_packets.keys() <= {"n0.lo", "n1.lo"}


def test_the_port_below_a_tunnel_may_carry_what_the_tunnel_carries(far: far_machines.Far) -> None:
    """A tunnel that names its other end, not its port, has no link to that: its packets were another route."""
    for node, own, other in (("n0", 1, 2), ("n1", 2, 1)):
        to = f"link add vx0 type vxlan id 5 dstport 4789 remote 10.77.0.{other}"
        if not (made := far.inside.run(["ip", *to.split()], node=node, check=False)).ok:
            pytest.skip(made.complaint())
        for line in (f"addr add 10.78.0.{own}/24 dev vx0", "link set vx0 up"):
            far.inside.run(["ip", *line.split()], node=node)
    workload = dataclasses.replace(DECLARED.workload, options={**DECLARED.workload.options, "iterations": 3000})
    path = PathOrder("p", "declared", {"interface": "vx0"})
    outcome = far.host.carry_out(dataclasses.replace(DECLARED, path=path, workload=workload), carry_out)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.proof.moved_packets.keys() == {"n0.vx0", "n1.vx0"}
    assert outcome.proof.stray_packets.keys() <= {"n0.lo", "n1.lo"}


def test_an_unknown_host_key_and_a_stranger_are_refused(tmp_path: Path) -> None:
    far_machines.need_ssh()
    from nearmetal.hosts.ssh.host import SshHost
    from sshd import Sshd

    with Sshd(tmp_path) as sshd:
        node = NodeSpec(name="far", address="127.0.0.1", port=sshd.serve([]))
        with pytest.raises(UnavailableError, match="refuses the login") as refused:
            SshHost([node], sshd.options | {"identity": str(tmp_path / "stranger")})
        (tmp_path / "known_hosts").write_text("")
        with pytest.raises(UnavailableError, match=r"host key of far .* not in known_hosts"):
            SshHost([node], sshd.options)
        assert "PRIVATE" not in refused.value.render()


def test_machines_that_do_not_answer_are_all_named(tmp_path: Path) -> None:
    far_machines.need_ssh()
    from nearmetal.hosts.ssh.host import SshHost
    from sshd import Sshd

    with Sshd(tmp_path) as sshd:
        nodes = [NodeSpec(name=f"gone{i}", address="127.0.0.1", port=1) for i in range(2)]
        with pytest.raises(UnavailableError, match=r"gone0.*gone1"):
            SshHost(nodes, sshd.options)


def test_a_silent_machine_is_given_up_after_its_own_timeout(tmp_path: Path) -> None:
    far_machines.need_ssh()
    from nearmetal.hosts.ssh.host import SshHost
    from sshd import Sshd

    with Sshd(tmp_path) as sshd, socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        nodes = [
            NodeSpec(name="mute", address="127.0.0.1", port=port, connect_timeout_s=0.3),
            NodeSpec(name="well", address="127.0.0.1", port=sshd.serve([])),
        ]
        said = r"(?m)^mute \(127.0.0.1 port \d+\) did not answer ssh within 0.3 s$"
        with pytest.raises(UnavailableError, match=said):
            SshHost(nodes, sshd.options)


def test_machines_of_a_file_are_reached_by_the_agents_key_with_limited_concurrency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_machines.need_ssh()
    from nearmetal.hosts.ssh.connect import Connector
    from nearmetal.hosts.ssh.host import open_ssh
    from sshd import Agent, Sshd

    now, most = 0, 0
    connect = Connector._connect

    async def counted(self: Connector, place: SshAddress) -> object:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            return await connect(self, place)
        finally:
            now -= 1

    monkeypatch.setattr(Connector, "_connect", counted)
    monkeypatch.setenv("HOME", str(tmp_path))  # no key of the user who runs this
    with Sshd(tmp_path) as sshd, Agent(tmp_path, "user") as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", agent)
        (tmp_path / "user").rename(tmp_path / "not-on-disk-any-more")
        port = sshd.serve([])
        table = '[[node]]\nname = "m{}"\naddress = "127.0.0.1"\nport = {}\n'
        (tmp_path / "hosts.toml").write_text("".join(table.format(number, port) for number in range(8)))
        options = {name: value for name, value in sshd.options.items() if name != "identity"}
        spec = HostSpec(kind="ssh", hosts_file=str(tmp_path / "hosts.toml"), options={**options, "parallel": 2})
        host = open_ssh(spec)
        try:
            assert [host._machines[f"m{number}"].run(["true"]).ok for number in range(8)] == [True] * 8
        finally:
            host.close()
    assert most == 2


def test_a_name_from_the_ssh_configuration_is_enough(tmp_path: Path) -> None:
    far_machines.need_ssh()
    from nearmetal.hosts.ssh.host import SshHost
    from sshd import Sshd

    with Sshd(tmp_path) as sshd:
        first, second = sshd.serve([]), sshd.serve([])
        alias = "Host {}\n HostName 127.0.0.1\n Port {}\n"
        text = alias.format("gate", first) + alias.format("hpc1", second) + " ProxyJump gate\n"
        everywhere = f"Host *\n IdentityFile {tmp_path}/user\n UserKnownHostsFile {tmp_path}/known_hosts\n"
        (tmp_path / "ssh_config").write_text(text + everywhere)
        host = SshHost([NodeSpec(name="hpc1")], {"config": str(tmp_path / "ssh_config")})
        try:
            assert host._machines["hpc1"].run(["true"]).ok
            assert sshd.connections == [first, second]
        finally:
            host.close()


def test_a_configuration_that_asks_for_a_terminal_gets_none(tmp_path: Path) -> None:
    """With one, stderr came as stdout, and no answer was recognized."""
    far_machines.need_ssh()
    from nearmetal.hosts.ssh.host import SshHost
    from sshd import Sshd

    with Sshd(tmp_path) as sshd:
        node = NodeSpec(name="far", address="127.0.0.1", port=sshd.serve([]))
        (tmp_path / "ssh_config").write_text("RequestTTY force\nRemoteCommand tmux attach\n")
        with contextlib.closing(SshHost([node], sshd.options)) as host:
            done = host._machines["far"].run(["sh", "-c", "echo out; echo err >&2"])
        assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
        (tmp_path / "ssh_config").write_text("ProxyCommand no-such-program %h\n")
        with pytest.raises(UnavailableError, match="No such file or directory: no-such-program"):
            SshHost([node], sshd.options)


@pytest.mark.parametrize("greeting", ["echo Welcome", r"printf '\033]0;title\007'"], ids=["banner", "title"])
def test_what_a_login_shell_prints_is_in_no_answer(tmp_path: Path, greeting: str) -> None:
    """A profile that prints, and one that names the terminal, without a newline; its shell may be another than bash."""
    (tmp_path / "profile").write_text(f"{greeting}\n{greeting} >&2\nexec sh\n")
    far = FarMachine("far", partial(open_program, ["sh", str(tmp_path / "profile")]))
    with contextlib.closing(far):
        assert far.run(["echo", "short"]).stdout == b"short\n"
        assert (far.process.isdecimal(), far.home) == (True, str(Path.home()))
        for kept in (far.run(["echo", "kept"], timeout_s=600), far.run(["cat"], stdin=b"kept\n")):
            assert (kept.stdout, kept.stderr) == (b"kept\n", b"")
        held = far.hold(["sh", "-c", "echo first; cat"])
        assert held.first_lines(1, 600) == ["first"]
        held.stop()


def test_a_connection_through_a_jump_host(tmp_path: Path) -> None:
    far_machines.need_ssh()
    from nearmetal.hosts.ssh.host import SshHost
    from sshd import Sshd

    with Sshd(tmp_path, max_sessions=1) as sshd:
        first, second = sshd.serve([]), sshd.serve([])
        node = NodeSpec(name="far", address="127.0.0.1", port=second, jump=f"127.0.0.1:{first}")
        host = SshHost([node], sshd.options)
        machine = host._machines["far"]
        # One session per connection: a background program needs a connection of its own.
        helper = machine.keep(["cat", "/proc/self/stat"])
        assert machine.run(["echo", "still here"]).text == "still here\n"
        eventually(helper.ended, "the helper did not end")
        host.close()


@pytest.mark.parametrize("python", ["", "old", "none"])
def test_programs_are_started_on_machines_without_nearmetal(far: far_machines.Far, tmp_path: Path, python: str) -> None:
    """Any Python is enough, even an older one: neither this side's Python nor its packages are needed there."""
    for node in ("n0", "n1"):
        for path in {str(Path(nearmetal.__file__).parent), sys.prefix}:
            far.inside.run(["mount", "-t", "tmpfs", "tmpfs", path], node=node)
        if which := shutil.which("which"):
            far.inside.run(["mount", "--bind", "/dev/null", str(Path(which).resolve())], node=node)
        if python:
            (tmp_path / python).write_text("#!/bin/sh\necho 3.5.2 >&2; exit 1\n" if python == "old" else "")
            (tmp_path / python).chmod(0o755 if python == "old" else 0o644)
            for found in {which for place in os.get_exec_path() if (which := Path(place, "python3")).exists()}:
                far.inside.run(["mount", "--bind", str(tmp_path / python), str(found)], node=node)
    command = WorkloadOrder("c", "command", {"argv": ["echo", "here"], "needs": ["sh"]}, (0, 1))
    done = far.host.carry_out(dataclasses.replace(DECLARED, workload=command), carry_out)
    if python:
        assert "m0 has no Python 3.6 or newer" in done.reason
    else:
        assert "no Python" not in done.reason
        assert done.files["programs.json"], done.reason


def test_a_link_that_is_down_is_reported_by_the_names_of_its_machines(
    far: far_machines.Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path's own `n0` and `n1` would be looked for among the machines: they are other ones on each path."""
    monkeypatch.setattr(links, "LINK_TIMEOUT_S", 0.0)
    far.inside.run(["ip", "link", "set", "eth0", "down"], node="n1")
    done = far.host.carry_out(DECLARED, carry_out)
    assert done.reason.startswith("m1 (10.77.0.2) did not answer m0 within"), done.reason


def test_the_environment_of_a_parallel_command_reaches_the_ranks_of_every_machine(far: far_machines.Far) -> None:
    value = 'a "b" $x; c,d=`e`'
    script = 'printf "%s has [%s]\\n" "$(uname -n)" "$ODD"'
    options = {"argv": ["sh", "-c", script], "mpi": True, "env": [f"ODD={value}"]}
    command = WorkloadOrder("c", "command", options, (0, 1))
    done = far.host.carry_out(dataclasses.replace(DECLARED, workload=command), carry_out)
    assert done.status is TrialStatus.VALID, done.reason
    said = done.files["command.output"].decode().splitlines()
    assert sorted(said) == [f"n0 has [{value}]", f"n1 has [{value}]"]


def test_a_machine_that_is_another_than_its_node_is_named_before_the_first_trial(far: far_machines.Far) -> None:
    rehearse("good", [DECLARED], far.host, lambda _: None)
    first, second = far.host._nodes.values()
    far.host._nodes["m1"] = second.model_copy(update={"reach": first.reach})
    with pytest.raises(UnavailableError) as raised:
        rehearse("wrong", [DECLARED], far.host, lambda _: None)
    assert f"m0 reaches another machine than m1, known there as {first.reach!r}: n0, not n1" in raised.value.message


def test_machines_that_start_no_programs_from_tmp_get_another_directory(far: far_machines.Far, tmp_path: Path) -> None:
    """Below one that is mounted noexec no log-in worked, and nothing else could be named."""
    for name in ("noexec", "free"):
        (tmp_path / name).mkdir()
    for node in ("n0", "n1"):
        far.inside.run(["mount", "-t", "tmpfs", "-o", "noexec", "none", str(tmp_path / "noexec")], node=node)
    far.host._options["scratch"] = str(tmp_path / "noexec")
    with pytest.raises(UnavailableError) as raised:
        rehearse("good", [DECLARED], far.host, lambda _: None)
    far.host._options["scratch"] = str(tmp_path / "free")
    rehearse("good", [DECLARED], far.host, lambda _: None)
    assert f"m0 starts no programs from {tmp_path}/noexec: " in raised.value.message
    assert "noexec: name another directory in the host's option `scratch`" in raised.value.message
    assert far.host.carry_out(DECLARED, carry_out).status is TrialStatus.VALID
    assert list((tmp_path / "free").iterdir()) == []


def test_names_of_interfaces_that_mpich_cannot_be_told_are_refused_before_the_first_trial(
    far: far_machines.Far,
) -> None:
    for words in ("set eth0 down", "set eth0 name ens7", "set ens7 up"):
        far.inside.run(["ip", "link", *words.split()], node="n1")
    path = PathOrder("p", "declared", {"interface.0": "eth0", "interface.1": "ens7"})
    with pytest.raises(UnavailableError, match="and path p has eth0 on m0, ens7 on m1"):
        rehearse("two", [dataclasses.replace(DECLARED, path=path, mpi="mpich")], far.host, lambda _: None)
    rehearse("two", [dataclasses.replace(DECLARED, path=path)], far.host, lambda _: None)


def test_a_far_launcher_without_its_libraries_is_told_with_its_reason(tmp_path: Path) -> None:
    """As where a module has to be loaded first: it was said not to be there."""
    (tmp_path / "bin").mkdir()
    launcher = tmp_path / "bin" / "mpirun"
    launcher.write_text("#!/bin/sh\necho libprrte.so.3: cannot open shared object file >&2\nexit 127\n")
    launcher.chmod(0o755)
    machine = FarMachine("far", partial(open_program, ("sh",)))
    with (
        contextlib.closing(machine),
        MachinesShell([machine], ["far"], Site("", "", str(tmp_path)), Memory()) as shell,
        pytest.raises(UnavailableError) as raised,
    ):
        find_there(shell, OPENMPI)
    told = f"the far machine has no mpirun of openmpi in {tmp_path}/bin; {launcher} ended with status 127:\n  libprrte"
    assert raised.value.message.startswith(told)


@pytest.mark.parametrize("differs", ["mpirun", "mpicc", ""])
def test_machines_with_different_versions_of_an_mpi_are_refused(tmp_path: Path, differs: str) -> None:
    """The first one's was recorded for all, and ranks of two versions were measured as one library's."""
    (tmp_path / "bin").mkdir()
    for name, says in (("mpirun", "mpirun (Open MPI) "), ("mpicc", "mpicc: Open MPI ")):
        of_second = "4.1.4" if name == differs else "5.0.1"
        (tmp_path / "bin" / name).write_text(
            f'#!/bin/sh\n[ "$WHO" ] && echo "{says}{of_second}" || echo "{says}5.0.1"\n'
        )
        (tmp_path / "bin" / name).chmod(0o755)
    machines = [
        FarMachine("m0", partial(open_program, ("sh",))),
        FarMachine("m1", partial(open_program, ("env", "WHO=m1", "sh"))),
    ]
    with contextlib.ExitStack() as opened:
        for machine in machines:
            opened.callback(machine.close)
        site = Site("", "", str(tmp_path), scratch=str(tmp_path))
        shell = opened.enter_context(MachinesShell(machines, ["m0", "m1"], site, Memory()))
        shell.add_node("n0")
        shell.add_node("n1")
        if not differs:
            assert find_there(shell, OPENMPI).version == "5.0.1"
            return
        with pytest.raises(UnavailableError, match=rf"/{differs} is version 4\.1\.4 on m1, but 5\.0\.1 on m0"):
            find_there(shell, OPENMPI)


def test_a_build_that_is_killed_leaves_nothing_there(tmp_path: Path) -> None:
    """Its sources stayed in the cache, of every build that was killed."""
    hanging, cache, trials = Hanging(tmp_path), tmp_path / "cache", tmp_path / "trials"
    compiler = hanging.script(tmp_path / "cc")
    trials.mkdir()
    script = f"""
from functools import partial
from nearmetal.hosts.far.build import program
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.shell import MachinesShell, Memory
from nearmetal.hosts.far.stream import open_program
from nearmetal.hosts.host import Site
from nearmetal.native import Recipe
machine = FarMachine("far", partial(open_program, ("sh",)))
with MachinesShell([machine], ["far"], Site({str(cache)!r}, "", scratch={str(trials)!r}), Memory()) as shell:
    shell.add_node("n0")
    program(shell, Recipe("toy", "remote", compiler=({str(compiler)!r},)))
"""
    with subprocess.Popen([sys.executable, "-c", script]) as session:
        eventually(hanging.running, "the compiler did not start")
        session.kill()
    eventually(lambda: not hanging.running() and not list(trials.iterdir()), "the build was left behind")
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_one_machine_under_two_names_is_no_path(far: far_machines.Far) -> None:
    first = far.host._machines["m0"]
    far.host._machines["m1"] = FarMachine("m1", first._open_shell)
    with pytest.raises(UnavailableError, match=r"m0 and m1 are one machine \(n0\), with no network between"):
        rehearse("alias", [DECLARED], far.host, lambda _: None)


def test_a_hanging_command_is_ended_and_the_machine_stays_usable(
    far: far_machines.Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, hanging = far.host._machines["m0"], Hanging(tmp_path)
    machine.connect()
    with monkeypatch.context() as short:  # not while it connects anew, which takes a busy machine longer
        short.setattr("nearmetal.hosts.far.machine.SHORT_S", 0.5)
        assert machine.run(hanging.argv, timeout_s=0.5).timed_out
    assert machine.run(hanging.argv, timeout_s=0.3).timed_out
    assert machine.run(["echo", "here"]).text == "here\n"
    eventually(lambda: not hanging.running(), "the command was left behind")


def test_a_hanging_launch_is_ended_with_its_ranks(
    far: far_machines.Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(tmp_path)
    engine = hanging.script(tmp_path / "nmbench")
    with monkeypatch.context() as patched:
        patched.setattr("nearmetal.workloads.engine.build_engine", lambda *_, **__: engine)
        outcome = far.host.carry_out(dataclasses.replace(DECLARED, timeout_s=2.5), carry_out)
    assert outcome.timed_out
    assert "did not end within 2.5 s" in outcome.reason
    eventually(lambda: not hanging.running(), "ranks were left behind")
    assert far.host.carry_out(DECLARED, carry_out).status is TrialStatus.VALID


def test_a_machine_that_disappears_fails_the_trial_and_leaves_nothing_running(
    far: far_machines.Far, tmp_path: Path
) -> None:
    hanging = Hanging(tmp_path)

    def pull_the_plug(shell: Shell, order: Order) -> Outcome:
        shell.add_node("n0")
        shell.start(hanging.argv, node="n0")
        eventually(hanging.running, "the helper did not start")
        far.sshd.drop()
        return carry_out(shell, order)

    outcome = far.host.carry_out(DECLARED, pull_the_plug)
    assert outcome.status is TrialStatus.FAILED
    assert "m0" in outcome.reason
    eventually(lambda: not hanging.running(), "the guardian did not end the helper")
    assert far.host.carry_out(DECLARED, carry_out).status is TrialStatus.VALID, "the next trial reconnects"


def test_knobs_are_restored_automatically_when_the_connection_drops(far: far_machines.Far, tmp_path: Path) -> None:
    def mtu() -> str:
        return far.inside.read("/sys/class/net/eth0/mtu", node="n0").decode().strip()

    def lose_it(shell: Shell, order: Order) -> Outcome:
        for node in ("n0", "n1"):
            shell.add_node(node)
        ends = find_path("declared").up(shell, order.path, ["n0", "n1"])
        guard = WatchLimits(look_ms=100)
        with hold(shell, ends, {"nic.mtu": 1400}, tmp_path / "journal", guard=guard, allow_management=True):
            assert mtu() == "1400"
            far.sshd.unplug()
        raise AssertionError("the connection was not lost")

    outcome = far.host.carry_out(DECLARED, lose_it)
    assert outcome.status is TrialStatus.FAILED
    eventually(lambda: mtu() == "1500", "the far watchdog did not put the MTU back")


def test_a_trial_with_a_setting_restores_it_and_leaves_no_journal(
    far: far_machines.Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    outcome = far.host.carry_out(dataclasses.replace(DECLARED, knobs={"nic.mtu": 1400}), carry_out)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts["knob.nic.mtu"] == "1400"
    assert far.inside.read("/sys/class/net/eth0/mtu", node="n1").strip() == b"1500"


def mtus(far: far_machines.Far) -> list[str]:
    return [far.inside.read("/sys/class/net/eth0/mtu", node=node).decode().strip() for node in ("n0", "n1")]


def leave_changed(far: far_machines.Far, folder: Path) -> None:
    """Let a trial die in the middle of a setting, without a watchdog: restoring is left to the verb."""

    def die(shell: Shell, order: Order) -> Outcome:
        for node in ("n0", "n1"):
            shell.add_node(node)
        ends = find_path("declared").up(shell, order.path, ["n0", "n1"])
        targets = [Target(end.node, end.interface) for end in ends.ends]
        intended = plan(shell, {"nic.mtu": 1400}, targets, allow_management=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        begun = session.begin(shell, intended, folder)
        begun.apply()
        begun.journal.close()
        return Outcome(TrialStatus.VALID)

    assert far.host.carry_out(DECLARED, die).status is TrialStatus.VALID
    assert mtus(far) == ["1400", "1400"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate directory of journals for the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return journal_folder()


def test_a_dropped_connection_costs_one_trial_and_no_setting(
    far: far_machines.Far, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearmetal.hosts.table.open_host", lambda _: far.host)
    opened = open_host(parse_study(STUDY, "s"))

    def lose_it(shell: Shell, order: Order) -> Outcome:
        for node in ("n0", "n1"):
            shell.add_node(node)
        ends = find_path("declared").up(shell, order.path, ["n0", "n1"])
        with hold(shell, ends, order.knobs, state, guard=WatchLimits(look_ms=100), allow_management=True):
            assert mtus(far) == ["1400", "1400"]
            far.sshd.drop()
        raise AssertionError("the connection was not lost")

    order = dataclasses.replace(DECLARED, knobs={"nic.mtu": 1400})
    lost = opened.carry_out(order, lose_it)
    assert lost.status is TrialStatus.FAILED
    assert lost.reason.endswith("; its settings are back as they were")
    assert mtus(far) == ["1500", "1500"]
    assert not survey(state).waiting()
    assert opened.carry_out(order, carry_out).status is TrialStatus.VALID


def test_nothing_is_measured_on_far_machines_that_a_killed_trial_left_changed(
    far: far_machines.Far, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_changed(far, state)
    refused = far.host.carry_out(DECLARED, carry_out)
    assert refused.status is TrialStatus.FAILED
    for name in ("m0", "m1"):
        assert f"nic.mtu of eth0, which was 1500 (on {name})" in refused.reason
    assert refused.hint.startswith("run `nearmetal rollback m0 -o config=")
    far.inside.run(["ip", "link", "set", "eth0", "mtu", "1500"], node="n0")
    far.inside.run(["ip", "link", "set", "eth0", "mtu", "1500"], node="n1")
    # As the watchdog leaves it: everything is as it was, but the journal is open.
    assert far.host.carry_out(DECLARED, carry_out).status is TrialStatus.VALID
    under = far.host.carry_out(dataclasses.replace(DECLARED, knobs={"nic.mtu": 1400}), carry_out)
    assert "left settings changed" in under.reason
    monkeypatch.setattr("nearmetal.hosts.table.open_host", lambda _: far.host)
    monkeypatch.setattr(far.host, "close", lambda: None)
    with pytest.raises(UnfinishedError, match="left settings changed"):  # not at each of its trials
        open_host(parse_study(STUDY + '[[setting]]\nname = "small"\nknobs = { "nic.mtu" = 1400 }\n', "s"))
    far.inside.run(["ip", "link", "set", "eth0", "mtu", "1400"], node="n0")
    with pytest.raises(UnfinishedError, match="left settings changed"):
        open_host(parse_study(STUDY, "s"))
    far.inside.run(["ip", "link", "set", "eth0", "mtu", "1500"], node="n0")


def test_a_profile_left_applied_on_a_far_machine_blocks_a_run(far: far_machines.Far, state: Path) -> None:
    shells = far.host.shells()
    shell = next(shells)
    shell.run(["ip", "link", "set", "eth0", "mtu", "1500"])
    (state / "m0").mkdir(mode=0o700, parents=True)
    begun = session.begin(
        shell, plan(shell, {"nic.mtu": 1400}, [Target("", "eth0")], allow_management=True), state / "m0", host="m0"
    )
    begun.apply()
    begun.journal.close()
    shells.close()
    refused = far.host.carry_out(DECLARED, carry_out)
    assert "left settings changed: nic.mtu of eth0, which was 1500 (on m0)" in refused.reason
    far.inside.run(["ip", "link", "set", "eth0", "mtu", "1500"], node="n0")
    under = far.host.carry_out(dataclasses.replace(DECLARED, knobs={"nic.mtu": 1400}), carry_out)
    assert "left settings changed: nic.mtu of eth0, which was 1500 (on m0)" in under.reason


def test_a_trial_sets_nothing_on_a_far_machine_locked_by_apply(
    far: far_machines.Far, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearmetal.run.trial._LOCK_PATIENCE_S", 0.0)
    under = dataclasses.replace(DECLARED, knobs={"nic.mtu": 1400})
    with host_lock(state / "m1"):
        assert f"process {os.getpid()} holds the knobs" in far.host.carry_out(under, carry_out).reason
    assert far.host.carry_out(under, carry_out).status is TrialStatus.VALID


def test_the_newest_of_an_apply_and_a_trial_on_a_far_machine_is_restored_first(
    far: far_machines.Far, state: Path
) -> None:
    (state / "m0").mkdir(mode=0o700, parents=True)
    for shell in itertools.islice(far.host.shells(), 1):
        for folder, host, mtu in ((state / "m0", "m0", 1400), (state, "local", 1300)):
            intended = plan(shell, {"nic.mtu": mtu}, [Target("", "eth0")], allow_management=True)
            begun = session.begin(shell, intended, folder, host=host)
            begun.apply()
            begun.journal.close()
        assert put_everything_back(shell, "m0", state / "m0", state, [state / "m0"])
    assert mtus(far) == ["1500", "1500"]


def test_on_a_terminal_rolling_back_far_machines_is_offered(
    far: far_machines.Far, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_changed(far, state)
    monkeypatch.setattr("sys.stdin", TypedTerminal("n\ny\ny\n"))
    with pytest.raises(UnfinishedError):
        settle_far(next(far.host.shells()), measuring=True)
    assert mtus(far) == ["1400", "1400"]
    for shell in far.host.shells():
        settle_far(shell, measuring=True)
    assert mtus(far) == ["1500", "1500"]
    captured = capsys.readouterr()
    assert captured.out.count("put back: nic.mtu of eth0") == 2
    assert "nearmetal rollback m1" in captured.err
    assert far.host.carry_out(DECLARED, carry_out).status is TrialStatus.VALID


class TypedTerminal(io.StringIO):
    """A terminal with typed input."""

    def isatty(self) -> bool:
        return True


def test_a_killed_trial_is_rolled_back_machine_by_machine(
    far: far_machines.Far, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_changed(far, tmp_path)
    assert run(["rollback", "--journals", str(tmp_path)]) == 0
    stderr = capsys.readouterr().err
    assert "sessions on far machines did not end: m0, m1" in stderr
    assert "nearmetal rollback m0 -o config=" in stderr
    for number, (name, left) in enumerate((("m0", ["1500", "1400"]), ("m1", ["1500", "1500"]))):
        (path,) = open_journals(tmp_path, name)
        with MachinesShell([far.host._machines[name]], [name], Site("", str(tmp_path)), Memory()) as shell:
            undone = rollback.roll_back(shell, path, name)
        assert undone.put_back == ("nic.mtu of eth0",)
        assert mtus(far) == left
        assert open_journals(tmp_path, name) == []
        assert (read_state(path).end is None) == (number == 0)


def test_a_killed_trial_is_rolled_back_by_the_printed_commands(
    far: far_machines.Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From any directory, without the study: ssh knows no `m0`, and neither its port nor its keys."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    leave_changed(far, journal_folder())
    refused = far.host.carry_out(DECLARED, carry_out)
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", str(tmp_path))
    printed = refused.hint.split("`")[1]
    for left in (["1500", "1400"], ["1500", "1500"]):
        assert run(shlex.split(printed)[1:]) == 0, capsys.readouterr().err
        assert mtus(far) == left
        assert run(["rollback"]) == 0
        printed = capsys.readouterr().err.partition("check with: nearmetal ")[2].strip()
        printed = f"nearmetal {printed}"
    assert printed == "nearmetal "
    assert run(["rollback", "m0"]) == 3, "no trial waits for it any more"


def leave_two_machines_of_one_name_changed(far: far_machines.Far, folder: Path) -> None:
    """Leave two journals: the older of machine m0, the newer of m1 under the name m0."""
    from nearmetal.hosts.ssh.host import SshHost

    folder.mkdir(mode=0o700, parents=True)
    for name in ("m0", "m1"):
        host = SshHost([far.host._nodes[name].model_copy(update={"name": "m0"})], far.host._options)
        for shell in itertools.islice(host.shells(), 1):
            intended = plan(shell, {"nic.mtu": 1400}, [Target("", "eth0")], allow_management=True)
            begun = session.begin(shell, intended, folder)
            begun.apply()
            begun.journal.close()
        host.close()
    assert mtus(far) == ["1400", "1400"]


@pytest.mark.parametrize(("set_by_another", "code"), [("", 0), ("n0", 1), ("n1", 1)])
def test_rolling_back_two_machines_of_one_name_fails_if_either_is_not_as_it_was(
    far: far_machines.Far, state: Path, capsys: pytest.CaptureFixture[str], set_by_another: str, code: int
) -> None:
    leave_two_machines_of_one_name_changed(far, state)
    if set_by_another:
        far.inside.run(["ip", "link", "set", "eth0", "mtu", "1300"], node=set_by_another)
    assert run(["rollback", "m0"]) == code
    left = "left: nic.mtu of eth0, which was 1500, is 1300: another program set it"
    assert (left in capsys.readouterr().out) == bool(set_by_another)
    assert sorted(mtus(far)) == ["1300" if set_by_another else "1500", "1500"]
    assert run(["rollback", "m0"]) == 3, "no trial waits for it any more"


def test_a_machine_that_does_not_answer_keeps_no_other_of_its_name_from_being_rolled_back(
    far: far_machines.Far, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_two_machines_of_one_name_changed(far, state)

    def reach(way: Way, options: dict[str, Scalar]) -> contextlib.AbstractContextManager[Shell]:
        if way["node"]["port"] == far.host._nodes["m1"].port:
            raise UnavailableError("it does not answer")
        return open_as_before(way, options)

    monkeypatch.setattr("nearmetal.cli.rollback.open_as_before", reach)
    assert run(["rollback", "m0"]) == 3
    assert "it does not answer" in capsys.readouterr().err
    assert mtus(far) == ["1500", "1400"]
    assert len(open_journals(state, "m0")) == 1


@pytest.mark.parametrize("end", [None, EndState.QUARANTINED])
def test_pods_that_a_killed_trial_left_changed_are_rolled_back(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str], end: EndState | None
) -> None:
    """Where a value had been stuck, `rollback` named no pod, and with the name of one looked for it over ssh."""
    with far_machines.pods(tmp_path) as host:
        for shell in itertools.islice(host.shells(), 1):
            intended = plan(shell, {"nic.mtu": 1400}, [Target("", "eth0")], allow_management=True)
            state.mkdir(mode=0o700, parents=True)
            begun = session.begin(shell, intended, state)
            begun.apply()
            if end:
                begun.journal.append({"kind": "end", "state": end, "left": []})
            begun.journal.close()
            assert run(["rollback"]) == 0
            printed = capsys.readouterr().err.partition("check with: nearmetal ")[2].strip()
            assert run(shlex.split(printed)) == 0, capsys.readouterr().err
            assert "put back: nic.mtu of eth0" in capsys.readouterr().out
            assert shell.read("/sys/class/net/eth0/mtu").strip() == b"1500"


def test_a_machine_that_apply_left_changed_is_named_as_it_was_there(far: far_machines.Far, state: Path) -> None:
    folder = state / "root@10.0.0.1:2201"
    folder.mkdir(mode=0o700, parents=True)
    for shell in itertools.islice(far.host.shells(), 1):
        intended = plan(shell, {"nic.mtu": 1400}, [Target("", "eth0")], allow_management=True)
        begun = session.begin(shell, intended, folder, host=folder.name)
        begun.apply()
        begun.journal.close()
    refused = far.host.carry_out(DECLARED, carry_out)
    assert "nic.mtu of eth0, which was 1500 (on m0)" in refused.reason
    assert refused.hint.startswith("run `nearmetal rollback root@10.0.0.1:2201` to restore them")


def test_a_file_does_not_say_what_is_run_to_reach_a_machine(tmp_path: Path) -> None:
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "kubectl").chmod(0o755)
    way = {"kind": "kubectl", "node": {"name": "p"}, "options": {"kubectl": str(tmp_path / "kubectl")}}
    for given, ran in (({}, False), ({"kubectl": str(tmp_path / "kubectl")}, True)):
        with pytest.raises(NearmetalError), open_as_before(way, given):
            pytest.fail("there is no such pod")
        assert (tmp_path / "ran").exists() == ran


def test_a_shell_that_dies_at_once_is_an_error(tmp_path: Path) -> None:

    with pytest.raises(LostError, match="no such node"):
        FarMachine("n9", partial(open_program, ("sh", "-c", "echo no such node >&2; exit 1"))).connect()
    with pytest.raises(NearmetalError):
        FarMachine("n9", partial(open_program, ("/no/such/program",))).connect()


@pytest.mark.parametrize("timeout_s", [machine.SHORT_S, 60.0])
def test_a_program_that_a_signal_ended_is_reported_as_such(timeout_s: float) -> None:
    """Also of a short command, whose status comes from the far shell."""
    with contextlib.closing(FarMachine("m", partial(open_program, ("sh",)))) as far:
        finished = far.run(["sh", "-c", "kill -s SEGV $$"], timeout_s=timeout_s)
    assert finished.exit_status == -signal.SIGSEGV
    assert "SIGSEGV" in finished.complaint()


def test_a_file_of_any_number_of_pieces_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CHUNK_BYTES", 1)
    far = FarMachine("far", partial(open_program, ("sh",)))
    for content in (b"", b"x" * (sys.getrecursionlimit() + 1) + b"\0%s\n"):
        far.write(str(tmp_path / "file"), content)
        assert (tmp_path / "file").read_bytes() == content
    far.close()


@pytest.mark.parametrize("signal_name", ["", "SIGTERM", "SIGHUP"])
def test_files_of_a_killed_session_are_removed_from_the_machine(tmp_path: Path, signal_name: str) -> None:
    """Even if the far shell gets a signal before its input ends, as in a cancelled job."""
    script = """
import os, signal, sys
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.stream import open_program

machine = FarMachine("far", lambda: open_program(("sh",)))
for name in ("kept", "given back"):
    machine.remove_at_end(f"{os.getcwd()}/{name}".replace(" ", "-"))
    machine.run(["mkdir", "-p", f"{os.getcwd()}/{name}/n0".replace(" ", "-")])
machine.remove(f"{os.getcwd()}/given-back")
os.mkdir("given-back")
print(*sorted(os.listdir()), flush=True)
if sys.argv[1]:
    os.kill(int(machine.process), getattr(signal, sys.argv[1]))
os.kill(os.getpid(), 9)
"""
    argv = [sys.executable, "-c", script, signal_name]
    session = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert session.returncode == -signal.SIGKILL, session.stderr
    assert session.stdout.split() == ["given-back", "kept"]
    eventually(lambda: not (tmp_path / "kept").exists(), "what the killed session made is still there")
    assert (tmp_path / "given-back").exists(), "a released folder may belong to another session"
