"""Pods that cannot be had are refused with what kubectl said; the host itself passes the contract of every host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import BadInputError, ForeignFileError, UnavailableError
from nearmetal.hosts.kubectl import KubectlHost
from nearmetal.study.spec import NodeSpec

if TYPE_CHECKING:
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


def test_what_kubectl_says_reaches_the_user(tmp_path: Path) -> None:
    options = program(tmp_path, "echo 'error: You must be logged in to the server' >&2; exit 1")
    with pytest.raises(UnavailableError, match="must be logged in"):
        KubectlHost([POD], options)
    with pytest.raises(UnavailableError, match="must be logged in"):
        KubectlHost([], options | {"selector": "job-name=mpi"})


@pytest.mark.parametrize("said", ["", "[]", '{"items": 3}', '{"items": [{}]}', "[" * 100_000])
def test_what_is_no_list_of_pods_is_refused(tmp_path: Path, said: str) -> None:
    (tmp_path / "said").write_text(said)
    with pytest.raises(ForeignFileError, match="did not print a list of pods"):
        KubectlHost([], program(tmp_path, f"cat {tmp_path}/said") | {"selector": "a=b"})


def test_pods_that_do_not_run_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "said").write_text(json.dumps({"items": [{"metadata": {"name": "a"}, "status": {"phase": "Pending"}}]}))
    with pytest.raises(UnavailableError, match="no pod with a=b is running"):
        KubectlHost([], program(tmp_path, f"cat {tmp_path}/said") | {"selector": "a=b"})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(BadInputError, match="the kubectl host has no option 'identity'"):
        KubectlHost([POD], {"identity": "x"})
