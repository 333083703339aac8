import contextlib

import pytest

from nearmetal.errors import BadInputError
from nearmetal.run.check import check_study
from nearmetal.study.spec import parse_study
from nearmetal.workloads.mpi.mpi import Mpi
from tests.unit.test_spec import GOOD

BAD = """
format = 1
name = "bad"
baseline = "veth"
host = { kind = "locla" }
mpi = { flavour = "mpitch" }
[[path]]
name = "veth"
[[path]]
name = "teleport"
[[workload]]
name = "latncy"
sizes = [8]
[[workload]]
name = "barrier"
sizes = [8]
[[workload]]
name = "latency"
ranks = 3
sizes = [8]
[[workload]]
name = "bw"
sizes = [8]
options = { windows = 4 }
[[setting]]
name = "fast"
knobs = { "nic.rx-usec" = 0, "mpi.foo" = 1 }
"""


def test_a_good_study_passes() -> None:
    check_study(parse_study(GOOD, "t"))


@pytest.mark.parametrize("operation", ["multi_latency", "message_rate", "exchange"])
@pytest.mark.parametrize(
    ("placement", "good"),
    [("[0, 1, 0, 1]", False), ('"spread"', False), ("[0, 0, 1, 1]", True), ("[0, 1, 1, 0]", True), ('"packed"', True)],
)
def test_pairs_on_one_node_of_two_are_refused(operation: str, placement: str, good: bool) -> None:
    """Rank 0 and rank 2 of four are a pair: on one node, their messages never take the path."""
    rest = f"ranks = 4\nplacement = {placement}" if placement.startswith('"') else f"placement = {placement}"
    paths = GOOD.replace("veth", "macvlan")  # which takes any number of nodes
    study = paths + f'[[workload]]\nname = "w"\noperation = "{operation}"\nsizes = [8]\n{rest}\n'
    with contextlib.nullcontext() if good else pytest.raises(BadInputError, match="some of these are on one node"):
        check_study(parse_study(study, "t"))


def test_a_node_without_a_rank_is_refused() -> None:
    study = GOOD + '[[workload]]\nname = "w"\noperation = "allreduce"\nsizes = [8]\nplacement = [0, 2, 2]\n'
    with pytest.raises(BadInputError, match="leaves node 1 without a rank") as caught:
        check_study(parse_study(study, "t"))
    assert "without gaps: 0 to 1" in caught.value.message


def test_all_unknown_names_are_listed_together() -> None:
    with pytest.raises(BadInputError) as caught:
        check_study(parse_study(BAD, "t"))
    text = caught.value.render()
    assert "has 9 errors" in text
    for message in (
        "there is no host 'locla' (did you mean 'local'?)",
        "'mpitch' is not an MPI that nearmetal launches (did you mean 'mpich'?)",
        "there is no path 'teleport'",
        "there is no operation 'latncy'",
        "engine has no option 'windows'",
        "latency takes exactly 2 ranks, not 3",
        "barrier has no sizes",
        "there is no knob 'nic.rx-usec' (did you mean nic.rx-usecs",
        "there is no knob 'mpi.foo'",
    ):
        assert message in text


LAB = """
format = 1
name = "polls"
baseline = "native"
host = { kind = "lab", options = { machine = "MACHINE" } }
mpi = { flavour = "FLAVOUR" }
[[path]]
name = "native"
[[path]]
name = "PATH"
[[workload]]
name = "latency"
sizes = [8]
progress = "PROGRESS"
"""


@pytest.mark.parametrize(
    ("flavour", "version", "machine", "path", "progress", "refused"),
    [
        ("mpich", "4.0.2", "base", "vf", "polling", "a waiting rank of mpich-4.0.2 polls without yielding"),
        ("mpich", "5.0.2", "base", "vf", "polling", ""),
        ("mpich", "4.0.2", "smp2", "vf", "polling", ""),
        ("mpich", "", "base", "vf", "polling", ""),  # there is no image: the launch itself refuses
        ("openmpi", "4.1.4", "base", "vf", "polling", ""),
        ("openmpi", "4.1.4", "kvm", "guest-vf", "polling", "a rank that polls inside a guest keeps its processor"),
        ("openmpi", "4.1.4", "kvm", "guest-vf", "blocking", ""),
    ],
)
def test_a_lab_study_whose_ranks_would_starve_each_other_is_refused_up_front(
    monkeypatch: pytest.MonkeyPatch, flavour: str, version: str, machine: str, path: str, progress: str, refused: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("nearmetal.run.check.image.package_version", lambda name: asked.append(name) or version)
    text = LAB.replace("FLAVOUR", flavour).replace("MACHINE", machine)
    study = parse_study(text.replace("PATH", path).replace("PROGRESS", progress), "t")
    with pytest.raises(BadInputError, match=refused) if refused else contextlib.nullcontext():
        check_study(study)
    assert len(asked) == 1, "each time reads all that the image is made of"


@pytest.mark.parametrize(
    ("options", "placement", "path", "refused"),
    [
        ("nodes = 2", "[0, 1]", "vf", ""),
        ("nodes = 2", "[0, 0]", "vf", "2 ranks share 1 processor"),
        ("nodes = 2", "[0, 2]", "vf", "needs 3 nodes, but the cluster has 2"),
        ("slots = 1", "[0, 1]", "vf", "2 ranks share 1 processor"),
        ('nodes = 2, machine = "kvm"', "[0, 1]", "guest-vf", ""),
        ('nodes = 2, machine = "kvm"', "[0, 1]", 'vhost"\noptions = {ends = "one"} #', ""),
        (
            'nodes = 2, machine = "kvm"',
            "[0, 1]",
            'vhost"\noptions = {ends = "all"} #',
            "ends must be 'both' or 'one', not 'all'",
        ),
        ("nodes = 2", "[0, 1]", "guest-vf", r"'base' has no KVM \(machine = 'kvm' in \[host.options\]\)"),
        ('machine = "kvm"', "[0, 1]", 'vhost"\noptions = {ends = "both"} #', "at only one end(.*)set `nodes`"),
        ("nodes = 2", "[0, 1]", "vf-roce", "is built on one machine"),
        ("nodes = 2", "[0, 1]\noptions = { waterfall = true }", "vf", ""),
        ('nodes = 2, machine = "kvm"', "[0, 1]\noptions = { waterfall = true }", "vhost", "asks for a kernel trace"),
    ],
)
def test_ranks_may_poll_where_every_lab_node_is_a_machine_of_its_own(
    monkeypatch: pytest.MonkeyPatch, options: str, placement: str, path: str, refused: str
) -> None:
    monkeypatch.setattr("nearmetal.run.check.image.package_version", lambda _: "4.0.2")
    text = LAB.replace('machine = "MACHINE"', options).replace("FLAVOUR", "mpich").replace("PATH", path)
    study = parse_study(text.replace("PROGRESS", f'polling"\nplacement = {placement} #"'), "t")
    with pytest.raises(BadInputError, match=refused) if refused else contextlib.nullcontext():
        check_study(study)


@pytest.mark.parametrize(
    ("processors", "quota", "refused"), [(1, "max", True), (2, "max", False), (2, "199999", True), (2, "200000", False)]
)
def test_a_local_study_is_refused_where_polling_ranks_share_processors(
    monkeypatch: pytest.MonkeyPatch, processors: int, quota: str, refused: bool
) -> None:
    """Those that a quota of processor time leaves."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    files = {"/sys/fs/cgroup/cpu.max": f"{quota} 100000\n".encode()}
    monkeypatch.setattr("nearmetal.hosts.plain_files.read_all", lambda paths: files if set(files) & {*paths} else {})
    monkeypatch.setattr("nearmetal.run.check.find_mpi", lambda name: Mpi(name, "4.2.0", "/usr/bin/mpirun"))
    text = LAB.replace('"lab", options = { machine = "MACHINE" }', '"local"').replace("FLAVOUR", "mpich")
    study = parse_study(text.replace("PATH", "veth").replace("PROGRESS", "polling"), "t")
    with pytest.raises(BadInputError, match="share 1 processor") if refused else contextlib.nullcontext():
        check_study(study)


@pytest.mark.parametrize(
    ("host", "path", "refused"),
    [
        ('{ kind = "local" }', 'name = "bridge"\noptions = { wire_rat_mbit = 2000 }', r"mean 'wire_rate_mbit'\?"),
        ('{ kind = "local" }', 'name = "shm"\noptions = { rx_usecs = 0 }', r"no option 'rx_usecs' \(leave it out\)"),
        ('{ kind = "lab" }', 'name = "native"\noptions = { hypervisor = "h1" }', "has no option 'hypervisor'"),
        ('{ kind = "local", options = { nodes = 2 } }', 'name = "shm"', r"host 'local' has no option 'nodes'"),
        ('{ kind = "lab", options = { node = 2 } }', 'name = "vf"', r"did you mean 'nodes'\?"),
        (
            '{ kind = "fake", options = { "bas_ns.veth" = 2 } }',
            'name = "shm"',
            r"host 'fake' has no option 'bas_ns.veth'",
        ),
        ('{ kind = "fake", options = { "base_ns.veth" = 2 } }', 'name = "shm"', ""),
        ('{ hosts_file = "hosts.toml" }', 'name = "shm"', "'local' would not use them"),
        ('{ node = [{ name = "a" }] }', 'name = "shm"', r"\[\[host.node\]\] names machines(.*)kind = 'ssh'"),
        ('{ kind = "slurm" }', 'name = "declared"\noptions = { partitions = "x" }', r"mean 'partition'\?"),
        ('{ kind = "slurm" }', 'name = "declared"\noptions = { partition = "x", "interface.1" = "eth1" }', ""),
    ],
)
def test_an_unknown_option_of_a_host_or_path_is_refused(host: str, path: str, refused: str) -> None:
    study = f'format = 1\nname = "s"\nbaseline = "veth"\nhost = {host}\n[[path]]\nname = "veth"\n[[path]]\n{path}\n'
    study += '[[workload]]\nname = "ping"\nkind = "qperf"\nsizes = [8]\n'
    with pytest.raises(BadInputError, match=refused) if refused else contextlib.nullcontext():
        check_study(parse_study(study, "t"))
