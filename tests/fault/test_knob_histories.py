"""A few random histories of knob sessions on real devices; `make verify-knobs` plays 10,000."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import far_machines
import nearmetal
import slurm
from nearmetal import process
from nearmetal.errors import NearmetalError
from nearmetal.hosts.namespaces import NamespaceShell

pytestmark = pytest.mark.netns

PLAYER = Path(__file__).parents[1] / "knob_campaign.py"


@pytest.mark.parametrize(
    ("seed", "histories", "over"),
    [(1, 6, ""), (100, 4, ""), (1214, 1, ""), (5840, 1, ""), (1, 2, "ssh"), (50098, 1, "ssh"), (6, 1, "slurm")],
)
def test_no_setting_is_silently_left_changed(seed: int, histories: int, over: str) -> None:
    if over:
        far_machines.need_ssh()
    if over == "slurm" and slurm.why_not():
        pytest.skip(slurm.why_not())
    try:
        with NamespaceShell():
            pass
    except NearmetalError as error:
        pytest.skip(error.message)
    source = str(Path(nearmetal.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": f"{PLAYER.parent}:{source}"}
    argv = [sys.executable, str(PLAYER), "--seed", str(seed), "--histories", str(histories), "--jobs", "2"]
    argv += ["--over", over] if over else []
    played = process.run(argv, timeout_s=600, env=env)
    assert played.ok, played.text
    assert f"| **histories** | {histories} |" in played.text
    assert "otherwise wrong** | **0** |" in played.text


def test_the_player_in_the_lab_needs_only_the_standard_library() -> None:
    paths = [str(PLAYER.parent), str(Path(nearmetal.__file__).parents[1])]
    program = f"import sys; sys.path[:0] = {paths}; import knob_lab; knob_lab.stand_in('.'); import knob_histories"
    alone = process.run([sys.executable, "-S", "-I", "-c", program], timeout_s=600)
    assert alone.ok, alone.complaint()
