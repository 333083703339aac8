"""Every reader of foreign bytes, for the fuzzer (`make fuzz`) and for the corpus that the suite replays.

A reader takes any bytes: it returns, or raises an error of nearmetal's own. Started as a program with the name of a
reader, it searches by coverage (atheris, libFuzzer's options follow the name).
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = Path(__file__).parent / "data" / "fuzz"
_SHIPPED = Path(__file__).parent


def _foreign(data: bytes) -> object:
    from nearmetal.workloads.foreign import read_foreign

    return read_foreign(data)


def _tools(data: bytes) -> object:
    from nearmetal.workloads.tool_samples import DECODERS

    kinds = list(DECODERS)
    operation = ("tcp_stream", "tcp_round_trip", "ib_write_lat", "latency")[data[1] % 4 if len(data) > 1 else 0]
    return DECODERS[kinds[data[0] % len(kinds) if data else 0]](data[2:], operation)


def _samples(data: bytes) -> object:
    from nearmetal.workloads.sample_file import read_sample_file, to_cell_samples

    return to_cell_samples(read_sample_file(data))


def _fabric(data: bytes) -> object:
    from nearmetal.workloads.fabric_file import read_fabric_file

    return read_fabric_file(data).phase_of_rows()


def _trace(data: bytes) -> object:
    from nearmetal.predict.schedule import schedule_from_trace
    from nearmetal.predict.trace import Trace
    from nearmetal.predict.trace_file import decode_rank

    return schedule_from_trace(Trace((decode_rank(data),)))


def _trace_program(data: bytes) -> object:
    """The parts of a trace behind the check sums, which no mutation would get past."""
    from nearmetal.errors import ForeignFileError
    from nearmetal.predict import trace_file

    cut = [data[i * len(data) // 4 : (i + 1) * len(data) // 4] for i in range(4)]
    try:
        lists = trace_file._read_lists(cut[0])
        comms = trace_file._read_communicators(cut[1], lists, 4)
        calls = trace_file._read_calls(cut[2], len(lists), comms)
        return trace_file._read_program(cut[3], max(len(calls), 4), 4), trace_file._read_gaps(cut[2])
    except (trace_file._Damaged, ValueError) as error:  # as `decode_rank` does
        raise ForeignFileError(str(error)) from error


def _kernel_trace(data: bytes) -> object:
    from nearmetal.facts.ftrace import read_trace

    half = len(data) // 2
    return read_trace({"trace/formats": data[:half], "trace/cpu0": data[half:].ljust(4096, b"\0")[:4096]})


def _study(data: bytes) -> object:
    from nearmetal.study.spec import parse_study

    return parse_study(data.decode(errors="replace"), "fuzz")


def _record(data: bytes) -> object:
    from nearmetal.study.order import Order, Outcome

    text = data.decode(errors="replace")
    return Order.from_json(text) if data[:1] == b" " else Outcome.from_json(text, {})


def _guests(data: bytes) -> object:
    from nearmetal.facts.guests import parse_domain

    return parse_domain(data.decode(errors="replace"))


def _in_a_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    folder = tempfile.TemporaryDirectory(prefix="nm-fuzz-")
    atexit.register(folder.cleanup)
    place = Path(folder.name) / "input"

    def reader(data: bytes) -> object:
        place.write_bytes(data)
        return read(place)

    return reader


def _profile(path: Path) -> object:
    from nearmetal.tune.export.table import EXPORTS
    from nearmetal.tune.profile import Profile

    profile = Profile.read(path)
    return [made(profile) for made in EXPORTS.values()]


def _model(path: Path) -> object:
    from nearmetal.predict.models import read_model

    return read_model(path)


def _pattern(path: Path) -> object:
    from nearmetal.predict.patterns import read_pattern, schedule_from_pattern

    pattern = read_pattern(path)
    return schedule_from_pattern(pattern) if pattern.ranks <= 64 else pattern


def _bundle(path: Path) -> object:
    from nearmetal.store.bundle import read_bundle

    return read_bundle(path, 1 << 20)


READERS: dict[str, Callable[[bytes], object]] = {
    "foreign": _foreign,
    "tools": _tools,
    "samples": _samples,
    "fabric": _fabric,
    "trace": _trace,
    "trace-program": _trace_program,
    "kernel-trace": _kernel_trace,
    "study": _study,
    "record": _record,
    "guests": _guests,
}
OF_FILES: dict[str, Callable[[Path], object]] = {
    "profile": _profile,
    "model": _model,
    "pattern": _pattern,
    "bundle": _bundle,
}
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

    read = READERS[name] if name in READERS else _in_a_file(OF_FILES[name])

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


def main() -> None:
    """Search: `python tests/fuzz_readers.py READER [libFuzzer's options] [directory of new inputs]`."""
    if sys.argv[1:] == ["--list"]:
        sys.stdout.write(" ".join((*READERS, *OF_FILES)) + "\n")
        return
    import atheris

    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["nearmetal"]):
        feed = reader(name)
        for path in inputs(name):  # imports what readers import late
            feed(path.read_bytes())
    seeds = [str(path.parent) for path in inputs(name)]
    atheris.Setup([*sys.argv, *dict.fromkeys(seeds)], feed)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parents[1]))
    main()
