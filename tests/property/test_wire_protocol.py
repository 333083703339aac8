"""The wire's own code around a stand-in for QEMU: whatever the host does, machines see identical bits.

The wire ends a machine with status 70 when a frame or a visit is late or a promise is broken, so a successful run shows
that none was.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal import native
from nearmetal.hosts.lab import wire
from tests.compiled import compile_to

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FAKE = Path(__file__).parents[1] / "native" / "wire_fake_qemu.c"
_END_NS = 1_500_000
_FOR_EVER_NS = 10**15
_BLOCK_NS_MOST = 600
_WAIT_S = 300
CROWDED = "delay=1500,rate=100,queue=100,loss=20000,delay1=4000,rate1=1000"


def compiled(folder: Path, *flags: str) -> Path:
    own = [path for path in native.all_files(wire.RECIPE).values() if path.suffix == ".c"]
    sources = [
        path for path in own if path.stem not in {"layout", "fields", "guests", "jumps", "notices"}
    ]  # they reach into QEMU's memory
    program = folder / f"fake{len(flags)}"
    room = native.source_dir("wire")
    argv = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fsanitize=address,undefined", *flags, f"-I{room}"]
    compile_to(program, [*argv, *map(str, (_FAKE, *sources)), "-lpthread"])
    return program


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("fake"))


@contextlib.contextmanager
def started(
    fake: Path, nodes: int, links: str, seed: int, end_ns: int, hangs: int = -1, counts: Path | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a machine for each node, in any order; `hangs` hangs half-way. In `counts` each leaves a file."""
    machines: list[subprocess.Popen[str]] = []
    numbers = random.sample(range(nodes), nodes)
    with wire.shared_memory() as memory:
        for node in numbers:
            words = [f"shm={memory}", f"node={node}", f"nodes={nodes}", f"seed={seed}", *links.split(",")]
            words += [f"stat={counts / str(node)}"] if counts else []
            argv = [str(fake), str(seed), str(end_ns), "2" if node == hangs else "1", *words]
            machines.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        try:
            yield [machine for _, machine in sorted(zip(numbers, machines, strict=True), key=lambda pair: pair[0])]
        finally:
            for machine in machines:
                machine.kill()
                machine.communicate()


def outputs_of(fake: Path, nodes: int, links: str, seed: int = 1) -> list[str]:
    with started(fake, nodes, links, seed, _END_NS) as machines:
        outputs = [machine.communicate(timeout=_WAIT_S) for machine in machines]
    assert [machine.returncode for machine in machines] == [0] * nodes, outputs
    return [out for out, _ in outputs]


def wait_until_joined(machines: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until all are under way: one killed between mapping the memory and joining is missed after 600 s only."""
    assert isinstance(machines[0].args, list)
    memory = next(str(word).removeprefix("shm=") for word in machines[0].args if str(word).startswith("shm="))
    while not wire.reached_ns(memory):
        assert not any(machine.poll() for machine in machines)


def figure(output: str, name: str) -> int:
    words = output.split()
    return int(words[words.index(name) + 1])


def exact(outputs: Sequence[str]) -> list[str]:
    """Return everything except the count of drops: a switch may be some frames ahead of a machine that ends."""
    return [one.partition(" dropped ")[0] for one in outputs]


@pytest.mark.parametrize("links", ["delay=2000", CROWDED], ids=["free", "crowded"])
@pytest.mark.parametrize("nodes", [2, 3, 7, 16])
def test_machines_see_the_same_whatever_the_host_does(fake: Path, nodes: int, links: str) -> None:
    first = outputs_of(fake, nodes, links)
    assert exact(outputs_of(fake, nodes, f"{links},fuzz=1,spin=0")) == exact(first)
    assert all(figure(output, "received") for output in first)


def test_a_later_plugin_interface_changes_nothing(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = outputs_of(fake, 3, CROWDED)
    monkeypatch.setenv("LATER_QEMU", "1")
    assert exact(outputs_of(fake, 3, CROWDED)) == exact(before)


def test_machines_on_one_core_wait_once_a_lookahead_at_most(fake: Path, tmp_path: Path) -> None:
    """A machine that works has caught up with no other when it wakes: it may run for a lookahead less a block."""
    nodes, delay_ns = 12, 20_000
    here = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(here)})
    try:
        links = f"delay={delay_ns},delay1={delay_ns}"
        with started(fake, nodes, links, 1, 2 * _END_NS, counts=tmp_path) as machines:
            assert [machine.wait(_WAIT_S) for machine in machines] == [0] * nodes
    finally:
        os.sched_setaffinity(0, here)
    counts = [json.loads((tmp_path / str(node)).read_text()) for node in range(nodes)]
    worked_ns = sum(one["virtual_ns"] - one["leapt_ns"] for one in counts)
    allowed = worked_ns / (delay_ns - _BLOCK_NS_MOST) + sum(one["idle_turns"] for one in counts)
    assert 0 < sum(one["waits"] for one in counts) <= allowed


def test_another_seed_gives_another_outcome(fake: Path) -> None:
    outcomes = {tuple(outputs_of(fake, 3, CROWDED, seed)) for seed in (1, 2, 3)}
    assert len(outcomes) == 3


def test_congestion_drops_frames_and_the_wire_loses_some(fake: Path) -> None:
    outputs = outputs_of(fake, 7, CROWDED)
    assert sum(figure(one, "dropped") for one in outputs) > 0
    assert sum(figure(one, "lost") for one in outputs) > 0
    free = outputs_of(fake, 7, "delay=1500")
    assert sum(figure(one, "dropped") + figure(one, "lost") for one in free) == 0


def test_a_full_ring_is_waited_for(fake: Path, tmp_path: Path) -> None:
    small = compiled(tmp_path, "-DWIRE_RING_BYTES=128")  # one frame and its header
    assert exact(outputs_of(small, 5, "delay=9000,step=9000")) == exact(outputs_of(fake, 5, "delay=9000"))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("parts") / "parts"
    room = native.source_dir("wire")
    rooms = ("cluster", "notices", "port", "report", "wait")
    sources = [_FAKE.with_name("wire_parts.c"), *(room / f"{name}.c" for name in rooms)]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", f"-I{room}", "-Wl,--wrap=pthread_mutex_trylock,--wrap=wire_host_ns"]
    compile_to(program, ["cc", *flags, *map(str, sources), "-lpthread"])
    return program


def test_a_frame_to_a_machine_that_leaves_blocks_no_other(parts: Path) -> None:
    with wire.shared_memory() as memory:
        stdout = subprocess.run([parts, "leave", memory], capture_output=True, text=True, check=True).stdout
    assert stdout == "1 1\n"


def test_a_slow_machine_does_not_time_out_by_the_wall_clock(parts: Path) -> None:
    """On a host that gives it less than a tenth of a processor, it runs for more than ten times the patience."""
    with wire.shared_memory() as memory:
        ended = subprocess.run([parts, "watch", memory], capture_output=True, text=True, check=False)
    assert ended.stdout == "it works\n"
    assert ended.returncode == wire.EXIT_STATUS
    assert re.search(
        r"node 1 \(process \d+\) has used no processor time and made no progress for \d\d s\n", ended.stderr
    )


def test_machines_that_end_one_after_another_name_the_first_reason(parts: Path) -> None:
    """Any of them reports it; the machine that hung ends last, by the lab's signal, without a reason."""
    with wire.shared_memory() as memory:
        ended = subprocess.run([parts, "chain", memory], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(wire.EXIT_STATUS)] * 3
    assert ended.stderr.splitlines() == [
        "wire: node 2: the reason of all",
        "wire: node 1: ended by node 2: the reason of all",
        "wire: node 0: ended by node 2: the reason of all",
    ]


def test_frames_of_one_nanosecond_keep_one_order(parts: Path) -> None:
    """By sender, then in each sender's order, in whatever order the host delivers them."""
    frames = ["0.0", "0.1", "1.0", "2.0"]
    for come in itertools.permutations(frames):
        stdout = subprocess.run([parts, "order", *come], capture_output=True, text=True, check=True).stdout
        assert stdout.split() == frames


def test_event_loops_without_timers_are_not_told_of_the_clock(parts: Path) -> None:
    stdout = subprocess.run([parts, "notices", "1"], capture_output=True, text=True, check=True).stdout
    assert stdout == "monitor1 main1 cpu1 / cpu1 / main1 cpu1 / 3"


def test_lists_of_timers_that_are_not_as_expected_are_left_alone(parts: Path) -> None:
    stdout = subprocess.run([parts, "notices", "0"], capture_output=True, text=True, check=True).stdout
    assert stdout == "monitor1 main1 cpu1 / monitor1 main1 cpu1 / monitor1 main1 cpu1 / 0"


def test_a_killed_machine_ends_the_others_with_the_reason(fake: Path) -> None:
    with started(fake, 3, "delay=2000", 1, _FOR_EVER_NS) as machines:
        wait_until_joined(machines)
        os.kill(machines[1].pid, signal.SIGKILL)
        for node in (0, 2):
            _, stderr = machines[node].communicate(timeout=_WAIT_S)
            assert machines[node].returncode == wire.EXIT_STATUS
            assert f"wire: node {node}: " in stderr
            assert re.search(r"node \d \(process \d+\) ended at|a node died while it held", stderr), stderr


def test_a_stopped_machine_ends_the_others_with_the_reason(fake: Path) -> None:
    with started(fake, 2, "delay=2000", 1, _FOR_EVER_NS) as machines:
        wait_until_joined(machines)
        os.kill(machines[1].pid, signal.SIGSTOP)
        _, stderr = machines[0].communicate(timeout=_WAIT_S)
        assert machines[0].returncode == wire.EXIT_STATUS
        assert f"node 1 (process {machines[1].pid}) was stopped by a signal" in stderr


def test_a_machine_that_makes_no_progress_ends_the_others_with_the_reason(fake: Path) -> None:
    with started(fake, 3, "delay=2000,patience=1", 1, _END_NS, hangs=1) as machines:
        for node in (0, 2):
            _, stderr = machines[node].communicate(timeout=_WAIT_S)
            assert machines[node].returncode == wire.EXIT_STATUS
            assert f"node 1 (process {machines[1].pid}) hangs: " in stderr
            assert " s of processor time without progress at " in stderr


def refused(fake: Path, words: Sequence[str]) -> str:
    finished = subprocess.run([fake, "1", "1000", "0", *words], capture_output=True, text=True, check=False)
    assert finished.returncode == wire.EXIT_STATUS
    assert finished.stderr.count("\n") == 1
    return finished.stderr.removeprefix("wire: node ")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("shm=/nowhere/x,nodes=2", "0: cannot open shared memory at /nowhere/x: No such file or directory\n"),
        ("nodes=2", "0: shm=PATH is missing\n"),
        ("node=2,nodes=2", "2: node=2 is not one of nodes=2\n"),
        ("nodes=17", "0: nodes needs a whole number from 1 to 16, not '17'\n"),
        ("delay=10ns", "0: delay needs a whole number from 0 to 1000000000, not '10ns'\n"),
        ("hub=1", "0: unknown argument 'hub'\n"),
        ("delay=100", "0: delay and rate let a frame arrive after 100 ns; the wire needs 600 ns at least\n"),
    ],
)
def test_wrong_arguments_are_named(fake: Path, words: str, reason: str) -> None:
    assert refused(fake, words.split(",")) == reason


def test_the_host_can_see_the_progress_of_all_machines(fake: Path) -> None:
    with wire.shared_memory() as memory:
        assert wire.reached_ns(memory) == 0, "no machine has joined"
        began: list[subprocess.Popen[str]] = []
        for node in range(2):
            words = [f"shm={memory}", f"node={node}", "nodes=2", "delay=2000"]
            began.append(
                subprocess.Popen([fake, "1", str(_FOR_EVER_NS), "1", *words], stderr=subprocess.PIPE, text=True)
            )
        wait_until_joined(began)
        seen = 0
        for _ in range(3):
            while (reached := wire.reached_ns(memory)) <= seen:
                assert [machine.poll() for machine in began] == [None, None]
            seen = reached
        began[1].send_signal(signal.SIGSTOP)
        _, stderr = began[0].communicate(timeout=_WAIT_S)
        assert "was stopped by a signal" in stderr
        held_ns = wire.reached_ns(memory)
        assert seen <= held_ns < _FOR_EVER_NS, "the stopped machine blocks the others, not the one that has left"
        began[1].kill()
        began[1].communicate()


def test_memory_of_another_cluster_is_refused(fake: Path) -> None:
    with started(fake, 2, "delay=2000", 1, _FOR_EVER_NS) as machines, wire.shared_memory() as memory:
        assert machines
        other = [f"shm={memory}", "node=0", "nodes=3"]
        with subprocess.Popen([fake, "1", "1", "0", *other], stderr=subprocess.PIPE, text=True) as first:
            while "wire" not in Path(f"/proc/{first.pid}/maps").read_text():
                assert first.poll() is None
            assert "node 0 has already joined" in refused(fake, other)
            assert "belongs to another cluster (it has 3 nodes" in refused(fake, [*other[:2], "nodes=2"])
            first.kill()


def test_full_shared_memory_is_an_error_and_not_a_crash(fake: Path, tmp_path: Path) -> None:
    script = f"trap '' XFSZ; ulimit -f 8; exec {fake} 1 1000 0 shm={tmp_path}/memory nodes=2"
    finished = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == wire.EXIT_STATUS
    assert "KiB of shared memory at" in finished.stderr


def test_a_named_file_is_removed_when_all_have_joined(fake: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    argv = [[fake, "1", "1000", "0", f"shm={memory}", f"node={node}", "nodes=2"] for node in (0, 1)]
    with subprocess.Popen(argv[0]) as one, subprocess.Popen(argv[1]) as two:
        assert (one.wait(_WAIT_S), two.wait(_WAIT_S)) == (0, 0)
    assert not memory.exists()
