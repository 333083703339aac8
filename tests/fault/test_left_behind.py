"""Files that `kill -9` leaves in the temporary folder are removed by the next start, and nothing else is.

`NEARMETAL_KILLS` says how many kills are tried; `make verify-kills` tries 2,000.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

import knob_victim
import labs
from fake_runs import STUDY, Silent
from knob_machine import KnobMachine
from nearmetal import process, scratch
from nearmetal.cli.main import run as nearmetal
from nearmetal.errors import NearmetalError
from nearmetal.hosts.fake import FakeHost
from nearmetal.hosts.lab import root
from nearmetal.hosts.lab.machine import MACHINES, Boot
from nearmetal.hosts.lab.root import Release
from nearmetal.hosts.lab.vm import Vm
from nearmetal.hosts.machine import MachineShell
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.knobs.folder import expire, open_journals
from nearmetal.knobs.rollback import roll_back
from nearmetal.run.schedule import run_study
from nearmetal.store.disk import Disk
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.searchdir import SearchDir
from nearmetal.store.verify import verify
from nearmetal.study.order import Order, PathOrder, WorkloadOrder
from nearmetal.study.spec import digest, parse_study
from nearmetal.tune.measure import Launches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KILLS = int(os.environ.get("NEARMETAL_KILLS", "40"))
INFO = RunInfo("kills", digest(STUDY), "fake", "made up", "0", "2026-01-01T00:00:00+00:00")


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate temporary folder that this process has not scanned yet; its name is short for sockets.

    Shared memory is separate, too: that of others must not be removed here.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, tempfile.TemporaryDirectory(dir="/tmp") as memory:
        monkeypatch.setattr(scratch, "SHARED_MEMORY", Path(memory))
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(scratch, "_swept", set())
        yield Path(folder)


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def killed_owner(prefix: str) -> Path:
    """Let a process make a folder with a file in it and die."""
    program = (
        f"import os; from nearmetal import scratch; f = scratch.make({prefix!r}); (f / 'x').write_bytes(b'12345'); "
    )
    program += "print(f, flush=True); os.kill(os.getpid(), 9)"
    env = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return Path(done.stdout.strip())


def test_the_next_start_removes_folders_of_dead_processes(temporary: Path) -> None:
    dead = killed_owner("nearmetal-lab")
    assert (dead / "x").exists()
    with MachineShell() as shell:
        own = shell.scratch
        assert names(temporary) == [Path(own).name]
    assert names(temporary) == []


def test_only_folders_of_dead_owners_are_removed(temporary: Path) -> None:
    mine = scratch.make("nm")
    dead = killed_owner("nm")
    later = mine.name.split("-")
    kept = {
        "another boot": dead.name.replace(f"-{scratch._place()}-", "-0000-"),
        "an older nearmetal's": "nm-a8b7c6d5",
        "a far session's": "nm-3dacb354cbbeeea5a7e6801c",
        "not ours": "other-1-1-0000-x",
    }
    for name in kept.values():
        (temporary / name).mkdir()
    reused = temporary / "-".join([*later[:2], "1", *later[3:]])
    reused.mkdir()
    (temporary / f"{dead.name}x").symlink_to(dead)
    (temporary / f"{dead.name}y").write_text("a file")
    assert sorted(scratch.sweep(temporary)) == sorted([dead, reused])
    left = {mine.name, f"{dead.name}x", f"{dead.name}y", *kept.values()}
    assert set(names(temporary)) == left
    assert {one.path.name: one.owner for one in scratch.find(temporary)} == {
        mine.name: "here",
        kept["another boot"]: "elsewhere",
        kept["an older nearmetal's"]: "unknown",
        kept["a far session's"]: "unknown",
    }


def test_folders_used_by_a_live_container_are_not_removed(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even with --all: its process has another number there but is visible from here."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a process namespace")
    program = "import time; from nearmetal import scratch; print(scratch.make('nm'), flush=True); time.sleep(1234)"
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", program]
    env = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as container:
        assert container.stdout
        made = Path(container.stdout.readline().strip())
        assert made.name.startswith("nm-1-"), "it is process 1 there"
        assert nearmetal(["clean", "--remove", "--all"]) == 0
        stdout = capsys.readouterr().out
        container.kill()  # unshare itself ignores SIGTERM while it waits
    assert made.exists()
    used = re.search(rf"^{made}: 0\.0 MB, in use by process (\d+)$", stdout, re.MULTILINE)
    assert used
    while Path(f"/proc/{used[1]}").exists():  # it ends after unshare, not at the same moment
        time.sleep(0.01)
    assert nearmetal(["clean", "--remove", "--all"]) == 0
    assert not made.exists()


def test_clean_lists_removes_and_keeps(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, dead = scratch.make("nm"), killed_owner("nm")
    (temporary / "nm-a8b7c6d5").mkdir()
    owner = dead.name.split("-")[1]
    assert nearmetal(["clean"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(
        [
            "1 left behind: `nearmetal clean --remove` removes it",
            f"{dead}: 0.0 MB, left behind: process {owner} is gone",
            f"{mine}: 0.0 MB, in use by process {os.getpid()}",
            f"{temporary}/nm-a8b7c6d5: 0.0 MB, unknown owner",
        ]
    )
    assert nearmetal(["clean", "--remove"]) == 0
    assert f"removed {dead}: " in capsys.readouterr().out
    assert nearmetal(["clean", "--remove", "--all"]) == 0
    assert names(temporary) == [mine.name]
    assert nearmetal(["clean", "--all"]) == 2
    shutil.rmtree(mine)
    capsys.readouterr()
    assert nearmetal(["clean"]) == 0
    assert capsys.readouterr().out == f"no files of nearmetal in {temporary}\n"


@contextlib.contextmanager
def mounted(point: Path) -> Iterator[None]:
    """Mount a file system there, and unmount it at the end if it is still mounted."""
    point.mkdir(parents=True)
    if process.run(["mount", "-t", "tmpfs", "tmpfs", str(point)], timeout_s=600).exit_status:
        pytest.skip("mounting needs root")
    (point / "not ours").write_text("precious")
    try:
        yield
    finally:
        process.run(["umount", str(point)], timeout_s=600)


def test_nothing_is_removed_through_a_mount(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A killed build once left /dev/shm mounted in its folder, and removing the folder emptied it."""
    dead = killed_owner("nearmetal-root")
    point = dead / "mmdebstrap.x y/dev/shm"
    with mounted(point):
        assert scratch.sweep(temporary) == []
        assert nearmetal(["clean"]) == 0
        assert f"  mounted in it: {point}\n" in capsys.readouterr().out
        with (point / "open").open("w"):
            assert nearmetal(["clean", "--remove"]) == 1
        stdout = capsys.readouterr().out
        assert f"cannot remove {dead}: 0.0 MB" in stdout
        assert f"  busy, still mounted in it: {point}\n" in stdout
        assert (point / "not ours").read_text() == "precious"
        assert nearmetal(["clean", "--remove"]) == 0
        assert f"removed {dead}: " in capsys.readouterr().out
    assert names(temporary) == []


def test_the_folder_of_an_image_builder_is_listed_and_removed_on_request(
    temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = temporary / "mmdebstrap.AbCdEf"
    with mounted(folder / "proc"):
        assert nearmetal(["clean", "--remove"]) == 0
        assert f"{folder}: 0.0 MB, unknown owner\n  mounted in it: {folder}/proc\n" in (capsys.readouterr().out)
        assert nearmetal(["clean", "--remove", "--all"]) == 0
    assert names(temporary) == []


def test_mounts_of_an_image_builder_are_removed_with_it(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder is a stand-in that mounts like the real one and is killed."""
    if os.geteuid():
        pytest.skip("without root the builder itself takes a namespace")
    programs = temporary / "bin"
    programs.mkdir()
    builder = programs / "mmdebstrap"
    builder.write_text(
        "#!/bin/sh\nfolder=$(mktemp -d -t mmdebstrap.XXXXXX)\nmkdir $folder/shm\n"
        "mount --bind /dev/shm $folder/shm && touch $folder/mounted\nkill -9 $$\n"
    )
    builder.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with scratch.folder("nearmetal-root") as staging:
        with pytest.raises(NearmetalError, match="SIGKILL"):
            root.build(Release("debian", "bookworm", ()), staging / "root.tar", staging)
        (left,) = staging.glob("mmdebstrap.*")
        assert (left / "mounted").exists()
        assert scratch.Folder(staging, "here", 0).mounts() == []
    assert names(temporary) == ["bin"]


def test_shared_memory_is_listed_with_the_processes_that_have_it_open(
    temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, left = (scratch.SHARED_MEMORY / f"mpich_shm_{number}" for number in (0, 1))
    for file in (ours, left, scratch.SHARED_MEMORY / "not an MPI's"):
        file.write_bytes(bytes(4096))
    owned = scratch.make("nm", scratch.SHARED_MEMORY)
    with ours.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert nearmetal(["clean", "--remove"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"{owned}: 0.0 MB, in use by process {os.getpid()}",
            f"{ours}: 0.0 MB, in use by process {os.getpid()}",
            "0.0 MB of shared memory of MPI programs that no process has open:",
            f"  {left}",
            "`nearmetal clean --remove --all` removes it",
        ]
        assert nearmetal(["clean", "--remove", "--all"]) == 0
    assert names(scratch.SHARED_MEMORY) == sorted([ours.name, owned.name, "not an MPI's"])
    for number in range(5):
        (scratch.SHARED_MEMORY / f"mpich_shm_{number}").write_bytes(bytes(500_000))
    assert nearmetal(["clean"]) == 0
    lines = capsys.readouterr().out.splitlines()[-6:]
    assert lines[0].startswith("2.5 MB of shared memory of MPI")
    assert lines[1:5] == [f"  {ours}", f"  {left}", f"  {scratch.SHARED_MEMORY}/mpich_shm_2", "  and 2 more"]
    assert names(temporary) == []


# ---- kills, each at an event drawn by a seed


class Countdown(Disk):
    """Kills this process at the nth step of the disk."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, name: str, path: Path) -> None:
        self.left -= 1
        if self.left == 0:
            path.with_name(f"{path.name}.part").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)


def in_child(run_action: Callable[[], object]) -> int:
    """Run an action in a child process; return how it ended: 0, or minus the signal."""
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        scratch._swept.clear()  # a fresh start
        code = 7
        try:
            run_action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def store(root: Path, steps: int) -> None:
    """Continue a run until the disk kills it."""
    if not root.exists():
        RunDir.create(root, INFO, STUDY).close()
    with RunDir.open_for_writing(root, Countdown(steps)) as run:
        run_study(parse_study(STUDY, "s"), FakeHost({}), run, Silent())


def search(root: Path, steps: int) -> None:
    """Continue a search of twelve launches until the disk kills it."""
    if not root.exists():
        SearchDir.create(root, INFO, STUDY).close()
    with SearchDir.open_for_writing(root, Countdown(steps)) as kept:
        launches = Launches(FakeHost({}), kept)
        options = {"operation": "latency", "sizes": [8], "iterations": 20, "warmup": 2}
        for block in range(12):
            launches.launch(Order(0, block, PathOrder("veth", "veth"), WorkloadOrder("latency", "engine", options)))


@pytest.fixture
def print_row(capsys: pytest.CaptureFixture[str]) -> Callable[[str, int], None]:
    """Print a row of the table of `make verify-kills`."""

    def row(what: str, kills: int) -> None:
        if "NEARMETAL_KILLS" in os.environ:
            with capsys.disabled():
                print(f"\n| {what} | {kills} | 0 | 0 |", flush=True)  # noqa: T201

    return row


@pytest.mark.parametrize("victim", [store, search])
def test_no_kill_loses_or_repeats_a_launch(
    tmp_path: Path,
    victim: Callable[[Path, int], None],
    print_row: Callable[[str, int], None],
) -> None:
    victim(tmp_path / "warm", 1 << 60)  # loads modules that are imported late, once instead of in every child
    kind = SearchDir if victim is search else RunDir
    rng = random.Random(13)
    kills = number = 0
    while kills < KILLS // 5:
        root, number = tmp_path / str(number), number + 1
        before: dict[str, bytes] = {}
        steps = [rng.randrange(1, 60) for _ in range(100)]
        while (ended := in_child(lambda root=root, steps=steps: victim(root, steps.pop()))) != 0:
            del steps[-1]  # the child has a list of its own
            assert ended == -signal.SIGKILL
            kills += 1
            after = {path.name: path.read_bytes() for path in (root / "trials").glob("*.json")}
            assert before.items() <= after.items(), "a finished launch was lost or repeated"
            before = after
        found = verify(kind.open(root))
        assert (found.problems, found.unfinished) == ((), ())
        assert found.trials == (9 if kind is RunDir else 12)
        assert not list(root.rglob("*.part"))
        shutil.rmtree(root)
    print_row("a run's store" if victim is store else "a search of `tune`", kills)


def test_no_kill_leaves_a_setting_or_a_file_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, print_row: Callable[[str, int], None]
) -> None:
    """One to three sessions in a row are killed before a roll-back, which may be killed as well."""
    monkeypatch.setattr("nearmetal.knobs.folder.KEPT_DAYS", -1)
    machine = KnobMachine.make(tmp_path / "machine", {"eth1": {}}, {"/proc/sys/net/core/busy_read": "0\n"})
    folder, as_found = tmp_path / "journals", machine.state()
    folder.mkdir()
    rng = random.Random(17)
    kills = 0
    while kills < KILLS // 5:
        for _ in range(rng.randint(1, 3)):
            event = rng.randrange(27)
            kills += in_child(lambda event=event: knob_victim.main(machine.root, folder, event)) == -signal.SIGKILL
        event = rng.randrange(12)
        kills += in_child(lambda event=event: roll_back_all(machine.root, folder, event)) == -signal.SIGKILL
        roll_back_all(machine.root, folder, 1 << 60)
        assert machine.state() == as_found
        assert open_journals(folder) == []
        expire(folder)
        assert names(folder) == ["lock"]
    print_row("a session of knobs: journal, values, undo scripts", kills)


def roll_back_all(root: Path, folder: Path, event: int) -> None:
    """Replay every journal, and be killed before a write after this many events."""
    shell = KnobMachine(root, knob_victim.Countdown(event).tick)
    for path in open_journals(folder):
        roll_back(shell, path)


def after_events(events: int) -> Callable[[], None]:
    """Return a function that kills this process at its call with this number."""
    left = [events]

    def tick() -> None:
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return tick


def namespaces(events: int) -> NoReturn:
    """Make nodes, links and files in namespaces until killed."""
    tick = after_events(events)
    while True:
        tick()
        with NamespaceShell() as shell:
            tick()
            for node in ("n0", "n1"):
                shell.add_node(node)
                tick()
            shell.write(f"{shell.scratch}/n0/file", b"x" * 1000)
            shell.start(["sleep", "6000"], node="n1")
            tick()


@pytest.mark.netns
def test_kills_of_namespaces_leave_nothing(temporary: Path, print_row: Callable[[str, int], None]) -> None:
    rng = random.Random(15)
    for _ in range(KILLS // 5):
        events = rng.randrange(1, 12)
        assert in_child(lambda events=events: namespaces(events)) == -signal.SIGKILL
        assert len(names(temporary)) <= 1, "the one that was killed last"
    with NamespaceShell() as shell:
        assert names(temporary) == [Path(shell.scratch).name]
    assert names(temporary) == []
    print_row("namespaces, their programs and folders", KILLS // 5)


def lab(boot: Boot, snapshot: Path | None, events: int) -> NoReturn:
    """Start emulators until killed; with a snapshot, let them run it."""
    tick = after_events(events)
    while True:
        tick()
        with Vm(boot, restore=snapshot is not None) as life:
            tick()
            if snapshot:
                life.restore(snapshot)
                tick()
                life.control.execute("cont")
            tick()
            life.control.execute("query-status")
            tick()


def kill_labs(folder: Path, boot: Boot, snapshot: Path | None, kills: int) -> None:
    """Kill this many, and check that no emulator outlives its nearmetal and no folder the next start."""
    rng = random.Random(16)
    for _ in range(kills):
        events = rng.randrange(1, 7)
        assert in_child(lambda events=events: lab(boot, snapshot, events)) == -signal.SIGKILL
        assert len(names(folder)) <= 1, "the one that was killed last"
    while emulators(folder):  # the kernel ends them when their parent dies
        time.sleep(0.01)
    with MachineShell() as shell:
        assert Path(shell.scratch).parent == folder
    assert names(folder) == []


def emulators(folder: Path) -> list[str]:
    """Return the threads that work in a folder: the first of a process may end before others that still make files."""
    found = []
    for line in Path("/proc").glob("[0-9]*/task/*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{folder}/".encode() in line.read_bytes():
                found.append(line.parent.name)
    return found


@pytest.mark.lab
@pytest.mark.xdist_group("lab")
def test_kills_of_the_real_lab_leave_nothing(temporary: Path, print_row: Callable[[str, int], None]) -> None:
    with labs.opened("base") as host:
        ready = host._prepared((0, False))
        kill_labs(temporary, ready.boot, ready.snapshot, KILLS // 20)
    print_row("the lab, its emulator running the snapshot", KILLS // 20)


def test_kills_of_a_lab_with_a_stand_in_leave_nothing(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, print_row: Callable[[str, int], None]
) -> None:
    """The emulator is a stand-in that speaks its protocol."""
    program = tmp_path / "emulator"
    script = Path(__file__).parents[1] / "lab_emulator.py"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={Path(scratch.__file__).parents[1]} exec {sys.executable} {script} "$@"\n'
    )
    program.chmod(0o755)
    boot = Boot(str(program), MACHINES["base"], Path("kernel"), Path("initramfs"), Path("wire.so"))
    kill_labs(temporary, boot, None, 3 * KILLS // 20)
    print_row("the lab, with a stand-in for the emulator", 3 * KILLS // 20)
