"""Writing a report loads the store, the statistics and the renderers, and nothing that measures.

Nor does a run, a report or a history load pandas, which pyarrow does on occasion: a third of a second; nor numpy's
compiler of Fortran, which scipy asks for. What a command loads is not searched for garbage.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fake_runs import STUDY

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.store.rundir import RunDir

MOST_MODULES = 60
_PROGRAM = """
import os, sys
from nearmetal.cli import main
def run(argv):
    try:
        main.main(argv)
    except SystemExit as ended:
        return ended.code
os.chdir(sys.argv[1])
assert run(["report", sys.argv[2], "--out", "report.html"]) == 0
loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "nearmetal")
assert run(["run", "study.toml", "--out", "run"]) == run(["history", "add", "history.duckdb", "run"]) == 0
assert not {"pandas", "numpy.f2py.crackfortran", "unittest.case"} & set(sys.modules)
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


_HELP = """
import sys
from nearmetal.cli.main import run
assert run([sys.argv[1], "--help"]) == 0
heavy = ("nearmetal.results.", "nearmetal.stats.", "numpy.", "scipy.", "pydantic.")
print([name for name in sys.modules if name.startswith(heavy)])
"""


@pytest.mark.parametrize("verb", ["serve", "trace", "try"])
def test_the_help_of_a_verb_that_opens_files_alone_loads_no_statistics(verb: str) -> None:
    argv = [sys.executable, "-c", _HELP, verb]
    stdout = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=600, check=True).stdout
    assert stdout.splitlines()[-1] == "[]"


_COMMAND = """
import atexit, gc, sys
from nearmetal.cli.main import main
before_it_was_loaded = []
gc.callbacks.append(lambda phase, of: gc.get_freeze_count() or before_it_was_loaded.append(of))
atexit.register(lambda: print(gc.isenabled(), before_it_was_loaded, len(gc.get_objects()) < 1000))
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", [["report", "--help"], ["trace", "show", "/"]], ids=" ".join)
def test_what_a_command_loads_is_never_searched_for_garbage(command: list[str]) -> None:
    argv = [sys.executable, "-c", _COMMAND, *command]
    stdout = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=600, check=False).stdout
    assert stdout.splitlines()[-1] == "True [] True"
