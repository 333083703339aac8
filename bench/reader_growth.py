"""Does any reader of foreign bytes take more than 1 s per MB, or time out of proportion? Inputs are grown and doubled.

    python bench/reader_growth.py [READER...]

Each input that is kept for a reader (`tests/data/fuzz` and shipped files) is cut into lines, words and single marks;
each distinct one is repeated in its place until the input has 32 KiB. What then takes 2 ms of processor time or more is
compared with its length of 64, 128 and 256 KiB, the least of five calls each; what seems to grow too fast is doubled
once more, since memory that no longer fits a cache looks like growth, once. A table shows for each reader how many
inputs were grown, the slowest in s of processor time per MB, and the fastest growth from 128 to 256 KiB. Exit code 4:
a reader takes more than 1 s per MB (the median of five calls) or grows more than 3 times. An error that a reader must
not raise ends the bench.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from support.goals import ended, short_of

sys.path.insert(0, os.fspath(Path(__file__).parents[1]))
from tests.fuzz_readers import NAMES, inputs, reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROWN_BYTES = 32 << 10
MOST_UNITS = 400
"""Of one input: spread evenly over it where there are more."""
SUSPECT_NS = 2_000_000
"""What takes less is mostly the call itself."""
GROWTH_LIMIT = 3.0
SLOW_LIMIT = 1.0
"""Seconds of processor time a MB."""
_UNITS = tuple(map(re.compile, (rb"[^\n]*\n", rb"[^\s\w]*\w+\W*", rb"\W")))


class Grown(NamedTuple):
    """An input of which one piece is repeated."""

    source: Path
    head: bytes
    unit: bytes
    tail: bytes

    def at(self, size: int) -> bytes:
        """Return it with at least `size` bytes."""
        missing = size - len(self.head) - len(self.tail)
        return self.head + self.unit * max(1, -(-missing // len(self.unit))) + self.tail


def grown(path: Path) -> Iterator[Grown]:
    """Yield an input with each distinct line, word and mark repeated in its place; numbers are all alike."""
    data = path.read_bytes()[: GROWN_BYTES // 4]
    seen = {data: (0, len(data))} if data else {}
    for found in itertools.chain.from_iterable(unit.finditer(data) for unit in _UNITS):
        seen.setdefault(re.sub(rb"[0-9]+", b"0", found[0]), found.span())
    places = list(seen.values())
    for start, end in places[:: max(1, len(places) // MOST_UNITS)]:
        yield Grown(path, data[:start], data[start:end], data[end:])


def took_ns(feed: Callable[[bytes], object], data: bytes, calls: int) -> list[int]:
    """Return the processor time of some calls, in order."""
    took = []
    for _ in range(calls):
        began = time.process_time_ns()
        feed(data)
        took.append(time.process_time_ns() - began)
    return sorted(took)


def measure(name: str) -> list[str]:
    """Print a row of the table; return what the reader misses."""
    feed, count, slowest, fastest, of = reader(name), 0, 0.0, 0.0, ""
    for path in inputs(name):  # imports what readers import late
        feed(path.read_bytes())
    for one in itertools.chain.from_iterable(map(grown, inputs(name))):
        count += 1
        data = one.at(GROWN_BYTES)
        spent_ns = took_ns(feed, data, 2)[0]
        if spent_ns / 1e3 / len(data) > slowest:  # us per byte are s per MB
            slowest = max(slowest, statistics.median(took_ns(feed, data, 5)) / 1e3 / len(data))
        if spent_ns < SUSPECT_NS or took_ns(feed, one.at(2 * GROWN_BYTES), 2)[0] < 2.5 * spent_ns:
            continue
        least = [took_ns(feed, one.at(times * GROWN_BYTES), 5)[0] for times in (4, 8)]
        growth = least[1] / least[0]
        if growth > GROWTH_LIMIT:
            growth = min(growth, took_ns(feed, one.at(16 * GROWN_BYTES), 5)[0] / least[1])
        if growth > fastest:
            fastest, of = growth, f"{one.unit[:40]!r} in {one.source.name}"
    print(f"| {name} | {count} | {slowest:.2f} | {f'{fastest:.1f} of {of}' if of else 'in proportion'} |", flush=True)
    return short_of(f"{name}: growth", fastest, GROWTH_LIMIT) + short_of(
        f"{name}: slowest", slowest, SLOW_LIMIT, " s per MB"
    )


def main() -> int:
    """Grow the inputs of the named readers, or of all."""
    print("| reader | inputs | slowest, s per MB | fastest growth at twice the length |")
    return ended([one for name in sys.argv[1:] or NAMES for one in measure(name)])


if __name__ == "__main__":
    sys.exit(main())
