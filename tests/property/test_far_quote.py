"""Whatever a word holds, a real sh hands it to the program as that word."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.errors import BadInputError
from nearmetal.hosts.far import quote

SOURCES = Path(__file__).parents[2] / "src"
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40) | st.sampled_from(
    ["$(touch /tmp/never)", "`id`", "a;b", "-rf", "~", "*", "'", '"', "\\", "\n", "!!", "${IFS}", "&& exit 1", ""]
)


def evaluated(line: bytes) -> bytes:
    return subprocess.run(["sh"], input=line, capture_output=True, timeout=20, check=True).stdout


@settings(max_examples=60, deadline=None)
@given(st.lists(words, min_size=1, max_size=6))
def test_words_arrive_as_they_are(given_words: list[str]) -> None:
    said = evaluated(quote.command(["printf", "%s\\0", *given_words]) + b"\n")
    assert said.decode().split("\0")[:-1] == given_words


@settings(max_examples=40, deadline=None)
@given(words)
def test_environment_values_arrive_as_they_are(value: str) -> None:
    assert evaluated(quote.command(["printenv", "NM_VALUE"], {"NM_VALUE": value}) + b"\n").decode() == value + "\n"


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_survive_printf(data: bytes) -> None:
    assert evaluated(b"printf %s\n" % quote.printf(data)) == data


@pytest.mark.parametrize("argv", [[], [""], ["-x"], ["A=b"], ["echo", "a\0b"]])
def test_what_cannot_be_carried_is_refused(argv: list[str]) -> None:
    with pytest.raises(BadInputError):
        quote.command(argv)


@pytest.mark.parametrize("name", ["A B", "1A", "A;id", ""])
def test_strange_variables_are_refused(name: str) -> None:
    with pytest.raises(BadInputError):
        quote.command(["true"], {name: "x"})


FORBIDDEN = re.compile(r"shell\s*=\s*True|os\.system|os\.popen|getoutput|create_subprocess_shell|known_hosts=None")


def test_no_shell_is_given_a_string_anywhere() -> None:
    for path in SOURCES.rglob("*.py"):
        found = FORBIDDEN.search(path.read_text())
        assert not found, f"{path}: {found[0] if found else ''}"


def test_sshd_is_only_ever_asked_for_a_constant() -> None:
    """Requests of ssh are text for the user's login shell; ours must not vary."""
    text = (SOURCES / "nearmetal/hosts/ssh/connect.py").read_text()
    assert text.count("create_session(") == 1
    assert "create_session(lambda: _Session(inbox), _COMMAND, " in text
    assert '_COMMAND = "exec /bin/sh"' in text
    assert "create_process(" not in text
    assert ".run(" not in text
