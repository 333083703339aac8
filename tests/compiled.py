"""C programs of the tests, compiled by the first run of the suite that needs them and kept for later ones.

Compilers would otherwise take some 30 CPU seconds of each run, for the same programs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal import process
from nearmetal.native import cache_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT = cache_dir() / "tests"  # as it is before a test names another place
TIMEOUT_S = 600.0
_LINKED = {".o", ".so"}
_UNUSED_S = 30 * 86400.0


def compile_to(made: Path, argv: Sequence[str]) -> None:
    """Carry out `argv -o made`, or copy what the same compiler made of the same text with the same words before.

    The text is what the preprocessor makes of all sources, so that every header counts. Programs that a compiler
    refuses, be it for a warning, are not kept.
    """
    kept = KEPT / f"{made.name}-{_fingerprint(argv)}"
    try:
        os.utime(kept)
        shutil.copy(kept, made)
    except FileNotFoundError:
        process.run([*argv, "-o", str(made)], timeout_s=TIMEOUT_S, check=True)
        _keep(made, kept)


def _fingerprint(argv: Sequence[str]) -> str:
    """Hash all that decides what the compiler makes."""
    linked = [Path(word) for word in argv if Path(word).suffix in _LINKED]
    sources = [word for word in argv if word.endswith((".c", ".cpp"))]
    words = [word for word in argv if word not in sources and Path(word) not in linked]
    text = process.run([*words, *sources, "-E", "-P"], timeout_s=TIMEOUT_S, check=True).stdout
    version = process.version_of([argv[0], "--version"], timeout_s=TIMEOUT_S).stdout
    told = [word for word in words if not word.startswith("-I")]  # where headers are says nothing of what is in them
    names = [Path(source).name for source in sources]
    key = hashlib.sha256(repr((told, names, version)).encode() + text)
    for file in linked:
        key.update(file.read_bytes())
    return key.hexdigest()[:16]


def _keep(made: Path, kept: Path) -> None:
    """Keep a program, and drop those that no run has used for a month."""
    KEPT.mkdir(parents=True, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(dir=KEPT)
    os.close(descriptor)
    shutil.copy(made, fresh)  # with its mode
    Path(fresh).replace(kept)
    for other in KEPT.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another worker dropped it
            if other.stat().st_mtime < time.time() - _UNUSED_S:
                other.unlink()
