"""Profiles with hostile text, exported and read by the real tools: refused, or read as if the text were plain."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal import process
from nearmetal.errors import BadInputError
from nearmetal.tune.export.table import export
from nearmetal.tune.profile import Profile
from tests.contract.test_exports import EVIDENCE, PROFILE, in_a_private_tree, need, tuned_python

if TYPE_CHECKING:
    from pathlib import Path

_ODD = "ab \t\n\r\x1b\x85\u2028\\'\"`$(){}[];|&<>#%*?!~^=,:/.-_"
_CANARIES = (
    "x\ntouch canary",
    "x\\",
    "$(touch canary)",
    "${f:exec:touch canary}",
    "} [exec touch canary] {",
    "{{ lookup('pipe', 'touch canary') }}",
)
HOSTILE = st.text(st.sampled_from(_ODD) | st.characters(codec="utf-8"), max_size=30) | st.sampled_from(_CANARIES)
FIELDS = ("name", "kind", "interface", "flavour", "label", "knob")
_OWN_PROGRAMS = ("/usr/sbin/ethtool ", "/usr/sbin/ip ", "kmod ", "/lib/", "/usr/lib/")
# sysfs and sysctls are hidden, so that writes have no effect.
_RUN_ALL = """mount -t tmpfs none /sys; mount -t tmpfs none /proc/sys; cd "$1"
for file in *.sh; do CALLS=$1/$file.calls PATH=$2 /bin/sh "$file"; done; true"""
_SOURCE_ALL = """proc setenv {n v} {puts "$n=$v"}
proc module-whatis {t} {puts [regsub {for .* workloads} $t {}]}
cd [lindex $argv 0]; foreach file [lsort [glob *.tcl]] {puts $file; source $file}
"""
_LOAD_ALL = """import sys, pathlib
from tuned.profiles import factory, functions, loader, locator, merger, variables
import tuned.utils.global_config as g
config = g.GlobalConfig(sys.argv[2])
made = loader.Loader(locator.Locator([sys.argv[1]]), factory.Factory(), merger.Merger(), config, variables.Variables())
for name in sorted(p.name for p in pathlib.Path(sys.argv[1]).iterdir()):
    print(name, [(n, sorted(u.options.items())) for n, u in sorted(made.load([name]).units.items())])
"""


def _made(words: dict[str, str], number: int) -> Profile:
    label = words["label"] or "made up"
    return Profile(
        words["name"] or f"p{number}",
        words["kind"] or "any",
        (words["interface"] or "v0",),
        {**PROFILE.setting, **({"host.cpu-governor": words["knob"]} if words["knob"] else {})},
        mpi_flavour=words["flavour"] or "openmpi5",
        evidence=replace(EVIDENCE, label=label),
    )


@pytest.fixture(scope="module")
def hostile() -> list[Profile]:
    """Profiles with as much hostile text as each accepts; the rest was refused before anything was written."""
    count = int(os.environ.get("NEARMETAL_HOSTILE_PROFILES", "60"))
    made: list[Profile] = []
    refused: list[BadInputError] = []

    @settings(max_examples=count, deadline=None, database=None, derandomize=True)
    @given(words=st.fixed_dictionaries(dict.fromkeys(FIELDS, HOSTILE)))
    def draw(words: dict[str, str]) -> None:
        for only, word in words.items():
            try:
                made.append(_made({**dict.fromkeys(words, ""), "label": words["label"], only: word}, len(made)))
            except BadInputError as error:
                refused.append(error)

    draw()
    assert len(refused) > count
    assert any("touch canary" in one.evidence.label for one in made if one.evidence)
    return made


def _plain(one: Profile) -> Profile:
    """Return the same profile without the text that is only for people."""
    assert one.evidence
    return replace(one, evidence=replace(one.evidence, label="x"), workload_class="any")


def _both(folder: Path, hostile: list[Profile]) -> list[tuple[Path, list[Profile]]]:
    """Return two directories of exports: of the profiles, and of the same profiles with plain text."""
    both = [(folder / "hostile", hostile), (folder / "plain", [_plain(one) for one in hostile])]
    for place, _ in both:
        place.mkdir()
    return both


def test_scripts_run_the_same_commands(tmp_path: Path, hostile: list[Profile]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root for a private file system")
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("ethtool", "ip", "logger", "cat", "mkdir", "mv", "rm", "sync", "sed", "touch"):
        (stubs / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >> "$CALLS"\n')
        (stubs / name).chmod(0o755)
    calls = []
    for place, profiles in _both(tmp_path, hostile):
        for number, one in enumerate(profiles):
            for to in ("ethtool", "slurm"):
                for name, text in export(one, to).files.items():
                    (place / f"{number:06d}-{name.replace(one.name, 'p')}").write_text(text)
        argv = ["unshare", "--mount", "--net", "--", "sh", "-c", _RUN_ALL, "run", str(place), str(stubs)]
        process.run(argv, timeout_s=600, env={**os.environ, "SLURM_JOB_ID": "77"})
        calls.append({path.name: path.read_text() for path in sorted(place.glob("*.calls"))})
        assert not list(place.glob("canary"))
    assert len(calls[0]) >= 2 * len(hostile)
    assert calls[0] == calls[1]


def test_tcl_sets_the_same_variables(tmp_path: Path, hostile: list[Profile]) -> None:
    tclsh = need("tclsh")
    outputs = []
    for place, profiles in _both(tmp_path, hostile):
        for number, one in enumerate(profiles):
            (text,) = export(one, "module").files.values()
            (place / f"{number:06d}.tcl").write_text(text)
        read = process.run([tclsh, "/dev/stdin", str(place)], timeout_s=600, stdin=_SOURCE_ALL.encode(), check=True)
        assert not list(place.glob("canary"))
        outputs.append(read.text)
    assert outputs[0] == outputs[1]
    assert outputs[0].count("OMPI_MCA_mpi_yield_when_idle=0") == len(hostile)


def test_ansible_accepts_every_play(tmp_path: Path, hostile: list[Profile]) -> None:
    playbook = need("ansible-playbook")
    plays = []
    for number, one in enumerate(hostile):
        (text,), (plain,) = (export(each, "ansible").files.values() for each in (one, _plain(one)))
        shown, meant = ([line for line in each.split("\n") if not line.startswith("#")] for each in (text, plain))
        assert shown == meant
        plays.append(tmp_path / f"{number}.yml")
        plays[-1].write_text(text)
    env = {**os.environ, "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_LOCALHOST_WARNING": "0", "LC_ALL": "C.UTF-8"}
    argv = [playbook, "--syntax-check", "--inventory", "localhost,", *map(str, plays)]
    checked = process.run(argv, timeout_s=600, env=env)
    assert checked.ok, checked.complaint()


def test_tuned_reads_the_same_units(tmp_path: Path, hostile: list[Profile]) -> None:
    python = tuned_python()
    (tmp_path / "main.conf").touch()
    outputs = []
    for place, profiles in _both(tmp_path, hostile):
        for number, one in enumerate(profiles):
            (text,) = export(one, "tuned").files.values()
            (place / f"{number:06d}").mkdir()
            (place / f"{number:06d}" / "tuned.conf").write_text(text)
        argv = [python, "-c", _LOAD_ALL, str(place), str(tmp_path / "main.conf")]
        outputs.append(process.run(argv, timeout_s=600, check=True).text)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == len(hostile)


def test_networkmanager_reads_the_same_settings(hostile: list[Profile]) -> None:
    nmcli = need("nmcli")

    def read(one: Profile) -> str:
        (text,) = export(one, "networkmanager").files.values()
        argv = [nmcli, "--offline", "connection", "modify", "connection.autoconnect", "no"]
        found = process.run(argv, timeout_s=600, stdin=text.encode())
        if "--offline" in found.complaint():
            pytest.skip("this nmcli has no --offline")
        assert found.ok, found.complaint()
        return found.text

    for one in hostile[:: max(1, len(hostile) // 40)]:
        assert read(one) == read(_plain(one))


@pytest.mark.parametrize(
    ("to", "folder", "argv"),
    [
        ("systemd-link", "/run/systemd/network", ["test-builtin", "net_setup_link", "/sys/class/net/v0"]),
        ("udev", "/run/udev/rules.d", ["test", "--action=add", "/sys/class/net/v0"]),
    ],
)
def test_udev_reads_every_file(tmp_path: Path, hostile: list[Profile], to: str, folder: str, argv: list[str]) -> None:
    udevadm = need("udevadm")
    for number, one in enumerate(hostile):
        for name, text in export(one, to).files.items():
            (tmp_path / f"{name.split('-', 1)[0]}-{number:06d}.{name.rpartition('.')[2]}").write_text(text)
    read = in_a_private_tree(folder, tmp_path, [udevadm, *argv])
    output = read.text + read.stderr.decode()
    own = [line for line in output.splitlines() if re.search(r"-\d{6}\.(?:link|rules)", line)]
    assert own, output
    assert not [line for line in own if "nvalid" in line or "nknown" in line or "Failed to parse" in line], output
    assert not list(tmp_path.glob("canary"))
    runs = {line.split("'")[1] for line in output.splitlines() if line.startswith("run: '")}
    assert all(run.startswith(_OWN_PROGRAMS) for run in runs), runs
