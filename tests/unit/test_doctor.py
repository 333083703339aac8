"""`nearmetal doctor` names a fix that works on this machine."""

from __future__ import annotations

import pytest

from nearmetal.cli import doctor


@pytest.mark.parametrize(
    ("installer", "message"),
    [
        ("apt-get", "sudo apt-get install --no-install-recommends gcc libc6-dev"),
        ("dnf", "sudo dnf install gcc glibc-devel"),
        ("zypper", "sudo zypper install gcc glibc-devel"),
        ("apk", "install gcc libc6-dev (apt) or gcc glibc-devel (dnf, zypper)"),
    ],
)
def test_a_missing_program_gets_a_fix_for_this_package_manager(
    monkeypatch: pytest.MonkeyPatch, installer: str, message: str
) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name, **_: name if name == installer else None)
    (line,) = [one for one in doctor._programs() if one.what == "cc"]
    assert not line.ok
    assert line.fix == message
