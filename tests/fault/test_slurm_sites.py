"""What sites and shells put around Slurm: greetings, limits, restarts of its controller, a job around nearmetal."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import slurm
from nearmetal.hosts.batch.host import BatchHost
from nearmetal.hosts.batch.slurm import NodeShells, Slurm
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, PathOrder, TrialStatus, WorkloadOrder
from slurm import look, tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.hosts.namespaces import NamespaceShell

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

LATENCY = {"operation": "latency", "sizes": [8], "iterations": 30}
ORDER = Order(0, 0, PathOrder("p", "declared"), WorkloadOrder("l", "engine", LATENCY), timeout_s=600.0, mpi="mpich")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NamespaceShell, Path]]:
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def host(cluster: tuple[NamespaceShell, Path]) -> Iterator[BatchHost]:
    with slurm.over(cluster[1], mpi="mpich", exclusive=False, queue_timeout_s=600) as made:
        yield made
        made.close()
        assert not queue()


def queue() -> list[str]:
    return tool("squeue", "-h", "-o", "%A", "-t", "PENDING,RUNNING").split()


@contextlib.contextmanager
def instead_of_sbatch(folder: Path, script: str) -> Iterator[None]:
    """Put a site's script before sbatch, which it calls as $SBATCH."""
    (folder / "sbatch").write_text(f"#!/bin/sh\nSBATCH={shutil.which('sbatch')}\n{script}")
    (folder / "sbatch").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=":")
        yield


@pytest.mark.parametrize("before", ["echo '----> Welcome'; echo; echo 'Jobs left: 100'", "echo 'Checking 17 ...'"])
def test_a_site_may_greet_whoever_submits(host: BatchHost, tmp_path: Path, before: str) -> None:
    with instead_of_sbatch(tmp_path, f'{before}\n$SBATCH "$@"\necho "Good luck with 3 jobs"\n'):
        outcome = host.carry_out(ORDER, look)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert queue() == [outcome.facts["slurm.job"]]


def test_a_job_that_sbatch_does_not_name_is_not_reported_as_refused(host: BatchHost, tmp_path: Path) -> None:
    with instead_of_sbatch(tmp_path, "echo Thank you\n"):
        outcome = host.carry_out(ORDER, look)
    assert "did not say which: 'Thank you'" in outcome.reason
    assert "squeue" in outcome.hint


def test_where_one_job_may_be_submitted_what_is_kept_is_given_back(
    host: BatchHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates "
    refusal += "accounting/QOS policy (job submit limit, user's size and/or time limits)"
    script = f'[ -z "$(squeue -h)" ] || {{ echo "{refusal}" >&2; exit 1; }}\nexec $SBATCH "$@"\n'
    other = Order(**{**_fields(ORDER), "path": PathOrder("q", "declared", {"partition": "whole"})})
    with instead_of_sbatch(tmp_path, script):
        outcomes = [host.carry_out(order, look) for order in (ORDER, other)]
        assert [outcome.status for outcome in outcomes] == [TrialStatus.VALID] * 2, outcomes
        assert "(2 nodes) is given back, because of a limit: sbatch refused" in capsys.readouterr().err
        host.close()
        foreign = _held()
        refused = host.carry_out(ORDER, look)
    tool("scancel", foreign)
    assert "AssocMaxSubmitJobLimit" in refused.reason, "there is nothing to give back"


def _held() -> str:
    """Submit a job that stays in the queue."""
    path = os.pathsep.join(os.environ["PATH"].split(os.pathsep)[1:])
    sbatch = str(shutil.which("sbatch", path=path))
    return tool(sbatch, "--parsable", "--hold", "--output=/dev/null", "--chdir=/", "--wrap=true").strip()


def _fields(order: Order) -> dict[str, object]:
    return {name: getattr(order, name) for name in Order.__dataclass_fields__}


def test_a_controller_that_is_started_anew_refuses_no_job(
    host: BatchHost, cluster: tuple[NamespaceShell, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, clients = cluster
    waits: list[float] = []

    def starts_it(seconds: float) -> None:
        if not waits:
            slurm.start_controller(shell, clients.parent)
        waits.append(seconds)
        time.sleep(0.1)

    tool("scontrol", "shutdown", "slurmctld")
    while "DOWN" not in tool("scontrol", "ping", check=False):
        time.sleep(0.1)
    monkeypatch.setattr("nearmetal.hosts.batch.slurm.time", SimpleNamespace(monotonic=lambda: 0, sleep=starts_it))
    outcome = host.carry_out(ORDER, look)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert waits


def job_around(folder: Path, *options: str) -> tuple[str, dict[str, str]]:
    """Start a job that stays; return its number and what Slurm sets in it."""
    seen = folder / "environment"
    script = f"--wrap=env -0 > {seen}.new; mv {seen}.new {seen}; exec sleep 100000"
    job = tool("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *options, script).strip()
    deadline = time.monotonic() + 600
    while not seen.exists():
        assert time.monotonic() < deadline, tool("scontrol", "show", "job", job)
        time.sleep(0.1)
    pairs = [line.split("=", 1) for line in seen.read_text().split("\0") if line.startswith("SLURM")]
    return job, dict(pairs)


def test_a_job_around_nearmetal_gives_its_steps_no_orders(
    host: BatchHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what a person exports for an interactive srun: each line with its rank breaks what far shells answer."""
    job, around = job_around(tmp_path, "--nodelist=n1", "--ntasks-per-node=1", "--mem=10")
    try:
        for name, value in {**around, "SLURM_LABELIO": "1", "SLURM_HOSTFILE": "/none"}.items():
            monkeypatch.setenv(name, value)
        outcome = host.carry_out(ORDER, carry_out)
        assert outcome.status is TrialStatus.VALID, outcome.reason
        assert outcome.facts["slurm.job"] != job
        for node in ("n0", "n1"):  # with the host's job still on both
            shells = NodeShells(Slurm(), "", node, {})
            with contextlib.closing(FarMachine(node, shells)) as machine:
                assert machine.run(["sh", "-c", "echo $SLURMD_NODENAME; hostname"]).text.split() == [node]
    finally:
        tool("scancel", job)


def test_a_job_around_nearmetal_that_has_the_nodes_is_named_at_once(
    host: BatchHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, around = job_around(tmp_path, "--nodelist=n1")
    whole = Order(**{**_fields(ORDER), "path": PathOrder("q", "declared", {"partition": "whole"})})
    try:
        monkeypatch.setenv("SLURM_JOB_ID", around["SLURM_JOB_ID"])
        with contextlib.closing(BatchHost(Slurm(), {**host._options, "exclusive": True})) as exclusive:
            outcome = exclusive.carry_out(whole, look)
            assert outcome.status is TrialStatus.FAILED
            assert "waits for n1, which the job around this nearmetal has" in outcome.reason
            assert "login node" in outcome.hint
            assert queue() == [job]
    finally:
        tool("scancel", job)


def test_a_roll_back_in_a_job_that_has_the_node_needs_no_other(
    host: BatchHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del host
    job, around = job_around(tmp_path, "--partition=whole", "--nodes=2")
    try:
        monkeypatch.setenv("SLURM_JOB_ID", around["SLURM_JOB_ID"])
        with contextlib.closing(FarMachine("n1", NodeShells(Slurm(), "", "n1", {}))) as machine:
            assert machine.run(["hostname"]).text.strip() == "n1"
        assert queue() == [job]
    finally:
        tool("scancel", job)
