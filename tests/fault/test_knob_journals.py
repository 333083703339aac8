"""Journals of other machines, namespaces and users, damaged ones, old ones, and several at once."""

from __future__ import annotations

import errno
import os
import shlex
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from knob_machine import KnobMachine
from nearmetal.cli.main import run
from nearmetal.cli.rollback import put_everything_back
from nearmetal.errors import ForeignFileError, StoreError, UnavailableError
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs import journal, places, registry, session
from nearmetal.knobs.folder import KEPT_DAYS, expire, host_lock, journal_folder, open_journals, survey
from nearmetal.knobs.hold import hold
from nearmetal.knobs.identity import Claim, Place, Present, claim
from nearmetal.knobs.journal import (
    JOURNAL_FORMAT,
    Device,
    EndState,
    Journal,
    JournalState,
    SavedValue,
    cell_record,
    put_durably,
    read_state,
)
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.rollback import UnfinishedError, forget, refuse_unfinished, roll_back
from nearmetal.knobs.trust import UntrustedError, trusted_bytes
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.process import Finished

ETH1 = Target("", "eth1")
ENDS = Endpoints((Endpoint("", "eth1", "10.0.0.1"),), "10.0.0.0/24")
OPEN = Path("/proc/self/fd")
HERE = Place("m", "h", "b", "net:[1] cookie 7", "mnt:[1]")


@pytest.fixture
def machine(tmp_path: Path) -> KnobMachine:
    return KnobMachine.make(tmp_path / "machine", {"eth1": {}}, {"/proc/sys/net/core/busy_read": "0\n"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "journals"
    place.mkdir()
    return place


def abandoned(machine: KnobMachine, folder: Path, **setting: str) -> Path:
    """Apply a setting and leave it, like a killed process."""
    wanted = {f"nic.{name.replace('_', '-')}": value for name, value in setting.items()}
    begun = session.begin(machine, plan(machine, wanted, [ETH1]), folder)
    begun.apply()
    begun.journal.close()
    return begun.journal.path


def moved(machine: KnobMachine, path: str, text: str) -> None:
    (machine.root / path.lstrip("/")).write_text(text)


def put_back(machine: KnobMachine, folder: Path, *, force: bool = False) -> bool:
    return put_everything_back(machine, "local", folder, folder, [folder], force=force)


class TestOrder:
    def test_the_newest_of_two_sessions_is_restored_first(self, machine: KnobMachine, folder: Path) -> None:
        abandoned(machine, folder, mtu="1400")
        abandoned(machine, folder, mtu="1300")
        assert put_back(machine, folder)
        assert machine.nic("eth1")["mtu"] == "1500"

    def test_a_clock_that_steps_back_does_not_change_the_order(
        self, machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = abandoned(machine, folder, mtu="1400")
        monkeypatch.setattr(time, "time_ns", lambda: 1)
        second = abandoned(machine, folder, mtu="1300")
        os.utime(first, (2e9, 2e9))
        assert open_journals(folder) == [second, first]

    def test_nothing_is_set_while_a_session_has_not_ended(self, machine: KnobMachine, folder: Path) -> None:
        abandoned(machine, folder, mtu="1400")
        machine.writes.clear()
        with (
            pytest.raises(UnfinishedError, match=r"nic\.mtu of eth1, which was 1500") as refused,
            hold(machine, ENDS, {"nic.rx-frames": 8}, folder),
        ):
            pytest.fail("nothing may be measured")
        assert "`nearmetal rollback`" in refused.value.hint
        assert machine.writes == []

    def test_a_session_that_wrote_nothing_blocks_no_other(self, machine: KnobMachine, folder: Path) -> None:
        session.begin(machine, plan(machine, {"nic.mtu": "1400"}, [ETH1]), folder).journal.close()
        refuse_unfinished(machine, folder)
        assert put_back(machine, folder)
        assert open_journals(folder) == []


class TestFile:
    def test_appended_records_are_read_back_from_the_journal(self, machine: KnobMachine, folder: Path) -> None:
        begun = session.begin(machine, plan(machine, {"nic.mtu": "1400"}, [ETH1]), folder)
        begun.apply()
        assert begun.journal.state == read_state(begun.journal.path)
        assert begun.journal.state.touched()
        begun.journal.close()

    def test_a_confirmed_session_closes_its_journal(self, machine: KnobMachine, folder: Path) -> None:
        begun = session.begin(machine, plan(machine, {"nic.mtu": "1400"}, [ETH1]), folder)
        begun.apply()
        before = len([*OPEN.iterdir()])
        assert begun.confirm() is EndState.CONFIRMED
        assert len([*OPEN.iterdir()]) == before - 1

    def test_a_watchdog_is_disarmed_only_once(self, machine: KnobMachine, folder: Path) -> None:
        asked: list[str] = []
        dog = SimpleNamespace(disarm=lambda: asked.append("disarm") or "", alive=lambda: not asked)
        begun = session.begin(machine, plan(machine, {"nic.mtu": "1400"}, [ETH1]), folder)
        begun.watchdogs.append(dog)  # type: ignore[arg-type]
        begun.apply()
        begun.restore()
        assert asked == ["disarm"]
        assert not begun.unguarded()

    def test_remains_of_a_first_write_after_a_power_loss_block_no_session(self, folder: Path) -> None:
        path = folder / "x.journal"
        path.with_name("x.journal.new").write_bytes(b"half")
        os.close(put_durably(path, b"whole"))
        assert path.read_bytes() == b"whole"
        assert [one.name for one in folder.iterdir()] == ["x.journal"]

    def test_a_first_write_that_fails_leaves_neither_file_nor_descriptor(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(os, "fsync", full)
        before = len([*OPEN.iterdir()])
        with pytest.raises(StoreError, match=r"x\.journal: full; no setting was changed"):
            put_durably(folder / "x.journal", b"whole")
        assert len([*OPEN.iterdir()]) == before
        assert not any(folder.iterdir())

    def test_damage_is_named_by_its_line(self, machine: KnobMachine, folder: Path) -> None:
        path = abandoned(machine, folder, mtu="1400")
        lines = path.read_bytes().splitlines(keepends=True)
        lines[2] = lines[2].replace(b'"', b"'")
        path.write_bytes(b"".join(lines))
        with pytest.raises(ForeignFileError, match="is damaged at line 3"):
            read_state(path)

    def test_a_torn_last_line_is_ignored_but_an_earlier_one_is_damage(self, machine: KnobMachine, folder: Path) -> None:
        path = abandoned(machine, folder, mtu="1400")
        *lines, last = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines))
        without = read_state(path)
        path.write_bytes(b"".join([*lines, last[:-4]]))
        assert read_state(path) == without
        for number in range(2, len(lines) + 1):
            path.write_bytes(b"".join([*lines[: number - 1], lines[number - 1][:-4] + b"\n", *lines[number:], last]))
            with pytest.raises(ForeignFileError, match=f"is damaged at line {number}"):
                read_state(path)


class TestState:
    CELLS = {
        1: SavedValue(1, "nic.mtu", "n0/eth1", "n0", "a", "1500", "9000"),
        2: SavedValue(2, "host.netdev_budget", "n0", "n0", "b", "300", "600", disturbed_by=(1,)),
        3: SavedValue(3, "nic.mtu", "n1/eth1", "n1", "c", "1500", "9000"),
    }
    STATE = JournalState(
        "h",
        "ours",
        1,
        2,
        cells=CELLS,
        devices=[Device("n0/eth1", "igb", "x"), Device("n1/eth1", "igb", "y")],
        machines={"n0": ("far", "boot of far"), "n2": ("far", "boot of far"), "n1": ("other", "another")},
    )

    def test_a_far_machine_gets_only_its_own_values_under_its_own_names(self) -> None:
        far = self.STATE.on("far")
        assert {number: (cell.target, cell.node) for number, cell in far.cells.items()} == {
            1: ("eth1", ""),
            2: ("machine", ""),
        }
        assert [device.target for device in far.devices] == ["eth1"]
        assert (far.boot_id, far.machines) == ("boot of far", {})
        assert self.STATE.on("other").boot_id == "another"
        assert self.STATE.on("nobody").boot_id == ""

    def test_values_that_an_unconfirmed_write_may_disturb_count_as_unseen(self) -> None:
        begun = replace(self.STATE, unfinished=1)
        assert [begun.unseen(cell) for cell in self.CELLS.values()] == [True, True, False]
        assert not any(self.STATE.unseen(cell) for cell in self.CELLS.values())


class TestPlace:
    @pytest.mark.parametrize(
        ("then", "up_s", "what"),
        [
            (HERE, 9, "mine"),
            (replace(HERE, network="net:[1] cookie 8"), 9, "elsewhere"),
            (replace(HERE, network="net:[1]"), 9, "mine"),
            (replace(HERE, network="net:[2]"), 9, "elsewhere"),
            (replace(HERE, network="net:[2]", vanishes=True), 9, "past"),
            (replace(HERE, mount="mnt:[2]"), 9, "unknown"),
            (replace(HERE, machine="container"), 9, "elsewhere"),
            (replace(HERE, boot="other", machine="other"), 9, "elsewhere"),
            (replace(HERE, boot="other", name="clone"), 9, "elsewhere"),
            (replace(HERE, boot="other"), 9, "past"),
            (replace(HERE, boot="other"), 500, "elsewhere"),
            (replace(HERE, boot="other", machine=""), 9, "unknown"),
            (Place(boot="b"), 9, "unknown"),
            (Place(), 9, "unknown"),
        ],
    )
    def test_how_a_journal_relates_to_this_machine(self, then: Place, up_s: int, what: Claim) -> None:
        assert claim(then, Present(HERE, up_s), elapsed_s=100)[0] is what

    @pytest.mark.parametrize(
        ("path", "text"),
        [
            ("/proc/self/ns/net", "net:[2]\n"),
            ("/proc/self/ns/mnt", "mnt:[2]\n"),
            ("/etc/machine-id", "machine-2\n"),
        ],
    )
    def test_journals_of_other_places_stay_open_and_are_named(
        self, machine: KnobMachine, folder: Path, capsys: pytest.CaptureFixture[str], path: str, text: str
    ) -> None:
        journal = abandoned(machine, folder, mtu="1400")
        was = machine.read(path).decode()
        moved(machine, path, text)
        machine.writes.clear()
        assert not put_back(machine, folder)
        assert machine.writes == []
        assert "not here: nic.mtu of eth1, which was 1500" in capsys.readouterr().out
        assert open_journals(folder) == [journal]
        moved(machine, path, was)
        assert put_back(machine, folder)
        assert machine.nic("eth1")["mtu"] == "1500"

    def test_another_machine_with_a_shared_home_is_not_taken_for_a_reboot(
        self, machine: KnobMachine, folder: Path
    ) -> None:
        journal = abandoned(machine, folder, mtu="1400")
        moved(machine, "/proc/sys/kernel/random/boot_id", "boot-2\n")
        moved(machine, "/proc/uptime", "999999.00 1.00\n")
        assert not put_back(machine, folder), "a clone of the same name that was up all the time"
        assert open_journals(folder) == [journal]
        refuse_unfinished(machine, folder)

    def test_after_a_reboot_there_is_nothing_to_restore(
        self, machine: KnobMachine, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        abandoned(machine, folder, mtu="1400")
        moved(machine, "/proc/sys/kernel/random/boot_id", "boot-2\n")
        machine.writes.clear()
        assert put_back(machine, folder)
        assert machine.writes == []
        assert "past: nic.mtu of eth1, which was 1500: the machine has been rebooted since" in capsys.readouterr().out
        assert open_journals(folder) == []

    def test_a_journal_of_format_1_needs_force(self, machine: KnobMachine, folder: Path) -> None:
        path = abandoned(machine, folder, mtu="1400")
        as_format_1(path)
        with pytest.raises(UnfinishedError):
            refuse_unfinished(machine, folder)
        assert not put_back(machine, folder)
        assert machine.nic("eth1")["mtu"] == "1400"
        assert put_back(machine, folder, force=True)
        assert machine.nic("eth1")["mtu"] == "1500"

    def test_values_that_can_no_longer_be_restored_are_given_up(self, machine: KnobMachine, folder: Path) -> None:
        journal = abandoned(machine, folder, mtu="1400")
        moved(machine, "/proc/self/ns/net", "net:[2]\n")
        assert not put_back(machine, folder)
        assert forget(journal) == ("nic.mtu of eth1, which was 1500",)
        assert put_back(machine, folder)
        assert read_state(journal).end is EndState.FORGOTTEN

    def test_a_renamed_device_is_named_and_its_journal_stays_open(
        self, machine: KnobMachine, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        journal = abandoned(machine, folder, mtu="1400")
        (machine.root / "eth1.nic").rename(machine.root / "eth7.nic")
        moved(machine, "/routes", "3: eth7: <UP> mtu 1400\n")
        assert not put_back(machine, folder)
        assert open_journals(folder) == [journal]
        assert "that interface is now called eth7" in str(journal.read_bytes())
        assert "nothing was left changed" not in capsys.readouterr().err


def as_format_1(path: Path) -> None:
    """Rewrite a journal in the first version's format."""
    state = read_state(path)
    cells = [
        {key: value for key, value in cell_record(cell).items() if key not in {"place", "key", "node"}}
        | {"access": {"node": cell.node, "path": "", "change": shlex.split(cell.key)}}
        for cell in state.cells.values()
    ]
    head = {"host": "local", "pid": 1, "boot_id": state.boot_id, "started": state.started}
    path.unlink()
    written = Journal.create(path, [{"kind": "session", "format": 1, **head}, *cells])
    for number, value in state.intended.items():
        written.append({"kind": "intent", "cell": number, "value": value})
    written.close()


class TestDamage:
    @pytest.mark.parametrize("damage", [b"", b"\0" * 50, b'{"crc":"00000000","record":{}}\n{}\n'])
    def test_one_damaged_journal_does_not_prevent_restoring_others(
        self, machine: KnobMachine, folder: Path, capsys: pytest.CaptureFixture[str], damage: bytes
    ) -> None:
        abandoned(machine, folder, mtu="1400")
        broken = abandoned(machine, folder, rx_frames="8")
        broken.write_bytes(damage)
        with pytest.raises(UnfinishedError, match=broken.name):
            refuse_unfinished(machine, folder)
        assert not put_back(machine, folder)
        captured = capsys.readouterr()
        assert machine.nic("eth1")["mtu"] == "1500"
        assert "unknown: nic.rx-frames of eth1 32" in captured.out
        assert f"{broken.name}.0.undo.sh" in captured.err
        assert f"{broken.name}.damaged" in captured.err
        refuse_unfinished(machine, folder)
        assert put_back(machine, folder), "damage is named once"

    def test_ended_journals_expire(self, machine: KnobMachine, folder: Path) -> None:
        kept, old, still = (abandoned(machine, folder, mtu="1400") for _ in range(3))
        for path in (kept, old):
            forget(path)
        long_ago = time.time() - (KEPT_DAYS + 1) * 86_400
        for path in (old, still):
            os.utime(path, (long_ago, long_ago))
        (folder / "7-7.journal.new").write_bytes(b"half")
        expire(folder)
        assert [path for path, _ in survey(folder).journals] == [still, kept]
        assert not list(folder.glob("*.new"))

    def test_a_roll_back_works_on_a_read_only_file_system(
        self, machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        abandoned(machine, folder, mtu="1400")

        def read_only(_path: Path) -> Journal:
            raise StoreError("Read-only file system")

        monkeypatch.setattr(Journal, "reopen", staticmethod(read_only))
        assert not put_back(machine, folder)
        assert machine.nic("eth1")["mtu"] == "1500"
        assert "every setting is back to its old value, but Read-only file system" in capsys.readouterr().err


def test_a_journal_of_a_newer_version_waits_for_that(
    machine: KnobMachine, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was set aside as damaged, so that the newer version found nothing to put back."""
    path = folder / "1-1.journal"
    first = {"kind": "session", "format": JOURNAL_FORMAT + 1, "news": True}
    os.close(put_durably(path, journal._line(0, first, 0)[0]))
    assert not put_back(machine, folder)
    assert f"was written by a newer nearmetal: format {JOURNAL_FORMAT + 1}" in capsys.readouterr().err
    assert path.exists()
    with pytest.raises(UnfinishedError, match="newer nearmetal"):
        refuse_unfinished(machine, folder)


class TestTrust:
    @pytest.mark.parametrize("mode", [0o622, 0o606, 0o666])
    def test_a_journal_writable_by_others_is_not_acted_upon(
        self, machine: KnobMachine, folder: Path, mode: int
    ) -> None:
        path = abandoned(machine, folder, mtu="1400")
        path.chmod(mode)
        machine.writes.clear()
        assert not put_back(machine, folder)
        assert machine.writes == []
        assert path.exists(), "a journal of another user must not be renamed"

    def test_a_journal_of_another_user_is_not_acted_upon(
        self, machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = abandoned(machine, folder, mtu="1400")
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        folder.chmod(0o755)
        with pytest.raises(UntrustedError, match="belongs to"):
            trusted_bytes(path)
        assert trusted_bytes(path, owners=frozenset({path.stat().st_uid}))

    def test_a_directory_writable_by_others_is_refused(self, machine: KnobMachine, folder: Path) -> None:
        folder.chmod(0o777)
        with pytest.raises(UntrustedError, match="can be written by others"), host_lock(folder):
            pytest.fail("any user could put a journal there")

    def test_pipes_and_devices_are_not_read(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe", 0o600)
        with pytest.raises(UntrustedError, match="not a regular file"):
            trusted_bytes(folder / "pipe")

    @pytest.mark.parametrize(
        "forged",
        [
            {"key": "touch /tmp/owned"},
            {"knob": "nic.no-such"},
            {"key": "/etc/passwd"},
            {"target": "../../etc"},
            {"target": "-h"},
            {"old": "$(reboot)"},
        ],
    )
    def test_a_roll_back_writes_only_to_files_in_the_table_of_knobs(
        self, machine: KnobMachine, folder: Path, forged: dict[str, str]
    ) -> None:
        path = abandoned(machine, folder, mtu="1400")
        state = read_state(path)
        records = [
            {"kind": "session", "format": 2, "host": "local", "pid": 1, "boot_id": "boot-1", "started": state.started},
            cell_record(state.cells[0]) | forged,
            {"kind": "intent", "cell": 0, "value": "1400"},
        ]
        path.unlink()
        Journal.create(path, records).close()
        before = machine.state()
        machine.writes.clear()
        assert not put_back(machine, folder)
        assert machine.writes == []
        assert machine.state() == before


def test_journals_are_in_one_place_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for relative in ("state", "", "./x"):
        monkeypatch.setenv("XDG_STATE_HOME", relative)
        assert journal_folder() == tmp_path / ".local/state/nearmetal/journal"
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert journal_folder() == Path("/var/state/nearmetal/journal")


def test_the_report_of_a_roll_back_is_exact(machine: KnobMachine, folder: Path) -> None:
    undone = roll_back(machine, abandoned(machine, folder, mtu="1400", rx_frames="8"))
    assert sorted(undone.put_back) == ["nic.mtu of eth1", "nic.rx-frames of eth1"]
    assert not undone.unproven


def test_remaining_changes_are_named_before_the_journal_ends(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the last record, a killed roll-back is not repeated."""

    def killed(self: Journal, record: dict[str, Any]) -> None:
        raise SystemExit(f"killed before the record {record}")

    abandoned(machine, folder, mtu="1400")
    machine.set_nic("eth1", mtu="1234")
    monkeypatch.setattr(Journal, "append", killed)
    with pytest.raises(SystemExit):
        put_back(machine, folder)
    assert "left: nic.mtu of eth1, which was 1500, is 1234: another program set it" in capsys.readouterr().out


class TestNames:
    """Journals under another name of this machine, in a folder beside its own, because homes are shared."""

    @pytest.fixture
    def other(self, folder: Path) -> Path:
        (folder / "far").mkdir()
        return folder / "far"

    def test_the_newest_is_restored_first_under_any_name(self, machine: KnobMachine, folder: Path, other: Path) -> None:
        for place, mtu in ((other, "1400"), (folder, "1300"), (other, "1200")):
            abandoned(machine, place, mtu=mtu)
        with pytest.raises(UnfinishedError, match="mtu of eth1, which was 1300"):
            refuse_unfinished(machine, other, "far")
        assert put_back(machine, folder)
        assert machine.nic("eth1")["mtu"] == "1500"
        assert open_journals(other) == []

    def test_another_machine_is_left_alone(self, machine: KnobMachine, folder: Path, other: Path) -> None:
        path = abandoned(machine, other, mtu="1400")
        moved(machine, "/proc/sys/kernel/random/boot_id", "of another machine")
        refuse_unfinished(machine, other, "far")
        assert put_back(machine, folder)
        assert machine.nic("eth1")["mtu"] == "1400"
        assert open_journals(other) == [path]

    def test_damaged_journals_are_named_and_kept_for_their_own_machine(
        self, machine: KnobMachine, folder: Path, other: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = abandoned(machine, other, mtu="1400")
        path.write_bytes(b"")
        refuse_unfinished(machine, other, "far")
        assert not put_back(machine, folder)
        captured = capsys.readouterr()
        assert "unknown: nic.mtu of eth1" in captured.out
        assert "`nearmetal rollback far` on this side sets it aside" in captured.err
        assert path.exists()

    def test_a_live_session_under_another_name_is_left_alone(
        self, machine: KnobMachine, folder: Path, other: Path
    ) -> None:
        path = abandoned(machine, other, mtu="1400")
        with host_lock(other):
            assert put_back(machine, folder)
        assert open_journals(other) == [path]
        assert machine.nic("eth1")["mtu"] == "1400"


def test_who_measures_beside_a_session_that_is_alive_is_told_what_it_changed(
    machine: KnobMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run beside an `apply` that waited for its confirmation was of that profile, and after it of none."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(places, "MachineShell", lambda: nullcontext(machine))
    assert places.changed_here_for_now() == []
    home = places.folder_of(places.LOCAL)
    home.mkdir(parents=True)
    with hold(machine, ENDS, {"nic.mtu": 1400}, home):
        assert places.changed_here_for_now() == [
            "another session has changed nic.mtu of eth1, which was 1500; it is measured under that until that ends"
        ]
        places.refuse_unfinished_on(machine)
    with host_lock(home):
        assert places.changed_here_for_now() == []


def test_users_are_told_of_sessions_that_only_root_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("NEARMETAL_MACHINE_STATE", str(tmp_path / "machine"))
    registry.note(tmp_path / "root/1-1.journal", 0, "# was: nic.mtu of eth1 1500\n")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert run(["rollback"]) == 1
    said = capsys.readouterr()
    assert "a session of root's did not end" in said.err
    assert "hint: run `nearmetal rollback` as root" in said.err
    assert "nothing to restore" not in said.err
    (tmp_path / "machine").rename(tmp_path / "away")
    (tmp_path / "machine").write_text("no folder")
    assert run(["rollback"]) == 1
    assert f"{tmp_path}/machine: Not a directory" in capsys.readouterr().err


def test_a_journal_of_a_machine_that_is_gone_is_given_up_without_reaching_it(
    machine: KnobMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (home := places.folder_of("gone.invalid")).mkdir(mode=0o700, parents=True)
    path = abandoned(machine, home, mtu="1400")
    assert run(["rollback", "gone.invalid", "--script"]) == 0
    assert "# was: nic.mtu of eth1 1500" in capsys.readouterr().out
    assert run(["rollback", "gone.invalid", "--forget", path.name]) == 0
    assert "given up: nic.mtu of eth1, which was 1500" in capsys.readouterr().out
    assert not survey(home).waiting()


def test_values_that_a_missing_program_shows_are_not_gone(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = abandoned(machine, folder, rx_frames="7")
    answered = KnobMachine.run

    def without_ethtool(self: KnobMachine, argv: Any, **options: Any) -> Finished:
        if argv[0] == "ethtool":
            raise UnavailableError("cannot start 'ethtool': No such file or directory")
        return answered(self, argv, **options)

    with monkeypatch.context() as patched:
        patched.setattr(KnobMachine, "run", without_ethtool)
        assert not put_back(machine, folder)
    assert open_journals(folder) == [path]
    assert put_back(machine, folder)
    assert machine.nic("eth1")["rx-frames"] != "7"


def test_this_machine_needs_no_room_and_finds_the_administrators_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", full)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with MachineShell() as shell:
        assert shell.run(["sh", "-c", "echo $PATH"]).text == "/usr/bin:/bin:/usr/sbin:/sbin\n"


def test_sessions_that_others_would_not_know_of_do_not_begin(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEARMETAL_MACHINE_STATE", str(tmp_path / "file/machine"))
    monkeypatch.setattr(registry, "is_of_the_machine", lambda _: True)
    with MachineShell() as shell:
        refusal = pytest.raises(StoreError, match=r"the directory of open sessions .*; no setting was changed")
        with refusal as refused, places.host_locks(shell, places.LOCAL, folder):
            pytest.fail("it began")
        assert "make it writable" in refused.value.hint
        told: list[str] = []
        with places.host_locks(shell, places.LOCAL, folder, unlocked=told.append) as held:  # as a roll-back
            assert held == [folder]
