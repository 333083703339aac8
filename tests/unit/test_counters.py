"""Reading what the kernel counts, from texts as it writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import NearmetalError
from nearmetal.facts.counters import parse_links, parse_snmp
from nearmetal.hosts import many_files

DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 2776770   11307    0    0    0     0        0         0  2776770   11307    0    0    0     0     0       0
eth0:1:1500       2    3    4    0     0          0         0     5678      16    7    8    0     0       0          0
"""


def test_interfaces_are_read_by_column() -> None:
    counts = parse_links(DEV)
    assert counts["lo.rx_bytes"] == counts["lo.tx_bytes"] == 2776770
    assert {name: counts[f"eth0:1.{name}"] for name in ("rx_packets", "rx_errors", "rx_dropped", "tx_dropped")} == {
        "rx_packets": 2, "rx_errors": 3, "rx_dropped": 4, "tx_dropped": 8,
    }  # fmt: skip
    assert len(counts) == 16


@pytest.mark.parametrize("line", ["eth0 1 2 3", "eth0: 1 2 3", "eth0: " + "x " * 16])
def test_a_line_of_another_shape_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"proc/net/dev|invalid literal"):
        parse_links(DEV + line)


def test_tables_of_names_and_values_are_paired() -> None:
    assert parse_snmp("Tcp: RetransSegs InErrs\nTcp: 7 0\n") == {"RetransSegs": 7, "InErrs": 0}


def test_a_reader_that_was_cut_short_is_told() -> None:
    with pytest.raises(NearmetalError, match="broke off after 1"):
        many_files.split(b"one\nm 0\ntwo", ["a", "b"], "m")


@given(st.lists(st.tuples(st.binary(max_size=20), st.booleans()), max_size=6))
def test_files_come_apart_as_they_were(files: list[tuple[bytes, bool]]) -> None:
    mark = many_files.new_mark()
    said = b"".join(body + f"\n{mark} {0 if there else 1}\n".encode() for body, there in files)
    paths = [str(index) for index in range(len(files))]
    expected = {path: body for path, (body, there) in zip(paths, files, strict=True) if there}
    assert many_files.split(said, paths, mark) == expected
