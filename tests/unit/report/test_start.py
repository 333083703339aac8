"""Writing a report loads the store, the statistics and the renderers, and nothing that measures."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.store.rundir import RunDir

MOST_MODULES = 60
_PROGRAM = """
import sys
from nearmetal.cli.main import run
assert run(["report", sys.argv[1], "--out", sys.argv[2]]) == 0
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "nearmetal"), sep="\\n")
"""


def test_a_report_loads_few_modules_and_nothing_that_measures(run: RunDir, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _PROGRAM, str(run.root), str(tmp_path / "report.html")]
    loaded = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=True).stdout.split()[1:]
    assert "nearmetal.report.as_html" in loaded
    assert len(loaded) <= MOST_MODULES, loaded
    measuring = {"hosts", "paths", "knobs", "facts", "run"}
    assert [name for name in loaded if name.split(".")[1:2] and name.split(".")[1] in measuring] == []
