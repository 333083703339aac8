"""Pages generated from the command line are up to date and well formed; shells complete verbs."""

import csv
import os
import re
import statistics
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import click
import pytest
from scripts.reference import cli as describe
from scripts.reference import paths as describe_paths

from nearmetal.cli.main import VERBS, group, run
from nearmetal.cli.place import command as place
from nearmetal.cli.predict import command as predict
from nearmetal.errors import ExitCode
from nearmetal.predict.calibration import lab_cases
from nearmetal.results.gated import GateExit

ROOT = Path(__file__).parents[2]
MAN = ROOT / "packaging/man/nearmetal.1"


def test_the_reference_page_matches_the_verbs() -> None:
    assert (ROOT / "docs/reference/cli.md").read_text() == describe.reference(), "run `make reference`"


def test_every_option_has_a_help_text() -> None:
    assert re.findall(r"^\| `-.*` \| (?:\[.*)?\|$", describe.reference(), re.MULTILINE) == []


def test_the_page_of_hosts_and_paths_matches_their_tables() -> None:
    assert (ROOT / "docs/reference/hosts-and-paths.md").read_text() == describe_paths.reference(), (
        "run `make reference`"
    )


def test_the_man_page_matches_the_verbs() -> None:
    assert MAN.read_text() == describe.man(), "run `make reference`"


def test_the_man_page_is_well_formed() -> None:
    done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", MAN], capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []  # the date changes every day


def test_the_man_page_shows_every_verb_and_keeps_typed_hyphens() -> None:
    shown = subprocess.run(["mandoc", "-Tascii", MAN], capture_output=True, text=True, check=True).stdout
    plain = re.sub(r".\x08", "", shown)
    for verb in VERBS:
        assert f"nearmetal {verb}" in plain
    assert "--allow-mixed" in plain


@pytest.mark.parametrize("verb", ["history", "lab", "trace"])
def test_the_list_of_commands_is_not_truncated(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([verb, "--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert listed
    assert not [line for line in listed if line.endswith("...")]


def test_every_exit_code_is_in_the_table() -> None:
    assert set(describe.EXIT_CODES) == set(ExitCode)
    assert set(describe.GATE_CODES) == set(GateExit)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_completion_script(shell: str) -> None:
    assert "_NEARMETAL_COMPLETE" in _nearmetal({"_NEARMETAL_COMPLETE": f"{shell}_source"})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nearmetal com", "plain,compare"),
        ("nearmetal history s", "plain,show"),
        ("nearmetal compare --format m", "plain,markdown"),
        ("nearmetal run lockwood-l", "plain,lockwood-lammps plain,lockwood-latency-bandwidth"),
        ("nearmetal plan local", "plain,local.toml"),
        ("nearmetal tune sub/", "plain,sub/one.toml plain,sub/two.toml"),
        ("nearmetal run --resume lo", "file,lo"),
        ("nearmetal run runs/", "file,runs/"),
    ],
)
def test_bash_completes(words: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of studies those that ship and TOML files; every file was offered, and no shipped study."""
    monkeypatch.chdir(tmp_path)
    for name in ("local.toml", "local.txt", "sub/one.toml", "sub/two.toml", "runs/first/run.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    asked = {"_NEARMETAL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert _nearmetal(asked).split() == expected.split()


def test_completing_a_verb_loads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading all that begin with nothing took more than a second at each press of the key."""
    monkeypatch.setattr(type(group), "get_command", lambda *_: pytest.fail("a verb was loaded"))
    context = click.Context(group)
    assert [one.value for one in group.shell_complete(context, "")] == list(VERBS)
    assert [(one.value, one.help) for one in group.shell_complete(context, "com")] == [("compare", VERBS["compare"][1])]
    assert "--version" in {one.value for one in group.shell_complete(context, "--")}


def test_citation_and_licence_match_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    for key in ("version", "license"):
        assert re.search(rf"^{key}: (.+)$", citation, re.MULTILINE)[1] == project[key]  # type: ignore[index]


def _nearmetal(environment: dict[str, str]) -> str:
    program = Path(sys.executable).with_name("nearmetal")
    done = subprocess.run([program], env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))])
def test_links_between_pages_have_targets(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [one for one in targets if not (page.parent / one).exists()] == []


def test_the_index_links_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / one).resolve() for one in re.findall(r"\]\(([^)#:]+)\)", index.read_text())}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "studies"}
    assert pages - linked - {index} == set()


def test_the_lab_pages_prediction_errors_match_the_stored_launches() -> None:
    page = (ROOT / "docs/explanation/prediction-lab.md").read_text()
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    with (ROOT / "bench/data/predict_lab.csv").open() as file:
        for case in csv.DictReader(file):
            corked = case["autocorking"]
            launches = [float(one) for one in case["launches_ms"].split()]
            measured = statistics.median(launches)
            error, by_rule = (
                100 * (float(case[name] or "nan") / measured - 1) for name in ("predicted_ms", "predicted_with_rule_ms")
            )
            errors[corked, case["setting"]].append(error)
            errors[corked, "by rule"] += [by_rule] * bool(case["predicted_with_rule_ms"])
    for corked, section in zip(("off", "on"), page.split("\n### With")[1:3], strict=True):
        for setting, expected in (
            ("tuned", "error of 14 cases is {:.1f} %, the worst {:.1f} %"),
            ("default", "it is {:.1f} % for 14 cases, worst {:.0f} %"),
            ("by rule", "**{:.1f} %, worst {:+.1f} %, by rule**"),
        ):
            worst = max(errors[corked, setting], key=abs)
            assert expected.format(statistics.median(map(abs, errors[corked, setting])), worst) in section
        best = statistics.median(map(abs, errors[corked, "tuned"] + errors[corked, "by rule"]))
        (summary,) = (line for line in page.splitlines() if line.startswith(f"| {corked}, as"))
        assert summary.endswith(f"| **{best:.1f} %** |")


def test_the_prediction_errors_on_machines_and_in_guests_match_the_stored_launches() -> None:
    page = (ROOT / "docs/explanation/prediction-lab.md").read_text()
    errors: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for case in lab_cases():
        errors[of := ("held out, " * case.held_out + case.where, case.letter, case.setting)].append(case.error)
        errors[("held out" if case.held_out else "all",)].append(case.error)
        head, *rows = page.split(f"| {of[0]}, class {case.letter} | ")[1].split("\n\n")[0].splitlines()
        (row,) = (line for line in rows if line.startswith(f"| {case.program} | "))
        cell = row.strip("| ").split(" | ")[1 + head.rstrip(" |").split(" | ").index(f"{case.path}, {case.setting}")]
        assert cell == f"{statistics.median(case.times_ms):.4g} ms, {case.error:+.1%}".replace("%", " %")
        assert case.held_out or abs(case.error) <= 0.15 or case.warned
    for of, found in errors.items():
        middle, worst = statistics.median(map(abs, found)), max(found, key=abs)
        told = f"| {', '.join(of)} | {len(found)} | {middle:.1%} | {worst:+.1%} (".replace("%", " %")
        assert told in page
    picture = (ROOT / "docs/pictures/prediction-lab.svg").read_text()
    assert picture.count("<title>") == len(errors[("all",)])


@pytest.mark.parametrize("command", [predict, place], ids=["predict", "place"])
def test_every_option_is_described_in_a_page_besides_the_reference(command: click.Command) -> None:
    """Seven were only in the reference."""
    pages = (page for page in (ROOT / "docs").rglob("*.md") if page.name != "cli.md")
    text = "\n".join(page.read_text() for page in pages)
    shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    assert len(shown) > 20
    unnamed = [one.opts for one in shown if not any(re.search(rf"(?<![\w-]){opt}(?![\w-])", text) for opt in one.opts)]
    assert unnamed == []
