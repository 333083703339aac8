"""Recipes for other package managers match pyproject.toml; every way to start nearmetal works."""

import ast
import configparser
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Never

import pytest

from nearmetal.cli.main import run as nearmetal
from nearmetal.cli.self_test import _EXAMPLE
from nearmetal.errors import UnavailableError
from nearmetal.workloads.mpi.table import FLAVOURS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def spack_calls(name: str) -> list[ast.Call]:
    tree = ast.parse((ROOT / "packaging/spack/package.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]


def test_spack_requires_the_same_packages() -> None:
    asked = {ast.literal_eval(call.args[0]) for call in spack_calls("depends_on")}
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    assert {f"py-{one.replace('>=', '@')}:" for one in wanted} <= asked
    assert f"python@{PROJECT['project']['requires-python'].removeprefix('>=')}:" in asked
    assert [ast.literal_eval(call.args[0]) for call in spack_calls("license")] == [PROJECT["project"]["license"]]


def test_the_container_installs_locked_packages_only() -> None:
    text = (ROOT / "packaging/Containerfile").read_text().replace("\\\n", " ")
    installed = re.findall(r"pip install [^&\n]*", text)
    assert installed
    for line in installed:
        assert "--require-hashes" in line or "--no-deps --no-build-isolation" in line, line
    for copied in re.findall(r"packaging/[\w.-]+\.lock", text):
        assert (ROOT / copied).is_file()


def test_wheels_are_locked_for_both_architectures() -> None:
    assert PROJECT["tool"]["cibuildwheel"]["linux"]["archs"] == ["x86_64", "aarch64"]


def test_python_runs_it_as_a_module() -> None:
    argv = [sys.executable, "-m", "nearmetal", "--version"]
    assert subprocess.run(argv, capture_output=True, text=True, timeout=600, check=True).stdout.startswith("nearmetal,")


def test_make_lists_every_target() -> None:
    """The one with a number in its name was missing."""
    targets = set(re.findall(r"^([^\s:#]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    done = subprocess.run(["make", "-s", "-C", ROOT, "help"], capture_output=True, text=True, timeout=600, check=True)
    assert {line.split()[1] for line in done.stdout.splitlines()} == targets


def test_the_diagram_of_rooms_shows_the_import_order() -> None:
    block = (ROOT / "docs" / "design.md").read_text().partition("    src/nearmetal/\n")[2].partition("    native/")[0]
    drawn = [name for line in block.splitlines() for name in re.findall(r"\b([a-z]+)(?:\.py|/  )", line[:80])]
    rooms = {
        p.stem for p in (ROOT / "src" / "nearmetal").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    drawn = [name for name in drawn if name in rooms]
    parser = configparser.ConfigParser()
    parser.read(ROOT / "packaging" / "importlinter.ini")
    layers = parser["importlinter:contract:layers"]["layers"].split("\n")
    enforced = [{name.strip(" ()") for name in layer.split("|")} for layer in reversed(layers) if layer]
    position = {name: level for level, names in enumerate(enforced) for name in names}
    assert set(position) == rooms - {"__init__", "__main__"}
    assert list(dict.fromkeys(drawn)) == sorted(set(drawn), key=lambda name: (position[name], drawn.index(name)))
    assert set(drawn) == set(position)


def test_set_up_installs_with_the_apt_get_wrapper() -> None:
    scripts = [one for one in (ROOT / "scripts").iterdir() if one.is_file() and one.name != "apt-get"]
    commands = {one.name: re.sub(r"'[^']*'|\"[^\"]*\"", "", _code(one)) for one in scripts}
    assert any("scripts/apt-get install" in code for code in commands.values())
    for name, code in commands.items():
        bare = re.findall(r"(?<!scripts/)apt-get (?:update|install)", code)
        assert bare == [], f"{name} would fail beside another apt-get"


def _code(script: Path) -> str:
    return re.sub(r"^\s*#.*$", "", script.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("message", "wait_s", "code"),
    [
        ("E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1", 600, 0),
        ("E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1", 0, 100),
        ("E: Unable to locate package x", 600, 100),
    ],
)
def test_an_update_is_retried_only_if_the_package_lists_are_locked(
    tmp_path: Path, message: str, wait_s: int, code: int
) -> None:
    """The stand-in for apt-get fails the first time; the stand-in for `sleep` takes no time."""
    asked = tmp_path / "asked"
    stand_in = f'#!/bin/sh\necho "$@" >>{asked}\n[ $(wc -l <{asked}) -ge 2 ] || {{ echo "{message}" >&2; exit 100; }}\n'
    for name, text in (("apt-get", stand_in), ("sleep", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "APT_WAIT_S": str(wait_s)}
    done = subprocess.run(
        [ROOT / "scripts" / "apt-get", "update"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert (message in done.stderr) is True
    assert asked.read_text().splitlines()[0] == "-o DPkg::Lock::Timeout=600 update"


def test_self_test_reports_what_does_not_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> Never:
        raise UnavailableError("no namespaces here", hint="ask root")

    monkeypatch.setattr("nearmetal.cli.self_test.run_study", refuse)
    assert nearmetal(["self-test"]) == 0, "features this machine does not allow are not installation failures"
    stdout = capsys.readouterr().out
    assert "75 files as recorded" in stdout
    assert stdout.count("no namespaces here") == len(FLAVOURS)
    monkeypatch.setitem(_EXAMPLE, "vf, tuned", 2.0)
    assert nearmetal(["self-test"]) == 1
    assert "the example's ratios are" in capsys.readouterr().out


def test_every_function_fits_a_screen() -> None:
    longest = {
        f"{path.name}:{node.name}": node.end_lineno - node.lineno + 1
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    }
    assert {name: lines for name, lines in longest.items() if lines > 60} == {}


def test_every_class_has_a_name_of_its_own() -> None:
    named: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name, []).append(path.name)
    assert {name: places for name, places in named.items() if len(places) > 1} == {}
