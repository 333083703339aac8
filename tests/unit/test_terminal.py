"""Output to a terminal, a spreadsheet or a closed pipe: text stays text, and no failure ends in a traceback."""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from nearmetal.cli.doctor import CheckLine, draw
from nearmetal.cli.main import run
from nearmetal.cli.progress import watcher
from nearmetal.errors import ExitCode, NearmetalError, visible
from nearmetal.report.as_csv import table
from nearmetal.report.as_latex import escape
from nearmetal.report.as_table import draw as draw_tables
from nearmetal.report.tables import Table as Cells
from nearmetal.report.terminal import Console
from nearmetal.study.order import Outcome, TrialStatus
from nearmetal.study.plan import block
from nearmetal.study.spec import parse_study
from tests.fake_runs import SEARCH, make_run, rewrite
from tests.fake_runs import STUDY as SMALL

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
FEW = STUDY + "\n[trials]\nmin_blocks = 3\nmax_blocks = 3\n"


def _drawn(thing: object) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=120, color_system="standard").print(thing)
    return out.getvalue()


def test_a_locale_without_utf8_gets_escapes_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = FEW.replace("[/b] [openmpi] :boom:", "\N{GREEK SMALL LETTER MU}s")
    root = make_run(tmp_path / "run", study)
    command = [sys.executable, "-m", "nearmetal", "compare", str(root)]
    locale = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, env=locale, capture_output=True, text=True, timeout=600, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\\u03bcs" in ended.stdout
    for argv, says in (
        (["compare", root, "--format", "markdown"], "Verdicts"),
        (["history", "add", tmp_path / "h.duckdb", root], "added"),
        (["history", "show", tmp_path / "h.duckdb"], "|"),
    ):
        stdout, stderr = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)
        assert (run([*map(str, argv)]), stderr.buffer.getvalue()) == (0, b""), argv  # type: ignore[attr-defined]
        stdout.flush()
        said = stdout.buffer.getvalue().decode()  # type: ignore[attr-defined]
        assert says in said
    drawn = re.findall(r"\|(\d) +\|", said)
    assert len(drawn) > 1, "a bar is one letter"
    assert "\\u" not in said
    assert "| the level changed here; : kernel" in " ".join(said.split())


@pytest.mark.parametrize("width", [8, 13, 21, 34, 55])
def test_no_line_ends_between_a_number_and_its_unit_or_within_what_is_to_be_copied(width: int) -> None:
    """A shell took the first half of a command for the whole, and a percent sign began a line."""
    command = "nearmetal show '/tmp/a run; rm (x)/of the night' --trial 3"
    prose = f"A gap of 5 % in 12 min, 3.5 us or 64 KiB ({command}). It lies in /a/long/path/of/one-word: {command}"
    out = io.StringIO()
    Console(file=out, width=width).print(Text.assemble("A note: ", (prose, "red"), "."))
    lines = out.getvalue().splitlines()
    assert "\n".join(lines).split() == ["A", "note:", *prose.split()[:-1], "3."]
    assert sum(line.count(command) for line in lines) == 2
    assert any("/a/long/path/of/one-word:" in line for line in lines)
    for number, unit in (("5", "%"), ("12", "min"), ("3.5", "us"), ("64", "KiB")):
        assert any(f"{number} {unit}" in line for line in lines)
    plain = [line for line in lines if "nearmetal" not in line and "/" not in line]
    assert all(len(line) <= width for line in plain), "other lines fit"


@pytest.mark.parametrize("width", range(48, 84))
def test_no_cell_and_no_sentence_parts_a_number_from_its_unit_or_an_assignment(width: int) -> None:
    why = "a mode rarer than 63 % in 3 launches; next: a new run with max_blocks = 14, about 70 s"
    out = io.StringIO()
    console = Console(file=out, width=width)
    draw_tables(console, [Cells("Undecided cells", ("path", "cell", "why"), (("bridge", "rate, 8 B", why),), left=3)])
    console.print(f"proposed: {why}")
    for whole in ("8 B", "63 %", "max_blocks = 14", "70 s"):
        assert out.getvalue().count(whole) == 2 - (whole == "8 B")
    assert max(map(len, out.getvalue().splitlines())) <= width


def test_lines_keep_their_style_and_their_indent() -> None:
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=20, color_system="standard").print(
        Text.assemble("  one: ", ("slower and slower", "red"), "\n\nend"), style="bold"
    )
    drawn = out.getvalue()
    assert re.sub(r"\x1b\[[0-9;]*m", "", drawn) == "  one: slower and\nslower\n\nend\n"
    assert "\x1b[1;31mslower and\x1b[0m\n\x1b[1;31mslower\x1b[0m\n" in drawn
    assert drawn.startswith("\x1b[1m  one:\x1b[0m")


@pytest.mark.parametrize("terminal", [False, True])
def test_the_hint_of_a_failed_launch_is_one_line_and_so_is_all_progress_in_a_file(*, terminal: bool) -> None:
    """A hint names files and commands of any length; a log of launches was broken after 80 columns."""
    hint = f"see what mpirun says: cat {'/long' * 30}/stderr | tail -n 3"
    reason = "mpirun ended with exit code 1, " * 4
    order = next(iter(block(parse_study(FEW, "s.toml"), 0)))
    failed = Outcome(TrialStatus.FAILED, reason=reason, hint=hint, counters={"cpu.user": 99, "others.make": 80})
    paths = [f"path-{number}" for number in range(20)]
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=terminal, color_system=None)
    with watcher(parse_study(FEW, "s.toml"), console) as lines:
        lines.block_started(0, 3, paths)
        lines.trial_ended(SimpleNamespace(order=order, outcome=failed, valid=False))  # type: ignore[arg-type]
    printed = [re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", line) for line in out.getvalue().splitlines()]
    assert any(line.strip("\r ").endswith(hint) for line in printed)
    whole = [f"3 trials on {' '.join(paths)}", reason.strip(), "intervals will be wide"]
    if not terminal:
        assert [any(line.endswith(one) for line in printed) for one in whole] == [True] * 3
        assert len(printed) == 4
    else:
        assert not any(one in line for line in printed for one in whole[:2])


@pytest.mark.parametrize("name", ["a run; rm x", "of a study with a name that is long " * 5])
def test_printed_commands_can_be_typed_as_they_are(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = STUDY.replace('kind = "fake"\n\n[[path]]', 'kind = "fake"\n[host.options]\n"fail.b" = "gone"\n[[path]]', 1)
    root = make_run(tmp_path / name, text)
    assert run(["compare", str(root)]) == 0
    out = capsys.readouterr().out
    typed = re.findall(r"(?m)facts: nearmetal (.*)$", out) + re.findall(r"\(nearmetal (show .*?)\)", out)
    assert len(typed) == 2
    for words in map(shlex.split, typed):
        assert run(words) == 0, words
        assert words[1] == str(root)


def test_the_list_of_trials_truncates_no_name_and_counts_blocks_like_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"guest-with-a-virtual-function-{number}" for number in range(2)]
    text = STUDY.replace('name = "b"', f'name = "{names[0]}"\nkind = "fake"\n[[path]]\nname = "{names[1]}"')
    root = make_run(
        tmp_path / "run", text.replace("[[workload]]", "[trials]\nmin_blocks = 3\nmax_blocks = 3\n[[workload]]")
    )
    monkeypatch.setenv("COLUMNS", "50")
    assert run(["show", str(root)]) == 0
    out = capsys.readouterr().out
    rows = re.findall(r"(?m)^ +\d+ +(\d+) ", out)
    assert {*rows} == {"1", "2", "3"}
    assert "\u2026" not in out
    assert max(map(len, out.splitlines())) <= 50


def test_text_is_not_interpreted_as_markup_or_terminal_commands() -> None:
    table = Table(ATTACK, title=ATTACK)
    table.add_row(ATTACK)
    for thing in (ATTACK, table):
        drawn = _drawn(thing)
        assert "[/b] [openmpi] [red]x :boom:" in drawn
        assert not {"\x07", "\x9b", "\u202e"} & set(drawn)
        assert "\x1b]" not in drawn
        assert "\x1b[2J" not in drawn
        assert "\u241b]0;owned" in drawn


def test_trailing_blanks_are_removed_and_inner_ones_kept() -> None:
    out = io.StringIO()
    console = Console(file=out, width=20)
    table = Table("name", "what", box=None, pad_edge=False)
    table.add_row("a", "b")
    table.add_row("longer", "a b")
    console.print(table)
    console.print("words that are broken into lines", style="bold")
    console.print("  a  b  \n  c ")
    console.print("yes? ", end="")
    console.print("no")
    lines = [
        "name    what",
        "a       b",
        "longer  a b",
        "words that are",
        "broken into lines",
        "  a  b",
        "  c",
        "yes? no",
        "",
    ]
    assert out.getvalue().split("\n") == lines


def test_visible_text_keeps_its_lines() -> None:
    assert visible("a\tb\r\nc\n") == "a\tb\nc\n"
    assert visible("100 %\rok\x7f") == "100 %\u240dok\u2421"
    assert NearmetalError("\x1b[2J", hint="\x07").render() == "error: \u241b[2J\nhint: \u2407"


def test_text_in_latex_cannot_inject_tex_or_terminal_commands() -> None:
    assert escape("\\a\x1b[2J_") == "\\textbackslash{}a\u241b[2J\\_"


def test_a_spreadsheet_never_reads_text_as_a_formula() -> None:
    made = table(["=a"], [["=1+1", "+x", "-x", "@x", "x=1", "", -1.5, None]])
    assert made == "=a\n'=1+1,'+x,'-x,'@x,x=1,,-1.5,\n"


COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HOSTILE = f"=1+1 {ATTACK}<script>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every free text is an attack."""
    root, text = make_run(tmp_path_factory.mktemp("hostile") / "run", FEW), HOSTILE

    def spoil(raw: dict[str, Any]) -> None:
        raw["outcome"] |= {"said": text, "launch_argv": [text, text], "reason": text, "hint": text}
        raw["outcome"]["facts"] |= {text: text, "kernel": text}
        raw["outcome"]["counters"] |= {text: 1}
        raw["outcome"]["proof"] = {"moved_packets": {text: 1}, "stray_packets": {text: 1}}
        raw["order"]["path"]["options"] = {text: text}
        raw["order"]["mpi"] = text
        for cell in raw["cells"]:
            cell["operation"] = text

    for path in sorted((root / "trials").glob("*.json")):
        rewrite(path, spoil)
    rewrite(
        root / "run.json", lambda raw: raw.update(host_label=HOSTILE, study_name=HOSTILE, nearmetal_version=HOSTILE)
    )
    return root


@pytest.mark.parametrize(
    "words",
    [
        "show RUN",
        "show RUN --trial 2",
        "compare RUN --all",
        "compare RUN --format markdown",
        "compare RUN --format csv",
        "compare RUN --format latex",
        "report RUN --out OUT/x.html",
        "plot RUN median -o OUT/x.svg",
        "plot RUN median -o OUT/x.tex",
        "gate RUN --against BASE --junit OUT/x.xml --openmetrics OUT/x.prom --reframe OUT/x.perflog",
        "history add OUT/h.duckdb RUN",
        "predict PATTERN --on RUN",
    ],
)
def test_a_hostile_run_cannot_inject_commands(
    hostile: Path, tmp_path: Path, words: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    pattern = tmp_path / "halo.toml"
    pattern.write_text('[pattern]\nkind = "halo"\nranks = 4\nsteps = 5\nmessage_bytes = 8\ncompute = "10 us"\n')
    out = tmp_path / "out"
    out.mkdir()
    base = shutil.copytree(hostile, tmp_path / "base")
    for path in (base / "trials").glob("*.json"):
        rewrite(path, lambda raw: raw.update(started_utc="2026-01-01T00:00:00+00:00"))
    places = {"RUN": str(hostile), "BASE": str(base), "OUT": str(out), "PATTERN": str(pattern)}
    code = run([re.sub("RUN|BASE|OUT|PATTERN", lambda found: places[found[0]], word) for word in words.split()])
    if words.startswith("history"):
        assert run(["history", "show", str(out / "h.duckdb"), "--out", str(out / "h.html")]) == 0
        (out / "h.duckdb").unlink()
    captured = capfdbinary.readouterr()
    assert code in {0, 1} or words.startswith("predict"), captured.err
    texts = [captured.out, captured.err, *(path.read_bytes() for path in out.iterdir())]
    for text in map(bytes.decode, texts):
        assert not COMMANDS.search(text), text[max(0, COMMANDS.search(text).start() - 80) :][:120]  # type: ignore[union-attr]
        assert "<script>" not in text or not text.lower().startswith(("<!doctype", "<svg", "<?xml"))
        assert "Traceback" not in text
    for table_text in [captured.out.decode()] * ("csv" in words) + [path.read_text() for path in out.glob("*.csv")]:
        rows = list(csv.reader(io.StringIO(table_text)))
        assert len(rows) > 1
        assert not [one for row in rows for one in row if one.startswith(("=", "+", "@", "-"))]


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "attack", FEW)


@pytest.mark.parametrize("argv", [["compare"], ["show"], ["compare", "--format", "markdown"]])
def test_a_title_of_brackets_is_shown_as_it_is(
    attack: Path, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([argv[0], str(attack), *argv[1:]]) == 0
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    if argv == ["compare"]:
        assert "[/b] [openmpi] :boom:" in captured.out


def test_a_plan_shows_brackets_in_its_title(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        STUDY.replace('kind = "fake"\n\n[[w', 'kind = "veth"\n\n[[w').replace(
            '"a"\nkind = "fake"', '"a"\nkind = "veth"'
        )
    )
    assert run(["plan", str(study)]) == 0
    assert "[/b] [openmpi] :boom:" in capsys.readouterr().out


def test_names_on_the_command_line_cannot_inject_terminal_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "no\x1b[2Jwhere"]) != 0
    assert run(["\x1b[2J"]) != 0
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["apply", "none.json"], "error: there is no profile 'none.json'\nhint: `nearmetal tune` writes profiles\n"),
        (
            ["guests", "--xml", "none.xml"],
            "error: cannot read none.xml: No such file or directory\n"
            "hint: `virsh dumpxml GUEST > FILE` writes such a file\n",
        ),
        (
            ["plot", "run", "medan", "-o", "x.svg"],
            "error: Invalid value for 'WHAT': 'medan' is not one of 'cost', 'mean', 'median', 'p99'.\n"
            "hint: nearmetal plot --help\n",
        ),
    ],
)
def test_a_wrong_name_gets_an_error_with_the_next_step(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(argv) == 2
    assert capsys.readouterr().err == message


def test_a_guest_is_read_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEARMETAL_MAX_TEXT", "4096")
    guest = tmp_path / "guest.xml"
    guest.write_text(f"<domain><name>{'a' * 5000}</name></domain>")
    assert run(["guests", "--xml", str(guest)]) != 0
    assert f"{guest} has more than 4096 bytes" in capsys.readouterr().err


def test_a_name_that_is_not_utf8_is_refused_by_a_history(
    attack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DuckDB ended `history add` with `std::bad_cast`, or made a history that holds nothing."""
    odd = shutil.copytree(attack, tmp_path / os.fsdecode(b"r\xff"))
    plain = tmp_path / "h.duckdb"
    for history, root in ((tmp_path / os.fsdecode(b"h\xff.duckdb"), attack), (plain, odd)):
        assert run(["history", "add", str(history), str(root)]) == 2
        assert "is not UTF-8, as names in a history are\nhint: rename it" in capsys.readouterr().err
    assert run(["history", "add", str(plain), str(attack)]) == 0


@pytest.mark.parametrize(
    "argv",
    [
        ["show", ""],
        ["plan", ""],
        ["report", "RUN", "--out", ""],
        ["plot", "RUN", "mean", "-o", ""],
        ["apply", "p.json", "--probe", ""],
        ["history", "show", "h.duckdb", "--path="],
        ["explain", "RUN", "--path", "veth", "--path", ""],
        ["run", "--out", ""],
    ],
)
def test_an_empty_name_is_no_name(attack: Path, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It was the working directory, a traceback as a file to write, and no protection as `apply --probe`."""
    assert run([str(attack) if one == "RUN" else one for one in argv]) == 2
    assert "it is empty (perhaps a variable of the shell that is not set)" in capsys.readouterr().err


def test_the_working_directory_is_no_file_to_write(
    attack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(attack), "--out", "."]) == 1
    assert "cannot write .: Is a directory" in capsys.readouterr().err
    assert run(["plot", str(attack), "mean", "-o", "."]) == 2
    assert capsys.readouterr().err.endswith("hint: -o chart.svg\n")


@pytest.mark.parametrize("argv", [["show"], ["plan"], ["history", "show"], ["apply"]])
def test_a_name_that_is_too_long_is_an_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*argv, "x" * 300]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch("error: x{300}(/.*)?: File name too long\nhint: a name may have 255 bytes\n", said)


def test_a_run_label_that_no_file_can_have_is_refused(hostile: Path, tmp_path: Path) -> None:
    root = shutil.copytree(hostile, tmp_path / "half")
    rewrite(root / "run.json", lambda raw: raw.update(host_label="half a character: \ud800"))
    assert run(["history", "add", str(tmp_path / "h.duckdb"), str(root)]) == 2
    assert visible("\ud800") == "\ufffd"


def _nearmetal(*argv: str, stdout: int, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nearmetal", *argv]
    return subprocess.run(command, stdout=stdout, stderr=stderr, text=True, check=False, timeout=600)


@pytest.fixture(params=["pipe", "terminal"])
def unread(request: pytest.FixtureRequest) -> Iterator[int]:
    """A pipe, or a terminal, whose other end is gone."""
    read, write = os.pipe() if request.param == "pipe" else os.openpty()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize("verb", [["compare"], ["compare", "--format", "json"], ["show", "--trial", "0", "--samples"]])
def test_a_closed_pipe_ends_it_quietly(attack: Path, unread: int, verb: list[str]) -> None:
    ended = _nearmetal(verb[0], str(attack), *verb[1:], stdout=unread)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(("verb", "root", "text"), [("run", "--out", SMALL), ("tune", "--run", SEARCH)])
def test_a_measurement_goes_on_when_nobody_reads_it(
    tmp_path: Path, unread: int, verb: str, root: str, text: str
) -> None:
    """`nearmetal run STUDY 2>&1 | head` ended the run midway, with exit code 0."""
    (tmp_path / "s.toml").write_text(text)
    made = []
    for read in (False, True):
        folder = tmp_path / str(read)
        argv = [verb, str(tmp_path / "s.toml"), root, str(folder), *(["--out", str(tmp_path)] * (verb == "tune"))]
        assert (run(argv) if read else _nearmetal(*argv, stdout=unread, stderr=unread).returncode) == 0
        made.append(sorted(str(one.relative_to(folder)) for one in folder.rglob("*")))
    assert made[0] == made[1]
    assert len(made[0]) > 9


@pytest.mark.parametrize("stream", ["&-", "/dev/null"])
def test_an_exit_code_does_not_depend_on_a_reader(tmp_path: Path, stream: str) -> None:
    """With standard output closed it was a traceback, and files of the run could have got its number."""
    (tmp_path / "s.toml").write_text(SMALL.replace('"fake"', '"fake"\noptions = { "fail.tap" = "gone" }'))
    script = f'exec "$0" -m nearmetal run s.toml --out run >{stream} 2>{stream} <{stream}'
    ended = subprocess.run(["sh", "-c", script, sys.executable], cwd=tmp_path, check=False, timeout=600)
    assert ended.returncode == ExitCode.PARTIAL
    assert run(["verify", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("verb", [["show"], ["--help"], ["show", "--trial", "0", "--samples"]])
def test_a_full_disk_on_stdout_is_a_one_line_error(attack: Path, verb: list[str]) -> None:
    argv = verb if verb == ["--help"] else [verb[0], str(attack), *verb[1:]]
    with Path("/dev/full").open("w") as full:
        ended = _nearmetal(*argv, stdout=full.fileno())
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "error: cannot write to standard output: No space left on device",
        "hint: free some space, or write to another place",
    ]


def test_head_gets_the_lines_it_wants(attack: Path) -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("there is no bash")
    script = 'set -o pipefail; "$0" -m nearmetal compare "$1" | head -1'
    ended = subprocess.run(
        [shell, "-c", script, sys.executable, str(attack)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr, len(ended.stdout.splitlines())) == (0, "", 1)


def test_every_console_is_made_by_our_own_function() -> None:
    source = Path(__file__).parents[2] / "src" / "nearmetal"
    own = source / "report" / "terminal.py"
    others = [path for path in source.rglob("*.py") if path != own and "import Console" in path.read_text()]
    assert len(others) > 10
    for path in others:
        assert "from rich.console import" not in path.read_text().split("if TYPE_CHECKING")[0], path


@pytest.mark.parametrize(
    "argv",
    [
        ["compare", "r", "--all", "--format", "csv"],
        ["compare", "r", "--all", "--published", "nanos-table1"],
        ["plan", "paths", "--order", "--format", "json"],
    ],
)
def test_an_option_without_effect_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert re.match("error: --(all|order) has no effect with --(format|published)", capsys.readouterr().err)


@pytest.mark.parametrize("argv", [["knobs", "--all"], ["lab", "status"], ["clean"], ["doctor"]])
def test_a_pipe_gets_lines_of_80_columns(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(argv)
    lines = capsys.readouterr().out.splitlines()
    assert [one for one in lines if len(one) > 80 and not re.match(" +(/|hint:)|(/|[a-z ]+/)", one)] == []


@pytest.mark.parametrize("width", ["20", "40"])
def test_a_narrow_terminal_cuts_nothing(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    draw([CheckLine("mpi openmpi", ok=True, detail=f"5.0.11 ({'/long' * 20}/bin/mpicc)")])
    assert run(["studies"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert "/bin/mpicc)" in out.replace("\n", "").replace(" ", "")


def test_figures_that_do_not_fit_stand_below_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells of `plan` ended in an ellipsis at 60 columns, PCI addresses of `guests` at 80."""
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["plan", "nanos-placement"]) == 0
    plan = capsys.readouterr().out
    assert {"workload   operation sizes iterations", "workload     nodes of ranks  progress"} <= {*plan.splitlines()}
    assert "inter-node  0 1 2 3 4 5 6 7   polling" in plan.splitlines()
    assert run(["guests", "--xml", str(Path(__file__).parents[1] / "data" / "domain-vf-virtio.xml")]) == 0
    guests = capsys.readouterr().out
    assert re.search(r"(?m)^hpc-guest .*0000:3b:02\.1$", guests)
    assert re.search(r"(?m)^hpc-guest +4 \(2\) +8192 MiB$", guests)
    for text in (plan, guests):
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 40


def test_plan_shows_iterations_only_for_workloads_that_take_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "lockwood-apps"]) == 0
    assert "1000" not in (stdout := capsys.readouterr().out)
    assert stdout.count("its own") == 2
    assert run(["plan", "aa"]) == 0
    assert "its own" not in capsys.readouterr().out
    assert run(["plan", "tools"]) == 0
    assert "polling" not in capsys.readouterr().out, "no tool of the network waits as ranks of an MPI do"
