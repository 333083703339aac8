"""Writing a report loads the store, the statistics and the renderers, and nothing that measures.

Nor does a run, a report or a history load pandas, which pyarrow does on occasion: a third of a second.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from fake_runs import STUDY

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.store.rundir import RunDir

MOST_MODULES = 60
_PROGRAM = """
import os, sys
from nearmetal.cli.main import run
os.chdir(sys.argv[1])
assert run(["report", sys.argv[2], "--out", "report.html"]) == 0
loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "nearmetal")
assert run(["run", "study.toml", "--out", "run"]) == run(["history", "add", "history.duckdb", "run"]) == 0
assert "pandas" not in sys.modules
print(*loaded)
"""


def test_a_report_loads_few_modules_and_nothing_that_measures(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    argv = [sys.executable, "-c", _PROGRAM, tmp_path, run.root]
    stdout = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=600, check=True).stdout
    loaded = stdout.splitlines()[-1].split()
    assert "nearmetal.report.as_html" in loaded
    assert len(loaded) <= MOST_MODULES, loaded
    measuring = {"hosts", "paths", "knobs", "facts", "run"}
    assert [name for name in loaded if name.split(".")[1:2] and name.split(".")[1] in measuring] == []
