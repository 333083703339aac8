"""A journal without a machine: what each record changes, and what is on disk at each moment."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.errors import StoreError
from nearmetal.knobs.identity import Place
from nearmetal.knobs.journal import Device, EndState, Journal, SavedValue, cell_record, read_state

if TYPE_CHECKING:
    from collections.abc import Callable

OPEN = Path("/proc/self/fd")
HERE = Place("m", "h", "b", "net:[1] cookie 7", "mnt:[1]")
MTU = SavedValue(3, "nic.mtu", "n0/eth1", "n0", "/sys/mtu", "1500", "1400", ("1400", "1401"), (5,), HERE)
GRO = SavedValue(5, "nic.gro", "n1/eth1", "n1", "/sys/gro", "on", place=HERE)
SESSION: dict[str, Any] = {
    "kind": "session",
    "format": 2,
    "host": "hpc",
    "boot_id": "b7",
    "pid": 42,
    "started": 99,
    "machines": {"n0": ["vm1", "b1"], "n1": ["vm2", "b2"]},
}
DEVICE = {"kind": "device", "target": "n0/eth1", "driver": "igb", "identity": "0000:01:00.0"}
FIRST = [SESSION, DEVICE, cell_record(MTU), cell_record(GRO)]
INTENT = {"kind": "intent", "cell": 3, "value": "1400"}
DONE = {"kind": "done", "cell": 3, "read": "1401", "disturbed": {"5": "off"}}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.create(tmp_path / "x.journal", FIRST)


def test_each_record_changes_only_its_subject(journal: Journal) -> None:
    state = journal.state
    assert (state.host, state.boot_id, state.pid, state.started) == ("hpc", "b7", 42, 99)
    assert (state.cells, state.devices) == ({3: MTU, 5: GRO}, [Device("n0/eth1", "igb", "0000:01:00.0")])
    assert (state.touched(), state.waiting, state.end) == (False, {"vm1", "vm2"}, None)
    assert not state.unseen(MTU)
    assert state.ours(MTU) == frozenset()

    journal.append(INTENT)
    assert state.touched()
    assert state.intended == {3: "1400"}
    assert (state.unfinished, state.unseen(MTU), state.unseen(GRO)) == (3, True, False)
    assert state.ours(MTU) == {"1400", "1401"}

    journal.append(DONE)
    assert state.read == {3: {"1401"}, 5: {"off"}}
    assert (state.unfinished, state.unseen(MTU)) == (None, False)
    assert (state.ours(MTU), state.ours(GRO)) == ({"1400", "1401"}, {"off"})

    journal.append({"kind": "undone", "machine": "vm1"})
    assert (state.undone, state.waiting) == ({"vm1"}, {"vm2"})
    journal.append({"kind": "end", "state": "restored"})
    assert state.end is EndState.RESTORED
    assert read_state(journal.path) == state
    journal.close()


def test_a_far_machine_sees_only_its_own_cells_and_devices(journal: Journal) -> None:
    of_first, of_none = journal.state.on("vm1"), journal.state.on("vm3")
    assert (of_first.boot_id, of_first.machines) == ("b1", {})
    assert [(cell.target, cell.node) for cell in of_first.cells.values()] == [("eth1", "")]
    assert of_first.devices == [Device("eth1", "igb", "0000:01:00.0")]
    assert (of_none.boot_id, of_none.cells, of_none.devices) == ("", {}, [])
    journal.close()


def test_a_cell_disturbed_by_an_unconfirmed_write_counts_as_unseen(journal: Journal) -> None:
    journal.append({"kind": "intent", "cell": 5, "value": "off"})
    assert journal.state.unseen(MTU)
    journal.close()


def test_a_record_is_synced_before_it_is_reported_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole file before it gets its name, then the name, then each record."""
    seen: list[tuple[str, int]] = []

    def synced(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        seen.append((path.removeprefix(str(tmp_path)), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", synced)
    journal = Journal.create(tmp_path / "x.journal", FIRST)
    size = journal.path.stat().st_size
    assert [path for path, _ in seen] == ["/x.journal.new", ""]
    assert seen[0][1] == size > 0
    journal.append(INTENT)
    assert seen[2:] == [("/x.journal", journal.path.stat().st_size)]
    assert journal.path.stat().st_size > size
    journal.close()


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(lambda: OSError(errno.ENOSPC, "No space left on device"), StoreError), (KeyboardInterrupt, KeyboardInterrupt)],
)
def test_a_record_that_was_not_synced_is_not_in_the_file(
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    failure: Callable[[], BaseException],
    raised: type[BaseException],
) -> None:
    before = journal.path.read_bytes()

    def fails(_: int) -> None:
        raise failure()

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        with pytest.raises(raised):
            journal.append(INTENT)
    assert journal.path.read_bytes() == before
    assert not journal.state.touched()
    journal.append(INTENT)
    journal.close()
    assert read_state(journal.path).intended == {3: "1400"}


def test_a_journal_is_reopened_at_the_start_of_a_torn_record(journal: Journal) -> None:
    journal.append(INTENT)
    whole = journal.path.read_bytes()
    journal.close()
    journal.close()
    with journal.path.open("ab") as file:
        file.write(b'{"crc":"00')
    again = Journal.reopen(journal.path)
    again.append(DONE)
    again.close()
    assert journal.path.read_bytes().startswith(whole + b'{"crc":"')
    assert read_state(journal.path).read == {3: {"1401"}, 5: {"off"}}


def test_a_journal_is_private_and_uses_one_descriptor(tmp_path: Path) -> None:
    before = len([*OPEN.iterdir()])
    journal = Journal.create(tmp_path / "x.journal", FIRST)
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert len([*OPEN.iterdir()]) == before + 1
    journal.close()
    assert len([*OPEN.iterdir()]) == before


@pytest.mark.parametrize("step", [1, 2])
def test_a_journal_that_cannot_be_synced_leaves_nothing(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither if syncing the file fails nor if syncing its folder does, when the file already has its name."""
    steps: list[int] = []

    def fails(descriptor: int) -> None:
        steps.append(descriptor)
        if len(steps) == step:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StoreError, match="no setting was changed"):
        Journal.create(tmp_path / "x.journal", FIRST)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changed", [{"format": 3}, {"kind": "device"}])
def test_a_file_with_another_header_is_not_a_journal(changed: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this nearmetal reads 1 and 2"):
        Journal.create(tmp_path / "x.journal", [SESSION | changed])
