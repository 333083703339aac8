"""Programs of the tests that are kept are those that would be compiled."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nearmetal.errors import NearmetalError
from tests import compiled
from tests.compiled import compile_to

MAIN = '#include "told.h"\n#include <stdio.h>\nint main(void) { return puts(TOLD) < 0; }\n'


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that notes what it compiles, and a source with a header, in the working directory."""
    monkeypatch.setattr(compiled, "KEPT", tmp_path / "kept")
    monkeypatch.chdir(tmp_path)
    Path("main.c").write_text(MAIN)
    Path("told.h").write_text('#define TOLD "one"\n')
    program = tmp_path / "compiler"
    notes = 'case "$*" in *" -E "* | --version) ;; *) echo "$*" >>compiled ;; esac'
    program.write_text(f'#!/bin/sh\n{notes}\nexec cc "$@"\n')
    program.chmod(0o755)
    return program


def compilations() -> int:
    return len(Path("compiled").read_text().splitlines())


def told(compiler: Path, *flags: str) -> str:
    """Compile, and return what the program says."""
    made = Path("made")
    made.unlink(missing_ok=True)
    compile_to(made, [str(compiler), *flags, "main.c"])
    return subprocess.run(["./made"], capture_output=True, text=True, check=True).stdout.strip()


def test_the_same_text_is_compiled_once(compiler: Path) -> None:
    assert [told(compiler), told(compiler)] == ["one", "one"]
    assert compilations() == 1


def test_what_changes_the_program_compiles_it_again(compiler: Path) -> None:
    told(compiler)
    Path("told.h").write_text('#define TOLD "two"\n')
    assert told(compiler) == "two"
    assert told(compiler, "-O1") == "two"
    assert compilations() == 3
    compiler.write_text(compiler.read_text().replace("--version)", "--version) echo another;;\n*none)"))
    assert told(compiler) == "two"
    assert compilations() == 4


def test_headers_are_looked_for_where_the_words_say(compiler: Path) -> None:
    Path("other").mkdir()
    Path("main.c").write_text(MAIN.replace('"told.h"', "<told.h>"))
    Path("other/told.h").write_text('#define TOLD "elsewhere"\n')
    assert [told(compiler, "-I."), told(compiler, "-Iother")] == ["one", "elsewhere"]


def test_what_is_linked_counts(compiler: Path) -> None:
    Path("told.h").write_text("const char *said(void);\n#define TOLD said()\n")
    for word in ("first", "second"):
        Path("said.c").write_text(f'const char *said(void);\nconst char *said(void) {{ return "{word}"; }}\n')
        compile_to(Path("said.o"), [str(compiler), "-c", "said.c"])
        assert told(compiler, "said.o") == word


def test_a_program_that_is_refused_is_not_kept(compiler: Path) -> None:
    Path("main.c").write_text("int main(void) { int unused; }\n")
    for _ in range(2):
        with pytest.raises(NearmetalError, match="unused"):
            compile_to(Path("made"), [str(compiler), "-Wall", "-Werror", "main.c"])
    assert compilations() == 2


def test_what_no_run_has_used_for_a_month_is_dropped(compiler: Path) -> None:
    told(compiler)
    (kept,) = compiled.KEPT.iterdir()
    os.utime(kept, (1e9, 1e9))
    told(compiler)  # uses it
    told(compiler, "-O1")
    assert kept.exists()
    os.utime(kept, (1e9, 1e9))
    told(compiler, "-O2")
    assert not kept.exists()
