"""What the kernel changes below an interface with it: LRO below whatever has none, frames of a bond's ports.

The links are real. No device of a test machine has LRO, nor is there always a bond: `ethtool` is a program of this test
that does what Linux 6.1 was seen to do with teams, bonds and macvlans, and a macvlan stands in for a bond.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import NearmetalError
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.knobs import session
from nearmetal.knobs.access import KnobError
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.tune.export.scripts import slurm
from nearmetal.tune.profile import Profile
from undoing import WAYS, check_undone, process_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.netns

NODE = "n0"
UPPER = Target(NODE, "m0")
# m0 is built on v0. A write of what was asked for already does nothing, and fails while it is not so.
ETHTOOL = r"""#!/bin/sh
cd "${0%/*}" || exit 1
both() { if [ "$1$2" = onon ]; then echo on; else echo off; fi; }
m0() {
    if [ -e follows ]; then both "$(cat wanted.m0)" "$(cat on.v0)" > on.m0; else cat wanted.m0 > on.m0; fi
    [ "$(cat on.m0)" = on ] || [ "$(cat on.v0)" = off ] || { echo off > wanted.v0; v0; }
}
v0() { both "$(cat wanted.v0)" "$(cat wanted.m0)" > on.v0; m0; }
on=$(cat "on.$2") wanted=$(cat "wanted.$2")
case $1 in
-i) echo "driver: made-up" ;;
-k) if [ "$on" = "$wanted" ]; then echo "$LRO: $on"; else echo "$LRO: $on [requested $wanted]"; fi ;;
-K) [ "$wanted" = "$4" ] || { echo "$4" > "wanted.$2"; "$2"; }; [ "$(cat "on.$2")" = "$4" ] ;;
*) exit 1 ;;
esac
""".replace("$LRO", "large-receive-offload")


# m0 gives its frames to what is below, as a bond does.
IP = """#!/bin/sh
[ "$1 $2 $4" != "link set m0" ] || REAL link set dev v0 mtu "$6"
exec REAL "$@"
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NamespaceShell]:
    (place := tmp_path / "tools").mkdir()
    for tool, text in (("ethtool", ETHTOOL), ("ip", IP.replace("REAL", str(shutil.which("ip"))))):
        (place / tool).write_text(text)
        (place / tool).chmod(0o755)
    for name in ("wanted.m0", "on.m0", "wanted.v0", "on.v0"):
        (place / name).write_text("on\n")
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin:/usr/sbin:/sbin")
    try:
        machine = NamespaceShell()
    except NearmetalError as error:
        pytest.skip(error.message)
    with machine:
        machine.add_node(NODE)
        machine.run(["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"], node=NODE)
        made = machine.run(["ip", "link", "add", "link", "v0", "name", "m0", "type", "macvlan"], node=NODE, check=False)
        if not made.ok:
            pytest.skip(made.complaint())
        yield machine


def _lro(tmp_path: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in (tmp_path / "tools").glob("*.*0")}


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("follows", [True, False], ids=["macvlan", "team or bond"])
def test_lro_comes_back_below(shell: NamespaceShell, tmp_path: Path, follows: bool, by: str) -> None:
    """It stayed off there, and the session ended as if everything were back."""
    if follows:
        (tmp_path / "tools/follows").touch()
    before = _lro(tmp_path)
    begun = session.begin(shell, plan(shell, {"nic.lro": "off"}, [UPPER]), tmp_path)
    begun.apply()
    assert set(_lro(tmp_path).values()) == {"off"}
    assert begun.disturbed() == {"nic.lro of n0/v0": "on -> off"}
    check_undone(shell, begun, by, lambda: _lro(tmp_path), before, node=NODE)


def test_lro_below_in_another_namespace_is_refused(shell: NamespaceShell, tmp_path: Path) -> None:
    """It stayed off there as well, and what is below cannot be seen from here."""
    shell.add_node("n1")
    there = Target("n1", "m0")
    shell.run(["ip", "link", "set", "m0", "netns", process_on(shell, "n1")], node=NODE)
    with pytest.raises(KnobError, match=r"nic\.lro off on n1/m0 would switch off LRO of the interface below m0"):
        plan(shell, {"nic.lro": "off"}, [there])
    (tmp_path / "tools/on.m0").write_text("off\n")
    assert plan(shell, {"nic.lro": "off"}, [there]).cells


def test_a_prolog_of_slurm_leaves_lro_on_where_it_would_go_off_below(shell: NamespaceShell, tmp_path: Path) -> None:
    """Its epilog restores what the profile names alone."""
    before = _lro(tmp_path)
    profile = Profile("p", "c", ("m0",), {"nic.lro": "off"})
    texts = [text for name, text in slurm(profile).files.items() if name.startswith("prolog")]
    prolog = texts[0].replace("/run/nearmetal", str(tmp_path / "kept"))
    finished = shell.run(["sh", "-c", prolog], node=NODE, env={"SLURM_JOB_ID": "1"}, check=False)
    assert finished.ok, finished.complaint()
    assert _lro(tmp_path) == before
    (tmp_path / "tools/on.v0").write_text("off\n")
    shutil.rmtree(tmp_path / "kept")
    shell.run(["sh", "-c", prolog], node=NODE, env={"SLURM_JOB_ID": "1"})
    assert _lro(tmp_path)["on.m0"] == "off"


def _mtu(shell: NamespaceShell, *names: str) -> list[str]:
    return [shell.read(f"/sys/class/net/{name}/mtu", node=NODE).decode().strip() for name in names]


@pytest.mark.parametrize("by", WAYS)
def test_frames_of_the_ports_of_a_bond_come_back(shell: NamespaceShell, tmp_path: Path, by: str) -> None:
    """A port with other frames than the bond had those of the bond afterwards."""
    shell.run(["ip", "link", "set", "v0", "mtu", "1600"], node=NODE)
    begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [UPPER]), tmp_path)
    begun.apply()
    assert _mtu(shell, "m0", "v0") == ["1400", "1400"]
    assert begun.disturbed()["nic.mtu of n0/v0"] == "1600 -> 1400"
    check_undone(shell, begun, by, lambda: _mtu(shell, "m0", "v0"), ["1500", "1600"], node=NODE)


def test_a_bridge_that_follows_its_ports_is_given_no_frames(shell: NamespaceShell, tmp_path: Path) -> None:
    """With the old ones written back it read the same, and followed its ports no more."""
    (journals := tmp_path / "journals").mkdir(mode=0o700)
    bridge = Target(NODE, "b0")
    made = shell.run(["ip", "link", "add", "b0", "type", "bridge"], node=NODE, check=False)
    if not made.ok:
        pytest.skip(made.complaint())
    for _ in ("without ports", "with one"):
        with pytest.raises(KnobError, match=r"nic\.mtu on n0/b0 would end that .* restore") as refused:
            plan(shell, {"nic.mtu": 1400}, [bridge])
        assert "on its ports" in refused.value.hint
        assert plan(shell, {"nic.mtu": 1500}, [bridge]).cells
        shell.run(["ip", "link", "set", "v1", "master", "b0"], node=NODE)
    # It was given frames of its own before.
    shell.run(["ip", "link", "set", "b0", "mtu", "1300"], node=NODE)
    begun = session.begin(shell, plan(shell, {"nic.mtu": 1400}, [bridge]), journals)
    begun.apply()
    begun.restore()
    shell.run(["ip", "link", "set", "v1", "mtu", "1350"], node=NODE)
    assert _mtu(shell, "b0") == ["1300"]
