"""The real lab for tests."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import NearmetalError
from nearmetal.hosts.lab import lab, remote
from nearmetal.hosts.lab.lab import LabHost, open_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.study.order import Order, Outcome, Scalar

WHOLE = "NEARMETAL_WHOLE_LAB" in os.environ
"""Whether `make verify-lab` asks for everything; a trial takes ten CPU seconds and more."""

SOURCES = str(Path(lab.__file__).parents[3])
"""Where programs find nearmetal as it is here."""

LONG = pytest.mark.skipif(not WHOLE, reason="minutes a test: `make verify-lab`")


@contextlib.contextmanager
def opened(machine: str, **options: Scalar) -> Iterator[LabHost]:
    """Open the lab with a machine of that name, of one boot; skip the test where it cannot run, with its reason."""
    try:
        host = open_lab({"machine": machine, "variants": 1, **options}, lambda _: None)
    except NearmetalError as error:
        pytest.skip(f"{error.message}; {error.hint}")
    with contextlib.closing(host):
        yield host


def carry_out(host: LabHost, *orders: Order) -> list[Outcome]:
    """Carry out trials, as many at once as the lab has room for; nothing of them may run outside the lab."""
    with ThreadPoolExecutor(host.slots) as pool:
        return list(pool.map(lambda one: host.carry_out(one, lambda *_: pytest.fail("outside")), orders))


class CachedLab:
    """A lab that carries out each order once: the same order gives the same bytes, which a test checks."""

    def __init__(self, host: LabHost) -> None:
        self._host = host
        self._outcomes: dict[str, Outcome] = {}

    def outcomes(self, *orders: Order) -> list[Outcome]:
        """Return the outcomes of the trials."""
        new = {repr(one): one for one in orders if repr(one) not in self._outcomes}
        self._outcomes |= dict(zip(new, carry_out(self._host, *new.values()), strict=True))
        return [self._outcomes[repr(one)] for one in orders]


@contextlib.contextmanager
def node_service(patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a node's service on this machine's loopback; yield its name."""
    patch.setattr(remote, "PORT", 0)  # any that is free, and no other test's before it is bound here
    listener = remote.of_node("127.0.0.1")
    patch.setattr(remote, "PORT", listener.getsockname()[1])

    def serve() -> None:
        with contextlib.suppress(OSError):  # the listener is shut down below
            remote.serve(listener)

    thread = threading.Thread(target=serve)
    thread.start()
    yield "127.0.0.1"
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()
