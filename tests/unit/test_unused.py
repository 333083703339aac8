"""No option without effect: what a study asks for and nothing would carry out is refused before anything starts."""

import contextlib
from pathlib import Path

import pytest

from nearmetal.cli.plan import command as plan
from nearmetal.errors import BadInputError
from nearmetal.run.check import check_study
from nearmetal.run.unused import measured_twice
from nearmetal.study.plan import block
from nearmetal.study.shipped import read_study, shipped
from nearmetal.study.spec import parse_study

HEAD = 'name = "t"\nbaseline = "bridge"\n'
PATH = '[[path]]\nname = "bridge"\n'
LATENCY = 'name = "latency"\nsizes = [8]\n'
BW = 'name = "bw"\nsizes = [8, 65536]\n'
KNOBS = 'knobs = { "nic.rx-usecs" = [0] }\n'
COMMAND = 'name = "c"\nkind = "command"\n'


def study(workload: str = LATENCY, *, top: str = "", path: str = "", end: str = "") -> None:
    check_study(parse_study(f"{HEAD}{top}\n{PATH}{path}\n[[workload]]\n{workload}\n{end}", "t"))


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (LATENCY + "options = { iterations = 5 }", r"options\.iterations would have no effect"),
        (LATENCY + "options = { warmup = 5 }", r"options\.warmup"),
        (LATENCY + "options = { sizes = [9] }", r"options\.sizes"),
        (LATENCY + 'options = { operation = "bw" }', r"options\.operation"),
        (LATENCY + "options = { pace_us = 5 }", r"options\.pace_us"),
        (LATENCY + "placement = [0, 1]\nranks = 4", "ranks = 4, but `placement` has 2 of them"),
        ('name = "i"\nkind = "iperf3"\noperation = "udp_stream"', "'operation' would have no effect on kind 'iperf3'"),
        ('name = "n"\nkind = "netperf"\noperation = "TCP_RR"', "'operation' would have no effect"),
        ('name = "n"\nkind = "sockperf"\niterations = 5', "'iterations' would have no effect"),
        ('name = "n"\nkind = "nuttcp"\nwarmup = 5', "'warmup' would have no effect"),
        ('name = "n"\nkind = "nuttcp"\nprogress = "blocking"', "'progress' would have no effect"),
        ('name = "cg"\nkind = "application"\niterations = 8', "'iterations' would have no effect"),
        ('name = "cg"\nkind = "application"\nsizes = [8]', "'sizes' would have no effect"),
        ('name = "f"\nkind = "fabric"\nplacement = [0, 1]\nsizes = [8]', "'sizes' would have no effect"),
        (COMMAND + 'sizes = [8]\noptions = { argv = ["true"] }', "'sizes' would have no effect"),
        (COMMAND + 'progress = "blocking"\noptions = { argv = ["true"] }', "'progress' would have no effect"),
        (COMMAND + 'placement = []\noptions = { argv = ["true"] }', "`placement` is empty"),
        (LATENCY + "placement = [0, 2]", "leaves node 1 without a rank"),
        ('name = "n"\nkind = "nuttcp"\nplacement = "packed"', "both are on node 0"),
    ],
)
def test_a_key_that_nothing_uses_is_refused(workload: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        study(workload)


@pytest.mark.parametrize(
    "workload",
    [
        LATENCY + "placement = [0, 1]\nranks = 2",
        COMMAND + 'progress = "blocking"\noptions = { argv = ["true"], mpi = true }',
        BW + 'options = { window = 4, buffers = "many", iterations_large = 4, large_from = 1024, warmup_large = 0 }',
        LATENCY + 'options = { sync = "window", sync_window_us = 200, compute_us = 4, working_set = 8192 }',
    ],
)
def test_what_has_an_effect_is_accepted(workload: str) -> None:
    study(workload)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("window = 8", "'window' would have no effect: latency sends no windows"),
        ('buffers = "many"', "'buffers' would have no effect"),
        ("sync_window_us = 200", "'sync_window_us' would have no effect"),
        ("working_set = 8192", "'working_set' would have no effect"),
        ("iterations_large = 4", "no size is 65536 bytes or more"),
        ("large_from = 4", "neither `iterations_large` nor `warmup_large` is given"),
        ("large_from = [4, 8], iterations_large = [4, 5]", "no size is 4 bytes or more and less than 8"),
        ("large_from = [8, 64], iterations_large = [4, 5]", r"no size is 64 bytes or more \("),
        ("large_from = [8, 8], iterations_large = [4, 5]", "'large_from' must ascend, not .8, 8."),
        ("large_from = [4, 8], warmup_large = 5", "'warmup_large' needs one number for each size of"),
        ("iterations_large = []", "one number for each size of `large_from`, 1 and not 0"),
        ("large_from = [8], iterations_large = [0]", "'iterations_large' is from 1"),
        ("window = [8]", "'window' must be a whole number"),
        ('sync = "wndow"', "one of barrier, none, window"),
        ('check = "no"', "'check' is true or false"),
        ('waterfall = "no"', "'waterfall' is true or false"),
        ("compute_us = -3", "from 0 to 60000000"),
        ("compute_us = inf", "must be a whole number, not inf"),
        ("compute_us = nan", "must be a whole number, not nan"),
        ("compute_us = true", "must be a whole number, not True"),
    ],
)
def test_an_option_that_the_engine_would_not_use_is_refused(options: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        study(f"{LATENCY}options = {{ {options} }}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "one_way needs the option 'compute_us'"),
        ("compute_us = 0", "one_way needs the option 'compute_us'"),
        ('compute_us = 9, sync = "window"', "one_way does not take sync = 'window'"),
    ],
)
def test_what_computes_beside_messages_must_know_for_how_long(options: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        study(f'name = "one_way"\nsizes = [8]\noptions = {{ {options} }}')


@pytest.mark.parametrize("sizes", ["[0]", "['2 GiB']", str(list(range(1, 66)))])
def test_sizes_that_the_engine_refuses_are_refused(sizes: str) -> None:
    with pytest.raises(BadInputError, match="takes up to 64 sizes of 1 byte to 2147483647"):
        study(f'name = "latency"\nsizes = {sizes}')


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ('name = "i"\nkind = "iperf3"\noptions = { seconds = inf }', "'seconds' of iperf3"),
        ('name = "i"\nkind = "nuttcp"\noptions = { seconds = nan }', "'seconds' of nuttcp"),
        ('name = "i"\nkind = "iperf3"\noptions = { line_rate_mbit = "1000" }', "whole number"),
        ('name = "i"\nkind = "qperf"\noptions = { test = "tcp_lat", line_rate_mbit = 9 }', "rates of bytes"),
        (
            COMMAND + 'options = { argv = ["x"], figure = "json", path = "a", pattern = "(b)" }',
            "`pattern` would have no",
        ),
        (COMMAND + 'options = { argv = ["x"], figure = "regex", path = "a", pattern = "(b)" }', "`path` would"),
        (COMMAND + 'options = { argv = ["x"], accept = ["x"] }', "a list of whole numbers, and 'x' is none"),
        (COMMAND + 'options = { argv = ["x"], packets = -1 }', "'packets' is at least 0"),
        ('name = "cg"\nkind = "application"\noptions = { class = "Z" }', "there is no class 'Z'"),
        ('name = "cg"\nkind = "application"\nranks = 3', "cg cannot run on 3 ranks"),
        ('name = "cg"\nkind = "application"\noptions = { trace = "yes" }', "'trace' is true or false"),
        ('name = "advection"\nkind = "application"\noptions = { grid = "3x1x1" }', "has 3 places, for 2 ranks"),
        ('name = "advection"\nkind = "application"\noptions = { size = "junk" }', "'size' is three numbers"),
        ('name = "advection"\nkind = "application"\noptions = { steps = 0 }', "'steps' is at least 1"),
        ('name = "f"\nkind = "fabric"\nplacement = [0, 1]\noptions = { bisection = "no" }', "is true or false"),
        ('name = "f"\nkind = "fabric"\nplacement = [0, 1]\noptions = { rounds = "all 0-1" }', "is a list of lines"),
        ('name = "f"\nkind = "fabric"\nplacement = [0, 1]\noptions = { patience = 0 }', "'patience' is at least 1"),
    ],
)
def test_an_option_that_a_program_would_not_understand_is_refused(workload: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        study(workload)


@pytest.mark.parametrize("host", ["ssh", "kubectl", "slurm"])
@pytest.mark.parametrize(
    ("kind", "option", "good"),
    [
        ("declared", "nodes", True),
        ("declared", "hypervisor", False),
        ("declared", "network", False),
        ("bridge", "hypervisor", True),
        ("bridge", "network", True),
        ("bridge", "nodes", False),
    ],
)
def test_a_path_says_only_what_its_kind_takes_of_machines(host: str, kind: str, option: str, good: bool) -> None:
    """A bridge with `nodes` was built on the hypervisor alone, and a declared path with `hypervisor` on no such."""
    path = f'kind = "{kind}"\noptions = {{ {option} = "machine" }}\n'
    refused = pytest.raises(BadInputError, match=f"'{option}' would have no effect on path 'bridge' \\({kind}\\)")
    with contextlib.nullcontext() if good else refused:
        study(top=f'[host]\nkind = "{host}"\n', path=path)


@pytest.mark.parametrize("kind", ["bridge", "macvlan", "tap"])
@pytest.mark.parametrize(
    "option", ["wire_delay_us", "wire_rate_mbit", "wire_loss_percent", "wire_queue_kib", "rx_usecs"]
)
def test_namespaces_have_no_wire(kind: str, option: str) -> None:
    with pytest.raises(BadInputError, match=f"asks for {option}, but namespaces have no wire"):
        study(path=f'[[path]]\nname = "p"\nkind = "{kind}"\noptions = {{ {option} = 5 }}')


@pytest.mark.parametrize(("kind", "good"), [("veth", False), ("tap", False), ("macvlan", True), ("shm", True)])
def test_a_cable_joins_two_nodes(kind: str, good: bool) -> None:
    with contextlib.nullcontext() if good else pytest.raises(BadInputError, match="joins 2 nodes"):
        study('name = "barrier"\nplacement = [0, 1, 2]', path=f'[[path]]\nname = "{kind}"')


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ('knobs = { "nic.rx-usecs" = ["abc"] }', "nic.rx-usecs = 'abc'"),
        (f'{KNOBS}workload_class = "a"\nclasses = [{{ name = "b" }}]', "workload_class would"),
        (f'{KNOBS}path = "brigde"', r"'brigde' is not a path of this study \(did you mean 'bridge'"),
        (f'{KNOBS}weights = {{ "latncy/*/mean" = 1 }}', r"'latncy/\*/mean' names no workload .* mean 'latency'"),
        (
            f'{KNOBS}weights = {{ "latency/*/maen" = 1 }}',
            r"'latency/\*/maen' matches no .*latency/latency/8 B/mean",
        ),
        (f'{KNOBS}weights = {{ "latency/latency/8/mean" = 1 }}', "'latency/latency/8/mean' matches no figure"),
        (f'{KNOBS}limits = {{ "latency" = "5 %" }}', "'latency' matches no figure"),
        (f'{KNOBS}classes = [{{ name = "b", weights = {{ "*/meen" = 1 }} }}]', r"'\*/meen' matches no figure"),
        (f'{KNOBS}weights = {{ "*/mean" = 0 }}', "no figure of class 'latency-bound' has a weight above 0"),
    ],
)
def test_a_search_is_checked_too(tune: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        study(end=f"[tune]\n{tune}")


@pytest.mark.parametrize(
    "tune",
    [
        'path = "bridge"\nweights = { "latency/*/m*" = 1, "*" = 0.5 }',
        'limits = { "*/cpu-share" = "5 %", "latency/latency/8 B/p99" = "5 %", "*/p[59]*" = "9 %" }',
    ],
)
@pytest.mark.parametrize("workload", [LATENCY, 'name = "latency"\nkind = "netperf"'])
def test_patterns_that_match_figures_pass(tune: str, workload: str) -> None:
    study(workload, end=f"[tune]\n{KNOBS}{tune}")


def test_a_class_whose_workloads_have_no_weight_is_refused() -> None:
    two = f'{LATENCY}[[workload]]\nname = "bw"\nsizes = [8]\n'
    classes = '[[tune.classes]]\nname = "b"\nworkloads = ["bw"]'
    with pytest.raises(BadInputError, match=r"no figure of class 'b' has a weight above 0.*bw/bw/8 B/mean"):
        study(two, end=f'[tune]\n{KNOBS}weights = {{ "latency/*" = 1 }}\n{classes}')


@pytest.mark.parametrize(
    "workload",
    ['name = "n"\nkind = "netperf"', COMMAND + 'options = { argv = ["true"] }'],
)
def test_figures_of_other_programs_are_checked_by_what_is_known_of_them(workload: str) -> None:
    name = workload[8]
    study(workload, end=f'[tune]\n{KNOBS}weights = {{ "{name}/anything/9 B/mean" = 1 }}')
    with pytest.raises(BadInputError, match=f"matches no figure .*{name}/OPERATION/SIZE/mean"):
        study(workload, end=f'[tune]\n{KNOBS}weights = {{ "{name}/*/maen" = 1 }}')


@pytest.mark.parametrize(
    ("workload", "end"), [(LATENCY, "[trials]\ntimeout = 60"), (LATENCY + 'pace = "random"\npace_range = 500', "")]
)
def test_a_duration_without_a_unit_is_refused(workload: str, end: str) -> None:
    """They were taken for nanoseconds."""
    text = f"{HEAD}{PATH}[[workload]]\n{workload}\n{end}"
    with pytest.raises(BadInputError, match="has no unit: write it as text"):
        parse_study(text, "t")
    assert block(parse_study(text, "t", measured=True), 0)  # of a run that was measured


@pytest.mark.parametrize(
    "wrong",
    [
        'hosts_file = "hosts.toml"',
        'node = [{ name = "a", user = "root" }]',
        'node = [{ name = "a", port = 22 }]',
        'node = [{ name = "a", jump = "b" }]',
        'node = [{ name = "a", connect_timeout_s = 3 }]',
        'node = [{ name = "a" }]\noptions = { selector = "job-name=mpi" }',
    ],
)
def test_pods_take_no_log_ins(wrong: str) -> None:
    with pytest.raises(BadInputError, match="would have no effect"):
        study(top=f'[host]\nkind = "kubectl"\n{wrong}')


def test_a_size_is_no_truth_value() -> None:
    with pytest.raises(BadInputError, match="true is no number"):
        study('name = "latency"\nsizes = [true]')


def test_ranks_of_one_node_are_not_sent_to_a_path_that_they_would_not_cross_either() -> None:
    with pytest.raises(BadInputError, match="give each node a rank") as raised:
        study(LATENCY + 'placement = "packed"', path='[[path]]\nname = "veth"\n')
    assert "such as `bridge`" not in raised.value.message


def test_settings_are_the_same_however_their_values_are_written() -> None:
    """Two whose values differ in their type alone were compared, and near-metal, without a word."""
    plain, text = '"nic.rx-usecs" = 3, "nic.gro" = true', '"nic.rx-usecs" = "3", "nic.gro" = "on"'
    settings = "".join(f'[[setting]]\nname = "s{n}"\nknobs = {{ {knobs} }}\n' for n, knobs in enumerate((plain, text)))
    found = parse_study(f"{HEAD}{PATH}[[workload]]\n{LATENCY}{settings}", "t")
    assert [*measured_twice(found)] == ["settings s0, s1 are one setting under 2 names: their knobs are the same"]


def test_a_path_is_refused_by_the_name_that_its_study_gives_it() -> None:
    """The baseline, which is measured twice, was two errors, one of a path that nobody had written."""
    text = f"{HEAD}{PATH}[[workload]]\n{LATENCY}placement = [0, 1, 2]\n".replace("bridge", "veth")
    with pytest.raises(BadInputError, match="joins 2 nodes") as raised:
        check_study(parse_study(text, "t"))
    assert "veth-again" not in raised.value.message


TWICE = """
name = "t"
baseline = "bridge"
path = [{ name = "bridge" }, { name = "far", kind = "bridge" }, { name = "memory", kind = "shm" }, { name = "macvlan" }]
[[workload]]
name = "latency"
sizes = [8]
[[workload]]
name = "bw"
sizes = [8]
placement = "packed"
[[workload]]
name = "stream"
kind = "nuttcp"
[[setting]]
name = "as-found"
[[setting]]
name = "same"
[[setting]]
name = "small"
knobs = { "nic.tso" = "off", "nic.gro" = "off", "host.tcp_sack" = 0, "mpi.bind" = "core" }
"""


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_plan_warns_of_what_it_measures_twice(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A knob of interfaces is not set in shared memory: what it gained there was the first setting against itself."""
    (tmp_path / "s.toml").write_text(TWICE)
    plan([str(tmp_path / "s.toml"), "--format", form], standalone_mode=False)
    assert capsys.readouterr().err.splitlines() == [
        "warning: paths bridge, far are one path under 2 names: kind and options are the same",
        "warning: settings as-found, same are one setting under 2 names: their knobs are the same",
        "warning: all ranks of workload bw are on one node: no message crosses a path",
        "warning: path memory has no interface: nic.tso, nic.gro cannot be set there, whatever the setting's name says",
        "warning: workload stream has no MPI ranks: mpi.bind cannot be set there, whatever the setting's name says",
    ]


@pytest.mark.parametrize("name", list(shipped()))
def test_no_shipped_study_measures_one_thing_twice(name: str) -> None:
    assert not [one for one in measured_twice(read_study(Path(name))[0]) if "path shm" not in one]
