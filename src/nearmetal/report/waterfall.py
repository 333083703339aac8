"""Waterfalls for a terminal: every path and setting on one axis of time, and what each part adds to the baseline."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from nearmetal.facts.waterfall import PARTS
from nearmetal.report import words
from nearmetal.report.axes import Scale, linear
from nearmetal.report.tables import Table, aligned
from nearmetal.results.waterfalls import WORST_RESIDUE, Waterfall
from nearmetal.stats.interval import Interval
from nearmetal.units import NS_PER_US, as_percent, format_size, wrapped

_WIDTH = 80
_NARROWEST, _LEAST_BAR = 30, 36
_LANES = 4
"""How many lanes a table of a terminal holds beside each other."""
_FEWEST_PARTS = 4
_ROWS_BESIDE = 6
"""Lines of a table beside its parts: its head, in two lines if it must be, three figures and its note."""
LETTERS = dict(zip(PARTS, "PsvwdMirRWp?", strict=True))
"""The letter of each part in a bar."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One path under one setting, and the baseline path under the same, None where it is or has no baseline."""

    of: Waterfall
    base: Waterfall | None

    @property
    def name(self) -> str:
        """Return what the lane is of."""
        return f"{self.of.path}, {self.of.setting}"

    def added_ns(self, part: str) -> float:
        """Return what a part takes more than on the baseline; 0 without one."""
        return self.of.parts_ns.get(part, 0.0) - self.base.parts_ns.get(part, 0.0) if self.base else 0.0

    @property
    def most_added(self) -> str | None:
        """Return the part that adds most, None where none adds anything."""
        part = max(PARTS, key=self.added_ns)
        return part if self.added_ns(part) > 0 else None


def by_size(found: Sequence[Waterfall], baseline: str) -> list[tuple[str, list[Lane]]]:
    """Return lanes that belong on one axis, with what they are of: a workload and a size."""

    def key(one: Waterfall) -> tuple[str, int]:
        return (one.workload, one.message_bytes)

    order = list(dict.fromkeys(map(key, found)))
    together = groupby(sorted(found, key=lambda one: order.index(key(one))), key)
    return [(f"{format_size(size)} ({workload})", _lanes(list(ones), baseline)) for (workload, size), ones in together]


def _lanes(found: list[Waterfall], baseline: str) -> list[Lane]:
    bases = {one.setting: one for one in found if one.path == baseline}
    return [Lane(one, bases.get(one.setting) if one.path != baseline else None) for one in found]


def sentences(lanes: Sequence[Lane]) -> list[str]:
    """Return the answer, a sentence a lane, and what a reader must know of the figures."""
    return [*_answers(lanes), *_cautions(lanes)]


def _answers(lanes: Sequence[Lane]) -> list[str]:
    lines = [_answer(lane) for lane in lanes if lane.base]
    if lines:
        return lines
    worst = max(lanes, key=lambda lane: lane.of.mean_ns)
    part = max(worst.of.parts_ns, key=lambda name: worst.of.parts_ns[name])
    return [
        f"The longest part of {worst.name}, {as_percent(worst.of.parts_ns[part] / worst.of.mean_ns)} of it, is {part}."
    ]


def _cautions(lanes: Sequence[Lane]) -> list[str]:
    once = [lane for lane in lanes if lane.base and len(lane.of.blocks.keys() & lane.base.blocks.keys()) < 2]
    off = [lane for lane in lanes if lane.of.residue > WORST_RESIDUE]
    return [
        *(["CAUTION: no interval from one block: launches of another may differ as much."] if once else []),
        *(
            f"CAUTION: the parts of {lane.name} miss the measured time by {as_percent(lane.of.residue, 1)}."
            for lane in off
        ),
    ]


def _answer(lane: Lane) -> str:
    assert lane.base
    more_ns, span = lane.of.mean_ns - lane.base.mean_ns, lane.of.more_ns(lane.base)
    takes = f"{us(abs(more_ns))} us{_ends(span, more_ns)} {'more' if more_ns > 0 else 'less'}"
    if span and span.contains(0.0):
        return f"{lane.name} is not shown to differ from {lane.base.path}: {takes}."
    start = f"{lane.name} takes {takes} than {lane.base.path}"
    part = lane.most_added
    if more_ns <= 0 or not part:
        return f"{start}."
    of_part = lane.of.more_ns(lane.base, part)
    shown = "" if of_part is None or of_part.low > 0 else ", which is not shown"
    return f"{start}: {us(lane.added_ns(part))} us{_ends(of_part, 1.0)} more in {part}{shown}."


def _ends(span: Interval | None, sign: float) -> str:
    """Return an interval of differences after their mean, of how much less where `sign` is negative."""
    ends = sorted(math.copysign(1.0, sign) * end for end in (span.low, span.high)) if span else []
    return f" [{', '.join(map(us, ends))}]" if ends else ""


def us(ns: float) -> str:
    """Return microseconds with three significant digits or more."""
    return f"{ns / NS_PER_US:.{min(3, words.decimals(ns / NS_PER_US, 3))}f}"


def table(lanes: Sequence[Lane], most: int = len(PARTS)) -> Table:
    """Return the mean time of every part, and the difference to the baseline; `*` marks the part that adds most.

    Of more parts than `most`, the shortest are left out, and a row says how many.
    """
    parts = [part for part in PARTS if any(part in lane.of.parts_ns for lane in lanes)]
    longest = sorted(parts, key=lambda part: -max(lane.of.parts_ns.get(part, 0.0) for lane in lanes))
    kept = longest if len(parts) <= most else longest[: most - 1]
    rows = [(f"{LETTERS[part]}  {part}", *(_time(lane, part) for lane in lanes)) for part in parts if part in kept]
    if short := [part for part in parts if part not in kept]:
        sums = (sum(lane.of.parts_ns.get(part, 0.0) for part in short) for lane in lanes)
        more = (" " * len(" +0000.00*") if lane.base else "" for lane in lanes)
        rows.append((f"   {len(short)} shorter parts", *(f"{us(ns)}{gap}" for ns, gap in zip(sums, more, strict=True))))
    rows.append(("   sum", *(_sum(lane) for lane in lanes)))
    rows.append(("   p99", *(us(lane.of.p99.measured_ns / 2) for lane in lanes)))
    rows.append(("   untraced mean", *(us(ns) if (ns := lane.of.untraced_ns) else "not known" for lane in lanes)))
    note = "Means of one traced message, then against the baseline; * marks what adds most."
    return Table("Times of the parts, us", ("part", *(lane.name for lane in lanes)), tuple(rows), note)


def _time(lane: Lane, part: str) -> str:
    ns = lane.of.parts_ns.get(part)
    own = words.NOTHING if ns is None else us(ns)
    if lane.base is None:
        return own
    return f"{own} {lane.added_ns(part) / NS_PER_US:+z7.2f}{'*' if part == lane.most_added else ' '}"


def _sum(lane: Lane) -> str:
    more = f" {(lane.of.mean_ns - lane.base.mean_ns) / NS_PER_US:+z7.2f} " if lane.base else ""
    return f"{us(lane.of.mean_ns)}{more}"


def as_text(found: Sequence[Waterfall], baseline: str, host_label: str, height: int = 40, columns: int = _WIDTH) -> str:
    """Return the first workload and size for a terminal: below `height` lines where it can, 80 columns at most.

    Parts that do not fit are summed up, the shortest of them, but for the longest three. In less than 80 columns a
    table may be several, one below the other.
    """
    width = max(_NARROWEST, min(columns, _WIDTH))
    (of, lanes), *others = by_size(found, baseline)
    trips = sorted({len(lane.of.trips) for lane in lanes[:_LANES]})
    counts = f"{trips[0]} to {trips[-1]}" if len(trips) > 1 else f"{trips[0]}"
    title = f"Where one message of {of} spends its time: {counts} traced round trips each"
    said = _folded([*_answers(lanes)[:_LANES], *_cautions(lanes)], width)
    lines = [*_folded([title], width), "", *said, "", *_bars(lanes, width), ""]
    last = []
    if len(lanes) > _LANES:
        last.append(f"{len(lanes) - _LANES} more lanes: choose with --path and --setting.")
    if others:
        last.append(f"Also traced, see --size and --workload: {', '.join(other for other, _ in others)}.")
    last = _folded([*last, f"Figures from {host_label}."], width)
    room = height - 1 - len(lines) - len(last) - _ROWS_BESIDE
    of_parts = table(lanes[:_LANES], max(_FEWEST_PARTS, room))
    drawn = [*_drawn(of_parts, width), *_folded([of_parts.note], width)]
    return "\n".join([*lines, *drawn, *last]) + "\n"


def _folded(sentences: Sequence[str], width: int) -> list[str]:
    return [line for one in sentences for line in wrapped(one, width)]


def _bars(lanes: Sequence[Lane], width: int) -> list[str]:
    """Return the bars on their axis, beside their names, or below them where too little room is left beside them."""
    beside = max(len(lane.name) for lane in lanes) + 2
    left = beside if beside <= width - _LEAST_BAR else 0
    axis = linear(0.0, max(lane.of.mean_ns for lane in lanes) / NS_PER_US, left, width - 8)
    figures, ticks = [" "] * (width + 8), [" "] * (width + 1)
    free = 0
    for value, label in axis.ticks:
        at = round(axis(value))
        text = f"{label} us" if value == axis.high else label
        if at >= free:
            figures[at : at + len(text)] = text
            ticks[at] = "|"
            free = at + len(text) + 1
    drawn = [(lane.name, _bar(lane.of, axis)) for lane in lanes]
    return [
        "".join(figures).rstrip(),
        "".join(ticks).rstrip(),
        *(
            line
            for name, bar in drawn
            for line in ([f"{name:<{left}}{bar}"] if left else [*_folded([name], width), bar])
        ),
    ]


def _bar(one: Waterfall, axis: Scale) -> str:
    """Return the parts as runs of letters, each as long as its time."""
    drawn, at_ns = "", 0.0
    for part, ns in one.parts_ns.items():
        at_ns += ns
        drawn += LETTERS[part] * (round(axis(at_ns / NS_PER_US) - axis.start) - len(drawn))
    return drawn


def _drawn(of: Table, width: int) -> list[str]:
    """Return a table's lines; where it is too wide, names of lanes in two, and then lanes in tables of their own."""
    lines = aligned([of.head, *of.rows])
    if max(map(len, lines)) > width:
        path, setting = (tuple(name.partition(", ")[part] for name in of.head) for part in (0, 2))
        lines = aligned([path, setting, *of.rows])
    if max(map(len, lines)) > width and len(of.head) > 2:
        half = 1 + len(of.head) // 2
        return [*_drawn(_columns(of, 1, half), width), "", *_drawn(_columns(of, half, len(of.head)), width)]
    return lines


def _columns(of: Table, first: int, end: int) -> Table:
    head, *rows = ((row[0], *row[first:end]) for row in (of.head, *of.rows))
    return replace(of, head=head, rows=tuple(rows))


def as_json(
    found: Sequence[Waterfall], baseline: str, host_label: str, doubts: Mapping[str, object] | None = None
) -> str:
    """Return every waterfall as JSON, the parts in the order of a message's way: docs/reference/report-json.md.

    `doubts` are keys that say what speaks against the run's figures.
    """
    more = {id(lane.of): _more(lane) for _, lanes in by_size(found, baseline) for lane in lanes}
    lanes = [
        {
            "path": one.path,
            "setting": one.setting,
            "workload": one.workload,
            "message_bytes": one.message_bytes,
            "trials": one.trials,
            "round_trips": len(one.trips),
            "mean_ns": one.mean_ns,
            "median_ns": one.median_ns,
            "p99_ns": one.p99.measured_ns / 2,
            "untraced_mean_ns": one.untraced_ns,
            "residue": one.residue,
            "parts_ns": one.parts_ns,
            "more": more[id(one)],
        }
        for one in found
    ]
    of_run = {"format": 1, "baseline": baseline, "figures_from": host_label, **(doubts or {})}
    return json.dumps({**of_run, "parts": PARTS, "lanes": lanes}, indent=1, allow_nan=False) + "\n"


def _more(lane: Lane) -> dict[str, object] | None:
    """Return what a message, and the part that adds most, takes more than on the baseline, None without one."""
    if lane.base is None:
        return None
    part, whole = lane.most_added, lane.of.more_ns(lane.base)
    of_part = lane.of.more_ns(lane.base, part) if part else None
    return {
        "mean_ns": lane.of.mean_ns - lane.base.mean_ns,
        "interval_ns": asdict(whole) if whole else None,
        "part": part,
        "part_mean_ns": lane.added_ns(part) if part else None,
        "part_interval_ns": asdict(of_part) if of_part else None,
    }
