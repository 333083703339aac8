"""What was worked out, kept while nothing changed: made once for any number of readers, bounded in bytes."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from nearmetal.errors import NearmetalError

T = TypeVar("T")


class _SingleFlight(Generic[T]):
    """Makes the answer to a question in a thread, once for all who ask while it is being made."""

    def __init__(self, side_by_side: int) -> None:
        self._limit = anyio.CapacityLimiter(side_by_side)
        self._making: dict[Hashable, asyncio.Task[T | NearmetalError]] = {}

    async def get(self, key: Hashable, make: Callable[[], T], keep: Callable[[T | NearmetalError], None]) -> T:
        """Return what `make` returns, or raise the NearmetalError that it raises; `keep` gets either, once."""
        if key not in self._making:
            self._making[key] = asyncio.create_task(self._make(key, make, keep))
        # A reader that goes away must not take the answer from the others.
        return _answered(await asyncio.shield(self._making[key]))

    async def _make(
        self, key: Hashable, make: Callable[[], T], keep: Callable[[T | NearmetalError], None]
    ) -> T | NearmetalError:
        try:
            answer: T | NearmetalError = await anyio.to_thread.run_sync(make, limiter=self._limit)
        except NearmetalError as error:
            answer = error.with_traceback(None)
        finally:
            del self._making[key]
        keep(answer)
        return answer


def _answered(answer: T | NearmetalError) -> T:
    if isinstance(answer, NearmetalError):
        raise answer.with_traceback(None)
    return answer


class Cache:
    """Texts by key; the key holds the state of all files that the text was made from, so nothing is ever stale.

    One text is made at a time, so that memory is that of one run however many ask. A failure is kept like a text: a
    damaged run is not read again and again.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._texts: OrderedDict[Hashable, bytes | NearmetalError] = OrderedDict()
        self._once: _SingleFlight[bytes] = _SingleFlight(side_by_side=1)

    async def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the text of a key, made by `make` where it is not known; raise the NearmetalError that it raised."""
        if key in self._texts:
            self._texts.move_to_end(key)
            return _answered(self._texts[key])
        return await self._once.get(key, make, lambda text: self._keep(key, text))

    def knows(self, key: Hashable) -> bool:
        """Return whether the text of a key is there already."""
        return key in self._texts

    def _keep(self, key: Hashable, text: bytes | NearmetalError) -> None:
        self._texts[key] = text
        self._held_bytes += _size(text)
        while self._held_bytes > self._limit_bytes and len(self._texts) > 1:
            self._held_bytes -= _size(self._texts.popitem(last=False)[1])


def _size(text: bytes | NearmetalError) -> int:
    return 1024 + (len(text) if isinstance(text, bytes) else 0)


class RecentCache(Generic[T]):
    """What was read from disk less than `seconds` ago: any number of readers cost one read."""

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._known: dict[str, tuple[float, T | NearmetalError]] = {}
        self._once: _SingleFlight[T] = _SingleFlight(side_by_side=4)

    async def get(self, question: str, look: Callable[[], T]) -> T:
        """Return what `look` returns; what it raises is as recent as what it returns."""
        now = asyncio.get_running_loop().time()
        self._known = {key: one for key, one in self._known.items() if now - one[0] <= self._seconds}
        if question in self._known:
            return _answered(self._known[question][1])

        def keep(answer: T | NearmetalError) -> None:
            self._known[question] = (now, answer)

        return await self._once.get(question, look, keep)
