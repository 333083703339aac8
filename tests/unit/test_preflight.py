"""What a host lacks for a study is told before the first trial: every reason, once, with where it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.main import run as nearmetal
from nearmetal.errors import BadInputError, TrialError, UnavailableError
from nearmetal.hosts.fake import FakeHost
from nearmetal.hosts.host import Site
from nearmetal.process import Finished
from nearmetal.run.check import check_study
from nearmetal.run.preflight import _Reasons, limits, preflight
from nearmetal.study.order import Outcome, TrialStatus
from nearmetal.study.plan import block
from nearmetal.study.spec import parse_study

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nearmetal.hosts.host import Shell
    from nearmetal.study.order import Order

STUDY = """
format = 1
name = "wants"
baseline = "veth"
host = { kind = "local" }
mpi = { flavour = "openmpi" }
path = [{ name = "veth" }, { name = "vf" }, { name = "bridge" }]
[[workload]]
name = "latency"
sizes = [8]
[[workload]]
name = "tcp"
kind = "sockperf"
sizes = [64]
[[setting]]
name = "default"
[[setting]]
name = "absent"
knobs = { "nic.rx-usecs" = 4 }
"""


class Refusing(FakeHost):
    """A host that refuses some paths before it gives a shell, and keeps the orders that it was given."""

    kind = "local"

    def __init__(self, refused: tuple[str, ...]) -> None:
        super().__init__({})
        self.refused, self.asked = refused, []

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        self.asked.append((order.path.label, order.workload.label, order.setting))
        if order.path.label in self.refused:
            return Outcome(TrialStatus.FAILED, reason="no such machine", hint="name it")
        return Outcome(TrialStatus.VALID)


def test_every_part_of_a_study_is_tried_and_the_second_baseline_is_not() -> None:
    host = Refusing(())
    preflight(parse_study(STUDY, "s"), host, lambda _: None)
    paths, workloads, settings = map(set, zip(*host.asked, strict=True))
    assert (paths, workloads, settings) == ({"veth", "vf", "bridge"}, {"latency", "tcp"}, {"default", "absent"})
    assert len(host.asked) <= 3 + 2 + 2


def test_declared_paths_try_every_workload_on_their_own_machines() -> None:
    host = Refusing(())
    declared = STUDY.replace('"local"', '"ssh"').replace('{ name = "vf" }', '{ name = "far", kind = "declared" }')
    preflight(parse_study(declared, "s"), host, lambda _: None)
    assert {workload for path, workload, _ in host.asked if path == "far"} == {"latency", "tcp"}


def test_one_reason_is_told_once_with_all_that_it_holds_for() -> None:
    with pytest.raises(UnavailableError) as raised:
        preflight(parse_study(STUDY, "s"), Refusing(("veth", "bridge")), lambda _: None)
    assert raised.value.exit_code == 3
    assert "for 1 reason:" in raised.value.message
    assert raised.value.message.count("no such machine") == 1
    assert "path bridge" in raised.value.message
    assert "path veth" in raised.value.message


@pytest.mark.parametrize(("kind", "asked"), [("engine", True), ("sockperf", False)])
def test_only_mpi_needs_machines_that_log_in_to_each_other(kind: str, asked: bool) -> None:
    (order, *_) = [one for one in block(parse_study(STUDY, "s"), 0) if one.workload.kind == kind]
    found = _Reasons(lambda _: None)
    with NoLogin() as shell:
        found.rehearse(shell, order)  # type: ignore[arg-type]
    assert any("cannot log in" in reason for reason, _ in found.reasons) == asked


class NoLogin:
    """Far machines of which none can log in to another; whatever else is asked of them fails in words of its own."""

    site = Site("cache", "state")
    machines = ("n0", "n1")
    agent = "agent"

    def __enter__(self) -> NoLogin:
        return self

    def __exit__(self, *_: object) -> None: ...

    def add_node(self, name: str) -> None: ...

    def machine_name(self, node: str) -> str:
        return f"machine-{node}"

    launch_name = machine_name

    def once(self, key: str, make: Callable[[], object]) -> object:
        return 2

    def read(self, path: str, *, node: str = "") -> bytes:
        return b"0.00 0.00 0.00 1/2 3"

    def run(self, argv: Sequence[str], **_: object) -> Finished:
        if self.agent in argv:
            return Finished(tuple(argv), 0, b"machine-n1\t255\tPermission denied (publickey).\n", b"", 1)
        if argv[0] == "sh":
            return Finished(tuple(argv), 0, b"", b"", 1)
        raise TrialError("this machine does nothing")


def test_what_a_study_is_too_small_for_is_a_warning() -> None:
    small = STUDY + "[trials]\nmin_blocks = 3\nmax_blocks = 3\n"
    said = list(limits(parse_study(small.replace("sizes = [8]", "sizes = [8]\niterations = 200"), "s")))
    assert [one.partition(";")[0] for one in said] == [
        "workload latency: 200 iterations are too few for a p99, which near-metal needs",
        "3 blocks cannot show near-metal, which needs 14",
    ]
    assert list(limits(parse_study(STUDY + "[trials]\nmax_blocks = 20\n", "s"))) == []


def test_a_value_of_the_wrong_type_needs_no_host_to_be_refused() -> None:
    wrong = STUDY.replace('"nic.rx-usecs" = 4', '"nic.rx-usecs" = "abc", "host.busy_read" = "often"')
    with pytest.raises(BadInputError, match=r"2 errors(.|\n)*'abc'(.|\n)*'often'"):
        check_study(parse_study(wrong, "s"))


@pytest.mark.netns
@pytest.mark.mpi
def test_all_reasons_come_at_once_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text(STUDY)

    def none(*_: object) -> None:
        raise TrialError("no such program", hint="install it")

    monkeypatch.setattr("nearmetal.workloads.tools.sockperf.Sockperf.prepare", none)
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "r")]) == 3
    said = capsys.readouterr()
    assert "for 3 reasons:" in said.err
    for words in ("path vf: ", "setting absent: nic.rx-usecs cannot be read", "workload tcp: no such program"):
        assert words in said.err
    assert "--anyway" in said.err
    assert not (tmp_path / "r").exists()
    assert said.out == ""
