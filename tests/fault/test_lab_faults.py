"""Faults of the lab from outside: each ends in a clear error that names the next step."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import labs
from nearmetal.cli.main import run as nearmetal
from nearmetal.errors import BadInputError, NearmetalError, TrialError, UnavailableError
from nearmetal.hosts.lab import image, lab, running
from nearmetal.hosts.lab.machine import MACHINES, Boot
from nearmetal.hosts.lab.manifest import Manifest
from nearmetal.hosts.lab.vm import Vm, console_tail
from nearmetal.process import of_each_process
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ORDER = Order(0, 0, PathOrder("native", "native"), WorkloadOrder("latency", "engine"), seed=7, timeout_s=0.5)
RUN = """
import signal, sys
from pathlib import Path
from nearmetal import native
from nearmetal.cli.main import run
from nearmetal.hosts.lab import wirecheck
wirecheck.fitting_wire = lambda *_: Path("wire.so")
native.build = lambda _: Path(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(run(sys.argv[2:]))
"""
"""Runs a verb over the stand-in, as `host` does here; Ctrl-C ends it also where the suite runs in the background."""
STUDY = """
name = "ended"
baseline = "native"
[host]
kind = "lab"
options = { nodes = 3, variants = 1 }
[[path]]
name = "native"
[[workload]]
name = "hello"
kind = "command"
placement = [0, 1, 2]
options = { argv = ["true"] }
[trials]
min_blocks = 3
max_blocks = 3
"""


def boot(emulator: Path) -> Boot:
    return Boot(str(emulator), MACHINES["base"], Path("kernel"), Path("initramfs"), Path("wire.so"))


def test_an_order_is_carried_out_and_returns_its_outcome(host: lab.LabHost) -> None:
    outcome = host.carry_out(ORDER, lambda *_: pytest.fail("the body must run inside"))
    assert outcome.status is TrialStatus.VALID
    assert outcome.said == "latency"
    assert outcome.facts["lab.virtual_time"] is True


def test_blocks_alternate_between_boots_with_their_own_seeds(host: lab.LabHost, tmp_path: Path) -> None:
    outcomes = [host.carry_out(replace(ORDER, block=block), lambda *_: pytest.fail("outside")) for block in range(5)]
    assert [one.facts["lab.variant"] for one in outcomes] == [0, 1, 2, 0, 1]
    snapshots = sorted((tmp_path / "cache" / "nearmetal" / "lab").glob("snapshot-*"))
    assert len(snapshots) == 3
    seeds = [json.loads((folder / "state").read_text())["seed"] for folder in snapshots]
    assert sorted(seeds) == ["0", "1", "2"]


def test_a_missing_emulator_is_reported_with_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="not installed") as caught:
        lab.find_emulator()
    assert "bookworm-backports" in caught.value.hint


def test_an_old_emulator_is_refused_with_both_versions(emulator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_EMULATOR_VERSION", "7.2.19")
    with pytest.raises(UnavailableError, match=r"version 7\.2, the lab needs 10\.0"):
        lab.find_emulator()


def test_an_emulator_that_refuses_its_arguments_is_quoted(emulator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_EMULATOR", "refuses")
    with pytest.raises(TrialError, match="not a valid device model"):
        Vm(boot(emulator))


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("dies", "the emulator ended with status -9"),
        ("panics", "guest panicked"),
        ("torn", "cut short or foreign"),
    ],
)
def test_a_machine_that_fails_costs_only_its_own_trial(
    host: lab.LabHost, monkeypatch: pytest.MonkeyPatch, mode: str, reason: str
) -> None:
    host.carry_out(ORDER, lambda *_: pytest.fail("outside"))  # make the snapshot
    monkeypatch.setenv("LAB_EMULATOR", mode)
    outcome = host.carry_out(ORDER, lambda *_: pytest.fail("outside"))
    assert outcome.status is TrialStatus.FAILED
    assert re.search(reason, outcome.reason), outcome.reason
    monkeypatch.setenv("LAB_EMULATOR", "answers")
    assert host.carry_out(ORDER, lambda *_: pytest.fail("outside")).status is TrialStatus.VALID


def test_a_panic_shows_the_console_without_the_stack(host: lab.LabHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.carry_out(ORDER, lambda *_: pytest.fail("outside"))
    monkeypatch.setenv("LAB_EMULATOR", "panics")
    reason = host.carry_out(ORDER, lambda *_: pytest.fail("outside")).reason
    assert "Kernel panic - not syncing: test" in reason
    assert "do_exit" not in reason


@pytest.mark.parametrize(("manner", "limit"), [("hangs", "of wall time"), ("spins", "of processor time")])
def test_an_endless_machine_is_stopped_at_its_time_limit(
    emulator: Path, monkeypatch: pytest.MonkeyPatch, manner: str, limit: str
) -> None:
    monkeypatch.setenv("LAB_EMULATOR", manner)
    if manner == "spins":
        monkeypatch.setattr("nearmetal.hosts.lab.running.PATIENCE", 1000.0)
    with Vm(boot(emulator), restore=True) as life, pytest.raises(TrialError, match=limit):
        list(running.carry_out([life], timeout_s=0.2))


@pytest.fixture
def cluster(host: lab.LabHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[lab.LabHost]:
    """Two machines of the stand-in, which is never coupled; their snapshot exists."""
    with contextlib.closing(lab.open_lab({"nodes": 2}, lambda _: None)) as opened:
        opened.carry_out(ORDER, lambda *_: pytest.fail("outside"))
        yield opened


def test_the_first_machine_answers_and_the_others_end_with_it(cluster: lab.LabHost) -> None:
    outcome = cluster.carry_out(ORDER, lambda *_: pytest.fail("outside"))
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts["lab.nodes"] == 2
    assert cluster.running_pids == []


@pytest.mark.parametrize(
    ("modes", "reason"),
    [
        (("hangs", "dies"), r"^node 1: the emulator ended with status -9(?s:.*)booting"),
        (("hangs", "panics"), r"^node 1: the lab's guest stopped before(?s:.*)not syncing"),
        (("dies", "serves"), r"^node 0: the emulator ended with status -9"),
        (("uncoupled", "dies"), r"^node 1: the emulator ended with status -9"),
        (("uncoupled", "serves"), r"^node 0: the emulator ended with status 70: wire: node 0: node 1 has ended"),
    ],
)
def test_a_machine_that_ends_stops_its_cluster_and_is_named(
    cluster: lab.LabHost, monkeypatch: pytest.MonkeyPatch, modes: tuple[str, str], reason: str
) -> None:
    for node, mode in enumerate(modes):
        monkeypatch.setenv(f"LAB_EMULATOR_{node}", mode)
    outcome = cluster.carry_out(ORDER, lambda *_: pytest.fail("outside"))
    assert outcome.status is TrialStatus.FAILED
    assert re.search(reason, outcome.reason), outcome.reason
    assert cluster.running_pids == []


def launches(*labels: str) -> list[Order]:
    return [replace(ORDER, trial=i, workload=replace(ORDER.workload, label=label)) for i, label in enumerate(labels)]


def test_launches_on_one_path_share_machines_until_one_fails(
    cluster: lab.LabHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = list(cluster.carry_out_together(launches("a", "b")))
    assert [one.said for one in outcomes] == ["a", "b"]
    assert [one.facts["lab.launch"] for one in outcomes] == [1, 2]
    monkeypatch.setenv("LAB_EMULATOR_0", "dies-late")
    outcomes = list(cluster.carry_out_together(launches("a", "b", "c")))
    assert [(one.status, one.facts["lab.launch"]) for one in outcomes] == [
        (TrialStatus.VALID, 1),
        (TrialStatus.FAILED, 2),
        (TrialStatus.VALID, 1),
    ]
    assert "status -9" in outcomes[1].reason


def test_warm_machines_carry_out_a_hidden_launch_first(cluster: lab.LabHost, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(lab.open_lab({"nodes": 2, "warm_machines": True}, lambda _: None)) as opened:
        outcomes = list(opened.carry_out_together(launches("a", "b")))
        assert [(one.said, one.facts["lab.launch"]) for one in outcomes] == [("a", 2), ("b", 3)]
        monkeypatch.setenv("LAB_EMULATOR_0", "dies-late")
        outcomes = list(opened.carry_out_together(launches("a", "b")))
        assert [(one.status, one.facts["lab.launch"]) for one in outcomes] == [(TrialStatus.FAILED, 2)] * 2
        monkeypatch.setenv("LAB_EMULATOR_0", "dies")
        (outcome,) = opened.carry_out_together(launches("a"))
        assert (outcome.status, outcome.facts["lab.launch"]) == (TrialStatus.FAILED, 1)


def test_only_launches_on_one_path_share_machines_up_to_the_given_number(cluster: lab.LabHost) -> None:
    other = replace(ORDER, path=PathOrder("other", "native"))
    assert [len(life) for life in cluster.together([ORDER, other, ORDER])] == [1, 1, 1]
    with contextlib.closing(lab.open_lab({"nodes": 2, "launches": 2}, lambda _: None)) as opened:
        assert opened.together([ORDER, other, ORDER, ORDER]) == [[ORDER, ORDER], [other], [ORDER]]
    wide = replace(ORDER, workload=replace(ORDER.workload, placement=(0, 1, 2, 3)))
    with contextlib.closing(lab.open_lab({"nodes": 4, "launches": 3}, lambda _: None)) as opened:
        assert opened.together([ORDER, wide, ORDER, wide]) == [[ORDER, ORDER], [wide, wide]]
    tuned = replace(ORDER, knobs={"nic.rx-usecs": 0})
    with contextlib.closing(lab.open_lab({"nodes": 2, "launches": 3}, lambda _: None)) as opened:
        assert opened.together([tuned, ORDER, tuned, ORDER]) == [[tuned, tuned, ORDER], [ORDER]]
    with pytest.raises(BadInputError, match="'launches' needs one machine per node"):
        lab.open_lab({"launches": 2}, lambda _: None)
    with pytest.raises(BadInputError, match="'warm_machines' needs one machine per node"):
        lab.open_lab({"warm_machines": True}, lambda _: None)


def test_trials_with_guests_run_first(cluster: lab.LabHost) -> None:
    guests = replace(ORDER, path=PathOrder("guests", "guest-vf"))
    assert cluster.together([ORDER, guests, ORDER]) == [[ORDER], [guests], [ORDER]]
    with contextlib.closing(lab.open_lab({"machine": "kvm", "nodes": 2}, lambda _: None)) as opened:
        assert opened.together([ORDER, guests, ORDER]) == [[guests], [ORDER], [ORDER]]


def test_more_nodes_than_the_cluster_has_are_refused_before_a_machine_starts(cluster: lab.LabHost) -> None:
    wanted = replace(ORDER, workload=replace(ORDER.workload, placement=(0, 1, 2)))
    outcome = cluster.carry_out(wanted, lambda *_: pytest.fail("outside"))
    assert outcome.reason == "the trial needs 3 nodes, but the cluster has 2"
    assert outcome.hint == "nodes = 3 in [host.options]"


def machines_of(emulator: Path) -> dict[int, str]:
    """Return the command lines of this test's running emulators by process, whoever started them."""
    lines = {}
    for pid, line in of_each_process("cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"-plugin" in line and f"{emulator.parent}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                lines[pid] = line.replace(b"\0", b" ").decode()
    return lines


def until(seen: Callable[[], bool]) -> None:
    while not seen():
        time.sleep(0.05)


def test_two_clusters_at_once_have_memory_of_their_own(
    host: lab.LabHost, emulator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.carry_out(ORDER, lambda *_: pytest.fail("outside"))
    for node in range(2):
        monkeypatch.setenv(f"LAB_EMULATOR_{node}", "hangs")
    with contextlib.closing(lab.open_lab({"nodes": 2, "slots": 2}, lambda _: None)) as opened:
        opened.prepare()
        outcomes: list[Outcome] = []
        threads = [
            threading.Thread(target=lambda: outcomes.append(opened.carry_out(ORDER, lambda *_: None))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        until(lambda: len(opened.running_pids) == 4 and len(machines_of(emulator)) == 4)
        seats = [re.findall(r"(?:shm|node)=([^, ]+)", line) for line in machines_of(emulator).values()]
        opened.close()
        for thread in threads:
            thread.join()
    memories = {memory for memory, _ in seats}
    assert sorted(map(tuple, seats)) == [(memory, node) for memory in sorted(memories) for node in ("0", "1")]
    assert len(memories) == 2
    assert [outcome.status for outcome in outcomes] == [TrialStatus.FAILED] * 2
    assert machines_of(emulator) == {}


@pytest.mark.parametrize(
    ("signals", "ended"),
    [
        ((signal.SIGKILL,), {-signal.SIGKILL}),
        # The second may arrive when the first has done its work and Python is exiting.
        ((signal.SIGINT, signal.SIGINT), {130, -signal.SIGINT}),
    ],
)
def test_a_terminated_run_leaves_no_machine_no_memory_and_no_lock(
    host: lab.LabHost,
    emulator: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signals: tuple[int, ...],
    ended: set[int],
) -> None:
    host.carry_out(ORDER, lambda *_: pytest.fail("outside"))
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    for node in range(3):
        monkeypatch.setenv(f"LAB_EMULATOR_{node}", "hangs")
    argv = [sys.executable, "-c", RUN, str(emulator), "run", str(study), "--out", str(tmp_path / "run")]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": labs.SOURCES}) as run:
        until(lambda: run.poll() is not None or len(machines_of(emulator)) == 3)
        assert run.poll() is None
        memories = re.findall(r"shm=([^, ]+)", " ".join(machines_of(emulator).values()))
        for number in signals:
            run.send_signal(number)
            time.sleep(0.1)
        try:
            assert run.wait(timeout=600) in ended
        finally:
            run.kill()
    until(lambda: machines_of(emulator) == {})  # the kernel ends them with their parent
    assert len(memories) == 3
    assert not [memory for memory in memories if Path(memory).exists()]
    for node in range(3):
        monkeypatch.delenv(f"LAB_EMULATOR_{node}")
    nearmetal(["run", "--resume", str(tmp_path / "run")])  # nothing locks the run or the image; there are no samples
    assert len(list((tmp_path / "run" / "trials").glob("*.json"))) == 4


@pytest.mark.parametrize(("manner", "limit"), [("hangs", "of wall time"), ("spins", "of processor time")])
def test_an_endless_boot_is_stopped_at_its_limit_of_processor_time(
    emulator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manner: str, limit: str
) -> None:
    monkeypatch.setenv("LAB_EMULATOR", manner)
    if manner == "spins":
        monkeypatch.setattr("nearmetal.hosts.lab.running.PATIENCE", 1000.0)
    with (
        Vm(boot(emulator)) as life,
        pytest.raises(NearmetalError, match=f"the lab's boot exceeded its limit of .* {limit}"),
    ):
        life.freeze(tmp_path / "state", timeout_s=0.2)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_temporary_folder_is_reported_while_the_guest_runs(
    emulator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest hangs, like one whose emulator finds no space; the limit would end it only much later."""
    monkeypatch.setenv("LAB_EMULATOR", "hangs")
    with tempfile.TemporaryDirectory(dir="/tmp") as small:
        subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], check=True)
        try:
            monkeypatch.setattr(tempfile, "tempdir", small)
            with Vm(boot(emulator), restore=True) as life:
                with contextlib.suppress(OSError):
                    Path(small, "fill").write_bytes(bytes(1 << 20))
                with pytest.raises(UnavailableError, match=r"no room for its files: .*No space left") as caught:
                    list(running.carry_out([life], timeout_s=1000))
            assert "nearmetal clean" in caught.value.hint
            with pytest.raises(UnavailableError, match="no room for its files"):
                Vm(boot(emulator))
        finally:
            subprocess.run(["/bin/umount", "-l", small], check=True)


def test_closing_stops_a_running_machine(host: lab.LabHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.carry_out(ORDER, lambda *_: pytest.fail("outside"))
    monkeypatch.setenv("LAB_EMULATOR", "hangs")
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(host.carry_out(ORDER, lambda *_: None)))
    thread.start()
    while not host.running_pids:
        pass
    host.close()
    thread.join(600)
    assert outcomes[0].status is TrialStatus.FAILED
    with pytest.raises(NearmetalError, match="closed"):
        host.carry_out(ORDER, lambda *_: None)


def test_a_lab_that_does_not_boot_shows_its_console(
    emulator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_EMULATOR", "panics")
    with Vm(boot(emulator)) as life, pytest.raises(NearmetalError, match=r"while booting(?s:.*)not syncing"):
        life.freeze(tmp_path / "state", timeout_s=600)


def test_no_space_for_a_snapshot_is_reported(emulator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_EMULATOR", "no-space")
    with Vm(boot(emulator)) as life, pytest.raises(NearmetalError, match="No space left on device"):
        life.freeze(tmp_path / "state", timeout_s=600)


def test_an_image_that_was_never_built_is_reported(
    emulator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match="has not been built") as caught:
        lab.open_lab({}, lambda _: None)
    assert "nearmetal lab build" in caught.value.hint


def test_a_damaged_image_is_rebuilt(host: lab.LabHost) -> None:
    messages: list[str] = []
    built = image.current(messages.append)
    good = built.initrd.read_bytes()
    built.initrd.write_bytes(good[:-1] + b"X")
    again = image.current(messages.append)
    assert again.initrd.read_bytes() == good
    assert any("initramfs does not match its checksum" in line for line in messages)


def test_a_damaged_root_is_reported_with_how_to_build_it(host: lab.LabHost) -> None:
    built = image.current(lambda _: None)
    (image.cache_folder() / "root-test" / "kernel").write_bytes(b"other")
    assert image.current(lambda _: None) == built, "an image that is whole needs no root"
    (built.folder / "initramfs").unlink()
    with pytest.raises(UnavailableError, match="damaged") as caught:
        image.current(lambda _: None)
    assert "nearmetal lab build" in caught.value.hint


def test_an_older_root_takes_the_place_of_a_damaged_one(host: lab.LabHost) -> None:
    built = image.current(lambda _: None)
    root = image.cache_folder() / "root-test"
    newer = shutil.copytree(root, root.with_name("root-newer"))
    os.utime(newer)
    (newer / "kernel").write_bytes(b"other")
    shutil.rmtree(built.folder)
    assert image.current(lambda _: None) == built


def test_a_damaged_snapshot_is_made_again(host: lab.LabHost) -> None:
    host.carry_out(ORDER, lambda *_: pytest.fail("outside"))
    folder = next(image.cache_folder().glob("snapshot-*"))
    (folder / "manifest.json").write_text("{}")
    other = lab.open_lab({}, lambda _: None)
    assert other.carry_out(ORDER, lambda *_: pytest.fail("outside")).status is TrialStatus.VALID
    assert Manifest.load(folder).kind == "snapshot"


def test_no_space_for_an_image_is_reported_with_the_space_needed(
    host: lab.LabHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(NearmetalError, match="No space left") as caught:
        image.current(lambda _: None)
    assert "must be free" in caught.value.hint
    assert not list(image.cache_folder().glob("unfinished-*"))


def test_a_second_lab_waits_while_the_first_makes_the_same_image(tmp_path: Path) -> None:
    messages: list[str] = []
    entered = threading.Event()

    def second() -> None:
        with image.locked(tmp_path / "image-1", messages.append):
            entered.set()

    with image.locked(tmp_path / "image-1", messages.append):
        with image.locked(tmp_path / "image-2", messages.append):
            assert messages == []
        thread = threading.Thread(target=second)
        thread.start()
        while not messages:
            pass
        assert not entered.is_set()
        (tmp_path / "lock-image-1").unlink()  # like `clean`
        with image.locked(tmp_path / "image-1", messages.append):
            pass
    thread.join(600)
    assert entered.is_set()
    assert messages == ["waiting for another nearmetal that is making image-1"]


def test_snapshots_boot_concurrently_and_closing_ends_them(host: lab.LabHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setenv("LAB_EMULATOR", "hangs")
    errors: list[NearmetalError] = []

    def prepared() -> None:
        try:
            host.prepare(replace(ORDER, block=block) for block in range(2))
        except NearmetalError as error:
            errors.append(error)

    thread = threading.Thread(target=prepared)
    thread.start()
    until(lambda: len(host.running_pids) == 2)
    host.close()
    thread.join(600)
    assert [error.message.partition("\n")[0] for error in errors] == ["the emulator ended with status -9"]
    assert host.running_pids == []


@pytest.mark.parametrize(
    "options", [{"machin": "base"}, {"machine": "huge"}, {"nodes": 1}, {"slots": 0}, {"slots": "2"}]
)
def test_unknown_options_of_the_lab_are_refused(
    host: lab.LabHost, options: dict[str, str | int | float | bool]
) -> None:
    with pytest.raises(BadInputError):
        lab.open_lab(options, lambda _: None)


def test_the_tail_of_a_console_is_short() -> None:
    assert len(console_tail("\n".join(map(str, range(1000))))) == 20
