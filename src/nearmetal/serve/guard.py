"""Who may read, and what browsers are told: every request passes here first.

- The `Host` header must be this machine's: a name that somebody else's DNS points here (DNS rebinding) is refused.
- Only GET and HEAD exist.
- A request carries the token, as `Authorization: Bearer` or once as `?token=`, or the cookie that the latter is
  exchanged for. The cookie holds a second secret, so that the token is in no later request.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response

from nearmetal.serve.behind import PublicAddress

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The secrets of one server and the names it answers to; neither is ever written to a log.

    `port` only keeps the cookies of several servers on one machine apart: browsers do not.
    """

    port: int
    names: frozenset[str] = frozenset({"localhost"})
    beyond_loopback: bool = False
    public: PublicAddress | None = None
    token: str = field(default_factory=_secret, repr=False)
    session: str = field(default_factory=_secret, repr=False)

    @property
    def cookie(self) -> str:
        """Return the name of the cookie."""
        return f"nearmetal-{self.port}"

    def knows_host(self, header: str | None) -> bool:
        """Return whether a Host header is this server's; the port may be another, that of a tunnel.

        An address is no name, so DNS cannot have been made to lie about it; on loopback it must be a loopback one.
        """
        if not header:
            return False
        name = header.rsplit(":", 1)[0] if header.rpartition(":")[2].isdigit() else header
        name = name.removeprefix("[").removesuffix("]").removesuffix(".").lower()
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return self.beyond_loopback or address.is_loopback

    def admits(self, headers: Headers) -> bool:
        """Return whether a request carries the token or the cookie; the time taken reveals nothing about the token."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(given.strip(), self.token):
            return True
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        return self.cookie in cookies and _same(cookies[self.cookie].value, self.session)


def machine_names() -> frozenset[str]:
    """Return the names by which other machines may call this one, lower case."""
    return frozenset({"localhost", socket.gethostname().lower(), socket.getfqdn().lower()})


def _same(given: str, secret: str) -> bool:
    return secrets.compare_digest(given.encode(), secret.encode())


class Guard:
    """The ASGI middleware around the whole application; `refuse` draws a refusal for a path, status and message."""

    def __init__(self, app: ASGIApp, access: AccessPolicy, refuse: Callable[[str, int, str, str], Response]) -> None:
        self._app = app
        self._access = access
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is refused; hand on the rest, and add headers to every answer."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(scope)
        await (answer or self._app)(scope, receive, with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """Return a refusal or the exchange of the token, None when the request may pass."""
        headers, path = Headers(scope=scope), scope["path"]
        if not self._access.knows_host(headers.get("host")):
            return self._refuse(
                path, 421, "this server does not answer to that name", "use the address that it printed"
            )
        if scope["method"] not in METHODS:
            refused = self._refuse(path, 405, f"no {scope['method']} is served: runs are read only", "use GET")
            refused.headers["Allow"] = ", ".join(METHODS)
            return refused
        given = next((value for name, value in _query(scope) if name == "token"), None)
        if given is not None and _same(given, self._access.token):
            return self._exchange_token(scope)
        if given is None and self._access.admits(headers):
            return None
        refused = self._refuse(
            path, 401, "this request carries no valid token", "open the address that `nearmetal serve` printed"
        )
        refused.headers["WWW-Authenticate"] = 'Bearer realm="nearmetal"'
        return refused

    def _exchange_token(self, scope: Scope) -> Response:
        """Exchange the token for the cookie, and take the token out of the address bar."""
        rest = [pair for pair in _query(scope) if pair[0] != "token"]
        # One slash exactly: two would name another host.
        target = "/" + quote(scope["path"].lstrip("/")) + (f"?{urlencode(rest)}" if rest else "")
        answer = RedirectResponse(target, status_code=303)
        public = self._access.public
        answer.set_cookie(
            self._access.cookie,
            self._access.session,
            httponly=True,
            samesite="strict",
            path=f"{public.path}/" if public else "/",
            secure=bool(public and public.secure),
        )
        return answer


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
