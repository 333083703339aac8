"""What errors say of a path, a name or a number that was probably mistyped."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import nearmetal
from nearmetal import scratch
from nearmetal.cli.explain import command as explain
from nearmetal.cli.import_ import _lacks
from nearmetal.cli.init import _words
from nearmetal.cli.main import run
from nearmetal.cli.progress import watcher
from nearmetal.errors import BadInputError, NearmetalError, UnavailableError
from nearmetal.predict.trace_view import Traffic, read_placement
from nearmetal.report.fabric_text import rounds_sentence
from nearmetal.report.progress import last_trials
from nearmetal.report.terminal import Console
from nearmetal.report.trace_text import sums_sentence
from nearmetal.report.words import moment
from nearmetal.results.between import judge_runs
from nearmetal.results.paths import nothing_to_show
from nearmetal.run.adopt import AdoptedFile
from nearmetal.serve.pages import compare_page
from nearmetal.store.rundir import RunDir
from nearmetal.store.searchdir import SearchDir
from nearmetal.study.shipped import read_study
from nearmetal.study.spec import parse_nodes, parse_study
from nearmetal.tune.profile import Profile
from tests.unit.report.synthetic_run import ONE_SIZE, Recipe, make_run

if TYPE_CHECKING:
    from collections.abc import Callable

STUDY = 'name = "s"\nbaseline = "veth"\n[[path]]\nname = "veth"\n[[workload]]\nname = "latency"\nsizes = [8]\n'


def hint_of(call: Callable[[], object]) -> str:
    with pytest.raises(NearmetalError) as raised:
        call()
    return raised.value.hint


def make_runs(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "run.json").touch()


def test_a_directory_of_runs_names_those_that_it_holds(tmp_path: Path) -> None:
    make_runs(tmp_path / "runs", "a", "b")
    assert hint_of(lambda: RunDir.open(tmp_path / "runs")) == (
        f"name one of those that it holds: {tmp_path}/runs/a, {tmp_path}/runs/b"
    )
    make_runs(tmp_path / "runs", "c", "d", "e")
    assert hint_of(lambda: RunDir.open(tmp_path / "runs")).endswith(
        "/c, " + f"{tmp_path}/runs/d, {tmp_path}/runs/e and 2 more"
    )


def test_a_mistyped_run_is_told_from_none(tmp_path: Path) -> None:
    make_runs(tmp_path, "bridge")
    assert hint_of(lambda: RunDir.open(tmp_path / "brdge")) == f"did you mean {tmp_path}/bridge?"
    assert hint_of(lambda: RunDir.open(tmp_path / "quite-another")) == "`nearmetal run` makes one"
    assert hint_of(lambda: SearchDir.open(tmp_path / "brdge")) == "`nearmetal tune` makes one"


def test_a_study_given_for_a_run_is_to_be_run(tmp_path: Path) -> None:
    (study := tmp_path / "s.toml").write_text(STUDY)
    assert (
        hint_of(lambda: RunDir.open(study))
        == f"it looks like a study; `nearmetal run {study}` makes a directory from it"
    )
    (packed := tmp_path / "s.tar").touch()
    assert "nearmetal unarchive" in hint_of(lambda: RunDir.open(packed))


def test_a_suggested_command_quotes_names_of_files(tmp_path: Path) -> None:
    (study := tmp_path / "my studies.toml").write_text(STUDY)
    assert f"`nearmetal run '{study}'`" in hint_of(lambda: RunDir.open(study))
    untraced = make_run(tmp_path / "my run")
    assert f"`nearmetal advise '{untraced.root}'`" in hint_of(
        lambda: explain.main([str(untraced.root)], standalone_mode=False)
    )
    (untraced.root / "study.toml").write_text(STUDY)
    assert f"nearmetal run '{untraced.root}/study.toml';" in hint_of(lambda: RunDir.open(untraced.root).study())


def test_no_message_puts_the_name_of_a_file_into_a_command_as_it_is() -> None:
    """In each literal of the sources, NUL stands for what is put in, such as `nearmetal show {root}`."""
    bare = re.compile(
        r"(?:nearmetal [a-z-]+|\0verb|cp -r)(?: --?[a-z-]+)* \0(?:\w+\.)?(?:root|path|run|study|source|file|folder)\b"
    )
    for module in Path(nearmetal.__file__).parent.rglob("*.py"):
        literals = (one for one in ast.walk(ast.parse(module.read_text())) if isinstance(one, ast.JoinedStr))
        for parts in (one.values for one in literals):
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else f"\0{ast.unparse(p)[1:-1]}" for p in parts)
            assert not bare.search(text), f"{module.name}: {text!r}"


def test_a_run_given_for_a_study_is_to_be_resumed(tmp_path: Path) -> None:
    make_runs(tmp_path, "bridge")
    assert hint_of(lambda: read_study(tmp_path / "bridge")) == (
        f"it is a run; to continue it: nearmetal run --resume {tmp_path}/bridge"
    )


def test_a_mistyped_study_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "bridge.toml").write_text(STUDY)
    assert hint_of(lambda: read_study(tmp_path / "brige.toml")) == f"did you mean {tmp_path}/bridge.toml?"
    assert "nearmetal studies" in hint_of(lambda: read_study(tmp_path / "nothing-like-it.toml"))


def test_a_place_that_cannot_become_a_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_runs(tmp_path, "old")
    assert hint_of(lambda: RunDir.refuse_used(tmp_path / "old")) == (
        f"name another directory, or continue it: nearmetal run --resume {tmp_path}/old"
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    assert hint_of(lambda: RunDir.refuse_used(tmp_path / "full")) == "name another directory"
    assert hint_of(lambda: RunDir.refuse_used(tmp_path / "full" / "letter")) == "name another directory with --out"
    RunDir.refuse_used(tmp_path / "new" / "run")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(NearmetalError, match=f"cannot make {tmp_path}/new/run: {tmp_path} cannot be written"):
        RunDir.refuse_used(tmp_path / "new" / "run")


def test_a_used_directory_is_refused_before_anything_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearmetal.run.begin.open_host", lambda *_: pytest.fail("the host was opened"))
    make_runs(tmp_path, "old")
    (study := tmp_path / "s.toml").write_text(STUDY)
    assert run(["run", str(study), "--out", str(tmp_path / "old")]) == 2
    assert f"error: {tmp_path}/old is not empty" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["run", "tune"])
def test_a_study_with_resume_is_told_that_the_run_has_one(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "s.toml", "--resume", "runs/a b"]) == 2
    said = capsys.readouterr().err
    assert "--resume continues the study that runs/a b holds, so it takes none: s.toml" in said
    assert f"hint: nearmetal {verb} --resume 'runs/a b'" in said


@pytest.mark.parametrize(("verb", "option"), [("run", ["--out", "x"]), ("run", ["--anyway"]), ("tune", ["--run", "x"])])
def test_an_option_without_effect_on_what_is_resumed_is_refused(
    verb: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`run` ignored it."""
    assert run([verb, "--resume", "runs/a b", *option]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: --resume continues in runs/a b, so {option[0]} has no effect",
        f"hint: nearmetal {verb} --resume 'runs/a b'",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ('baseline = "veth"', 'baseline = "vth"'),
            "the baseline 'vth' is not the name of a path; did you mean 'veth'?",
        ),
        (("sizes = [8]", "sizes = [8]\niterations = 1e30"), "iterations: the number is too large (it is 1e+30)"),
        (
            ('name = "s"', 'name = "a b"'),
            "name: a name has up to 40 letters, digits and . _ + -, and begins with a letter or a digit (it is 'a b')",
        ),
    ],
)
def test_values_of_a_study_that_cannot_be(change: tuple[str, str], said: str) -> None:
    with pytest.raises(NearmetalError) as raised:
        parse_study(STUDY.replace(*change), "s.toml")
    assert said in raised.value.message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[[path]]", "[path]"), "path: write [[path]], with two brackets on each side: there may be several"),
        (("sizes = [8]", "sizes = 8"), "workload[0].sizes: it must be a list, in square brackets (it is 8)"),
        (("sizes = [8]\n", "sizes = [8]\n[[trials]]\n"), "trials: write [trials], with one bracket on each side"),
        (("[[path]]", "mpi = 5\n[[path]]"), "mpi: it must be a table (it is 5)"),
    ],
)
def test_brackets_of_another_kind_are_named(change: tuple[str, str], said: str) -> None:
    with pytest.raises(NearmetalError) as raised:
        parse_study(STUDY.replace(*change), "s.toml")
    assert said in raised.value.message


def test_a_table_that_is_given_twice_is_told_its_brackets() -> None:
    twice = STUDY.replace("[[path]]", '[path]\nname = "bridge"\n[path]')
    assert "[[path]]" in hint_of(lambda: parse_study(twice, "s.toml"))


def test_a_placement_that_cannot_be_read_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(NearmetalError, match=r"(?m)cannot read the placement .*blok:2: No such file or directory$"):
        read_placement(tmp_path / "blok:2", 4)


def test_a_report_says_its_time_as_people_write_it() -> None:
    assert moment("2026-11-26T02:34:15+00:00") == "2026-11-26 02:34 UTC"


def test_a_number_that_is_none_is_said_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "paths", "--blocks", "1e9"]) == 2
    assert "Invalid value for '--blocks': '1e9' is not a whole number." in capsys.readouterr().err


def test_a_profile_without_its_format_says_what_it_lacks(tmp_path: Path) -> None:
    (place := tmp_path / "p.json").write_text("{}")
    with pytest.raises(NearmetalError, match="is not a profile: it lacks 'profile_format'"):
        Profile.read(place)


def test_answers_of_init_may_stand_between_blanks() -> None:
    assert _words("veth bridge,tap , shm") == ("veth", "bridge", "tap", "shm")


def test_what_vanishes_while_it_is_shown_has_no_size(tmp_path: Path) -> None:
    gone = scratch.Folder(tmp_path / "nm-1-2-3-x", "here", 1)
    assert gone.size_bytes() == 0


def test_what_many_files_lack_is_said_once() -> None:
    def one(file: str, *lacks: str) -> AdoptedFile:
        found = type("Found", (), {"lacks": lacks})
        return AdoptedFile(file, "vm", 0, found)  # type: ignore[arg-type]

    files = [one("a", "no p99", "no MPI"), one("b", "no p99", "no MPI"), one("c", "no p99", "cut short")]
    assert list(_lacks(files)) == [
        ("no p99", "all 3 launches"),
        ("no MPI", "2 launches, a the first"),
        ("cut short", "c"),
    ]


def test_a_traceback_shows_the_hint_as_well() -> None:
    assert BadInputError("no such run", hint="name another").__notes__ == ["hint: name another"]
    assert not hasattr(BadInputError("no such run"), "__notes__")


def test_show_counts_blocks_as_its_list_does_and_prints_no_empty_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=1, fails=lambda *_: True))
    assert run(["show", str(tmp_path / "run"), "--trial", "0"]) == 0
    said = capsys.readouterr().out
    assert re.match(r"trial 0 of block 1, attempt 1, 2026-11-21 \d\d:00:00 UTC: failed\nreason: ", said)
    assert "hint: \n" not in said


def test_one_of_a_thing_is_not_said_in_the_plural(capsys: pytest.CaptureFixture[str]) -> None:
    with watcher(parse_study(STUDY, "s.toml"), Console(stderr=True)) as announce:
        announce.block_started(0, 1, ["veth"])
        announce.block_started(1, 2, ["veth"])
    assert re.findall(r"\d trials?", capsys.readouterr().err) == ["1 trial", "2 trials"]
    two = SimpleNamespace(names=("a", "b"), passes=(1, 0))
    assert rounds_sentence(two) == "1 pair in 1 round"  # type: ignore[arg-type]
    alone = SimpleNamespace(ranks=("0",), recorded_calls=1, pairs=(Traffic(1, 8),))
    assert sums_sentence(alone) == "1 rank, 1 call, 1 message of 8 B in all"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("to", "said"),
    [("udev", "put it into /etc/udev"), ("ansible", "put it anywhere; "), ("slurm", "put them into ")],
)
def test_export_says_where_its_files_go(tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str, said: str) -> None:
    (place := tmp_path / "p.json").write_text(Profile("p", "any", ("v0",), {"nic.gro": "on"}).to_json())
    assert run(["export", str(place), "--to", to, "--out", str(tmp_path / "out")]) == 0
    assert said in capsys.readouterr().err


def test_apply_says_what_it_cannot_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(host: str) -> None:
        raise UnavailableError(f"{host} is away")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("nearmetal.cli.apply.open_shell", unreachable)
    setting = {"nic.gro": "on", "mpi.progress": "polling"}
    (place := tmp_path / "p.json").write_text(Profile("p", "any", ("v0",), setting).to_json())
    assert run(["apply", str(place)]) == 3
    assert f"warning: mpi.progress cannot be set on a machine; `nearmetal export {place}" in capsys.readouterr().err


def test_the_live_page_says_times_as_people_write_them() -> None:
    one = SimpleNamespace(
        trial=1,
        path="veth",
        workload="w",
        setting="s",
        status="valid",
        reason="",
        elapsed_ns=10**9,
        started_utc="2026-11-26T03:44:32.5+00:00",
    )
    table = last_trials(SimpleNamespace(last=[one]))  # type: ignore[arg-type]
    assert table.rows[0][-1] == "2026-11-26 03:44:32"


@pytest.mark.parametrize(
    ("count", "said"), [(1, "the only trial of r is not valid"), (2, "none of the 2 trials of r is valid")]
)
def test_a_run_without_a_valid_trial_counts_its_trials(count: int, said: str) -> None:
    failed = SimpleNamespace(outcome=SimpleNamespace(reason="no cable"))
    error = nothing_to_show(SimpleNamespace(root="r"), [failed] * count)  # type: ignore[arg-type,list-item]
    assert error.message == f"{said}; the last one says: no cable"


def test_one_cell_of_a_comparison_is_told_in_the_singular(tmp_path: Path) -> None:
    text = ONE_SIZE.replace("min_blocks = 5", "min_blocks = 3")
    only = re.sub(r'\[\[path\]\]\nname = "(bridge|macvlan|tap|shm)"\n', "", text)
    both = [make_run(tmp_path / name, Recipe(study=only, blocks=3)) for name in ("run", "base")]
    page = " ".join(re.sub("<[^>]+>", " ", compare_page(judge_runs(*both))).split())
    assert "of 1 cell, by mean, " in page


def test_a_study_given_for_a_hosts_file_is_told_what_that_has() -> None:
    with pytest.raises(BadInputError) as raised:
        parse_nodes(STUDY + "[[node]]\nname = 'n0'\nadress = 'x'\n", "s.toml")
    assert raised.value.message.splitlines()[1:] == [
        "  node[0].adress: unknown key; did you mean 'address'?",
        "  name: unknown key; known: node",
        "  baseline: unknown key; known: node",
        "  path: unknown key; known: node",
        "  workload: unknown key; known: node",
    ]
    assert raised.value.hint == "a hosts file has [[node]] tables and nothing else"


def test_a_directory_does_not_hide_the_shipped_study_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fabric").mkdir()
    assert run(["plan", "fabric"]) == 0
    assert run(["fabric", "fabric", "--path", "nosuch"]) == 2
    assert "the study has no path 'nosuch'" in capsys.readouterr().err
    (tmp_path / "fabric" / "run.json").touch()
    assert "nearmetal run --resume fabric" in hint_of(lambda: read_study(Path("fabric")))
