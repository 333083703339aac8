"""Every command in README and docs runs: each `sh` block, line by line, in a separate workspace per page.

The run that several pages begin with is carried out for the first of them and copied for the others. A line that is a
single nearmetal command runs in this process, even with its output redirected to a file; other lines get a shell and
the installed command.

Studies are shortened (few iterations, three blocks; on this machine two paths, one workload and ranks that sleep while
they wait), both shipped ones and those written by a page, and predictions replay ten times instead of a hundred, so
that a page takes seconds; nothing else is changed. A line that needs more than this machine offers carries a comment
`# needs: WHAT`, one of `_NEEDS`.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from nearmetal.cli.main import run as nearmetal
from nearmetal.study import shipped

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NEEDS = {
    "lab": "a built lab (`nearmetal lab build`)",
    "cluster": "a second machine",
    "time": "minutes, or a profile that took minutes (tests/e2e/test_tune.py runs a short search)",
    "program": "an MPI program of the reader's own (tests/e2e/test_trace.py runs these lines with one)",
    "reframe": "ReFrame (pip install reframe-hpc), which the suite does without",
    "browser": "a person who looks and then ends the server (tests/e2e/test_serve.py runs these lines)",
    "set-up": "the set-up itself, which is what runs this test",
}


def commands(page: Path) -> list[str]:
    """Return a page's commands: single lines, or all lines of a here-document together."""
    found: list[str] = []
    for block in _BLOCK.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            if found and "<<'END'" in found[-1] and not found[-1].endswith("\nEND"):
                found[-1] += f"\n{line}"
            elif line.strip() and not line.startswith("#"):
                found.append(line)
    return found


def shorten(study: Path) -> None:
    """Reduce only the amount of work: on this machine two paths, one workload, ranks that sleep, and a fabric of four
    nodes instead of six.
    """
    text = study.read_text()
    if ("[host]" not in text or 'kind = "local"' in text) and "[tune" not in text:
        tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
        for kind, most in (("[[path]]", 2), ("[[workload]]", 1)):
            more = [table for table in tables if table.startswith(kind)][most:]
            tables = [table for table in tables if table not in more]
        text = "".join(tables)
        if "progress" not in text:
            text = text.replace("[[workload]]\n", '[[workload]]\nprogress = "blocking"\n')
    text = re.sub(r"^(iterations\w*) = .*$", r"\1 = 30", text, flags=re.MULTILINE)
    text = re.sub(r"^warmup = .*$", "warmup = 5", text, flags=re.MULTILINE)
    text = re.sub(r"^(min|max)_blocks = .*$", r"\1_blocks = 3", text, flags=re.MULTILINE)
    text = text.replace("placement = [0, 1, 2, 3, 4, 5]", "placement = [0, 1, 2, 3]")
    study.write_text(text)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "studies", tmp_path / "studies")
    for study in (tmp_path / "studies").glob("*.toml"):
        shorten(study)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    monkeypatch.setattr(shipped, "_PLACES", (tmp_path / "studies",))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path


FIRST, FIRST_RUN = "nearmetal run paths --out runs/first", "runs/first"
"""What several pages begin with, and what it leaves."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the first page leaves that run for the others."""
    return tmp_path_factory.mktemp("kept") / "first"


def of_page(page: Path) -> object:
    """Return a page as a test's parameter; pages that share the run go to one worker."""
    shares = any(line.split("#")[0].strip() == FIRST for line in commands(page))
    marks = [pytest.mark.xdist_group("first-run")] if shares else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


def carry_out(line: str) -> int:
    """Carry out one line of a page, and shorten the study that it writes; pytest captures its output.

    Return its exit code.
    """
    code = carry_out_unshortened(line)
    for written in re.findall(r"> (\S+\.toml) <<'END'", line):
        shorten(Path(written))
    return code


_ALONE = re.compile(r"nearmetal ([^|&;<>$*]+?)(?: > (\S+))?( \|\| (?:true|echo \"exit code \$\?\"))?")
"""One command of nearmetal's: its words, the file that takes what it prints, and that it may fail."""


def carry_out_unshortened(line: str) -> int:
    if alone := _ALONE.fullmatch(line.partition(" #")[0].strip()):
        words, file, may_fail = alone.groups()
        words += " --replicas 10" if words.startswith("predict ") and "--replicas" not in words else ""
        with Path(file or os.devnull).open("w") as out, redirect_stdout(out if file else sys.stdout):
            code = nearmetal(shlex.split(words))
        return 0 if may_fail else code
    done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True, timeout=600, check=False)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


@pytest.mark.netns
@pytest.mark.mpi
@pytest.mark.parametrize("page", [of_page(p) for p in PAGES if commands(p)])
def test_the_commands_of_a_page_run(page: Path, workspace: Path, kept: Path) -> None:
    for line in commands(page):
        needs = re.search(r"# needs: ([a-z-]+)", line)
        if needs:
            assert needs[1] in _NEEDS, f"{page}: {line!r} needs something that is not in the table"
            continue
        first = line.split("#")[0].strip() == FIRST
        if first and kept.exists():
            shutil.copytree(kept, workspace / FIRST_RUN)
            continue
        assert carry_out(line) == 0, line
        if first:
            shutil.copytree(workspace / FIRST_RUN, kept)
