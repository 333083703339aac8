"""The one place where words become text for a shell.

A far machine is spoken to through the standard input of `sh`, so every word of a command passes through here and
nowhere else. Whatever a word holds, it arrives as that word: tests/property/test_far_quote.py asks a real `sh`.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

from nearmetal.errors import BadInputError

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b"%\\'-")
"""What a format holds as it is; a format that begins with `-` would be taken for an option."""


def command(argv: Sequence[str], env: Mapping[str, str] | None = None) -> bytes:
    """Return a command line for `sh` that runs the program `argv[0]`; raise BadInputError for words it cannot carry.

    The program is started by env(1), so the name of a shell builtin means the program of that name.
    """
    program = argv[0] if argv else ""
    if not program or program.startswith("-") or "=" in program:
        raise BadInputError(f"{program!r} cannot be the name of a program on a far machine")
    for name in env or {}:
        if not _VARIABLE.fullmatch(name):
            raise BadInputError(f"{name!r} cannot be the name of an environment variable")
    words = ["env", *(f"{name}={value}" for name, value in (env or {}).items()), *argv]
    if any("\0" in word for word in words):
        raise BadInputError(f"a word of the command {program!r} holds a NUL byte, which no program can be given")
    return shlex.join(words).encode(errors="surrogateescape")


def word(text: str) -> bytes:
    """Return one quoted word."""
    if "\0" in text:
        raise BadInputError("a word holds a NUL byte, which no shell can carry")
    return shlex.quote(text).encode(errors="surrogateescape")


def printf(data: bytes) -> bytes:
    """Return the quoted format of a `printf` that writes exactly these bytes (POSIX: octal escapes, `%%`)."""
    return b"'" + b"".join(bytes((b,)) if b in _PLAIN else b"%%" if b == 0x25 else b"\\%03o" % b for b in data) + b"'"
