"""Shared by the recorder's tests: it runs without MPI, built with sanitizers, fed from a script."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal import native, process
from nearmetal.predict.trace import DoCall, DoGap, RankTrace, Repeat, Step
from nearmetal.predict.trace_file import decode_rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nearmetal.process import Finished

CORE = ("bytes.c", "gaps.c", "program.c", "recorder.c", "requests.c", "tables.c")
SANITIZED = ("-D_GNU_SOURCE", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
TIMEOUT_S = 600.0


@functools.cache
def driver(*flags: str) -> Path:
    """Return the driver program, built with sanitizers and these flags."""
    return native.build(
        native.Recipe(
            name="trace-drive", room="trace", files=("tests/drive.c", *CORE), extra_flags=(*SANITIZED, *flags)
        )
    )


@dataclass(frozen=True, slots=True)
class Event:
    """One call as the recorder gets it, after `gap_ns` of computing."""

    kind: int
    peer: int = -1
    message_bytes: int = 0
    code: int = 1
    gap_ns: int = 10
    inside_ns: int = 5
    list_length: int = -1


def script(events: Sequence[Event]) -> str:
    """Return the driver's input."""
    lines, now_ns = [], 1_000
    for event in events:
        enter_ns = now_ns + event.gap_ns
        now_ns = enter_ns + event.inside_ns
        lines.append(
            f"call {event.kind} {event.peer} {event.message_bytes} {event.list_length} {event.code} {enter_ns} {now_ns}"
        )
    return "\n".join(lines)


def drive(folder: Path, text: str, *flags: str, part: str = "") -> Finished:
    """Run a script; the file is `folder`/rank.nmtrace."""
    argv = [str(driver(*flags)), "record", part or str(folder / "part"), str(folder / "rank.nmtrace")]
    return process.run(argv, stdin=text.encode(), timeout_s=TIMEOUT_S, cwd=str(folder))


def recorded(folder: Path, text: str, *flags: str) -> RankTrace:
    """Run a script and read what it wrote."""
    finished = drive(folder, text, *flags)
    assert finished.ok, finished.complaint()
    return decode_rank((folder / "rank.nmtrace").read_bytes())


def expand(program: Sequence[Step]) -> Iterator[DoCall | DoGap]:
    """Yield every step with all repeats carried out."""
    for step in program:
        if isinstance(step, Repeat):
            for _ in range(step.count):
                yield from expand(step.body)
        else:
            yield step
