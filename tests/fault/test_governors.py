"""What a cpufreq governor was told is there again after another one was tried.

A machine of files stands in for /sys/devices/system/cpu, which test machines lack. A write of a governor does what the
kernel does: what the former one was told goes with its last processor, and the next begins at its defaults.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs import session
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from undoing import WAYS, check_undone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nearmetal.process import Finished

CPU = "/sys/devices/system/cpu"
DEFAULTS = {
    "ondemand": {"up_threshold": "80", "powersave_bias": "0"},
    "conservative": {"down_threshold": "20", "up_threshold": "80"},
    "schedutil": {"rate_limit_us": "1000"},
    "performance": {},
    "userspace": {},
}
# Standard input: the value; $1 is its file, below $root. `per_policy` is set where each policy has values of its own.
KERNEL = r"""#!/bin/sh
read -r new
case $1 in
*/down_threshold) read -r above < "${1%/*}/up_threshold"; [ "$new" -lt "$above" ] || exit 1 ;;
esac
read -r old < "$1"; echo "$new" > "$1"
[ "${1##*/}" = scaling_governor ] && [ "$new" != "$old" ] || exit 0
policy=${1%/*} place=${per_policy:+${1%/*}}
[ "$old" != userspace ] || echo '<unsupported>' > "$policy/scaling_setspeed"
[ "$new" != userspace ] || echo 800000 > "$policy/scaling_setspeed"
if [ "$place" ] || ! grep -qx "$old" "$root"/policy*/scaling_governor; then rm -rf "${place:-$root}/$old"; fi
[ -d "${place:-$root}/$new" ] || [ ! -d "$defaults/$new" ] || cp -r "$defaults/$new" "${place:-$root}"
"""


class Governed(MachineShell):
    """This machine, with another folder of processors, where a program writes as the kernel would."""

    def __init__(self, root: Path, kernel: Path) -> None:
        super().__init__()
        self.root, self.kernel = root, kernel

    def _there(self, text: str) -> str:
        return re.sub(r' > (\S*scaling_governor|"\$file")', rf" | {self.kernel} \1", text).replace(CPU, str(self.root))

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        return super().run([self._there(word) for word in argv], **options)

    def write(self, path: str, data: bytes, *, node: str = "") -> None:
        if path.endswith("scaling_governor"):
            super().run([str(self.kernel), self._there(path)], stdin=data)
        else:
            super().write(self._there(path), data, node=node)


def _put(place: Path, files: Mapping[str, str]) -> None:
    for name, value in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"{value}\n")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Governed]:
    """Give a machine of two policies, as `request.param` says: governor, `per policy` or not, and what it was told."""
    governor, per_policy, told = request.param
    root, defaults, kernel = tmp_path / "cpu", tmp_path / "defaults", tmp_path / "kernel"
    for name, values in DEFAULTS.items():
        _put(defaults, {f"{name}/{value}": default for value, default in values.items()})
    folder = root / "cpufreq"
    for policy in ("policy0", "policy4"):
        _put(folder / policy, {"scaling_governor": governor, "scaling_available_governors": " ".join(DEFAULTS)})
        _put(folder / policy, {"affected_cpus": policy[-1]})
        _put(folder / policy, {"scaling_setspeed": "<unsupported>", "stats/reset": "", "scaling_min_freq": "800"})
        _put(folder / policy if per_policy else folder, told)
    kernel.write_text(KERNEL)
    kernel.chmod(stat.S_IRWXU)
    monkeypatch.setenv("root", str(folder))
    monkeypatch.setenv("defaults", str(defaults))
    monkeypatch.setenv("per_policy", "yes" * per_policy)
    with Governed(root, kernel) as machine:
        yield machine


def _state(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


ONDEMAND = {"ondemand/up_threshold": "95", "ondemand/powersave_bias": "7"}


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("new", ["performance", "schedutil"])
@pytest.mark.parametrize(
    "shell",
    [
        ("ondemand", False, ONDEMAND),
        ("ondemand", True, ONDEMAND),
        ("conservative", False, {"conservative/down_threshold": "85", "conservative/up_threshold": "95"}),
        ("performance", False, {}),
        ("userspace", True, {"scaling_setspeed": "1200000"}),
    ],
    indirect=True,
    ids=lambda one: f"{one[0]}{' of each policy' * one[1]}",
)
def test_what_a_governor_was_told_is_restored_with_it(shell: Governed, tmp_path: Path, new: str, by: str) -> None:
    """It began anew at its defaults, and the session ended as if everything were back."""
    before = _state(shell.root)
    (folder := tmp_path / "journals").mkdir(mode=0o700)
    begun = session.begin(shell, plan(shell, {"host.cpu-governor": new}, [Target("")]), folder)
    begun.apply()
    assert begun.facts() == {"knob.host.cpu-governor": new}
    assert not begun.disturbed()
    assert "cpufreq/ondemand/up_threshold" not in _state(shell.root)
    check_undone(shell, begun, by, lambda: _state(shell.root), before)
