"""A real sh passes any argument unchanged to the program."""

import ast
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nearmetal.errors import BadInputError
from nearmetal.hosts.far import quote

SOURCES = Path(__file__).parents[2] / "src"
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40) | st.sampled_from(
    ["$(touch /tmp/never)", "`id`", "a;b", "-rf", "~", "*", "'", '"', "\\", "\n", "!!", "${IFS}", "&& exit 1", ""]
)


def evaluated(line: bytes) -> bytes:
    return subprocess.run(["sh"], input=line, capture_output=True, timeout=600, check=True).stdout


@settings(max_examples=60, deadline=None)
@given(st.lists(words, min_size=1, max_size=6))
def test_arguments_arrive_unchanged(given_words: list[str]) -> None:
    received = evaluated(quote.command(["printf", "%s\\0", *given_words]) + b"\n")
    assert received.decode().split("\0")[:-1] == given_words


@settings(max_examples=40, deadline=None)
@given(words)
def test_environment_values_arrive_unchanged(value: str) -> None:
    assert evaluated(quote.command(["printenv", "NM_VALUE"], {"NM_VALUE": value}) + b"\n").decode() == value + "\n"


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300))
@example(b"-\0")
def test_any_bytes_round_trip_through_printf(data: bytes) -> None:
    assert evaluated(b"printf %s\n" % quote.printf(data)) == data


@pytest.mark.parametrize("argv", [[], [""], ["-x"], ["A=b"], ["echo", "a\0b"]])
def test_arguments_that_cannot_be_passed_are_refused(argv: list[str]) -> None:
    with pytest.raises(BadInputError):
        quote.command(argv)


@pytest.mark.parametrize("name", ["A B", "1A", "A;id", ""])
def test_invalid_variable_names_are_refused(name: str) -> None:
    with pytest.raises(BadInputError):
        quote.command(["true"], {name: "x"})


FORBIDDEN = re.compile(r"shell\s*=\s*True|os\.system|os\.popen|getoutput|create_subprocess_shell|known_hosts=None")


def test_no_shell_is_given_a_string_anywhere() -> None:
    for path in SOURCES.rglob("*.py"):
        found = FORBIDDEN.search(path.read_text())
        assert not found, f"{path}: {found[0] if found else ''}"


SHELLS = {"sh", "/bin/sh", "bash", "/bin/bash"}


def scripts(tree: ast.AST) -> list[ast.expr]:
    """Return what follows every `sh -c` in a list or tuple."""
    return [
        three[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.List | ast.Tuple)
        for three in zip(node.elts, node.elts[1:], node.elts[2:], strict=False)
        if [one.value for one in three[:2] if isinstance(one, ast.Constant)] in [[name, "-c"] for name in SHELLS]
    ]


def constants(tree: ast.Module, others: Mapping[Path, ast.Module]) -> set[str]:
    """Return the top-level names of a module, imported ones too, that are plain strings or sums of such."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            there = others.get(SOURCES / f"{node.module.replace('.', '/')}.py")
            known = constants(there, others) if there else set()
            found |= {alias.asname or alias.name for alias in node.names if alias.name in known}
        if isinstance(node, ast.Assign) and is_constant(node.value, found):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


_FILE_OF_THE_PACKAGE = re.compile(
    r"(\(files\('[\w.]+'\) / '[\w.]+'\)|Path\(__file__\)\.with_suffix\('[\w.]+'\))\.read_text\(\)"
)


def is_constant(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Constant(value=str()):
            return True
        case ast.Name(id=name):
            return name in names
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return is_constant(left, names) and is_constant(right, names)
        case ast.Call(func=ast.Attribute(value=value, attr="replace"), args=args):
            return all(is_constant(one, names) for one in (value, *args))
    return _FILE_OF_THE_PACKAGE.fullmatch(ast.unparse(node)) is not None


def test_every_script_behind_sh_c_is_a_constant() -> None:
    texts = {path: path.read_text() for path in SOURCES.rglob("*.py")}
    trees = {path: ast.parse(text) for path, text in texts.items() if "-c" in text}
    seen = 0
    for path, tree in trees.items():
        if path.parent.name == "export":
            continue  # written for users to run; tests/contract/test_exports.py gives it hostile values
        known = constants(tree, trees)
        for script in scripts(tree):
            seen += 1
            assert is_constant(script, known), f"{path}: {ast.unparse(script)}"
    assert seen > 10


@pytest.mark.parametrize(
    "script",
    [
        'f"rm {x}"',
        '"rm " + x',
        '"rm %s" % x',
        '"rm {}".format(x)',
        "x",
        '(files("nearmetal") / x).read_text()',
        "Path(__file__).with_suffix(x).read_text()",
        'Path(x).with_suffix(".sh").read_text()',
    ],
)
def test_a_script_that_varies_would_be_found(script: str) -> None:
    tree = ast.parse(f'run(["sh", "-c", {script}])')
    assert [is_constant(one, {"SCRIPT"}) for one in scripts(tree)] == [False]


def test_an_imported_script_is_a_constant_only_where_it_is_one_there() -> None:
    there, here = (
        ast.parse(text) for text in ('A = "a" + "b"\nB = f"{A}"', "from n.there import A, B as C\nD = A + C")
    )
    assert constants(here, {SOURCES / "n/there.py": there}) == {"A"}
    assert constants(here, {}) == set()


SECRETS = re.compile(r"import logging|set_debug_level|set_log_level|(read|import)_private_key|agent_forwarding=True")


def test_nothing_reads_keys_or_enables_logging() -> None:
    for path in SOURCES.rglob("*.py"):
        found = SECRETS.search(path.read_text())
        assert not found, f"{path}: {found[0] if found else ''}"


def test_requests_to_sshd_are_constants() -> None:
    """Requests over ssh are text for the user's login shell, so ours must not vary."""
    text = "".join(path.read_text() for path in sorted((SOURCES / "nearmetal/hosts/ssh").glob("*.py")))
    assert text.count("create_session(") == 1
    assert "create_session(lambda: _Session(inbox), _COMMAND, " in text
    assert '_COMMAND = "exec /bin/sh"' in text
    assert "create_process(" not in text
    assert ".run(" not in text
