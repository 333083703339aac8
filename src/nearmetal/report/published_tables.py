"""The published tables that ship: which of ours each column stands for, and their figures."""

from __future__ import annotations

import csv
import importlib.resources
import math
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Literal

from nearmetal.errors import BadInputError, ForeignFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

Statistic = Literal["median", "p99", "max", "p_value"]


@dataclass(frozen=True, slots=True)
class Column:
    """One configuration of a table: the paths and settings of ours, any of which stand for it.

    No settings are any; `workload` narrows it where a table's columns are workloads. `statistic` is the one of ours
    that is put beside it.
    """

    name: str
    paths: tuple[str, ...]
    settings: tuple[str, ...] = ()
    statistic: Statistic = "median"
    workload: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """One table. `effects` are the pairs (column, reference) whose ratio is looked at; `operations` are ours."""

    name: str
    file: str
    source: str
    operations: tuple[str, ...]
    columns: tuple[Column, ...]
    effects: tuple[tuple[str, str], ...]
    rows: Literal["sizes", "runs", "configurations"] = "sizes"
    larger_is_better: bool = False
    note: str = ""

    def column(self, name: str) -> Column:
        """Return a column by its name."""
        return next(one for one in self.columns if one.name == name)


MODERATED, IMMEDIATE = ("rx88", "moderated"), ("rx1", "immediate")
"""The names of settings that stand for the two values of rx-frames in the tables."""
NATIVE = ("native", "veth", "bare")
_VM = ("vf", "vm", "guest-vf", "passthrough")
_BRIDGED = ("bridge", "bridged")
_MEANS = "the paper prints means, ours are medians of trials"

_ROWS = (
    Published(
        "musleh-table3",
        "musleh_table3_osu_latency_blocking_us.csv",
        "Musleh et al., Table III: osu_latency, blocking mode",
        ("latency",),
        (
            Column("native_rx88", NATIVE, MODERATED),
            Column("native_rx1", NATIVE, IMMEDIATE),
            Column("vm_rx88", _VM, MODERATED),
            Column("vm_rx1", _VM, IMMEDIATE),
        ),
        (("native_rx1", "native_rx88"), ("vm_rx88", "native_rx88"), ("vm_rx1", "vm_rx88"), ("vm_rx1", "native_rx1")),
        note=_MEANS,
    ),
    Published(
        "musleh-table4",
        "musleh_table4_osu_allgather_blocking_us.csv",
        "Musleh et al., Table IV: osu_allgather, native, blocking mode",
        ("allgather",),
        (Column("native_rx88", NATIVE, MODERATED), Column("native_rx1", NATIVE, IMMEDIATE)),
        (("native_rx1", "native_rx88"),),
        note=_MEANS,
    ),
    Published(
        "musleh-table5",
        "musleh_table5_osu_allgather_p_values.csv",
        "Musleh et al., Table V: osu_allgather, p of native rx88 against VM rx1",
        ("allgather",),
        tuple(
            Column(f"n{ranks}_ppn{ppn}", _VM, IMMEDIATE, "p_value", f"allgather-{ranks}")
            for ranks, ppn in ((2, 1), (4, 2), (8, 4))
        ),
        (),
        note="p of a paired t-test on the trials' medians; whether it is below 0.05 is compared, not its value",
    ),
    Published(
        "musleh-table6",
        "musleh_table6_osu_bcast_max_p99_us.csv",
        "Musleh et al., Table VI: osu_bcast, maximum and 99th percentile",
        ("bcast",),
        (
            Column("max_native", NATIVE, (), "max"),
            Column("max_vm", _VM, (), "max"),
            Column("p99_native", NATIVE, (), "p99"),
            Column("p99_vm", _VM, (), "p99"),
        ),
        (("max_vm", "max_native"), ("p99_vm", "p99_native")),
        note="a maximum is one iteration: it grows with their number and repeats badly",
    ),
    Published(
        "nanos-table1",
        "nanos_table1_netperf_tcp_stream_mib_s.csv",
        "Nanos et al., Table 1: netperf TCP_STREAM, four pairs on one port",
        ("tcp_stream.total", "tcp_stream", "message_rate"),
        (Column("native", NATIVE), Column("bridged", _BRIDGED), Column("iov", _VM)),
        (("bridged", "native"), ("iov", "native"), ("iov", "bridged")),
        rows="configurations",
        larger_is_better=True,
        note="sums over all pairs",
    ),
    Published(
        "nanos-table2",
        "nanos_table2_iperf_tcp_mib_s.csv",
        "Nanos et al., Table 2: iperf TCP, four pairs on one port",
        ("tcp_stream.total", "tcp_stream", "message_rate"),
        (Column("native", NATIVE), Column("bridged", _BRIDGED), Column("iov", _VM)),
        (("bridged", "native"), ("iov", "native"), ("iov", "bridged")),
        rows="configurations",
        larger_is_better=True,
        note="sums over all pairs",
    ),
    Published(
        "nasa-nuttcp",
        "nasa_nuttcp_10gbe_mbps.csv",
        "Thompson and Duffy (NASA NCCS): nuttcp over 10 GbE, ten runs a column",
        ("tcp_stream", "tcp_stream.total"),
        (
            Column("bare", NATIVE),
            Column("sw_virt", ("e1000", "tap")),
            Column("virtio", ("virtio", "vhost")),
            Column("sriov", _VM),
        ),
        (("sw_virt", "bare"), ("virtio", "bare"), ("sriov", "bare"), ("sriov", "virtio")),
        rows="runs",
        larger_is_better=True,
        note="medians of the ten published runs",
    ),
)

PUBLISHED: dict[str, Published] = {row.name: row for row in _ROWS}


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a table: column -> size in bytes (0 where the table has no sizes) -> figure as printed."""

    table: Published
    values: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


def published_named(name: str) -> Published:
    """Return a table; raise BadInputError with the known names otherwise."""
    if name not in PUBLISHED:
        raise BadInputError(f"there is no published table {name!r}", hint=f"one of: {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def load(table: Published) -> Figures:
    """Read a shipped table; raise ForeignFileError when the file is not what the table of tables says."""
    text = (importlib.resources.files("nearmetal") / "published" / table.file).read_text(encoding="utf-8")
    return parse(table, text)


def parse(table: Published, text: str) -> Figures:
    """Read the text of a table's CSV; raise ForeignFileError when a column or a number is not one."""
    rows = list(csv.DictReader(text.splitlines()))
    try:
        if table.rows == "configurations":
            return Figures(table, {row["path"]: {0: _number(row["total"])} for row in rows})
        if table.rows == "runs":
            return Figures(table, {c.name: {0: median(_number(row[_mbps(c)]) for row in rows)} for c in table.columns})
        return Figures(
            table, {c.name: {int(row["bytes"]): _number(row[c.name]) for row in rows} for c in table.columns}
        )
    except (KeyError, ValueError, TypeError) as error:
        raise ForeignFileError(f"{table.file} is not the table that it should be: {error!r}") from error


def _mbps(column: Column) -> str:
    return f"{column.name}_mbps"


def _number(word: str) -> float:
    """Return a printed figure; '< 0.001' is taken as 0.001."""
    value = float(word.removeprefix("<"))
    if not math.isfinite(value) or value < 0:
        raise ValueError(word)
    return value
