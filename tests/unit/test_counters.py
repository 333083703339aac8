"""Parsing the kernel's counters from text in its own format."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import NearmetalError, TrialError
from nearmetal.facts import counters, proof
from nearmetal.facts.counters import difference, parse_links, parse_snmp
from nearmetal.facts.inventory import path_facts
from nearmetal.facts.tenants import look_for_tenants, parse_processes, used_between
from nearmetal.hosts import shell
from nearmetal.hosts.machine import MachineShell
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.process import Finished
from nearmetal.study.facts import scope_of
from nearmetal.study.order import Proof

DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 2776770   11307    0    0    0     0        0         0  2776770   11307    0    0    0     0     0       0
eth0:1:1500       2    3    4    0     0          0         0     5678      16    7    8    0     0       0          0
"""


def test_interface_counters_are_read_by_column() -> None:
    counts = parse_links(DEV)
    assert counts["lo.rx_bytes"] == counts["lo.tx_bytes"] == 2776770
    assert {name: counts[f"eth0:1.{name}"] for name in ("rx_packets", "rx_errors", "rx_dropped", "tx_dropped")} == {
        "rx_packets": 2, "rx_errors": 3, "rx_dropped": 4, "tx_dropped": 8,
    }  # fmt: skip
    assert len(counts) == 16


@pytest.mark.parametrize("line", ["eth0 1 2 3", "eth0: 1 2 3", "eth0: " + "x " * 16])
def test_a_malformed_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"proc/net/dev|invalid literal"):
        parse_links(DEV + line)


def test_tables_of_names_and_values_are_paired() -> None:
    assert parse_snmp("Tcp: RetransSegs InErrs\nTcp: 7 0\n") == {"RetransSegs": 7, "InErrs": 0}


def test_tcp_retransmits_and_autocorking_are_counted() -> None:
    with MachineShell() as shell:
        read = counters.read_counters(shell, [""])
    assert {"tcp..RetransSegs", "tcp..TCPAutoCorking"} <= read.keys()


def test_truncated_output_of_the_reader_is_reported() -> None:
    with pytest.raises(NearmetalError, match="broke off after 1"):
        shell.split(b"one\nm 0\ntwo", ["a", "b"], "m")


@given(st.lists(st.tuples(st.binary(max_size=20), st.booleans()), max_size=6))
def test_concatenated_files_are_split_as_they_were(files: list[tuple[bytes, bool]]) -> None:
    mark = "2f1d0c9a77e34b6f"
    output = b"".join(body + f"\n{mark} {0 if there else 1}\n".encode() for body, there in files)
    paths = [str(index) for index in range(len(files))]
    expected = {path: body for path, (body, there) in zip(paths, files, strict=True) if there}
    assert shell.split(output, paths, mark) == expected


def test_rdma_ports_count_for_their_interface_in_every_sysfs_layout(tmp_path: Path) -> None:
    for path, value in {
        "mlx5_0/ports/1/gid_attrs/ndevs/0": "ens1f0",
        "mlx5_0/ports/1/counters/port_rcv_packets": "100",
        "mlx5_0/ports/1/counters/port_xmit_packets": "90",
        "mlx5_0/ports/1/hw_counters/out_of_sequence": "3",
        "mlx4_0/ports/1/counters/port_rcv_packets": "7",
        "mlx4_0/device/net/ib0/mtu": "2044",
        "siw0/ports/1/counters/port_rcv_packets": "5",
        "rxe0/ports/1/gid_attrs/ndevs/0": "eth0",
        "rxe0/ports/1/hw_counters/sent_pkts": "11",
        "rxe0/ports/1/hw_counters/rcvd_pkts": "12",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{value}\n")
    script = counters._SCRIPT.replace("/sys/class/infiniband", str(tmp_path))
    found = subprocess.run(
        ["sh", "-c", script, "sh", *counters._PACKETS, *counters._OTHERS], capture_output=True, check=True
    )
    assert counters.parse_rdma("n0", found.stdout.decode()) == {
        "rdma.n0.ens1f0.rx_packets": 100, "rdma.n0.ens1f0.tx_packets": 90, "rdma.n0.ens1f0.out_of_sequence": 3,
        "rdma.n0.ib0.rx_packets": 7, "rdma.n0.siw0.rx_packets": 5,
        "rdma.n0.eth0.tx_packets": 11, "rdma.n0.eth0.rx_packets": 12,
    }  # fmt: skip
    nothing = subprocess.run(
        ["sh", "-c", script.replace(str(tmp_path), "/none"), "sh", "x"], capture_output=True, check=True
    )
    assert (nothing.stdout, nothing.stderr) == (b"", b"")


def test_ports_are_read_only_where_the_kernel_offers_verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "siw0/ports/1/counters").mkdir(parents=True)
    (tmp_path / "siw0/ports/1/counters/port_rcv_packets").write_text("5\n")
    monkeypatch.setattr(counters, "_SCRIPT", counters._SCRIPT.replace("/sys/class/infiniband", str(tmp_path)))
    for there, found in (("/none", []), ("/proc/version", ["rdma..siw0.rx_packets"])):
        monkeypatch.setattr(counters, "HAS_RDMA", there)
        with MachineShell() as shell:
            read = counters.read_counters(shell, [""])
        assert [name for name in read if name.startswith("rdma.")] == found


def test_traffic_counted_only_by_an_rdma_device_proves_the_path() -> None:
    ends = Endpoints(
        (Endpoint("n0", "ens1", "10.0.0.1"), Endpoint("n1", "ens1", "10.0.0.2")), "10.0.0.0/24", alone=False
    )
    counted = {f"rdma.{n}.ens1.{way}_packets": 500 for n in ("n0", "n1") for way in ("rx", "tx")}
    seen_twice = {"link.n0.ens1.rx_packets": 480, "rdma.n0.other.rx_packets": 9, "rdma.n0.ens1.out_of_sequence": 8}
    found = proof.of_counters({**counted, **seen_twice}, ends)
    assert (found.moved_packets, found.stray_packets) == ({"n0.ens1": 1000, "n1.ens1": 1000}, {"n0.other": 9})
    proof.check(found, ends, least_packets=1000)
    with pytest.raises(TrialError, match="did not take the path"):
        proof.check(proof.of_counters(seen_twice, ends), ends, least_packets=1000)


def test_what_crossed_other_interfaces_is_told_by_their_names() -> None:
    """Of machines with other traffic, all of it was said to have crossed loopback or management."""
    ends = (Endpoint("n0", "ens1", "10.0.0.1"), Endpoint("n1", "ens1", "10.0.0.2"))
    moved = {"n0.ens1": 9000, "n1.ens1": 9000}
    shared = Endpoints(ends, "10.0.0.0/24", alone=False)
    proof.check(Proof(moved, {"n0.lo": 90, "n0.ens2": 4710}), shared, least_packets=9000)
    for endpoints, strays in ((shared, {"n0.lo": 90, "n0.ens2": 4711}), (replace(shared, alone=True), {"n0.ens2": 1})):
        with pytest.raises(TrialError, match=rf"and {strays['n0.ens2']} crossed n0\.ens2: the traffic"):
            proof.check(Proof(moved, strays), endpoints, least_packets=9000)


class FarCards:
    """Far machines, as `path_facts` asks them: a bond of two ports on n0, a function on n1."""

    printed: ClassVar = {
        "ip": '[{"mtu": 1500}]',
        "eth0": "driver: ice\nspeed: 25000\ndriver: ice\nversion: 1.14.13\nfirmware-version: 4.40 0x8001c967 1.3534\n",
        "eth1": "driver: ice\n",  # without ethtool, and without a link
        "ens1": "driver: virtio_net\nspeed: -1\nversion: N/A\nfirmware-version: \n",
    }

    def machine_name(self, node: str) -> str:
        return node

    def run(self, argv: list[str], **_: object) -> Finished:
        name = argv[0] if argv[0] == "ip" else argv[-1]
        return Finished(tuple(argv), 0, self.printed.get(name, "").encode(), b"", 0)


def test_the_cards_of_far_machines_are_recorded() -> None:
    """The gate lists what changed, and trials of a path must agree in their card, but nothing recorded any."""
    ends = Endpoint("n0", "bond0", "10.0.0.1"), Endpoint("n1", "ens1", "10.0.0.2")
    path = Endpoints(ends, "10.0.0.0/24", alone=False, beneath=(Endpoint("n0", "eth0"), Endpoint("n0", "eth1")))
    found = path_facts(FarCards(), path)  # type: ignore[arg-type]
    assert {name: value for name, value in found.items() if not name.endswith((".kind", ".mtu"))} == {
        "n0.eth0.driver": "ice 1.14.13",
        "n0.eth0.firmware": "4.40 0x8001c967 1.3534",
        "n0.eth0.speed_mbit": 25000,
        "n0.eth1.driver": "ice",
        "n1.ens1.driver": "virtio_net",
    }
    assert {scope_of(name) for name in found if not name.endswith(".mtu")} == {"interface"}


class Here(MachineShell):
    """This machine, as if it were far."""

    def machine_name(self, node: str) -> str:
        return node


def test_the_driver_of_a_card_is_the_one_that_the_kernel_names() -> None:
    drivers = {path.parts[-3]: path.resolve().name for path in Path("/sys/class/net").glob("*/device/driver")}
    with Here() as here:
        found = path_facts(here, Endpoints((Endpoint("", "lo"), *(Endpoint("", name) for name in drivers))))
    named = {name: str(value).split()[0] for name, value in found.items() if name.endswith(".driver")}
    assert named == {f".{name}.driver": driver for name, driver in drivers.items()}


def stat(pid: int, name: str, ticks: int, *, began: int = 5, flags: int = 0) -> str:
    return f"{pid} ({name}) R 1 1 1 0 -1 {flags} 0 0 0 0 {ticks - 1} 1 0 0 20 0 1 0 {began} 0 0\n"


def test_other_programs_are_those_present_before_and_after() -> None:
    before = parse_processes("m", [stat(7, "cc1plus", 100), stat(8, "bash", 5), stat(9, "gone", 50)], mine=0)
    reused = stat(8, "bash", 900, began=77)
    after = parse_processes("m", [stat(7, "cc1plus", 190), reused, stat(11, "rank", 400)], mine=0)
    assert used_between(before, after) == {"others.cc1plus": 90}


def test_this_process_the_kernel_and_truncated_lines_do_not_count_as_other_programs() -> None:
    lines = [stat(7, "nearmetal", 100), stat(2, "kthreadd", 9, flags=0x208040), "12 (half", "", stat(3, "a) R (b", 7)]
    assert parse_processes("m", lines, mine=7) == {"m 3 5 a__R__b": 7}


def test_program_names_are_escaped_for_the_terminal() -> None:
    (key,) = parse_processes("", [stat(3, "\x1b[31m[/b]\u202e", 7)], mine=0)
    assert key.isascii()
    assert not set("\x1b[]/") & set(key)


def test_a_busy_program_beside_a_launch_is_found() -> None:
    code = "import time\ninput()\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    code += "print(flush=True)\ninput()"
    with MachineShell() as shell, subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:  # fmt: skip
        assert other.stdin
        assert other.stdout
        before = look_for_tenants(shell)
        other.stdin.write(b"\n")
        other.stdin.flush()
        other.stdout.readline()
        after = look_for_tenants(shell)
        other.stdin.close()
    (key,) = [key for key in after if key.split()[0] == str(other.pid)]
    assert not any(key.split()[0] == str(os.getpid()) for key in after)
    used = after[key] - min(before.get(key, 0), after[key])
    assert used > 0


def test_what_was_added_is_never_less_than_nothing_where_counters_wrap_or_begin_anew() -> None:
    for name, before, after, added in (
        ("irq.LOC", 2 * 2**32 - 5, 2**32 + 95, 100),
        ("softirq.NET_RX", 2**32 - 1, 0, 1),
        ("irq.24.eth0", 9_000, 40, 40),
        ("link.n0.eth0.rx_packets", 9_000, 40, 40),
        ("cpu.iowait", 7, 6, -1),  # the kernel's own doing
        ("irq.9", 0, 3, 3),
    ):
        assert difference({name: before}, {name: after}) == {name: added}
