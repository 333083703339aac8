"""`nearmetal doctor` names a fix that can be typed on this machine."""

from __future__ import annotations

import pytest

from nearmetal.cli import doctor


@pytest.mark.parametrize(
    ("apt", "said"),
    [
        ("/usr/bin/apt-get", "sudo apt-get install --no-install-recommends ethtool"),
        (None, "install the package of ethtool (on Debian: ethtool)"),
    ],
)
def test_a_missing_program_is_fixed_as_this_system_can(
    monkeypatch: pytest.MonkeyPatch, apt: str | None, said: str
) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name, **_: apt if name == "apt-get" else None)
    (line,) = [one for one in doctor._programs() if one.what == "ethtool"]
    assert not line.ok
    assert line.fix == said
