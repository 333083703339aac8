import pytest

from nearmetal.errors import BadInputError
from nearmetal.run.check import check_study
from nearmetal.study.spec import parse_study
from tests.unit.test_spec import GOOD

BAD = """
format = 1
name = "bad"
baseline = "veth"
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


def test_every_name_that_stands_for_nothing_is_listed_at_once() -> None:
    with pytest.raises(BadInputError) as caught:
        check_study(parse_study(BAD, "t"))
    text = caught.value.render()
    assert "has 7 errors" in text
    for said in (
        "there is no path 'teleport'",
        "there is no operation 'latncy'",
        "the engine has no option 'windows'",
        "latency takes exactly 2 ranks, not 3",
        "barrier has no sizes",
        "there is no knob 'nic.rx-usec' (did you mean nic.rx-usecs",
        "there is no knob 'mpi.foo'",
    ):
        assert said in text
