"""The server behind a proxy: the address by which browsers know it, and its path in every link.

Pages name their links from `/` on. Where a proxy serves them below a path, that path goes before each of them as the
answer leaves, in one place: text is escaped, so ` href="/` in a page is nothing but the beginning of a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from starlette.datastructures import MutableHeaders

from nearmetal.errors import BadInputError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LINKS = (b' href="/', b' action="/', b' src="/', b' data-source="/')


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """The address that browsers use: `https://cluster.example.org/nearmetal` has the path `/nearmetal`."""

    url: str
    name: str
    path: str
    secure: bool

    @classmethod
    def parse(cls, url: str) -> PublicAddress:
        """Read an address; raise BadInputError for one that is no http or https address of a path."""
        try:
            parts = urlsplit(url)
            name = parts.hostname or ""
        except ValueError:
            parts, name = urlsplit(""), ""
        path = parts.path.rstrip("/")
        plain = all(letter.isascii() and (letter.isalnum() or letter in "/._~-") for letter in path)
        bare = name and not parts.query and not parts.fragment
        if parts.scheme not in ("http", "https") or not bare or not plain or "//" in path:
            text = f"{url!r} is not the address of a server"
            raise BadInputError(text, hint="such as https://cluster.example.org/nearmetal")
        return cls(url.rstrip("/"), name.lower(), path, parts.scheme == "https")


class PathPrefixMiddleware:
    """The ASGI middleware outside all others: requests lose the path, with or without which a proxy hands them on."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on without the path, and put the path before every link of the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == self._path or scope["path"].startswith(f"{self._path}/"):
            scope = {**scope, "path": scope["path"][len(self._path) :] or "/"}
        start: list[Message] = []

        async def prefixed(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.append(message)
                return
            if start:
                message = self._below(start[0], message)
                await send(start.pop())
            await send(message)

        await self._app(scope, receive, prefixed)

    def _below(self, start: Message, body: Message) -> Message:
        headers = MutableHeaders(scope=start)
        if "location" in headers:
            to = urlsplit(headers["location"])  # one of starlette's own names this side of the proxy
            headers["location"] = urlunsplit(("", "", self._path + to.path, to.query, ""))
        if not headers.get("content-type", "").startswith("text/html"):
            return body
        content = body.get("body", b"")
        for link in _LINKS:
            content = content.replace(link, link[:-1] + self._path.encode() + b"/")
        if content:
            headers["content-length"] = str(len(content))
        return {**body, "body": content}
