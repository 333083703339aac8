"""Whatever happens during a session, the settings end as in the snapshot."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from knob_machine import AnswerError, KnobMachine
from knob_victim import SETTING
from nearmetal import process
from nearmetal.errors import ForeignFileError, QuarantinedError, StoreError, TrialError
from nearmetal.knobs import rollback, session
from nearmetal.knobs.access import ERRNO_TEXTS, KnobError
from nearmetal.knobs.folder import host_lock, open_journals
from nearmetal.knobs.hold import hold
from nearmetal.knobs.journal import EndState, Journal, read_state
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.paths.path import Endpoint, Endpoints

FILES = {"/proc/sys/net/core/busy_read": "0\n"}
TARGETS = [Target("", "eth1"), Target("")]
ENDS = Endpoints((Endpoint("", "eth1", "10.0.0.1"),), "10.0.0.0/24")
VICTIM = Path(__file__).parents[1] / "knob_victim.py"


@pytest.fixture
def machine(tmp_path: Path) -> KnobMachine:
    return KnobMachine.make(tmp_path / "machine", {"eth1": {}}, FILES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "journals"
    place.mkdir()
    return place


def _victim(machine: KnobMachine, folder: Path, event: int) -> int:
    source = Path(session.__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{VICTIM.parent}:{source}"}
    argv = [sys.executable, str(VICTIM), str(machine.root), str(folder), str(event)]
    return process.run(argv, timeout_s=600, env=env).exit_status


def test_kill_at_every_journal_record_and_write(machine: KnobMachine, folder: Path) -> None:
    as_found = machine.state()
    event = 0
    while (status := _victim(machine, folder, event)) != 7:
        assert status == -9, f"event {event}"
        for path in open_journals(folder):
            rollback.roll_back(machine, path)
        assert machine.state() == as_found, f"after a kill at event {event}"
        assert open_journals(folder) == []
        event += 1
    assert event >= 2 + 4 * len(SETTING), "the loop must have visited every record and every write"


@pytest.mark.parametrize("text", sorted(set(ERRNO_TEXTS) - {"Device or resource busy"}))
@pytest.mark.parametrize("failing_write", range(len(SETTING)))
def test_each_errno_on_each_write(machine: KnobMachine, folder: Path, text: str, failing_write: int) -> None:
    as_found = machine.state()
    left = [failing_write]

    def refuse(_what: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise AnswerError(text)

    with pytest.raises(KnobError) as caught, hold(KnobMachine(machine.root, refuse), ENDS, SETTING, folder):
        pytest.fail("a setting that was refused must not be measured")
    assert caught.value.errno_name == ERRNO_TEXTS[text]
    assert machine.state() == as_found
    assert not list(folder.glob("*.journal"))


def test_a_busy_device_is_tried_again(machine: KnobMachine, folder: Path) -> None:
    answers = [AnswerError("Device or resource busy")] * 2

    def busy_twice(_what: str) -> None:
        if answers:
            raise answers.pop()

    with hold(KnobMachine(machine.root, busy_twice), ENDS, {"nic.rx-frames": 8}, folder) as held:
        assert held.facts == {"knob.nic.rx-frames": "8", "knob.was.nic.rx-frames": "32"}


def test_a_full_disk_before_the_first_write_prevents_any_write(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match="no setting was changed"), hold(machine, ENDS, SETTING, folder):
        pytest.fail("nothing may be measured")
    assert machine.writes == []
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_a_disk_that_fills_up_midway_restores_everything(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_found = machine.state()
    append = Journal.append
    room = [3]

    def filling(journal: Journal, record: dict[str, object]) -> None:
        room[0] -= 1
        if room[0] < 0 and record["kind"] != "end":
            raise StoreError("no space left")
        append(journal, record)

    monkeypatch.setattr(Journal, "append", filling)
    with pytest.raises(StoreError), hold(machine, ENDS, SETTING, folder):
        pytest.fail("nothing may be measured")
    assert machine.state() == as_found


def test_an_exception_in_the_body_restores_everything(machine: KnobMachine, folder: Path) -> None:
    as_found = machine.state()

    def body() -> None:
        with hold(machine, ENDS, SETTING, folder):
            assert machine.state() != as_found
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        body()
    assert machine.state() == as_found


def test_a_trial_whose_setting_was_reverted_meanwhile_does_not_count(machine: KnobMachine, folder: Path) -> None:
    """After a driver's reset, or a program that restored the old value, the trial counted."""
    as_found = machine.state()
    with pytest.raises(TrialError) as caught, hold(machine, ENDS, {"nic.rx-frames": 8}, folder):
        machine.set_nic("eth1", rx_frames="32")
    assert caught.value.message == (
        "the trial does not count: nic.rx-frames of eth1 was 8 and is 32 at its end: "
        "another program or the driver set it"
    )
    assert machine.state() == as_found
    assert open_journals(folder) == []
    with hold(machine, ENDS, {"nic.rx-frames": 8}, folder):
        pass


def test_values_that_cannot_be_restored_are_quarantined_with_a_script(machine: KnobMachine, folder: Path) -> None:
    stuck = []

    def refuse_later(what: str) -> None:
        if stuck and "rx-frames" in what:
            raise AnswerError("Input/output error")

    shell = KnobMachine(machine.root, refuse_later)
    with pytest.raises(QuarantinedError) as caught, hold(shell, ENDS, {"nic.rx-frames": 8}, folder):
        stuck.append(True)
    assert "nic.rx-frames of eth1 is 8 and was 32" in caught.value.message
    assert 'ethtool -C eth1 rx-frames "$goal_0"' in caught.value.undo_script
    assert read_state(Path(caught.value.journal)).end is EndState.QUARANTINED
    rollback.roll_back(machine, Path(caught.value.journal))
    assert machine.nic("eth1")["rx-frames"] == "32"
    assert open_journals(folder) == []


def _abandoned(machine: KnobMachine, folder: Path) -> Path:
    """Apply a setting and leave it, like a killed process."""
    intended = plan(machine, SETTING, TARGETS)
    begun = session.begin(machine, intended, folder)
    begun.apply()
    begun.journal.close()
    return begun.journal.path


def test_roll_back_leaves_and_names_values_changed_by_another_program(machine: KnobMachine, folder: Path) -> None:
    path = _abandoned(machine, folder)
    machine.set_nic("eth1", gro="off")
    machine.set_nic("eth1", rx_usecs="77")
    undone = rollback.roll_back(machine, path)
    assert machine.nic("eth1")["rx-usecs"] == "77"
    assert machine.nic("eth1")["gro"] == "on"
    assert machine.nic("eth1")["adaptive-rx"] == "on"
    assert "nic.rx-usecs of eth1, which was 16, is 77: another program set it" in undone.foreign


def test_a_value_set_by_another_program_since_the_snapshot_is_not_overwritten(
    machine: KnobMachine, folder: Path
) -> None:
    """It was overwritten, and the roll-back silently restored the value from before it."""
    begun = session.begin(machine, plan(machine, {"nic.mtu": 1400, "nic.gro": False}, TARGETS), folder)
    machine.set_nic("eth1", mtu="1300")
    set_by_others = machine.state()
    with pytest.raises(KnobError, match=r"nic\.mtu of eth1 was 1500 a moment ago and is 1300: another program set it"):
        begun.apply()
    undone, _ = begun.restore()
    assert machine.writes == []
    assert machine.state() == set_by_others
    assert undone.foreign == ("nic.mtu of eth1, which was 1500, is 1300: another program set it",)


def test_a_value_that_an_adaptive_mode_changed_since_the_snapshot_may_be_written(
    machine: KnobMachine, folder: Path
) -> None:
    begun = session.begin(machine, plan(machine, {"nic.adaptive-rx": False, "nic.rx-usecs": 8}, TARGETS), folder)
    machine.set_nic("eth1", rx_usecs="77")
    begun.apply()
    assert machine.nic("eth1")["rx-usecs"] == "8"
    begun.restore()


def test_a_second_roll_back_writes_nothing(machine: KnobMachine, folder: Path) -> None:
    path = _abandoned(machine, folder)
    assert rollback.roll_back(machine, path).put_back
    machine.writes.clear()
    assert rollback.roll_back(machine, path) == session.undo.RollbackResult()
    assert machine.writes == []


def test_after_a_reboot_there_is_nothing_to_undo(machine: KnobMachine, folder: Path) -> None:
    path = _abandoned(machine, folder)
    (machine.root / "proc/sys/kernel/random/boot_id").write_text("boot-2\n")
    machine.writes.clear()
    rollback.roll_back(machine, path)
    assert machine.writes == []
    assert open_journals(folder) == []


def test_a_missing_device_is_named(machine: KnobMachine, folder: Path) -> None:
    path = _abandoned(machine, folder)
    (machine.root / "eth1.nic").unlink()
    undone = rollback.roll_back(machine, path)
    assert "nic.rx-usecs of eth1, which was 16" in undone.gone
    assert machine.read("/proc/sys/net/core/busy_read") == b"0\n"


def test_a_journal_torn_at_its_end_is_read_and_one_torn_inside_is_refused(machine: KnobMachine, folder: Path) -> None:
    path = _abandoned(machine, folder)
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    assert read_state(path).cells
    broken = bytearray(content)
    broken[len(content) // 3] ^= 1
    path.write_bytes(bytes(broken))
    with pytest.raises(ForeignFileError, match="damaged at line"):
        read_state(path)


def test_only_one_session_per_host(machine: KnobMachine, folder: Path) -> None:
    with host_lock(folder), pytest.raises(TrialError, match=str(os.getpid())), hold(machine, ENDS, SETTING, folder):
        pytest.fail("the lock is taken")
    assert machine.writes == []


def test_a_locked_block_excludes_other_sessions(machine: KnobMachine, folder: Path) -> None:
    """A search's launches of the present setting took no lock, so another search could set knobs meanwhile."""
    with hold(machine, ENDS, {}, folder), host_lock(folder):
        pass
    with (
        hold(machine, ENDS, {}, folder, locked=True),
        pytest.raises(TrialError, match=f"process {os.getpid()} holds the knobs"),
        host_lock(folder),
    ):
        pytest.fail("it was not locked")
    assert machine.writes == []


def test_a_lock_that_is_about_to_be_released_is_waited_for(machine: KnobMachine, folder: Path) -> None:
    held, release = threading.Event(), threading.Event()

    def other_session() -> None:
        with host_lock(folder):
            held.set()
            release.wait(600)

    other = threading.Thread(target=other_session)
    other.start()
    assert held.wait(600)
    threading.Timer(0.1, release.set).start()
    with hold(machine, ENDS, {"nic.rx-frames": 8}, folder, patience_s=600):
        assert machine.nic("eth1")["rx-frames"] == "8"
    other.join()


def test_undo_scripts_are_on_disk_before_the_first_write_and_removed_after_a_clean_end(
    machine: KnobMachine, folder: Path
) -> None:
    seen: list[tuple[int, str]] = []

    def look(_what: str) -> None:
        seen.extend((path.stat().st_mode & 0o777, path.read_text()) for path in folder.glob("*.undo.sh"))

    with hold(KnobMachine(machine.root, look), ENDS, {"nic.rx-frames": 8}, folder):
        (mode, script), *_ = seen
    assert mode == 0o600
    assert 'ethtool -C eth1 rx-frames "$goal_0"' in script
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_a_power_cut_before_any_write_leaves_the_journal_and_the_undo_script_on_disk(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    contents: dict[int, bytes] = {}
    names: set[str] = set()
    looked = []

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        place = Path(f"/proc/self/fd/{descriptor}").resolve()
        if place.is_dir():
            names.update(path.name for path in place.iterdir())
        else:
            contents[place.stat().st_ino] = place.read_bytes()

    def power_cut(what: str) -> None:
        (journal,) = folder.glob("*.journal")
        for path in (journal, *folder.glob("*.undo.sh")):
            assert path.name in names, f"the name {path.name} is not on the disk before {what}"
            assert contents[path.stat().st_ino] == path.read_bytes(), f"{path.name} is not on the disk before {what}"
        assert read_state(journal).unfinished is not None, f"{what} was not announced"
        looked.append(what)

    monkeypatch.setattr(os, "fsync", noting)
    shell = KnobMachine(machine.root, power_cut)
    begun = session.begin(shell, plan(shell, SETTING, TARGETS), folder)
    begun.apply()
    assert len(looked) == len(SETTING)
    begun.journal.close()


def test_an_undo_script_that_cannot_be_written_prevents_any_write(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_scripts(path: Path, content: bytes) -> int:
        if path.name.endswith(".undo.sh"):
            raise StoreError("no space left")
        return put_durably(path, content)

    put_durably = session.put_durably
    monkeypatch.setattr(session, "put_durably", no_scripts)
    with pytest.raises(StoreError), hold(machine, ENDS, SETTING, folder):
        pytest.fail("nothing may be measured")
    assert machine.writes == []


def test_a_record_torn_by_a_full_disk_does_not_damage_later_records(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = session.begin(machine, plan(machine, SETTING, TARGETS), folder)
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as full:
        full.setattr(os, "write", half)
        with pytest.raises(StoreError):
            begun.apply()
    begun.restore()
    assert read_state(begun.journal.path).end is EndState.RESTORED


def test_a_journal_that_cannot_be_read_back_does_not_prevent_restoring(machine: KnobMachine, folder: Path) -> None:
    as_found = machine.state()
    begun = session.begin(machine, plan(machine, SETTING, TARGETS), folder)
    begun.apply()
    begun.journal.path.write_bytes(b"\0" * 100)
    begun.restore()
    assert machine.state() == as_found


def test_stuck_values_are_reported_even_if_the_journal_cannot_be_ended(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse: list[bool] = []

    def refuse_later(what: str) -> None:
        if refuse and "rx-frames" in what:
            raise AnswerError("Input/output error")

    def full(_journal: Journal, _record: dict[str, object]) -> None:
        raise StoreError("no space left")

    begun = session.begin(KnobMachine(machine.root, refuse_later), plan(machine, {"nic.rx-frames": 8}, TARGETS), folder)
    begun.apply()
    refuse.append(True)
    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(QuarantinedError, match=r"nic\.rx-frames of eth1 is 8 and was 32"):
        begun.restore()
    refuse.clear()
    with pytest.raises(StoreError, match="every setting is back to its old value, but no space left"):
        begun.restore()
    assert machine.nic("eth1")["rx-frames"] == "32"


def test_files_that_cannot_be_removed_after_a_clean_end_are_not_an_error(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        if path.name.endswith((".journal", ".undo.sh")):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with hold(machine, ENDS, SETTING, folder):
        assert machine.nic("eth1")["rx-usecs"] == "0"
    with hold(machine, ENDS, SETTING, folder):
        assert machine.nic("eth1")["rx-usecs"] == "0"
    assert machine.nic("eth1")["rx-usecs"] == "16"


def test_a_setting_is_confirmed_on_disk_before_its_watchdog_is_ended(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = session.begin(machine, plan(machine, SETTING, TARGETS), folder)
    begun.apply()
    ends: list[EndState | None] = []
    monkeypatch.setattr(session.Session, "_disarm", lambda _: ends.append(read_state(begun.journal.path).end) or "")
    begun.confirm()
    assert ends == [EndState.CONFIRMED]


def test_a_setting_that_no_longer_holds_is_not_confirmed(machine: KnobMachine, folder: Path) -> None:
    begun = session.begin(machine, plan(machine, SETTING, TARGETS), folder)
    begun.apply()
    machine.set_nic("eth1", rx_usecs="16")
    with pytest.raises(KnobError, match=r"nic\.rx-usecs of eth1 was 0 and is 16"):
        begun.confirm()
    assert read_state(begun.journal.path).end is None, "a roll-back would name it if this process died now"
    begun.restore()
    assert read_state(begun.journal.path).end is EndState.RESTORED


@pytest.mark.parametrize("fails", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_confirmation_that_does_not_reach_the_disk_does_not_count_later(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch, fails: BaseException
) -> None:
    begun = session.begin(machine, plan(machine, SETTING, TARGETS), folder)
    begun.apply()

    def refuse(_: int) -> None:
        raise fails

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", refuse)
        with pytest.raises((StoreError, KeyboardInterrupt)):
            begun.confirm()
    assert read_state(begun.journal.path).end is None
    assert open_journals(folder) == [begun.journal.path]
    begun.restore()


def test_a_process_that_dies_while_undoing_a_failed_confirmation_leaves_an_open_journal(
    machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_found = machine.state()
    begun = session.begin(machine, plan(machine, SETTING, TARGETS), folder)
    begun.apply()
    monkeypatch.setattr(session.Session, "_disarm", lambda _: "it has acted")
    with pytest.raises(TrialError, match="too late to confirm"):
        begun.confirm()

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    begun.shell = KnobMachine(machine.root, interrupted)
    with pytest.raises(KeyboardInterrupt):
        begun.restore()
    assert machine.state() != as_found
    assert open_journals(folder) == [begun.journal.path]
    rollback.roll_back(machine, begun.journal.path)
    assert machine.state() == as_found
