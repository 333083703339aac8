"""How long a connection may take to say what it wants, how many may be silent at once, and what ends one.

uvicorn waits for ever for the first byte, so that a few hundred silent connections would lock everybody out, and fails
with a traceback where what is no HTTP follows a request that it has handed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio


MAX_SILENT = 250
"""Half of all connections (`server.MAX_READERS`): one more sends the one away that has been silent for longest."""


class _TimeoutProtocol(H11Protocol):
    """uvicorn's protocol; each of its subclasses is one server's."""

    head_s: ClassVar[float]
    waiting: ClassVar[dict[_TimeoutProtocol, asyncio.TimerHandle]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._stop_if_asked()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and end the connection; a request has one answer, which may be under way."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()
        self._stop_if_asked()  # the next request was there already

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop()
        self.waiting[self] = self.loop.call_later(self.head_s, self.transport.abort)
        if len(self.waiting) > MAX_SILENT:
            longest = next(iter(self.waiting))
            self.waiting.pop(longest).cancel()
            longest.transport.abort()

    def _stop_if_asked(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()

    def _stop(self) -> None:
        if timer := self.waiting.pop(self, None):
            timer.cancel()


def patient(head_s: float) -> type[asyncio.Protocol]:
    """Return a protocol for uvicorn that gives each request `head_s` seconds for its head."""
    return type("Patient", (_TimeoutProtocol,), {"head_s": head_s, "waiting": {}})
