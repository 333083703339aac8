"""A person's turn on a cluster of the lab: one command, or a shell on the console, while a path stands.

Standard library only: this runs inside the lab.
"""

from nearmetal import native
from nearmetal.errors import NearmetalError
from nearmetal.hosts.lab.machine import CALLER
from nearmetal.hosts.lab.nodes import ClusterShell, name_of
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.run.trial import path_up
from nearmetal.study.order import Order, Outcome, TrialStatus

SESSION = "session"
"""The kind of such an order's workload: `argv` on `node`, or a shell for a terminal of `rows` and `columns`."""
STATUS = "session.status"
"""The fact that says how it ended."""
STDOUT, STDERR = "session.stdout", "session.stderr"

# A session's leader gets the terminal that it opens first for its own (tty_ioctl(4)).
_ON_CONSOLE = 'exec </dev/ttyS0 >/dev/ttyS0 2>&1; stty $1; printf "%s\\r\\n" "$2"; shift 2; exec "$@"'
_ON_PTY = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
_PROMPT = 'stty sane $2; PS1="$1# " exec sh -i'


def hold(shell: ClusterShell, order: Order) -> Outcome:
    """Bring an order's path up and let its command, or a person, have a node; a session takes no measurement."""
    nodes = [name_of(node) for node in range(order.nodes)]
    try:
        for node in nodes:
            shell.add_node(node)
        with path_up(shell, order, nodes) as endpoints:
            ended = _held(shell, order, endpoints, nodes)
    except NearmetalError as error:
        return Outcome.of_error(error)
    files = {STDOUT: ended.stdout, STDERR: ended.stderr}
    return Outcome(TrialStatus.VALID, facts={STATUS: ended.exit_status}, files=files)


def _held(shell: ClusterShell, order: Order, endpoints: Endpoints, nodes: list[str]) -> Finished:
    options = order.workload.options
    node, argv = str(options["node"]), options.get("argv")
    if isinstance(argv, list):
        return shell.run([str(word) for word in argv], node=node, timeout_s=order.timeout_s, check=False)
    size = f"rows {order.workload.number('rows', 24)} cols {order.workload.number('columns', 80)}"
    inner, mode = ["sh", "-c", _PROMPT, "sh", node, size], f"sane {size}"
    if node != nodes[0]:  # the terminal is that of the far end
        inner, mode = [str(native.build(CALLER)), node, "--", "python3", "-c", _ON_PTY, *inner], f"raw -echo {size}"
    ends = "; ".join(f"{end.node} {end.interface} {end.address}" for end in endpoints.ends)
    return shell.run(["sh", "-c", _ON_CONSOLE, "lab", mode, ends, *inner], timeout_s=order.timeout_s, check=False)
