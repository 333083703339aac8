"""nuttcp: the summary line of a transfer, as text or as `key=value` words (-fparse). Read with versions 6.1.2 to 8.2.2.

One line stands for the whole transfer; there are no samples in it. Rates are 10^6 bit/s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearmetal.workloads.formats.lines import number, refuse, to_text, whole

PROGRAM = "nuttcp"

_PLAIN = re.compile(
    r"^\s*(?P<megabytes>[\d.]+) MB / +(?P<real_seconds>[\d.]+) sec = +(?P<rate_Mbps>[\d.]+) Mbps"
    r" +(?P<tx_cpu>\d+) %TX +(?P<rx_cpu>\d+) %RX"
    r"(?: +(?P<retrans>\d+) (?:host-)?retrans)?"
    r"(?: +(?P<drop>\d+) / +(?P<pkt>\d+) drop/pkt +(?P<data_loss>[\d.]+) %loss)?"
    r"(?: +(?P<rtt_ms>[\d.]+) msRTT)?"
)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer: `retransmits` is -1 where there are none to count, `lost` and `datagrams` are of UDP."""

    rate_mbit_s: float
    seconds: float
    retransmits: int
    lost: int
    datagrams: int


def parse(data: bytes) -> Transfer:
    """Read the output of one nuttcp client; raise ForeignFileError unless it holds exactly one summary."""
    text = to_text(data, PROGRAM)
    found = [fields for line in text.splitlines() if (fields := _summary(line))]
    if len(found) != 1:
        raise refuse(PROGRAM, f"it holds {len(found)} summary lines, not one")
    (fields,) = found
    rate = number(fields["rate_Mbps"], PROGRAM, "the rate")
    if rate == 0:
        raise refuse(PROGRAM, "nothing was transferred")
    return Transfer(
        rate_mbit_s=rate,
        seconds=number(fields["real_seconds"], PROGRAM, "the time"),
        retransmits=whole(fields["retrans"], PROGRAM, "the count of retransmits") if "retrans" in fields else -1,
        lost=whole(fields.get("drop", "0"), PROGRAM, "the count of lost datagrams"),
        datagrams=whole(fields.get("pkt", "0"), PROGRAM, "the count of datagrams"),
    )


def _summary(line: str) -> dict[str, str]:
    """Return the words of a summary line, empty for any other line: intervals lack the CPU columns."""
    match = _PLAIN.match(line)
    fields = (
        {k: v for k, v in match.groupdict().items() if v}
        if match
        else dict(word.split("=", 1) for word in line.split() if "=" in word)
    )
    return fields if {"rate_Mbps", "real_seconds", "tx_cpu"} <= fields.keys() else {}
