"""What a published table is, and its figures read from the file that ships (`published_rows` lists them)."""

from __future__ import annotations

import csv
import importlib.resources
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from nearmetal.errors import BadInputError, ForeignFileError, meant
from nearmetal.workloads.apps import CLASSES

Statistic = Literal["mean", "median", "p90", "p95", "p99", "max", "p_value"]
BoundTrial = Literal["", "<", ">"]


@dataclass(frozen=True, slots=True)
class Column:
    """One configuration of a table: the paths and settings of ours, any of which stand for it.

    No settings are any; `workloads` narrow it where a table's columns are workloads. `statistic` is the one of ours
    that is put beside it.
    """

    name: str
    paths: tuple[str, ...]
    settings: tuple[str, ...] = ()
    statistic: Statistic = "mean"
    workloads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """One table. `effects` are the pairs (column, reference) whose ratio is looked at; `operations` are ours.

    Its rows are sizes, runs of one configuration, or configurations; `stated` are ratios that a text states in words.
    """

    name: str
    file: str
    source: str
    operations: tuple[str, ...]
    columns: tuple[Column, ...]
    effects: tuple[tuple[str, str], ...]
    rows: Literal["sizes", "runs", "configurations", "stated"] = "sizes"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a table: column -> size in bytes (0 where the table has no sizes) -> figure as printed.

    Of stated ratios the reference is 1, and `bounds[column, size]` says where a text gives a bound only.
    """

    table: Published
    values: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    bounds: Mapping[tuple[str, int], BoundTrial] = field(default_factory=dict)


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
        if table.rows == "stated":
            return _stated(table, rows)
        return Figures(
            table, {c.name: {int(row["bytes"]): _number(row[c.name]) for row in rows} for c in table.columns}
        )
    except (KeyError, ValueError, TypeError) as error:
        raise ForeignFileError(f"{table.file} is not the table that it should be: {error!r}") from error


def _stated(table: Published, rows: list[dict[str, str]]) -> Figures:
    values: dict[str, dict[int, float]] = {column.name: {} for column in table.columns}
    bounds: dict[tuple[str, int], BoundTrial] = {}
    for row in rows:
        text, size = row["ratio"], int(row["bytes"])
        values[row["column"]][size] = _number(text.lstrip("<>"))
        values[row["reference"]][size] = 1.0
        bounds[row["column"], size] = "<" if text[:1] == "<" else ">" if text[:1] == ">" else ""
    return Figures(table, values, bounds)


def _mbps(column: Column) -> str:
    return f"{column.name}_mbps"


def _number(word: str) -> float:
    """Return a printed figure; '< 0.001' is taken as 0.001."""
    value = float(word.removeprefix("<"))
    if not math.isfinite(value) or value < 0:
        raise ValueError(word)
    return value


# ---- the published tables that ship
# Which of ours each column stands for, and the ratios that are looked at.


MODERATED, IMMEDIATE = ("rx88", "moderated"), ("rx1", "immediate")
"""The names of settings that stand for the two values of rx-frames in the tables."""
NATIVE = ("native", "veth", "bare")
_VM = ("vf", "vm", "guest-vf", "passthrough")
_BRIDGED = ("bridge", "bridged")
_MEANS = "means of each launch on both sides"


def _four_pairs(name: str, file: str, what: str) -> Published:
    return Published(
        name,
        file,
        f"Nanos et al., {what}, four pairs on one port",
        ("tcp_stream.total", "tcp_stream", "message_rate"),
        (Column("native", NATIVE), Column("bridged", _BRIDGED), Column("iov", _VM)),
        (("bridged", "native"), ("iov", "native"), ("iov", "bridged")),
        rows="configurations",
        note="sums over all pairs",
    )


_PRINTED = (
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
            Column(f"n{ranks}_ppn{ppn}", _VM, IMMEDIATE, "p_value", (f"allgather-{ranks}",))
            for ranks, ppn in ((2, 1), (4, 2), (8, 4))
        ),
        (),
        note="p of a paired t-test on the trials' means; whether it is below 0.05 is compared, not its value",
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
    _four_pairs("nanos-table1", "nanos_table1_netperf_tcp_stream_mib_s.csv", "Table 1: netperf TCP_STREAM"),
    _four_pairs("nanos-table2", "nanos_table2_iperf_tcp_mib_s.csv", "Table 2: iperf TCP"),
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
        note="medians of the ten published runs",
    ),
)

_TEXT = "ratios that the text states; a bound holds where all of our interval is on its side"
_ADVECTION = tuple(f"advection.{letter}.total" for letter in CLASSES)


def _in_words(name: str, source: str, operations: tuple[str, ...], columns: tuple[Column, ...]) -> Published:
    """Return a table of stated ratios: its effects are each second column over the one before."""
    effects = tuple((columns[i + 1].name, columns[i].name) for i in range(0, len(columns), 2))
    file = f"{name.replace('-', '_')}_stated.csv"
    return Published(name, file, source, operations, tuple(dict.fromkeys(columns)), effects, "stated", _TEXT)


def _by_iterations(name: str, what: str, statistic: Statistic) -> Published:
    sides = (("native", (*NATIVE, "native-roce")), ("vm", (*_VM, "vf-roce")))
    return _in_words(
        name,
        f"Musleh et al., section VI-A and {what} of RDMA write by number of iterations",
        ("ib_write_lat",),
        tuple(
            Column(f"{side}_{n}", paths, (), statistic, (f"write-{n}",))
            for side, paths in sides
            for many in (10_000, 100_000)
            for n in (1_000, many)
        ),
    )


_STATED = (
    _by_iterations("musleh-fig5", "Fig. 5: 90th percentile", "p90"),
    _by_iterations("musleh-fig6", "Fig. 6: 95th percentile", "p95"),
    _in_words(
        "musleh-fig7",
        "Musleh et al., section VI-A and Fig. 7: 99th percentile of MPI_Alltoall in the VM against native",
        ("alltoall",),
        (Column("native", NATIVE, (), "p99"), Column("vm", _VM, (), "p99")),
    ),
    _in_words(
        "musleh-fig9",
        "Musleh et al., section VI-B and Fig. 9: barrier, SRQ limit 60 against the default",
        ("barrier",),
        tuple(
            Column(f"{mode}_{name}", (*_VM, *NATIVE), (setting,), workloads=(f"barrier-2-{mode}",))
            for mode in ("blocking", "polling")
            for name, setting in (("default", "srq-default"), ("srq60", "srq-limit-60"))
        ),
    ),
    _in_words(
        "musleh-figs10-13",
        "Musleh et al., section VI-D: NPB in the VM, a timer window of 40 us against the default",
        tuple(f"{app}.{letter}.total" for app in ("cg", "lu", "ep", "sp") for letter in CLASSES),
        tuple(
            Column(f"{app}_{name}", _VM, (setting,), workloads=(app,))
            for app in ("cg", "lu", "ep", "sp")
            for name, setting in (("default", "default"), ("window", "window-40"))
        ),
    ),
    _in_words(
        "nanos-fig4",
        "Nanos et al., section 3 and Figs 2, 4: time of the advection over IOV against the bridge, by placement",
        _ADVECTION,
        tuple(
            Column(f"{short}_{name}", paths, workloads=(placement,))
            for short, placement in (("inter", "inter-node"), ("hybrid", "hybrid"), ("intra", "intra-node"))
            for name, paths in (("bridged", _BRIDGED), ("iov", _VM))
        ),
    ),
    _in_words(
        "lockwood-latency",
        "Lockwood: latency of SR-IOV against native, QDR InfiniBand",
        ("latency",),
        (Column("native", NATIVE), Column("sriov", _VM)),
    ),
    _in_words(
        "lockwood-bandwidth",
        "Lockwood: bandwidth of SR-IOV against native, QDR InfiniBand",
        ("bw",),
        (Column("native", NATIVE), Column("sriov", _VM)),
    ),
    _in_words(
        "lockwood-apps",
        "Lockwood: run time over SR-IOV against native, WRF and Quantum ESPRESSO",
        (*_ADVECTION, *(f"ft.{letter}.total" for letter in CLASSES), "melt", "hydrogen"),
        tuple(
            Column(f"{program}_{name}", paths, workloads=ours)
            for program, ours in (("wrf", ("neighbours", "melt")), ("espresso", ("collectives", "hydrogen")))
            for name, paths in (("native", NATIVE), ("sriov", _VM))
        ),
    ),
)

PUBLISHED: dict[str, Published] = {row.name: row for row in (*_PRINTED, *_STATED)}


def published_named(name: str) -> Published:
    """Return a table; raise BadInputError with the known names otherwise."""
    if name not in PUBLISHED:
        raise BadInputError(f"there is no published table {name!r}", hint=meant(name, PUBLISHED))
    return PUBLISHED[name]
