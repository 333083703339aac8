"""What reaches a terminal, a spreadsheet or a closed pipe: text as text, and an end without a traceback."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from nearmetal.cli.main import run
from nearmetal.errors import NearmetalError, visible
from nearmetal.report.as_csv import plain
from nearmetal.report.terminal import Console
from tests.fake_runs import make_run

ATTACK = "[/b] [openmpi] [red]x :boom: \x1b]0;owned\x07\x1b[2J\x9b1A\u202e"
STUDY = f"""
format = 1
name = "attack"
title = {'"[/b] [openmpi] :boom:"'}
baseline = "a"

[host]
kind = "fake"

[[path]]
name = "a"
kind = "fake"

[[path]]
name = "b"
kind = "fake"

[[workload]]
name = "latency"
kind = "engine"
operation = "latency"
sizes = ["8 B", "64 B"]
"""


def _drawn(thing: object) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=120, color_system="standard").print(thing)
    return out.getvalue()


def test_text_is_no_markup_and_commands_no_terminal() -> None:
    table = Table(ATTACK, title=ATTACK)
    table.add_row(ATTACK)
    for thing in (ATTACK, table):
        said = _drawn(thing)
        assert "[/b] [openmpi] [red]x :boom:" in said
        assert not {"\x07", "\x9b", "\u202e"} & set(said)
        assert "\x1b]" not in said
        assert "\x1b[2J" not in said
        assert "\u241b]0;owned" in said


def test_visible_text_keeps_its_lines() -> None:
    assert visible("a\tb\r\nc\n") == "a\tb\nc\n"
    assert visible("100 %\rok\x7f") == "100 %\u240dok\u2421"
    assert NearmetalError("\x1b[2J", hint="\x07").render() == "error: \u241b[2J\nhint: \u2407"


def test_a_spreadsheet_takes_no_text_for_a_formula() -> None:
    assert [plain(text) for text in ("=1+1", "+x", "-x", "@x", "x=1", "")] == ["'=1+1", "'+x", "'-x", "'@x", "x=1", ""]


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "attack", STUDY)


@pytest.mark.parametrize("argv", [["compare"], ["show"], ["compare", "--format", "markdown"]])
def test_a_title_of_brackets_is_shown_as_it_is(
    attack: Path, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([argv[0], str(attack), *argv[1:]]) == 0
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    if argv == ["compare"]:
        assert "[/b] [openmpi] :boom:" in said.out


def test_a_plan_shows_brackets_in_its_title(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        STUDY.replace('kind = "fake"\n\n[[w', 'kind = "veth"\n\n[[w').replace(
            '"a"\nkind = "fake"', '"a"\nkind = "veth"'
        )
    )
    assert run(["plan", str(study)]) == 0
    assert "[/b] [openmpi] :boom:" in capsys.readouterr().out


def test_names_on_the_command_line_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "no\x1b[2Jwhere"]) != 0
    assert run(["\x1b[2J"]) != 0
    assert "\x1b" not in capsys.readouterr().err


def _nearmetal(*argv: str, stdout: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nearmetal", *argv]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=600)


@pytest.mark.parametrize("verb", [["compare"], ["compare", "--format", "json"], ["show"]])
def test_a_reader_that_went_away_ends_it_quietly(attack: Path, verb: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        ended = _nearmetal(verb[0], str(attack), *verb[1:], stdout=write)
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("verb", [["compare"], ["compare", "--format", "json"], ["show"], ["--help"]])
def test_a_full_disk_on_standard_output_is_an_error_of_one_line(attack: Path, verb: list[str]) -> None:
    argv = verb if verb == ["--help"] else [verb[0], str(attack), *verb[1:]]
    with Path("/dev/full").open("w") as full:
        ended = _nearmetal(*argv, stdout=full.fileno())
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "error: cannot write to standard output: No space left on device",
        "hint: free space, or write somewhere else",
    ]


def test_head_takes_what_it_wants(attack: Path) -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("there is no bash")
    script = 'set -o pipefail; "$0" -m nearmetal compare "$1" | head -1'
    ended = subprocess.run(
        [shell, "-c", script, sys.executable, str(attack)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr, len(ended.stdout.splitlines())) == (0, "", 1)


def test_every_console_is_ours() -> None:
    source = Path(__file__).parents[2] / "src" / "nearmetal"
    own = source / "report" / "terminal.py"
    others = [path for path in source.rglob("*.py") if path != own and "import Console" in path.read_text()]
    assert len(others) > 10
    for path in others:
        assert "from rich.console import" not in path.read_text().split("if TYPE_CHECKING")[0], path
