"""`nearmetal apply --host` over a real sshd: what is kept, what is restored, and the effect of a lost connection."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nearmetal
from nearmetal import process
from nearmetal.errors import NearmetalError, TrialError
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.shell import MachinesShell, Memory
from nearmetal.hosts.far.stream import open_program
from nearmetal.hosts.host import Site
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.knobs import places
from nearmetal.tune.profile import Profile
from sshd import Sshd, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.netns

PATIENCE_S = 600.0
NODE = "n0"


class Machine:
    """A namespace that is reached only by ssh, and a home on this side whose ssh configuration calls it `far`."""

    def __init__(self, inside: NamespaceShell, sshd: Sshd, home: Path) -> None:
        self.inside = inside
        self.sshd = sshd
        source = str(Path(nearmetal.__file__).parents[1])
        own = {"XDG_STATE_HOME": str(home / "state"), "NEARMETAL_MACHINE_STATE": str(sshd.folder / "machine")}
        self._env = {**os.environ, "HOME": str(home), "PYTHONPATH": source, **own}
        self.use("-c", "from nearmetal.cli.main import main; main()")

    def use(self, *words: str) -> None:
        """Let what is started from here on be this of Python."""
        self._argv = [sys.executable, *words]

    def verb(self, *words: str, typed: str = "", there: bool = False) -> process.Finished:
        argv = [*self._place(there), *self._argv, *words]
        return process.run(argv, timeout_s=PATIENCE_S, env=self._env, stdin=typed.encode())

    def _place(self, there: bool) -> list[str]:
        return self.inside._enter(NODE) if there else []

    def share_home(self) -> Path:
        """Give both sides one home, like the nodes of a cluster; return the folder of its journals."""
        shared = self.sshd.folder / "home/.local/state"
        self._env["XDG_STATE_HOME"] = str(shared)
        return shared / "nearmetal/journal"

    def start(self, *words: str, there: bool = False) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._place(there), *self._argv, *words],
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def mtu(self) -> str:
        return self.inside.read("/sys/class/net/v0/mtu", node=NODE).decode().strip()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Machine]:
    pytest.importorskip("asyncssh", reason="asyncssh is not installed (pip install 'nearmetal[ssh]')")
    if why_not():
        pytest.skip(why_not())
    try:
        shell = NamespaceShell()
    except NearmetalError as error:
        pytest.skip(error.message)
    (tmp_path / "keys").mkdir()
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    with shell, Sshd(tmp_path / "keys") as sshd:
        shell.add_node(NODE)
        shell.run(["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"], node=NODE)
        for device in ("v0", "v1"):
            shell.run(["ip", "link", "set", device, "up"], node=NODE)
        port = sshd.serve(shell._enter(NODE))
        (tmp_path / "home" / ".ssh" / "config").write_text(
            f"Host far\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {tmp_path}/keys/user\n"
            f"  UserKnownHostsFile {tmp_path}/keys/known_hosts\n"
        )
        yield Machine(shell, sshd, tmp_path / "home")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    place = tmp_path / "p.json"
    place.write_text(Profile("p", "any", ("v0",), {"nic.mtu": "1400"}).to_json())
    return str(place)


def eventually(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


_MEASURE = """
import os, pwd, sys
from nearmetal.knobs.presence import measuring_from_here
with measuring_from_here(sys.argv[1]):
    if os.geteuid() == 0:
        os.setuid(pwd.getpwnam("nobody").pw_uid)
    print("measures", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("there", [True, False])
def test_a_machine_on_which_another_user_measures_is_not_changed(far: Machine, tmp_path: Path, there: bool) -> None:
    """Neither a run that another user began there was seen, nor one over ssh that another user began here."""
    (wanted := tmp_path / "host.json").write_text(Profile("p", "any", (), {"host.busy_read": "50"}).to_json())
    far.use("-c", _MEASURE, "" if there else "far")
    with far.start(there=there) as other:
        assert other.stdout
        assert other.stdout.readline() == "measures\n"
        far.use("-c", "from nearmetal.cli.main import main; main()")
        refused = far.verb("apply", str(wanted), "--host", "far")
        other.kill()
    assert refused.exit_status == 1
    of_whom = " of nobody" if os.geteuid() == 0 else ""
    where = "on far measures there now" if there else "measures on far now"
    says = re.compile(rf"error: process \d+{of_whom} {where}")
    assert says.search(refused.complaint()), refused.complaint()
    assert not says.search(far.verb("apply", str(wanted), "--host", "far").complaint()), "it has ended"


def test_knobs_of_a_far_machine_are_listed_confirmed_and_kept(far: Machine, profile: str) -> None:
    listed = far.verb("knobs", "far", "-i", "v0")
    assert "nic.mtu" in listed.text, listed.complaint()
    kept = far.verb("apply", profile, "--host", "far", typed="yes\n")
    assert "CONFIRMED" in kept.text, kept.complaint()
    assert far.mtu() == "1400"
    again = far.verb("rollback", "far")
    assert "nothing to restore" in again.stderr.decode()
    assert far.mtu() == "1400"


def test_without_confirmation_a_far_machine_is_restored(far: Machine, profile: str) -> None:
    ended = far.verb("apply", profile, "--host", "far", "--confirm", "1")
    assert "RESTORED" in ended.text, ended.complaint()
    assert ended.exit_status == 4
    assert far.mtu() == "1500"


def test_a_lost_connection_restores_by_itself_and_the_verb_reports_it(far: Machine, profile: str) -> None:
    with far.start("apply", profile, "--host", "far", "--confirm", "300") as applying:
        eventually(lambda: far.mtu() == "1400", "the profile was not applied")
        far.sshd.drop()
        eventually(lambda: far.mtu() == "1500", "the far watchdog did not put the MTU back")
        out, err = applying.communicate("yes\n", timeout=PATIENCE_S)
    assert applying.returncode == 1, out
    assert "CONFIRMED" not in out
    assert "far" in err
    rolled = far.verb("rollback", "far")
    assert rolled.ok, rolled.complaint()
    assert far.mtu() == "1500"
    assert "nothing to restore" in far.verb("rollback", "far").stderr.decode()


def test_a_far_machine_has_one_lock_for_all_users(far: Machine, profile: str, tmp_path: Path) -> None:
    with far.start("apply", profile, "--host", "far", "--confirm", "300") as applying:
        eventually(lambda: far.mtu() == "1400", "the profile was not applied")
        # Another user's home: the lock on this side is a different one.
        far._env["XDG_STATE_HOME"] = str(tmp_path / "elsewhere")
        refused = far.verb("apply", profile, "--host", "far", "--confirm", "1")
        assert refused.exit_status == 1
        assert "another session holds the knobs of far" in refused.stderr.decode()
        out, _ = applying.communicate("yes\n", timeout=PATIENCE_S)
    assert "CONFIRMED" in out


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], MachinesShell]]:
    """Give far shells on one machine, each with a home of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    monkeypatch.setenv("NEARMETAL_MACHINE_STATE", str(tmp_path / "machine"))
    with contextlib.ExitStack() as stack:

        def shell(home: str) -> MachinesShell:
            far = stack.enter_context(contextlib.closing(FarMachine("m", partial(open_program, ("sh",)))))
            site = Site(str(tmp_path / "cache"), str(tmp_path / home))
            return stack.enter_context(MachinesShell([far], ["m"], site, Memory()))

        yield shell


def lock(shell: MachinesShell, folder: Path) -> contextlib.AbstractContextManager[object]:
    """Lock a machine's knobs from a home of this side's own."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return places.host_locks(shell, "m", folder)


@pytest.mark.parametrize("as_root", [True, False])
def test_the_lock_of_a_home_and_that_of_the_machine_each_exclude(
    machine: Callable[[str], MachinesShell], tmp_path: Path, *, as_root: bool
) -> None:
    if as_root and os.geteuid() != 0:
        pytest.skip("only root's sessions take the machine's lock")
    if not as_root:
        (tmp_path / "machine").write_text("")  # so that there is no lock of the machine's
    taken = pytest.raises(TrialError, match="another session holds the knobs of m")
    with lock(machine("one"), tmp_path / "a"), taken, lock(machine("two" if as_root else "one"), tmp_path / "b"):
        pass
    with lock(machine("one"), tmp_path / "b"):
        assert (tmp_path / "one/journal/lock.holder").exists()


def test_a_lock_without_flock_is_called_so(
    machine: Callable[[str], MachinesShell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sh", "id", "mkdir", "cat", "setsid", "rm", "kill", "sleep"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(TrialError, match=r"(?s)cannot be locked.*flock"), lock(machine("one"), tmp_path / "a"):
        pass


def abandon(far: Machine, profile: str, *words: str, there: bool = False) -> None:
    """Apply the profile, and kill the verb and its watchdog while it waits."""
    with far.start("apply", profile, *words, there=there):
        eventually(lambda: far.mtu() == "1400", "the profile was not applied")
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = place.read_bytes()
                ours = str(far.sshd.folder.parent).encode() in line
                if profile.encode() in line or (b"nearmetal-watchdog" in line and ours):
                    os.kill(int(place.parent.name), signal.SIGKILL)


def test_a_machine_on_which_no_lock_can_be_made_is_restored_but_not_changed(far: Machine, profile: str) -> None:
    abandon(far, profile, "--host", "far")
    state = far.sshd.folder / "home/.local/state/nearmetal"
    state.rename(state.with_name("hidden"))
    state.write_text("")  # as of a home that is full or cannot be written
    rolled = far.verb("rollback", "far")
    assert rolled.ok, rolled.complaint()
    assert far.mtu() == "1500"
    assert "warning: not locked, the knobs of far cannot be locked" in rolled.stderr.decode()
    refused = far.verb("apply", profile, "--host", "far", "--confirm", "1")
    assert refused.exit_status == 1
    assert "the knobs of far cannot be locked" in refused.stderr.decode()
    assert "another session" not in refused.stderr.decode()


def test_a_session_from_elsewhere_is_named_on_its_machine_and_from_other_homes(
    far: Machine, profile: str, tmp_path: Path
) -> None:
    abandon(far, profile, "--host", "far")
    own = far._env["XDG_STATE_HOME"]
    Path(own).rename(hidden := tmp_path / "hidden")  # as on another machine
    far._env["XDG_STATE_HOME"] = str(tmp_path / "elsewhere")
    for words, there in ((["rollback", "far"], False), (["rollback"], True)):
        named = far.verb(*words, there=there)
        assert named.exit_status == 1, named.complaint()
        assert named.text == "unknown: nic.mtu of v0 1500\n"
        assert f"{own}/nearmetal/journal/far/" in named.stderr.decode()
        assert "nothing to restore" not in named.stderr.decode()
    hidden.rename(own)
    far._env["XDG_STATE_HOME"] = own
    told = far.verb("rollback").stderr.decode()
    assert "sessions on far machines did not end: far\n" in told
    assert told.endswith("check with: nearmetal rollback far\n")
    assert far.verb("rollback", "far").ok
    assert far.mtu() == "1500"
    far._env["XDG_STATE_HOME"] = str(tmp_path / "elsewhere")
    assert "nothing to restore" in far.verb("rollback", there=True).stderr.decode()
    assert "nothing to restore" in far.verb("rollback", "far").stderr.decode()


@pytest.mark.parametrize("by_hand", [True, False])
def test_sessions_on_a_machine_and_over_ssh_lock_each_other_out(
    far: Machine, profile: str, tmp_path: Path, *, by_hand: bool
) -> None:
    with far.start("apply", profile, "--confirm", "300", *(["--host", "far"] * (not by_hand)), there=by_hand) as one:
        eventually(lambda: far.mtu() == "1400", "the profile was not applied")
        far._env["XDG_STATE_HOME"] = str(tmp_path / "elsewhere")
        refused = far.verb("apply", profile, *(["--host", "far"] * by_hand), there=not by_hand)
        assert refused.exit_status == 1
        assert "holds the knobs of" in refused.stderr.decode()
        one.communicate("no\n", timeout=PATIENCE_S)
    assert far.mtu() == "1500"


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_machine_with_two_names_is_restored_by_either(far: Machine, profile: str, by_hand: bool) -> None:
    journals = far.share_home()
    names = ([], ["far"])
    abandon(far, profile, *(["--host", "far"] * (not by_hand)), there=by_hand)
    refused = far.verb("apply", profile, *(["--host", "far"] * by_hand), typed="yes\n", there=not by_hand)
    assert refused.exit_status == 1, refused.text
    assert "nic.mtu of v0, which was 1500" in refused.stderr.decode()
    assert far.mtu() == "1400"
    rolled = far.verb("rollback", *names[by_hand], there=not by_hand)
    assert "put back: nic.mtu of v0" in rolled.text, rolled.complaint()
    assert rolled.ok
    assert far.mtu() == "1500"
    for name, there in zip(names, (True, False), strict=True):
        assert "nothing to restore" in far.verb("rollback", *name, there=there).stderr.decode()
    assert [path for path in journals.rglob("*") if path.suffix in {".sh", ".watchdog"}] == []


def test_the_management_interface_of_a_far_machine_is_refused(far: Machine, profile: str) -> None:
    for words in (["address", "add", "10.9.0.1/24", "dev", "v0"], ["route", "add", "default", "via", "10.9.0.2"]):
        far.inside.run(["ip", *words], node=NODE)
    refused = far.verb("apply", profile, "--host", "far", typed="yes\n")
    assert refused.exit_status == 2
    assert "carries the default route" in refused.stderr.decode()
    assert far.mtu() == "1500"


def test_a_name_that_is_not_a_machine_is_refused(far: Machine) -> None:
    refused = far.verb("knobs", "-oProxyCommand=x@:y")
    assert refused.exit_status == 2
    assert far.verb("knobs", "root@far:no").exit_status == 2
