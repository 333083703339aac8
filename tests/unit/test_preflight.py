"""A host that cannot run a study reports it before the first trial: every reason once, with where it applies."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.main import run as nearmetal
from nearmetal.errors import BadInputError, TrialError, UnavailableError
from nearmetal.facts.tenants import parse_processes
from nearmetal.hosts.fake import FakeHost
from nearmetal.hosts.host import Site
from nearmetal.process import Finished
from nearmetal.run.check import check_study
from nearmetal.run.preflight import _has_ranks, _Reasons, limits, preflight
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


class RefusingHost(FakeHost):
    """A host that refuses some paths before giving a shell, and records its orders."""

    kind = "local"

    def __init__(self, refused: tuple[str, ...]) -> None:
        super().__init__({})
        self.refused, self.asked = refused, []

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        self.asked.append((order.path.label, order.workload.label, order.setting))
        if order.path.label in self.refused:
            return Outcome(TrialStatus.FAILED, reason="no such machine", hint="name it")
        return Outcome(TrialStatus.VALID)


def test_every_part_of_a_study_is_tried_except_the_second_baseline() -> None:
    host = RefusingHost(())
    preflight(parse_study(STUDY, "s"), host, lambda _: None)
    paths, workloads, settings = map(set, zip(*host.asked, strict=True))
    assert (paths, workloads, settings) == ({"veth", "vf", "bridge"}, {"latency", "tcp"}, {"default", "absent"})
    assert len(host.asked) <= 3 + 2 + 2


def test_declared_paths_try_every_workload_on_their_own_machines() -> None:
    host = RefusingHost(())
    declared = STUDY.replace('"local"', '"ssh"').replace('{ name = "vf" }', '{ name = "far", kind = "declared" }')
    preflight(parse_study(declared, "s"), host, lambda _: None)
    assert {workload for path, workload, _ in host.asked if path == "far"} == {"latency", "tcp"}


def test_a_reason_is_reported_once_with_everything_it_applies_to() -> None:
    with pytest.raises(UnavailableError) as raised:
        preflight(parse_study(STUDY, "s"), RefusingHost(("veth", "bridge")), lambda _: None)
    assert raised.value.exit_code == 3
    assert "for 1 reason:" in raised.value.message
    assert raised.value.message.count("no such machine") == 1
    assert "path bridge" in raised.value.message
    assert "path veth" in raised.value.message


@pytest.mark.parametrize(("kind", "asked"), [("engine", True), ("sockperf", False)])
def test_only_mpi_needs_machines_that_can_log_in_to_each_other(kind: str, asked: bool) -> None:
    (order, *_) = [one for one in block(parse_study(STUDY, "s"), 0) if one.workload.kind == kind]
    found = _Reasons(lambda _: None)
    with NoLogin() as shell:
        found.rehearse(shell, order)  # type: ignore[arg-type]
    assert any("cannot log in" in reason for reason, _ in found.reasons) == asked


def test_paths_whose_machines_have_other_versions_are_named_before_they_are_measured() -> None:
    orders = {one.path.label: one for one in block(parse_study(STUDY, "s"), 0) if one.workload.label == "latency"}
    found = _Reasons(lambda _: None)
    found._same_code(orders["veth"], {"mpi.version": "4.1.4", "mpi.bind": "core"})
    found._same_code(orders["vf"], {"mpi.version": "4.1.4", "mpi.bind": "none"})
    with pytest.raises(UnavailableError, match=r"mpi\.version is 4\.1\.4 on path veth, 5\.0 on path bridge"):
        found._same_code(orders["bridge"], {"mpi.version": "5.0"})


def test_ranks_of_another_run_are_seen_on_the_machine_that_has_them() -> None:
    status = "S 1 1 1 0 -1 0 0 0 0 0 5 5 0 0 20 0 1 0 77 0"
    lines = [f"41 (nmbench-0a1b2c3) {status}", f"42 (nmrelay-0a1b2c3) {status}"]
    there = parse_processes("n1", lines, mine=0) | parse_processes("n0", [lines[1]], mine=0)
    assert [_has_ranks(there, node) for node in ("n0", "n1")] == [False, True]


class NoLogin:
    """Far machines that cannot log in to each other; any other command fails with an error of its own."""

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
            return Finished(tuple(argv), 0, b"machine-n1\t255\t\tPermission denied (publickey).\n", b"", 1)
        if argv[0] == "sh":
            return Finished(tuple(argv), 0, b"", b"", 1)
        raise TrialError("this machine does nothing")


def test_a_study_too_small_for_its_statistics_gets_a_warning() -> None:
    small = STUDY + "[trials]\nmin_blocks = 3\nmax_blocks = 3\n"
    warnings = list(limits(parse_study(small.replace("sizes = [8]", "sizes = [8]\niterations = 200"), "s")))
    assert [one.partition(";")[0] for one in warnings] == [
        "workload latency: iterations = 200 is too few for a p99, which near-metal needs",
        "3 blocks cannot show near-metal, which needs 14",
    ]
    large = "sizes = [8, 65536]\niterations = 1000\noptions = { iterations_large = 20 }"
    (warning,) = limits(parse_study(STUDY.replace("sizes = [8]", large) + "[trials]\nmax_blocks = 20\n", "s"))
    assert warning.startswith("workload latency: iterations_large = 20 is too few for a p99, which near-metal needs;")
    assert list(limits(parse_study(STUDY + "[trials]\nmax_blocks = 20\n", "s"))) == []


def test_a_run_warns_of_what_it_measures_twice() -> None:
    said: list[str] = []
    text = STUDY.replace('{ name = "vf" }', '{ name = "far", kind = "declared" }, { name = "near", kind = "declared" }')
    preflight(parse_study(text, "s"), RefusingHost(()), said.append)
    assert "paths far, near are one path under 2 names: kind, options and machines are the same" in said


def test_a_value_of_the_wrong_type_is_refused_without_a_host() -> None:
    wrong = STUDY.replace('"nic.rx-usecs" = 4', '"nic.rx-usecs" = "abc", "host.busy_read" = "often"')
    with pytest.raises(BadInputError, match=r"2 errors(.|\n)*'abc'(.|\n)*'often'"):
        check_study(parse_study(wrong, "s"))


@pytest.mark.netns
@pytest.mark.mpi
def test_all_reasons_are_reported_together_and_nothing_is_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text(STUDY)

    def none(*_: object) -> None:
        raise TrialError("no such program", hint="install it")

    monkeypatch.setattr("nearmetal.workloads.tools.sockperf.Sockperf.prepare", none)
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "r")]) == 3
    captured = capsys.readouterr()
    assert "for 3 reasons:" in captured.err
    for words in ("path vf: ", "setting absent: nic.rx-usecs cannot be read", "workload tcp: no such program"):
        assert words in captured.err
    assert "--anyway" in captured.err
    assert not (tmp_path / "r").exists()
    assert captured.out == ""


def test_directories_whose_paths_would_be_cut_are_reported_before_the_first_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every trial failed: Open MPI found no `/tmp/a`, MPICH's launcher waited for the end of its time."""
    (tmp_path / "a b").mkdir()
    one = (
        STUDY.partition("[[workload]]")[0]
        + '[[workload]]\nname = "cg"\nkind = "application"\noptions = { trace = true }\n'
    )
    study = one.replace(', { name = "vf" }, { name = "bridge" }', "")
    (tmp_path / "s.toml").write_text(study)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a b"))
    argv = ["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "r")]
    assert nearmetal(argv) == 3
    assert "workload cg: the profiler's library cannot be loaded from" in capsys.readouterr().err
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a b"))
    assert nearmetal(argv) == 3
    said = capsys.readouterr().err
    assert f"workload cg: launchers of MPI cut a path at a blank, and temporary files are in {tmp_path}/a b/" in said
    assert "name another directory with TMPDIR" in said
    monkeypatch.setattr(tempfile, "tempdir", None)
    access = os.access  # as on a file system that is mounted noexec
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("/agent") and access(path, mode))
    assert nearmetal(argv) == 3
    assert "start a script in" in (said := capsys.readouterr().err)
    assert "it may be mounted noexec: name another directory with TMPDIR" in said
