"""Path `tap`: two tap devices joined by a relay in user space, standing for a software-emulated NIC.

Every frame leaves the kernel, is copied by a process and enters the kernel again, as it does when a virtual
machine monitor emulates a network card.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nearmetal import native
from nearmetal.errors import TrialError, UnavailableError
from nearmetal.paths import links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.hosts.host import Helper, Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.study.order import PathOrder

RELAY = native.Recipe(name="nmrelay", room="relay")
_READY_TIMEOUT_S = 5.0


class Tap:
    """Two tap devices and `native/relay` between them."""

    kind = "tap"
    about = "two tap devices joined by a user-space relay, standing for a software-emulated NIC"

    def up(self, shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:  # noqa: ARG002 (the Protocol's)
        """Start the relay and give one of its devices to each of two nodes."""
        links.require_two(self.kind, nodes)
        relay = shell.start([str(native.build(RELAY)), "nm-t0", "nm-t1"])
        _wait_until_ready(shell, relay)
        return links.configure(shell, nodes, ["nm-t0", "nm-t1"])

    def down(self, shell: Shell, endpoints: Endpoints) -> None:
        """Nothing to do: the relay ends with its shell, the devices with the relay."""


def _wait_until_ready(shell: Shell, relay: Helper) -> None:
    """Wait until both devices exist; raise with the relay's own words when it gives up."""
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not all(shell.run(["ip", "link", "show", name], check=False).ok for name in ("nm-t0", "nm-t1")):
        ended = relay.ended()
        if ended is not None:
            raise UnavailableError(
                f"the tap relay gave up: {ended.complaint()}",
                hint="the tap path needs to open /dev/net/tun: run as root, or `sudo chmod 666 /dev/net/tun`",
            )
        if time.monotonic() > deadline:
            raise TrialError(f"the tap relay made no devices within {_READY_TIMEOUT_S:.0f} s")
        time.sleep(0.01)
