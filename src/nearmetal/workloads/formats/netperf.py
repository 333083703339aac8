"""netperf's omni tests with `-k`: `KEY=value` lines of the selectors that were asked for. Written for version 2.7.

Rates are in the unit that the output names; latencies are microseconds of whole round trips, already summarized.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearmetal.workloads.formats.lines import number, refuse, to_text, whole

PROGRAM = "netperf -k"

SELECTORS = ("PROTOCOL", "THROUGHPUT", "THROUGHPUT_UNITS", "ELAPSED_TIME", "LOCAL_TRANSPORT_RETRANS", "MEAN_LATENCY")
_KEY = re.compile(r"^([A-Z][A-Z0-9_]*)=(.*)$", re.MULTILINE)
_UNITS = {"10^6bits/s": "Mbit/s", "10^9bits/s": "Gbit/s", "10^3bits/s": "kbit/s", "Trans/s": "1/s"}


@dataclass(frozen=True, slots=True)
class Result:
    """One test: `throughput` in `unit`, `mean_latency_us` 0 and `retransmits` -1 where netperf does not tell."""

    protocol: str
    throughput: float
    unit: str
    seconds: float
    retransmits: int
    mean_latency_us: float


def parse(data: bytes) -> Result:
    """Read the output of one test; raise ForeignFileError for anything else."""
    pairs = _KEY.findall(to_text(data, PROGRAM))
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise refuse(PROGRAM, "a key is there twice")
    missing = [selector for selector in SELECTORS if selector not in fields]  # a cut output lacks the last
    if missing:
        raise refuse(PROGRAM, f"{missing[0]} is missing")
    unit = _UNITS.get(fields["THROUGHPUT_UNITS"].strip())
    if unit is None or unit == "kbit/s":
        raise refuse(PROGRAM, f"throughput is in {fields['THROUGHPUT_UNITS'][:40]!r}")
    throughput = number(fields["THROUGHPUT"], PROGRAM, "the throughput")
    if throughput == 0:
        raise refuse(PROGRAM, "nothing was transferred")
    retransmits = fields.get("LOCAL_TRANSPORT_RETRANS", "-1").strip()
    return Result(
        fields.get("PROTOCOL", "").strip(),
        throughput,
        unit,
        number(fields["ELAPSED_TIME"], PROGRAM, "the time"),
        -1 if retransmits == "-1" else whole(retransmits, PROGRAM, "the count of retransmits"),
        number(fields.get("MEAN_LATENCY", "0"), PROGRAM, "the latency"),
    )
