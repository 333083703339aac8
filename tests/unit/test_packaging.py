"""Recipes for other package managers ask for what pyproject.toml asks for; the ways to start it work."""

import ast
import configparser
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def spack_calls(name: str) -> list[ast.Call]:
    tree = ast.parse((ROOT / "packaging/spack/package.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]


def test_spack_asks_for_the_same_packages() -> None:
    asked = {ast.literal_eval(call.args[0]) for call in spack_calls("depends_on")}
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    assert {f"py-{one.replace('>=', '@')}:" for one in wanted} <= asked
    assert f"python@{PROJECT['project']['requires-python'].removeprefix('>=')}:" in asked
    assert [ast.literal_eval(call.args[0]) for call in spack_calls("license")] == [PROJECT["project"]["license"]]


def test_the_container_installs_locked_packages_only() -> None:
    text = (ROOT / "packaging/Containerfile").read_text().replace("\\\n", " ")
    for line in re.findall(r"pip install [^&\n]*", text):
        assert "--require-hashes" in line or "--no-deps --no-build-isolation" in line, line
    for copied in re.findall(r"packaging/[\w.-]+\.lock", text):
        assert (ROOT / copied).is_file()


def test_wheels_are_asked_for_on_both_machines() -> None:
    assert PROJECT["tool"]["cibuildwheel"]["linux"]["archs"] == ["x86_64", "aarch64"]


def test_the_interpreter_runs_it_as_a_module() -> None:
    argv = [sys.executable, "-m", "nearmetal", "--version"]
    assert subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.startswith("nearmetal,")


def test_the_picture_of_the_rooms_is_the_order_in_which_they_may_import() -> None:
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
