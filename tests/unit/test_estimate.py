"""A plan's estimate of a study's duration: which studies take longer than which, and by how much."""

import pytest

from nearmetal.errors import BadInputError
from nearmetal.run.estimate import GUEST_S, estimate
from nearmetal.study.spec import parse_study
from nearmetal.workloads.engine import of_size

STUDY = """
format = 1
name = "s"
seed = 1
baseline = "{path}"
[host]
kind = "{host}"
options = {{ {options} }}
[[path]]
name = "{path}"
options = {{ {of_path} }}
[[workload]]
name = "w"
{workload}
[trials]
min_blocks = 3
max_blocks = 6
"""
LATENCY = 'kind = "engine"\noperation = "latency"\nsizes = [8]\niterations = {}'


def seconds(
    host: str = "local", workload: str = LATENCY.format(1000), path: str = "veth", options: str = "", of_path: str = ""
) -> float:
    text = STUDY.format(host=host, path=path, workload=workload, options=options, of_path=of_path)
    least, most = estimate(parse_study(text, "s.toml"))
    assert most == 2 * least, "six blocks take twice as long as three"
    return least / 1e9


def test_the_lab_takes_longer_than_this_machine() -> None:
    one = 'machine = "{}", slots = 1'
    base, smp2 = (seconds("lab", path="native", options=one.format(name)) for name in ("base", "smp2"))
    assert 10 * seconds() < base < smp2


def test_every_machine_of_a_cluster_adds_time() -> None:
    two, four = (seconds("lab", path="native", options=f"nodes = {nodes}, slots = 1") for nodes in (2, 4))
    assert four == pytest.approx(2 * two, rel=0.01)


def test_two_machines_of_the_lab_halve_the_time() -> None:
    one, two = (seconds("lab", path="native", options=f"slots = {slots}") for slots in (1, 2))
    assert one == pytest.approx(2 * two)


KVM = 'machine = "kvm", slots = 1'
SIX_TRIALS = 6
"""Three blocks, the baseline twice."""


@pytest.mark.parametrize("guests", [1, 4])
def test_guests_that_a_trial_boots_add_time(guests: int) -> None:
    streams = f'kind = "nuttcp"\nplacement = {[node for guest in range(guests) for node in (0, guest + 1)]}'
    bare, inside = (seconds("lab", streams, path, KVM) for path in ("native", "vhost"))
    assert inside - bare == pytest.approx(SIX_TRIALS * guests * GUEST_S)


def test_guests_in_the_snapshot_of_their_machines_add_no_time() -> None:
    bare, standing, fresh = (
        seconds("lab", path=path, options=f"{KVM}, nodes = 2, {more}")
        for path, more in (("native", ""), ("vhost", ""), ("vhost", "launches = 3, standing_guests = false"))
    )
    assert standing == bare
    shared = seconds("lab", path="native", options=f"{KVM}, nodes = 2, launches = 3")
    assert fresh - shared == pytest.approx(SIX_TRIALS * 2 * GUEST_S / 3), "three launches share two boots"


def test_against_a_bare_peer_one_guest_of_two_nodes_boots() -> None:
    options = f"{KVM}, nodes = 2"
    bare = seconds("lab", path="native", options=options)
    one = seconds("lab", path="vhost", options=options, of_path='ends = "one"')
    assert one - bare == pytest.approx(SIX_TRIALS * GUEST_S)


def test_a_tool_takes_the_seconds_in_its_options() -> None:
    options = 'kind = "nuttcp"\noptions = {{ seconds = {}, runs = {} }}'
    ten, once = (seconds(workload=options.format(2, runs)) for runs in (10, 1))
    assert ten - once == pytest.approx(3 * 2 * 18), "three blocks, the baseline twice, nine more runs of 2 s"


def test_more_iterations_take_longer() -> None:
    assert seconds(workload=LATENCY.format(1_000_000)) > 20 * seconds() > 0


def test_large_messages_use_their_own_number_of_iterations() -> None:
    both = LATENCY.format(1000).replace("[8]", "[8, 65536]") + "\nwarmup = 0\noptions = {{ iterations_large = {} }}"
    many, few, none = (seconds(workload=both.format(large)) for large in (1000, 20, 10))
    assert (many - few) / (few - none) == pytest.approx(98)


@pytest.mark.parametrize(
    ("size", "counts", "made"),
    [
        (65536, {"iterations_large": 20}, 20),
        (65535, {"iterations_large": 20}, 400),
        (4096, {"iterations_large": 20, "large_from": 4096}, 20),
        (65536, {"large_from": 4096, "warmup_large": 5}, 400),
        (4095, {"iterations_large": [104, 20], "large_from": [4096, 65536]}, 400),
        (4096, {"iterations_large": [104, 20], "large_from": [4096, 65536]}, 104),
        (65536, {"iterations_large": [104, 20], "large_from": [4096, 65536]}, 20),
    ],
)
def test_a_large_size_is_defined_as_in_nmbench(size: int, counts: dict[str, object], made: int) -> None:
    assert of_size(size, counts, "iterations", 400) == made


@pytest.mark.parametrize(
    ("host", "path", "options"),
    [("lab", "native", 'slots = "many"'), ("lab", "native", "slots = true"), ("slurm", "veth", 'allocations = "four"')],
)
def test_an_invalid_count_is_refused(host: str, path: str, options: str) -> None:
    with pytest.raises(BadInputError, match="a whole number of at least 1"):
        seconds(host, path=path, options=options)


def test_clients_run_for_their_time_at_each_size_and_run() -> None:
    plain, longer, more, sized = (
        seconds(workload=f'kind = "nuttcp"\n{options}')
        for options in ("", "options = { seconds = 5 }", "options = { runs = 10 }", "sizes = [8, 64, 1024]")
    )
    each = SIX_TRIALS * 2.0
    assert plain > each
    assert longer - plain == pytest.approx(1.5 * each)
    assert more - plain == pytest.approx(9 * each)
    assert sized - plain == pytest.approx(2 * each)
