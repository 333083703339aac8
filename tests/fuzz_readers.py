"""Every reader of foreign bytes, for the fuzzer (`make fuzz`) and for the corpus that the suite replays.

A reader accepts any bytes: it returns, or raises an error of nearmetal's own. Started as a program with the name of a
reader, it fuzzes by coverage (atheris, libFuzzer's options follow the name), and prints a summary at the end.
"""

from __future__ import annotations

import atexit
import hashlib
import mmap
import os
import re
import resource
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = Path(__file__).parent / "data" / "fuzz"
_SHIPPED = Path(__file__).parent
_MEMORY = Path("/dev/shm")


def _foreign(data: bytes) -> object:
    from nearmetal.workloads.samples import read_foreign

    return read_foreign(data)


def _tools(data: bytes) -> object:
    """Output files of a launch's clients, under the name of every tool: each quickly refuses other tools' output."""
    from nearmetal.workloads.samples import DECODERS, decode_tools

    operation = ("tcp_stream", "tcp_round_trip", "ib_write_lat", "latency", "none")[len(data) % 5]
    for kind in DECODERS:
        _refused(lambda data, kind=kind: decode_tools({f"{kind}:{operation}:8:0:0": data}), data)  # type: ignore[misc]
    return None


def _refused(read: Callable[[bytes], object], data: bytes) -> None:
    """Feed bytes as they are, mostly with a wrong checksum, before they are fed with the right one."""
    from nearmetal.errors import NearmetalError

    try:
        read(data)
    except NearmetalError as error:
        error.render()


def _framed(data: bytes) -> bytes:
    """Give a sample or fabric file the trailer that matches its bytes."""
    body = data[:-24]
    return body + struct.pack("<8sQII", b"NMTRAILR", len(body), zlib.crc32(body), 0)


def _samples(data: bytes) -> object:
    from nearmetal.workloads.sample_file import read_sample_file, to_cell_samples

    _refused(read_sample_file, data)
    return to_cell_samples(read_sample_file(_framed(data)))


def _fabric(data: bytes) -> object:
    from nearmetal.workloads.fabric_file import read_fabric_file

    _refused(read_fabric_file, data)
    return read_fabric_file(_framed(data)).phase_of_rows()


def _checked(data: bytes) -> bytes:
    """Give a trace's header, sections and end the checksums that match their bytes."""
    made, at = bytearray(data), 64
    made[60:64] = struct.pack("<I", zlib.crc32(data[:60]))
    while at + 16 <= len(made):
        size = int.from_bytes(made[at + 8 : at + 16], "little")
        if made[at : at + 4] == b"END ":
            made[at + 16 : at + 28] = struct.pack("<IQ", zlib.crc32(made[:at]), at)
        made[at + 4 : at + 8] = struct.pack("<I", zlib.crc32(made[at + 16 : at + 16 + size]))
        at += 16 + size
    return bytes(made)


def _trace(data: bytes) -> object:
    from nearmetal.predict.schedule_from_trace import schedule_from_trace
    from nearmetal.predict.trace import Trace
    from nearmetal.predict.trace_file import decode_rank

    _refused(decode_rank, data)
    return schedule_from_trace(Trace((decode_rank(_checked(data)),)))


def _trace_program(data: bytes) -> object:
    """The parts of a trace behind the checksums, which no mutation would pass."""
    from nearmetal.errors import ForeignFileError
    from nearmetal.predict import trace_file

    cut = [data[i * len(data) // 4 : (i + 1) * len(data) // 4] for i in range(4)]
    try:
        lists = trace_file._read_lists(cut[0])
        comms = trace_file._read_communicators(cut[1], lists, 4)
        calls = trace_file._read_calls(cut[2], len(lists), comms)
        return trace_file._read_program(cut[3], max(len(calls), 4), 4), trace_file._read_gaps(cut[2])
    except (trace_file._DamagedError, ValueError) as error:  # as `decode_rank` does
        raise ForeignFileError(str(error)) from error


def _kernel_trace(data: bytes) -> object:
    from nearmetal.facts.ftrace import read_trace

    half = len(data) // 2
    return read_trace({"trace/formats": data[:half], "trace/cpu0": data[half:].ljust(4096, b"\0")[:4096]})


def _study(data: bytes) -> object:
    from nearmetal.study.spec import parse_study

    return parse_study(data.decode(errors="replace"), "fuzz")


def _order(data: bytes) -> object:
    from nearmetal.study.order import Order, Outcome

    text = data.decode(errors="replace")
    return Order.from_json(text) if data[:1] == b" " else Outcome.from_json(text, {})


def _guests(data: bytes) -> object:
    from nearmetal.facts.guests import parse_domain

    return parse_domain(data.decode(errors="replace"))


def _programs(data: bytes) -> object:
    from nearmetal.workloads.command import figures_ns

    kind = data[0] % 3 if data else 0
    asked = ({"figure": "wall"}, {"figure": "json", "path": "a.*.0"}, {"figure": "regex", "pattern": "([0-9.]+) us"})
    return figures_ns({**asked[kind], "unit": "us"}, {"programs.json": data[1:], "command.output": data[1:]})


def _in_a_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a reader of bytes for a reader of a path: the file is in memory, which avoids writing to a disk."""
    file = os.memfd_create("input")
    atexit.register(os.close, file)

    def reader(data: bytes) -> object:
        os.ftruncate(file, 0)
        os.pwrite(file, data, 0)
        return read(Path(f"/proc/self/fd/{file}"))

    return reader


def _in_a_folder(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a reader of bytes for a reader of a path in a private folder."""
    folder = tempfile.TemporaryDirectory(prefix="nm-fuzz-")
    atexit.register(folder.cleanup)
    pid = os.getpid()

    def reader(data: bytes) -> object:
        place = Path(folder.name) / ("input" if os.getpid() == pid else f"input-{os.getpid()}")
        place.write_bytes(data)
        return read(place)

    return reader


_SEALED = re.compile(rb'\{\n "sha256": "[0-9a-f]{64}",\n')


def _with_its_seal(data: bytes) -> bytes:
    """Give a sealed document the digest that matches its bytes."""
    if not (head := _SEALED.match(data)):
        return data
    rest = data[head.end() :]
    return b'{\n "sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest


def _under_its_name(path: Path) -> object:
    """Read the record of a trial under the name that it gives itself."""
    from nearmetal.store.record import read_record, trial_name

    data = path.read_bytes()
    numbers = [re.search(rb'"%s": ([0-9]{1,9})[,\n]' % field, data) for field in (b"trial", b"attempt")]
    place = path.with_name(trial_name(*(int(found[1]) if found else 1 for found in numbers)) + ".json")
    try:
        path.replace(place)
        _refused(lambda _: read_record(place), data)
        place.write_bytes(_with_its_seal(data))
        return read_record(place)
    finally:
        place.unlink()


def _run(path: Path) -> object:
    """Read the document of a run, and the list of its records: the bytes after the first empty line, with correct hash
    chains.
    """
    from nearmetal.store.listing import LIST, read_list
    from nearmetal.store.rundir import RunDir

    marker, _, listed = path.read_bytes().partition(b"\n\n")
    root = path.with_name("run")
    root.mkdir(exist_ok=True)
    chain, lines = "", []
    for line in listed.splitlines():
        head, blank, rest = line.partition(b" ")
        if not blank:  # no hash makes it a valid line, and hashing so many takes longer than reading them
            lines.append(line + b"\n")
            continue
        chain = hashlib.sha256(chain.encode() + b" " + rest + b"\n").hexdigest()
        lines.append((chain.encode() if len(head) == len(chain) else head) + b" " + rest + b"\n")
    for content in (listed, b"".join(lines)):
        (root / LIST).write_bytes(content)
        _refused(lambda _: read_list(root / LIST), content)
    (root / "run.json").write_bytes(_with_its_seal(marker))
    return RunDir.open(root).info


def _journal(path: Path) -> object:
    """Read a journal whose lines have matching checksums."""
    from nearmetal.knobs.journal import _frame, read_state

    path.chmod(0o600)
    data, chain, lines = path.read_bytes(), 0, []
    _refused(lambda _: read_state(path), data)
    for body in data.splitlines():
        chain = zlib.crc32(body, chain)
        lines.append(_frame(body, chain))
    path.write_bytes(b"".join(lines))
    state = read_state(path)
    return [state.on(name) for name in state.waiting], [(state.ours(c), state.unseen(c)) for c in state.cells.values()]


def _executable(path: Path) -> object:
    from nearmetal.predict.elf import read_executable

    return read_executable(path)


def _profile(path: Path) -> object:
    from nearmetal.tune.export.table import EXPORTS
    from nearmetal.tune.profile import Profile

    profile = Profile.read(path)
    return [made(profile) for made in EXPORTS.values()]


def _model(path: Path) -> object:
    from nearmetal.predict.model_file import read_model

    return read_model(path)


def _pattern(path: Path) -> object:
    from nearmetal.predict.patterns import read_pattern, schedule_from_pattern

    pattern = read_pattern(path)
    return schedule_from_pattern(pattern) if pattern.ranks <= 64 else pattern


def _bundle(path: Path) -> object:
    from nearmetal.store.bundle import read_bundle

    return read_bundle(path, 1 << 20)


def _archive(path: Path) -> object:
    from nearmetal.store.archive import unarchive

    with tempfile.TemporaryDirectory(prefix="nm-fuzz-") as folder:
        return unarchive(path, Path(folder) / "run")


def _machine(path: Path) -> object:
    from nearmetal.predict.machine_file import read_changes
    from nearmetal.predict.models import UNBOUNDED, Machine, NamedMachine, PathModel, Segment

    path_model = PathModel((Segment(UNBOUNDED, 1000),))
    return read_changes(path).apply(NamedMachine("a", "", "", Machine(None, path_model)))


def _hosts(path: Path) -> object:
    from nearmetal.study.shipped import read_nodes

    return read_nodes(path)


READERS: dict[str, Callable[[bytes], object]] = {
    "foreign": _foreign,
    "tools": _tools,
    "samples": _samples,
    "fabric": _fabric,
    "trace": _trace,
    "trace-program": _trace_program,
    "kernel-trace": _kernel_trace,
    "study": _study,
    "order": _order,
    "guests": _guests,
    "programs": _programs,
}
OF_FILES: dict[str, Callable[[Path], object]] = {
    "profile": _profile,
    "model": _model,
    "pattern": _pattern,
    "bundle": _bundle,
    "archive": _archive,
    "machine": _machine,
    "hosts": _hosts,
    "executable": _executable,
}
OF_FOLDERS: dict[str, Callable[[Path], object]] = {"record": _under_its_name, "run": _run, "journal": _journal}
NAMES = (*READERS, *OF_FILES, *OF_FOLDERS)
SEEDS: dict[str, tuple[str, ...]] = {
    "foreign": ("data/tools/*",),
    "tools": ("data/tools/*",),
    "samples": ("golden/*.nmb",),
    "fabric": ("golden/*.nmf",),
    "trace": ("golden/*.nmtrace",),
    "trace-program": ("golden/*.nmtrace",),
    "kernel-trace": ("golden/*.nmtrace",),
    "study": ("../studies/*.toml",),
    "bundle": ("golden/*.zip",),
    "guests": ("data/domain-*.xml",),
}
"""Files of the repository that a search begins with, besides the reader's own corpus."""


def reader(name: str) -> Callable[[bytes], object]:
    """Return a reader that raises only what it must not raise."""
    from nearmetal.errors import NearmetalError

    in_a = _in_a_file if name in OF_FILES else _in_a_folder
    read = READERS[name] if name in READERS else in_a({**OF_FILES, **OF_FOLDERS}[name])

    def feed(data: bytes) -> None:
        try:
            read(data)
        except NearmetalError as error:
            error.render()

    return feed


def inputs(name: str) -> list[Path]:
    """Return the inputs that are kept for a reader, shipped files first."""
    shipped = [path for pattern in SEEDS.get(name, ()) for path in sorted(_SHIPPED.glob(pattern)) if path.is_file()]
    return shipped + sorted((CORPUS / name).glob("*"))


_LARGE_BYTES = 4096
"""The slowest input is looked for among those of at least so many: of a smaller one the call itself is the time."""


class _Seen:
    """How many inputs a search has fed, and the slowest in processor seconds per megabyte, in shared memory."""

    def __init__(self, options: list[str]) -> None:
        prefix = [option.partition("=")[2] for option in options if option.startswith("-artifact_prefix=")]
        self.keep = Path(f"{prefix[-1]}slowest") if prefix else None
        self.inputs = memoryview(mmap.mmap(-1, 8)).cast("q")
        self.slowest = memoryview(mmap.mmap(-1, 8)).cast("d")

    def watched(self, feed: Callable[[bytes], object]) -> Callable[[bytes], None]:
        def fed(data: bytes) -> None:
            began_ns = time.process_time_ns()
            feed(data)
            self.inputs[0] += 1
            took = (time.process_time_ns() - began_ns) / 1e3 / max(len(data), 1)  # us per byte are s per MB
            if len(data) >= _LARGE_BYTES and took > self.slowest[0]:
                self.slowest[0] = took
                if self.keep:
                    self.keep.write_bytes(data)

        return fed


def _search(name: str, seen: _Seen, options: list[str]) -> None:
    """Search until libFuzzer ends this process."""
    import atheris

    with atheris.instrument_imports(include=["nearmetal", "tomllib", "zipfile"]):
        feed = reader(name)
        for path in inputs(name):  # loads modules that readers import late
            feed(path.read_bytes())
    seeds = [str(path.parent) for path in inputs(name)]
    atheris.Setup([name, *options, *dict.fromkeys(seeds)], seen.watched(feed))
    atheris.Fuzz()


def main() -> int:
    """Search: `python tests/fuzz_readers.py READER [libFuzzer's options] [directory of new inputs]`.

    The last line is `| reader | inputs | uncaught | slowest, s per MB | peak, MiB |`.
    """
    if sys.argv[1:] == ["--list"]:
        sys.stdout.write(" ".join(NAMES) + "\n")
        return 0
    name, seen = sys.argv[1], _Seen(sys.argv[2:])
    with tempfile.TemporaryDirectory(prefix="nm-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        os.environ["TMPDIR"] = folder
        child = os.fork()
        if child == 0:
            _search(name, seen, sys.argv[2:])
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    sys.stdout.write(f"| {name} | {seen.inputs[0]} | {int(ended != 0)} | {seen.slowest[0]:.2f} | {peak_mib} |\n")
    return int(ended != 0)


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parents[1]))
    sys.exit(main())
