"""Every Python block in the docs runs: sessions (`>>>`) must print the shown output, programs must succeed."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest

from tests.unit.report.synthetic_run import make_run

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if _BLOCK.search(page.read_text())]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_blocks_of_a_page_run(page: Path, workspace: Path) -> None:
    blocks = _BLOCK.findall(page.read_text())
    sessions = [block for block in blocks if block.startswith(">>>")]
    if sessions:
        flags = doctest.NORMALIZE_WHITESPACE
        test = doctest.DocTestParser().get_doctest("\n".join(sessions), {}, page.name, str(page), 0)
        output = io.StringIO()
        result = doctest.DocTestRunner(optionflags=flags).run(test, out=output.write)
        assert result.failed == 0, output.getvalue()
    programs = [block for block in blocks if not block.startswith(">>>")]
    if programs:
        make_run(workspace / "runs" / "first")
    for program in programs:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(program, str(page), "exec"), {})
        assert "Error" not in output.getvalue()
