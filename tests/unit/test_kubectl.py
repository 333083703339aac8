"""Unavailable pods are refused with the message of kubectl; the host itself passes the contract of every host."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

import kube_api
from kube_api import KubeApi
from nearmetal.errors import BadInputError, ForeignFileError, UnavailableError
from nearmetal.hosts.far.stream import LostError
from nearmetal.hosts.kubectl import KubectlHost
from nearmetal.study.spec import NodeSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POD = NodeSpec(name="mpi-0")


def program(folder: Path, script: str) -> dict[str, str | int | float | bool]:
    file = folder / "kubectl"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return {"kubectl": str(file)}


def test_a_missing_kubectl_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="is not installed"):
        KubectlHost([POD], {"kubectl": str(tmp_path / "none")})


def test_a_host_without_pods_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no pods"):
        KubectlHost([], program(tmp_path, "exit 1"))


def test_errors_of_kubectl_reach_the_user(tmp_path: Path) -> None:
    options = program(tmp_path, "echo 'error: You must be logged in to the server' >&2; exit 1")
    with pytest.raises(UnavailableError, match="must be logged in"):
        KubectlHost([POD], options)
    with pytest.raises(UnavailableError, match="must be logged in"):
        KubectlHost([], options | {"selector": "job-name=mpi"})


@pytest.mark.parametrize("message", ["", "[]", '{"items": 3}', '{"items": [{}]}', "[" * 100_000])
def test_output_that_is_not_a_list_of_pods_is_refused(tmp_path: Path, message: str) -> None:
    (tmp_path / "pods.json").write_text(message)
    with pytest.raises(ForeignFileError, match="did not print a list of pods"):
        KubectlHost([], program(tmp_path, f"cat {tmp_path}/pods.json") | {"selector": "a=b"})


def test_pods_that_are_not_running_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "pods.json").write_text(
        json.dumps({"items": [{"metadata": {"name": "a"}, "status": {"phase": "Pending"}}]})
    )
    with pytest.raises(UnavailableError, match="no pod with a=b is running"):
        KubectlHost([], program(tmp_path, f"cat {tmp_path}/pods.json") | {"selector": "a=b"})


def test_pods_of_one_name_and_pods_that_are_being_deleted_are_not_measured(tmp_path: Path) -> None:
    status = {"phase": "Running", "podIP": "fd00::1", "podIPs": [{"ip": "fd00::1"}, {"ip": "10.0.0.1"}]}
    going = {"metadata": {"name": "mpi-1", "deletionTimestamp": "2026-11-24T17:00:00Z"}, "status": status}
    (tmp_path / "pods.json").write_text(
        json.dumps({"items": [{"metadata": {"name": "mpi-0"}, "status": status}, going]})
    )
    options = program(tmp_path, f'[ "$1" = get ] && exec cat {tmp_path}/pods.json; exec /bin/sh') | {"selector": "a=b"}
    with contextlib.closing(KubectlHost([], options)) as host:
        assert host.label == "pods: mpi-0"
        assert host._nodes["mpi-0"].reach == "10.0.0.1", "MPI over TCP uses IPv4"
    with pytest.raises(BadInputError, match="2 machines of the kubectl host are called 'mpi-0'"):
        KubectlHost([POD, POD], options)


def test_an_unknown_option_is_refused_with_a_suggestion() -> None:
    with pytest.raises(BadInputError, match="host 'kubectl' has no option 'mpi_prefx'") as refused:
        KubectlHost([POD], {"mpi_prefx": "x"})
    assert refused.value.hint == "did you mean 'mpi_prefix'?"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    """A pod that is this machine, behind the real kubectl."""
    if kube_api.why_not():
        pytest.skip(kube_api.why_not())
    monkeypatch.setenv("HOME", str(tmp_path))
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "mpi-0", "namespace": "hpc"},
        "status": {"phase": "Running"},
    }
    with kube_api.reached(KubeApi([pod], {"mpi-0": ["env"]}), tmp_path / "kubeconfig") as served:
        yield served


IN_TEST: dict[str, str | int | float | bool] = {"context": "test", "namespace": "hpc", "container": "mpi"}


def test_the_real_kubectl_passes_input_output_and_status(api: KubeApi) -> None:
    with contextlib.closing(KubectlHost([POD], IN_TEST)) as host:
        machine = host._machines["mpi-0"]
        data = bytes(range(256)) * 1000
        finished = machine.run(["sh", "-c", "cat; echo lost >&2; exit 7"], timeout_s=600, stdin=data)
        assert (finished.exit_status, finished.stdout, finished.stderr) == (7, data, b"lost\n")
    assert all("command=%2Fbin%2Fsh&container=mpi" in asked for asked in api.asked if "/exec" in asked)


def test_a_missing_pod_is_reported_with_the_servers_message(api: KubeApi) -> None:
    with pytest.raises(UnavailableError, match=r'pods "mpi-9" not found'):
        KubectlHost([NodeSpec(name="mpi-9")], IN_TEST)


def test_a_pod_that_dies_while_a_program_runs_is_lost_and_can_return(api: KubeApi) -> None:
    with contextlib.closing(KubectlHost([POD], IN_TEST)) as host:
        machine = host._machines["mpi-0"]
        machine.run(["true"])
        for shell in api.running:
            shell.kill()
        with pytest.raises(LostError, match="mpi-0"):
            machine.run(["true"])
        assert machine.run(["echo", "again"]).stdout == b"again\n"


def test_a_program_whose_connection_drops_is_lost_not_failed(api: KubeApi) -> None:
    with contextlib.closing(KubectlHost([POD], IN_TEST)) as host:
        machine = host._machines["mpi-0"]
        program = machine.keep(["sh", "-c", "echo begun; exec sleep 600"])
        assert program.first_lines(1, 600) == ["begun"]
        api.hang_up()
        with pytest.raises(LostError, match=r"(?sm)lost mpi-0 while sh ran: .*unexpected EOF$"):
            program.wait(600, "mpi-0")
    assert api.running[-1].wait(600) == 0, "its guardian did not end it"
