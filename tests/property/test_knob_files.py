"""Readers of journals, profiles and surfaces: any file is read or refused."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest
from bench.support.surface import read_recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knob_machine import KnobMachine
from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.knobs import session
from nearmetal.knobs.journal import read_state
from nearmetal.knobs.knob import Target, parse_cpus
from nearmetal.knobs.plan import plan
from nearmetal.tune.profile import Profile
from nearmetal.units import ranges

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.knobs.journal import JournalState

_QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def journal(tmp_path: Path) -> bytes:
    machine = KnobMachine.make(tmp_path / "m", {"eth1": {}}, {})
    begun = session.begin(machine, plan(machine, {"nic.adaptive-rx": "off"}, [Target("", "eth1")]), tmp_path)
    begun.apply()
    begun.journal.close()
    return begun.journal.path.read_bytes()


@_QUICK
@given(st.data())
def test_a_damaged_journal_is_read_in_part_or_refused(tmp_path: Path, journal: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(journal) - 1))
    damaged = bytearray(journal)
    if data.draw(st.booleans()):
        damaged[place] ^= data.draw(st.integers(1, 255))
    else:
        del damaged[place:]
    path = tmp_path / "x.journal"
    path.write_bytes(bytes(damaged))
    whole = read_state_of(tmp_path, journal)
    try:
        state = read_state(path)
    except ForeignFileError:
        return
    assert all(whole.cells[number] == cell for number, cell in state.cells.items())


def read_state_of(folder: Path, content: bytes) -> JournalState:
    path = folder / "whole.journal"
    path.write_bytes(content)
    return read_state(path)


@_QUICK
@given(st.binary(max_size=400) | st.recursive(st.none() | st.text(), st.lists).map(lambda x: repr(x).encode()))
def test_foreign_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    for reader in (read_state, Profile.read, read_recording):
        with pytest.raises((ForeignFileError, BadInputError)):
            reader(path)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"seq": %s}' % (b"1" * 5000), b"[0]", b"{", b"0"])
def test_a_journal_with_correct_checksums_but_wrong_records_is_refused(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "x.journal"
    path.write_bytes(b'{"crc":"%08x","record":%s}\n' % (zlib.crc32(body), body))
    with pytest.raises(ForeignFileError):
        read_state(path)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_lists_of_processors_round_trip(cpus: set[int]) -> None:
    assert parse_cpus(ranges(sorted(cpus))) == sorted(cpus)
