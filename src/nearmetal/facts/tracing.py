"""Record kernel tracepoints during a launch: the raw ring buffer and the layout of its events.

The trace clock is `mono_raw`, the clock of the measuring engine, so both sides' stamps compare to the nanosecond;
in the lab that clock is virtual time, of all its machines. The buffer is taken raw because the text that the kernel
makes of it is rounded to microseconds. Two probes at function entries (kprobes over ftrace) mark where a program enters
the TCP stack, because tracing system calls would put every system call of the machine on its slow path.
Kernel: Documentation/trace/ftrace.rst, events.rst and kprobetrace.rst. Standard library only: runs inside the lab.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from nearmetal.errors import UnavailableError
from nearmetal.hosts.host import Shell, machines_of
from nearmetal.study.order import TRACE_FOLDER, TRACE_OPTION, Order

FORMATS = f"{TRACE_FOLDER}formats"
RING = "cpu"
"""Begins the name of a file that holds a CPU's ring buffer; its number follows. Those of nodes that are machines are in
a folder named as the node."""

TCP_SEND, TCP_RECEIVE = "nearmetal/tcp_send", "nearmetal/tcp_receive"
EVENTS = (
    *(TCP_SEND, TCP_RECEIVE, "tcp/tcp_rcv_space_adjust"),
    *("net/net_dev_queue", "net/net_dev_start_xmit", "net/net_dev_xmit", "net/napi_gro_receive_entry"),
    *("irq/irq_handler_entry", "irq/irq_handler_exit", "irq/softirq_entry", "irq/softirq_exit"),
    "sched/sched_waking",
)
_BUFFER_KIB = 8192
_READ_TIMEOUT_S = 60.0

_INSTANCE = "/sys/kernel/tracing/instances/nearmetal"

_SCRIPT = Path(__file__).with_suffix(".sh").read_text()


@contextlib.contextmanager
def recorded(shell: Shell, order: Order) -> Iterator[dict[str, bytes]]:
    """Trace every machine while the body runs; the mapping it gets holds the trace's files afterwards.

    Nothing happens unless the order's workload asks for a trace. Raises UnavailableError where the kernel cannot be
    traced, BadInputError for an option that is not true or false.
    """
    files: dict[str, bytes] = {}
    wanted = order.workload.options.get(TRACE_OPTION, False)
    if not isinstance(wanted, bool):
        raise order.workload.invalid(f"{TRACE_OPTION} is true or false, not {wanted!r}")
    if not wanted:
        yield files
        return
    machines = machines_of(shell)
    with contextlib.ExitStack() as tracing:
        for node in machines:
            _start(shell, node)
            tracing.callback(shell.run, ["sh", "-c", _SCRIPT, "sh", "forget"], node=node)
        yield files
        for node in machines:
            shell.run(["sh", "-c", _SCRIPT, "sh", "stop"], node=node)
        for node in machines:
            files.update(_collected(shell, node))


def _start(shell: Shell, node: str) -> None:
    """Raise UnavailableError, with nothing left behind, where a kernel cannot be traced or another run traces it."""
    started = shell.run(["sh", "-c", _SCRIPT, "sh", "start", str(_BUFFER_KIB), *EVENTS], node=node, check=False)
    if started.ok:
        return
    hint = "tracing needs root, tracefs at /sys/kernel/tracing and kprobes; the lab has them"
    if "File exists" in started.complaint():
        hint = f"another run traces this machine; or one was killed: then, on that machine, rmdir {_INSTANCE}"
    raise UnavailableError(f"this kernel cannot be traced: {started.complaint()}", hint=hint)


def _collected(shell: Shell, node: str) -> dict[str, bytes]:
    files = {FORMATS: shell.run(["sh", "-c", _SCRIPT, "sh", "formats", *EVENTS], node=node).stdout}
    root = f"{_INSTANCE}/per_cpu"
    for cpu in shell.run(["ls", root], node=node).text.split():
        # Without `nonblock` the reader would wait for the next event for ever; the end shows as EAGAIN.
        ring = shell.run(
            ["dd", f"if={root}/{cpu}/trace_pipe_raw", "bs=4096", "iflag=nonblock", "status=none"],
            node=node,
            timeout_s=_READ_TIMEOUT_S,
            check=False,
        )
        files[f"{TRACE_FOLDER}{node}{'/' if node else ''}{cpu}"] = ring.stdout
    return files
