"""A few random histories of knob sessions on real devices; `make verify-knobs` plays 10,000."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import far_machines
import nearmetal
from nearmetal import process
from nearmetal.errors import NearmetalError
from nearmetal.hosts.namespaces import NamespaceShell

pytestmark = pytest.mark.netns

PLAYER = Path(__file__).parents[1] / "knob_campaign.py"


@pytest.mark.parametrize(("seed", "over"), [(1, []), (100, []), (1, ["--ssh"])])
def test_no_setting_is_left_changed_without_being_named(seed: int, over: list[str]) -> None:
    if over:
        far_machines.need_ssh()
    try:
        with NamespaceShell():
            pass
    except NearmetalError as error:
        pytest.skip(error.message)
    source = str(Path(nearmetal.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": f"{PLAYER.parent}:{source}"}
    argv = [sys.executable, str(PLAYER), "--seed", str(seed), "--histories", "15", "--jobs", "3", *over]
    played = process.run(argv, timeout_s=600, env=env)
    assert played.ok, played.text
    assert "| **histories** | 15 |" in played.text
    assert "otherwise wrong** | **0** |" in played.text
