"""What RDMA devices count: their packets pass by the interface's own counters. Standard library only.

Counters of InfiniBand ports (`port_xmit_packets` ...) are those of Documentation/ABI/stable/sysfs-class-infiniband; the
hardware's own stand in `hw_counters` and differ between drivers: mlx5 (drivers/infiniband/hw/mlx5/counters.c) and
soft-RoCE (drivers/infiniband/sw/rxe/rxe_hw_counters.c) are known here.
"""

from __future__ import annotations

from nearmetal.hosts.host import Shell

HAS_RDMA = "/sys/class/infiniband_verbs/abi_version"
"""A file that is there where the kernel offers verbs to programs."""
_PACKETS = {
    "port_rcv_packets": "rx_packets",
    "rcvd_pkts": "rx_packets",
    "port_xmit_packets": "tx_packets",
    "sent_pkts": "tx_packets",
}
_OTHERS = (
    *("port_rcv_errors", "port_xmit_discards", "port_xmit_wait", "symbol_error"),
    *("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "implied_nak_seq_err"),
    *("np_cnp_sent", "rp_cnp_handled", "out_of_seq_request", "duplicate_request", "retry_exceeded_err"),
)
# A port of RoCE names its interface beside its GIDs, one of InfiniBand beside its device; others stand alone.
_SCRIPT = r"""
cd /sys/class/infiniband 2> /dev/null || exit 0
for port in */ports/*; do
    device=${port%%/*}
    interface=$(cat "$port/gid_attrs/ndevs/0" 2> /dev/null) || interface=
    test -n "$interface" || interface=$(ls "$device/device/net" 2> /dev/null | head -n 1)
    for counter do
        for file in "$port/counters/$counter" "$port/hw_counters/$counter"; do
            value=$(cat "$file" 2> /dev/null) && echo "${interface:-$device} $counter $value"
        done
    done
done
true
"""


def rdma_counters(shell: Shell, node: str) -> dict[str, int]:
    """Return `rdma.<node>.<interface>.<counter>` of every port; packets are `rx_packets` and `tx_packets`."""
    said = shell.run(["sh", "-c", _SCRIPT, "sh", *_PACKETS, *_OTHERS], node=node)
    return parse_rdma(node, said.text)


def parse_rdma(node: str, text: str) -> dict[str, int]:
    """Add up what the script said, lines of `INTERFACE COUNTER VALUE`; other lines are passed over."""
    counts: dict[str, int] = {}
    for words in map(str.split, text.splitlines()):
        if len(words) == 3 and words[2].isdecimal():
            name = f"rdma.{node}.{words[0]}.{_PACKETS.get(words[1], words[1])}"
            counts[name] = counts.get(name, 0) + int(words[2])
    return counts
