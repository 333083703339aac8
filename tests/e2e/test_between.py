"""`nearmetal between`: from two machines that ssh reaches to an answer, with no study file."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from far_machines import need_ssh, two_machines
from nearmetal.cli import between as verb
from nearmetal.cli.between import _answer, _next
from nearmetal.cli.main import run as nearmetal
from nearmetal.cli.values import read_option
from nearmetal.errors import UnavailableError
from nearmetal.facts.look import MachineLook, look, parse
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.process import run as run_process
from nearmetal.results.paths import build_view
from nearmetal.results.stopping import planned_blocks
from nearmetal.run import between
from nearmetal.run.between import LinkRequest, MachinePair, Proposal, check_looks, doubts, node_named, propose
from nearmetal.run.check import check_study
from nearmetal.stats.equivalence import Verdict
from nearmetal.store.rundir import RunDir
from nearmetal.study.facts import COMPUTERS
from nearmetal.study.spec import NodeSpec, parse_study
from tests.unit.report.synthetic_run import Recipe, make_run

if TYPE_CHECKING:
    from collections.abc import Mapping

SAID = """host=vm1
identity=m1 b1 net:[1]
system=Debian GNU/Linux 12 (bookworm)
kernel=6.1.0-56-amd64
cpu=AMD EPYC
cpus=4
load=0.31
virtual=QEMU
governor=
address=10.0.0.2
interface=eth0
own=10.0.0.1
driver=virtio_net
adaptive=on
rdma=
launcher=mpirun (Open MPI) 4.1.4  Report bugs
compiler=yes
tool=sockperf
tool=iperf3
"""
LOOK = parse(SAID)
PAIR = MachinePair(NodeSpec(name="vm1"), NodeSpec(name="vm2"))
BARE = MachinePair(NodeSpec(name="hpc1"), NodeSpec(name="hpc2", port=2201))


def asked(*pairs: MachinePair, sizes: tuple[int, ...] = (8, 65536), budget_s: float = 120) -> LinkRequest:
    return LinkRequest(pairs or (PAIR,), sizes, budget_s, {})


def facts_of_machines(**changed: MachineLook) -> dict[str, MachineLook]:
    names = ("vm1", "vm2", "hpc1", "hpc2")
    return {name: changed.get(name, replace(LOOK, host=name, identity=name)) for name in names}


def test_the_script_gathers_facts_of_this_machine() -> None:
    here = look(run_process, "127.0.0.1", "")
    assert (here.host, here.kernel) == (os.uname().nodename, os.uname().release)
    assert (here.address, here.interface, here.own) == ("127.0.0.1", "lo", "127.0.0.1")
    assert look(run_process, "::1", "").address == "::1"


@pytest.mark.netns
def test_the_named_interface_is_looked_at_with_what_it_is_built_on(tmp_path: Path) -> None:
    """A file of machines may name another interface than leads to the other: what was told was of that one. No bond or
    VLAN has a moderation of its own, so that of ports is told.
    """
    (tmp_path / "ethtool").write_text('#!/bin/sh\n[ "$2" != d1 ] || echo "Adaptive RX: on  TX: off"\n')
    (tmp_path / "ethtool").chmod(0o755)
    with NamespaceShell() as shell:
        shell.add_node("n0")
        words = "add d0 type veth peer name d1", "add br0 type bridge", "set d1 master br0", "set d0 up", "set br0 up"
        for line in words:
            shell.run(["ip", "link", *line.split()], node="n0")
        for address, device in (("10.0.0.1/24", "d0"), ("10.9.0.1/24", "br0")):
            shell.run(["ip", "addr", "add", address, "dev", device], node="n0")
        run = partial(shell.run, node="n0", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
        shell.run(["ip", "route", "add", "10.5.0.0/16", "via", "10.0.0.9"], node="n0")
        leading, named, itself = (
            look(run, *one) for one in (("10.5.0.2", ""), ("10.5.0.2", "", "br0"), ("10.0.0.1", "", "br0"))
        )
    assert (leading.interface, leading.own, leading.gateway, leading.adaptive) == ("d0", "10.0.0.1", "10.0.0.9", False)
    assert (named.interface, named.own, named.gateway, named.adaptive) == ("br0", "10.9.0.1", "", True)
    assert itself.interface == "lo"


def test_machines_behind_a_router_get_a_routed_path() -> None:
    """Their subnets differ, and a path whose ends do is refused unless the study says that it is routed."""
    plain, behind = facts_of_machines(), facts_of_machines(vm2=replace(LOOK, identity="vm2", gateway="10.0.1.254"))
    assert "routed" not in propose(asked(), plain).text
    assert 'options = { "nodes" = "vm1 vm2", "routed" = true }' in propose(asked(), behind).text
    assert parse("address=10.2.0.1\ninterface=eth0\ngateway=10.1.0.254\n").gateway == "10.1.0.254"


def test_facts_are_parsed() -> None:
    assert (LOOK.virtual, LOOK.mpi, LOOK.compiler, LOOK.adaptive) == ("QEMU", "openmpi", True, True)
    assert LOOK.tools == {"sockperf", "iperf3"}
    assert LOOK.nic == "eth0 (virtio_net)"
    bare = parse("launcher=HYDRA build details:     Version:  4.1.2   Release Date\ncpus=garbage\nload=nan\n")
    assert (bare.mpi, bare.what, bare.cpus, bare.load) == ("mpich", "bare machine", 0, 0.0)


def test_the_proposal_is_a_study_of_everything_available() -> None:
    proposal = propose(asked(PAIR, BARE), facts_of_machines())
    study = parse_study(proposal.text, "proposal")
    assert study.baseline == "hpc1-hpc2"
    assert [path.name for path in study.path] == ["vm1-vm2", "hpc1-hpc2"]
    assert [(w.name, w.sizes) for w in study.workload] == [
        ("latency", [8, 65536]),
        ("bw", [65536]),
        ("tcp", [14]),
    ], "sockperf takes 14 to 65,000 bytes"
    assert [(n.name, n.port, n.interface) for n in study.host.node] == [
        ("vm1", 0, "eth0"),
        ("vm2", 0, "eth0"),
        ("hpc1", 0, "eth0"),
        ("hpc2", 2201, "eth0"),
    ]
    assert proposal.left_out == (
        "MPI bandwidth of 8 B: it is measured from 1 KiB on",
        "TCP round trips of 64 KiB: sockperf sends at most 65000 B",
        "verbs: no RDMA device on vm1, vm2, hpc1, hpc2",
    )
    small, large = (propose(asked(sizes=(size,)), facts_of_machines()) for size in (8, 65536))
    assert small.measured == ("MPI ping-pong latency: 8 B", "TCP round trips (sockperf): 14 B")
    assert "MPI bandwidth of 8 B: it is measured from 1 KiB on" in small.left_out, "there was no word of either"
    assert large.measured == ("MPI ping-pong latency: 64 KiB", "MPI bandwidth: 64 KiB")
    assert "TCP round trips of 64 KiB: sockperf sends at most 65000 B" in large.left_out


def test_machines_named_by_ipv6_addresses_reach_each_other_by_ipv4() -> None:
    pair = MachinePair(node_named("2001:db8::1", {}), node_named("2001:db8::2", {}))
    seen = {
        node.name: replace(LOOK, identity=node.name, address="2001:db8::9", own=f"10.0.0.{number}")
        for number, node in enumerate(pair.nodes)
    }
    check_looks([pair], seen)
    study = parse_study(propose(asked(pair), seen).text, "p")
    assert [(n.address, n.reach) for n in study.host.node] == [("2001:db8::1", "10.0.0.0"), ("2001:db8::2", "10.0.0.1")]
    with pytest.raises(UnavailableError, match="2001-db8-2 has no IPv4 address on eth0"):
        check_looks([pair], seen | {"2001-db8-2": replace(seen["2001-db8-2"], own="")})


def test_verbs_are_measured_if_the_compared_interfaces_have_them() -> None:
    def proposed(**changed: object) -> tuple[list[str], str]:
        card = replace(LOOK, rdma=("mlx5_0",), verbs="mlx5_0", tools=LOOK.tools | {"ib_write_lat"})
        seen = {"vm1": replace(card, identity="a"), "vm2": replace(card, identity="b", **changed)}  # type: ignore[arg-type]
        proposal = propose(asked(sizes=(1, 64)), seen)
        study = parse_study(proposal.text, "p")
        check_study(study)
        left_out = (line for line in proposal.left_out if line.startswith("verbs"))
        return [f"{w.kind} {w.operation} {w.sizes}" for w in study.workload][2:], "".join(left_out)

    assert proposed() == (["perftest ib_write_lat [2, 64]"], "")
    assert proposed(verbs="") == ([], "verbs: `rdma link show` names no device for eth0 of vm2")
    assert proposed(tools=LOOK.tools) == ([], "verbs: no ib_write_lat on vm2; install perftest (apt, dnf, zypper)")


def test_the_budget_decides_the_number_of_blocks_and_never_asks_for_fewer_than_five() -> None:
    def most(budget_s: float) -> int:
        return parse_study(propose(asked(budget_s=budget_s), facts_of_machines()).text, "p").trials.max_blocks

    assert most(1) == 5
    assert 5 < most(120) < most(240) <= 40


@pytest.mark.parametrize("pairs", [(PAIR,), (PAIR, BARE)], ids=["alone", "against"])
def test_the_budget_decides_with_and_without_a_baseline(pairs: tuple[MachinePair, ...]) -> None:
    """A pair alone, which has nothing to decide, ended after five blocks whatever `--minutes` said."""

    def last(budget_s: float) -> int:
        study = parse_study(propose(asked(*pairs, budget_s=budget_s), facts_of_machines()).text, "p")
        return planned_blocks(study)[1]

    assert last(1) == 5
    assert 5 < last(240) < last(480) <= 40


def test_differing_or_missing_features_are_left_out_with_the_reason() -> None:
    other = replace(LOOK, host="vm2", identity="vm2", mpi="mpich", tools=frozenset())
    with pytest.raises(UnavailableError) as raised:
        propose(asked(sizes=(64,)), facts_of_machines(vm2=other))
    assert "vm1: openmpi, vm2: mpich" in raised.value.message
    assert "no sockperf on vm2" in raised.value.message
    without = replace(LOOK, host="vm2", identity="vm2", mpi="")
    study = parse_study(propose(asked(sizes=(64,)), facts_of_machines(vm2=without)).text, "p")
    assert [w.kind for w in study.workload] == ["sockperf"]


def test_an_edited_study_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next `between` of the same machines replaced what its page says may be edited."""
    monkeypatch.chdir(tmp_path)
    assert verb._unused("between-a-b.toml", "new") == Path("between-a-b.toml")
    Path("between-a-b.toml").write_text("edited")
    assert verb._unused("between-a-b.toml", "new") == Path("between-a-b-2.toml")
    Path("between-a-b-2.toml").write_text("new")
    assert verb._unused("between-a-b.toml", "new") == Path("between-a-b-2.toml")


def test_mpich_is_left_out_where_interfaces_have_several_names() -> None:
    """All of its launches failed then."""
    for mpi, interface, left in (("mpich", "ens7", 1), ("mpich", "eth0", 0), ("openmpi", "ens7", 0)):
        one = replace(LOOK, mpi=mpi)
        looks = {"vm1": one, "vm2": replace(one, identity="vm2", interface=interface)}
        made = propose(asked(sizes=(64,)), looks)
        assert [line for line in made.left_out if line.startswith("MPI:")] == [
            "MPI: MPICH takes one name of an interface for both machines, but they have eth0 and ens7"
        ][:left]
        assert ("MPI ping-pong latency: 64 B" in made.measured) == (not left)


def test_a_pair_without_a_path_is_refused_with_every_reason() -> None:
    with pytest.raises(UnavailableError, match="are one machine"):
        check_looks([PAIR], facts_of_machines(vm2=replace(LOOK, identity="vm1")))
    lost = facts_of_machines(vm1=replace(LOOK, address=""), vm2=replace(LOOK, identity="x", interface="lo"))
    with pytest.raises(UnavailableError) as raised:
        check_looks([PAIR], lost)
    assert "vm1 cannot resolve the name 'vm2'" in raised.value.message
    assert "over its loopback" in raised.value.message


@pytest.mark.parametrize(
    ("word", "node"),
    [
        ("vm1", NodeSpec(name="vm1", address="vm1")),
        ("me@vm1.cluster:2201", NodeSpec(name="vm1", address="vm1.cluster", user="me", port=2201)),
        ("10.0.0.1", NodeSpec(name="10.0.0.1", address="10.0.0.1")),
        ("2001:db8::1", NodeSpec(name="2001-db8-1", address="2001:db8::1")),
        ("me@[fe80::1%eth0]:2201", NodeSpec(name="fe80-1-eth0", address="fe80::1%eth0", user="me", port=2201)),
        ("me@site.org@vm1", NodeSpec(name="vm1", address="vm1", user="me@site.org")),
        ("_vm1-again", NodeSpec(name="vm1", address="_vm1-again")),
    ],
)
def test_a_machine_is_named_as_for_ssh(word: str, node: NodeSpec) -> None:
    assert node_named(word, {}) == node


@pytest.mark.parametrize(
    "word", ["-oProxyCommand=x", "", "a b", "host:99999", "me@", "a/b@host", "1:2:3", "[host]:22", "::g", "vm1\n"]
)
def test_an_invalid_machine_name_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(["between", "--", word, "vm2"]) == 2
    assert "does not name a machine" in capsys.readouterr().err


def test_options_that_look_like_numbers_or_switches_are_parsed_as_such() -> None:
    given = ["connect_timeout_s=2.5", "parallel=3", "exclusive=false", "mpi_prefix=/opt/mpi", "cache=", "x={}"]
    assert [read_option(one)[1] for one in given] == [2.5, 3, False, "/opt/mpi", "", "{}"]


def test_the_largest_doubt_comes_first() -> None:
    busy = facts_of_machines(vm2=replace(LOOK, identity="vm2", load=3.9))
    assert "vm2 3.9" in doubts(asked(), busy)[0]
    quiet = {name: replace(one, adaptive=False) for name, one in facts_of_machines().items()}
    assert doubts(asked(), quiet)[0].startswith("one occasion")


def test_one_pair_gets_figures_and_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = {name: replace(one, tools=frozenset()) for name, one in facts_of_machines().items()}
    recipe = Recipe(study=propose(asked(sizes=(64,)), bare).text, blocks=5, cost={"vm1-vm2": 1.0})
    view = build_view(make_run(tmp_path / "run", recipe))
    _answer(asked(sizes=(64,)), bare, view)
    again = _next(view, 120, tmp_path / "run", ["me@vm1:2201", "vm2"], ["--hosts", "my hosts"])
    stdout = capsys.readouterr().out
    figures = r"latency, .*, mean: 64 B: [\d.]+ us \(median [\w.]+\)"
    assert re.search(rf"^answer for vm1 and vm2:\n  {figures}\n(.*\n)*  Noise floor: ", stdout)
    assert "near-metal" not in stdout, "nothing is compared"
    options = "--against HOST3 HOST4 --hosts 'my hosts'"
    assert again == f"compare with a baseline: nearmetal between me@vm1:2201 vm2 {options}"


def test_without_a_gap_nothing_is_said_to_close_it(tmp_path: Path) -> None:
    view = build_view(make_run(tmp_path / "run", Recipe()))
    of = {one.path: one for one in view.verdicts}
    four, root = ["a", "b", "c", "d"], tmp_path / "run"
    even = replace(view, verdicts=(of["macvlan"], of["shm"]))
    assert _next(even, 120, root, four, []) == f"every figure behind it: nearmetal report {root}"
    assert _next(view, 120, root, four, []).startswith("what could close the gap: ")


def briefly(link: LinkRequest, looks: Mapping[str, MachineLook]) -> Proposal:
    """Propose few iterations by ranks that sleep while they wait: spinning ranks took twelve processor seconds."""
    made = propose(link, looks)
    text = made.text.replace("iterations = 1000", 'iterations = 50\nwarmup = 5\nprogress = "blocking"')
    assert text != made.text
    return replace(made, text=text)


@pytest.mark.netns
@pytest.mark.mpi
def test_two_pairs_of_machines_get_a_verdict_from_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for blocks in ("LEAST_BLOCKS", "MOST_BLOCKS"):
        monkeypatch.setattr(between, blocks, 3)  # fewer launches: their result is not judged here
    monkeypatch.setattr(verb, "propose", briefly)
    (tmp_path / "ssh").mkdir()
    with two_machines(tmp_path / "ssh", cables=2) as far:
        if tool := shutil.which("sockperf"):
            far.inside.run(["mount", "--bind", "/dev/null", tool], node="n1")
        for guest in ("n0", "n1"):  # virtual machines seldom run the kernel of their hosts
            (tmp_path / guest).write_text(f"6.1.{guest}\n")
            far.inside.run(["mount", "--bind", str(tmp_path / guest), "/proc/sys/kernel/osrelease"], node=guest)
        nodes = "".join(
            f'[[node]]\nname = "{n.name}"\naddress = "{n.address}"\nport = {n.port}\nreach = "{n.reach}"\n'
            for n in far.host._nodes.values()
        )
        (tmp_path / "hosts.toml").write_text(nodes)
        options = [word for key, value in far.host._options.items() for word in ("-o", f"{key}={value}")]
        words = ["between", "m0", "m1", "--against", "m2", "m3", "--size", "64", "--minutes", "0.1"]
        words += ["--hosts", "hosts.toml", *options]
        assert nearmetal([*words, "--out", "run"]) == 0
        captured = capsys.readouterr()
        study = parse_study((tmp_path / "between-m0-m1.toml").read_text(), "s")
        refused = nearmetal([*words, "-o", "remote_shell=ssh -F /dev/null -p 1 -o BatchMode=yes"])
    assert {w.name for w in study.workload} == {"latency"}
    assert "left out     TCP round trips: no sockperf on m" in captured.err
    assert all(node.interface for node in study.host.node), "the interface that leads to the other machine"
    verdict = re.search(r"^m0-m1 +(\S+) +[\d.]+", captured.out, re.MULTILINE)
    assert verdict, captured.out
    assert verdict[1] in set(Verdict)
    assert "largest doubt: " in captured.out
    said = " ".join(captured.out.split())
    assert f"kernel.release is {os.uname().release} on m2-m3; 6.1.n0 (n0); 6.1.n1 (n1) on m0-m1: a ratio of" in said
    assert "CAUTION: the nodes of m0-m1 differ in kernel.release." in said
    assert re.search("CAUTION: nodes of (m0-m1, m2-m3|m2-m3, m0-m1) share a computer: its processors serve", said)
    more = "next: more launches: nearmetal between m0 m1 --against m2 m3 --minutes 0.4"
    even = "next: every figure behind it: nearmetal report run"
    known = {Verdict.UNDECIDED: more, Verdict.NEAR_METAL: even, Verdict.FASTER: even}
    assert known.get(Verdict(verdict[1]), "next: what could close the gap: nearmetal advise run") in captured.out
    assert "will measure MPI ping-pong latency: 64 B" in captured.err
    trials = RunDir.open(tmp_path / "run").trials()
    assert [one.outcome.facts[COMPUTERS] for one in trials] == [1] * 9
    assert refused == 3
    assert "cannot log in to" in capsys.readouterr().err


def test_an_unreachable_machine_is_reported_with_a_command_to_check_it(capsys: pytest.CaptureFixture[str]) -> None:
    need_ssh()
    assert nearmetal(["between", "me@127.0.0.1:1", "127.0.0.2:1"]) == 3
    stderr = capsys.readouterr().err
    assert stderr.startswith("error: cannot connect to 127.0.0.1 (127.0.0.1 port 1): ")
    assert stderr.endswith("hint: check it with `ssh -p 1 me@127.0.0.1`\n")
    assert "Errno" not in stderr
    assert ": Connection refused\n" in stderr or "; cannot connect" in stderr
    assert "Connect call failed" not in stderr
