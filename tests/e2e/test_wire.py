"""The wire in real QEMU: small machines without an operating system see the same whatever the host does."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal import native
from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.hosts.lab import wire, wirecheck
from nearmetal.hosts.lab.lab import find_emulator

if TYPE_CHECKING:
    from collections.abc import Iterator

_WAIT_S = 600


@pytest.fixture(scope="module")
def emulator() -> str:
    try:
        return find_emulator()[0]
    except NearmetalError as error:
        pytest.skip(error.render())


@pytest.fixture(scope="module")
def library() -> Path:
    return native.build(wire.RECIPE)


@pytest.fixture
def busy_core() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
        yield
        loop.kill()


@pytest.fixture
def one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def three(emulator: str, library: Path) -> tuple[wirecheck.Transcript, ...]:
    return wirecheck.small_cluster(emulator, library, 3)


def test_every_frame_reaches_every_other_machine_at_its_instant(three: tuple[wirecheck.Transcript, ...]) -> None:
    sent_ns = [int(line.split()[1]) for line in three[0].trace.splitlines() if line.startswith("tx")]
    least_ns = 1500 + (64 + 24) * 8  # the delay, and 64 bytes with preamble, checksum and gap at 1 Gbit/s
    for other in three[1:]:
        came = [line.split() for line in other.trace.splitlines() if line.startswith("rx")]
        at_ns = {int(sequence): int(ns) for _, ns, _, source, sequence, _ in came if source == "0"}
        took_ns = [at_ns[number] - ns for number, ns in enumerate(sent_ns) if number in at_ns]
        assert len(took_ns) > len(sent_ns) - 5  # the last few arrive when the other has ended
        assert min(took_ns) == least_ns  # it queues behind another frame, here and at the switch
        assert took_ns.count(least_ns) > len(took_ns) / 2


def test_fuzzed_interruptions_have_no_effect(
    emulator: str, library: Path, three: tuple[wirecheck.Transcript, ...]
) -> None:
    assert wirecheck.small_cluster(emulator, library, 3, "fuzz=5", "step=300") == three


def test_finding_blocks_sooner_has_no_effect(
    emulator: str, library: Path, three: tuple[wirecheck.Transcript, ...]
) -> None:
    assert wirecheck.small_cluster(emulator, library, 3, "jumps=0") == three


def test_calls_run_the_code_that_is_there(
    emulator: str, library: Path, three: tuple[wirecheck.Transcript, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [one.stale_calls for one in three] == [0, 0, 0]
    whole = wirecheck.small_machine_argv
    monkeypatch.setattr(wirecheck, "small_machine_argv", lambda *given: tuple(map(with_little_code, whole(*given))))
    assert wirecheck.small_cluster(emulator, library, 3) == three


def with_little_code(argument: str) -> str:
    """Let a machine keep 1 MB of translated code, so that it discards all of it several times."""
    return argument.replace("tcg,thread=single", "tcg,thread=single,tb-size=1")


def test_a_busy_core_has_no_effect(
    emulator: str, library: Path, three: tuple[wirecheck.Transcript, ...], busy_core: None
) -> None:
    assert wirecheck.small_cluster(emulator, library, 3) == three


def test_a_single_core_has_no_effect(
    emulator: str, library: Path, three: tuple[wirecheck.Transcript, ...], one_core: None
) -> None:
    assert wirecheck.small_cluster(emulator, library, 3, "spin=0") == three


def test_another_delay_has_an_effect(emulator: str, library: Path, three: tuple[wirecheck.Transcript, ...]) -> None:
    assert wirecheck.small_cluster(emulator, library, 3, "delay=1501") != three


def test_a_machine_alone_has_what_speeds_it_up(emulator: str, library: Path, tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    argv = wirecheck.small_machine_argv(
        emulator, native.build(wirecheck.GUEST), library, wire.WirePlace("", 0, 1), tmp_path
    )
    subprocess.run([*argv[:-1], f"{argv[-1]},stat={counts}"], check=True, timeout=_WAIT_S)
    counted = json.loads(counts.read_text())
    assert counted["withheld_notices"] > 0
    assert counted["finds_blocks"] == 1


def test_the_self_test_runs_once_per_build(emulator: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wirecheck.fitting_wire.cache_clear()
    assert wirecheck.fitting_wire(emulator, "10.0.2").exists()
    monkeypatch.setattr(wirecheck, "small_cluster", lambda *_: pytest.fail("a second time"))
    wirecheck.fitting_wire.cache_clear()
    assert wirecheck.fitting_wire(emulator, "10.0.2").exists()
    wirecheck.fitting_wire.cache_clear()


def test_a_cluster_that_is_not_reproducible_is_refused(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = iter([(wirecheck.Transcript("0 1", "rx"),), (wirecheck.Transcript("0 2", "rx"),)])
    monkeypatch.setattr(wirecheck, "small_cluster", lambda *_: next(outcomes))
    with pytest.raises(UnavailableError, match=r"two runs of one cluster under QEMU 10\.0\.2 differ"):
        wirecheck.self_test("qemu", "10.0.2", library)


def test_an_emulator_that_runs_stale_code_is_refused(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wirecheck, "small_cluster", lambda *_: (wirecheck.Transcript("a 1", "rx"),))
    with pytest.raises(UnavailableError, match=r"under QEMU 10\.0\.2, 10 calls ran code that was no longer there"):
        wirecheck.self_test("qemu", "10.0.2", library)


def process_of(memory: str, node: int) -> int:
    """Return the process that joined as a node, 0 before it joined; see native/wire/cluster.h for its place."""
    with Path(memory).open("rb") as shared:
        held = shared.read(256 * (node + 2))
    return struct.unpack_from("<i", held, 256 * (node + 1) + 156)[0] if len(held) == 256 * (node + 2) else 0


@pytest.mark.parametrize(
    ("signal_number", "reason"), [(signal.SIGKILL, "ended at"), (signal.SIGSTOP, "was stopped by")]
)
def test_a_lost_machine_ends_the_others(
    emulator: str, library: Path, tmp_path: Path, signal_number: int, reason: str
) -> None:
    guest = native.build(wirecheck.GUEST)
    with wire.shared_memory() as memory:
        argvs = [
            wirecheck.small_machine_argv(emulator, guest, library, wire.WirePlace(memory, node, 2), tmp_path)
            for node in range(2)
        ]
        # The second waits for a command to start, like a machine that is being restored, so the first waits too.
        with (
            subprocess.Popen(argvs[0], stderr=subprocess.PIPE, text=True) as first,
            subprocess.Popen([*argvs[1], "-S"], stderr=subprocess.DEVNULL) as second,
        ):
            while process_of(memory, 1) != second.pid:  # one that leaves before joining is waited for by the wall clock
                assert second.poll() is None
            second.send_signal(signal_number)
            _, stderr = first.communicate(timeout=_WAIT_S)
            second.kill()
    assert first.returncode == wire.EXIT_STATUS
    assert f"wire: node 0: node 1 (process {second.pid}) {reason}" in stderr


def catches_sigterm(pid: int) -> bool:
    (caught,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_waiting_machine_can_be_told_to_quit(emulator: str, library: Path, tmp_path: Path) -> None:
    guest = native.build(wirecheck.GUEST)
    with wire.shared_memory() as memory:
        argv = wirecheck.small_machine_argv(emulator, guest, library, wire.WirePlace(memory, 0, 2), tmp_path)
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as alone:
            while not catches_sigterm(alone.pid):
                assert alone.poll() is None
            alone.terminate()
            alone.communicate(timeout=_WAIT_S)
    assert alone.returncode == 0
