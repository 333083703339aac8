"""A lab with a stand-in emulator, for tests of its failures."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import labs
from nearmetal import native
from nearmetal.hosts.lab import image, lab, running, wirecheck
from nearmetal.hosts.lab.manifest import seal


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in emulator, the only one on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / lab.EMULATOR
    script = Path(__file__).parents[1] / "lab_emulator.py"
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$1" != --version ] || {{ echo "QEMU emulator version ${{LAB_EMULATOR_VERSION:-10.0.2}} (test)"; exit; }}\n'
        f'PYTHONPATH={labs.SOURCES} exec {sys.executable} -S {script} "$@"\n'  # -S: it needs no packages
    )
    program.chmod(0o755)
    for needed in ("setpriv", "cp"):
        (folder / needed).symlink_to(shutil.which(needed) or f"/usr/bin/{needed}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(wirecheck, "fitting_wire", lambda *_: Path("wire.so"))
    return program


@pytest.fixture
def host(emulator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lab.LabHost:
    """A lab over the stand-in and an image that needs no packages."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "build", lambda _: emulator)  # no compiler is on PATH
    monkeypatch.setattr(running, "PATIENCE", 1000.0)  # on a busy machine the stand-in waits long for a processor
    root = image.cache_folder() / "root-test"
    root.mkdir(parents=True)
    (root / "kernel").write_bytes(b"kernel")
    (root / "root.cpio").write_bytes(b"root")
    seal(root, "root", "test", {"recipe": image.root_recipe_key()}, {})
    return lab.open_lab({"machine": "base", "slots": 2}, lambda _: None)
