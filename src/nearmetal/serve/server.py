"""From a directory to a server that listens: the socket, the address to print, and the limits."""

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import uvicorn

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.serve.app import make_app
from nearmetal.serve.behind import PublicAddress
from nearmetal.serve.catalogue import Catalogue
from nearmetal.serve.guard import AccessPolicy, machine_names
from nearmetal.serve.patience import patient
from nearmetal.store.record import TrialRecord
from nearmetal.typed import adapter

MAX_READERS = 500
"""More connections than this at once are answered 503, so that memory and file descriptors stay bounded."""
_MAX_HEAD_BYTES = 16 << 10
_CLOSE_S = 2
HEAD_S = 10.0
"""A request whose head takes longer is sent away."""
_OWN = "`ip address` lists the addresses of this machine"
_NEEDED = ("anyio._backends._asyncio", "pyarrow.parquet", "pydantic", "scipy.optimize")
_WHERE_INSTALLED = ("pandas",)
"""pyarrow looks for it by itself, the first time that it makes an array."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A socket that listens, and the access policy that belongs to it."""

    socket: socket.socket
    access: AccessPolicy

    @property
    def url(self) -> str:
        """Return the address with the token: anyone who has it may read."""
        return self.at("/")

    def at(self, path: str) -> str:
        """Return the address of a page, such as `/runs/NAME`, with the token."""
        return f"{self._base}{path}?token={self.access.token}"

    @property
    def _base(self) -> str:
        if self.access.public:
            return self.access.public.url
        if self.socket.family == socket.AF_UNIX:
            return "http://localhost"
        host, port = self.socket.getsockname()[:2]
        if ipaddress.ip_address(host).is_unspecified:
            host = socket.gethostname()
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(address: str, port: int, public: PublicAddress | None = None) -> Listening:
    """Bind; port 0 takes a free one. `public` is the address of a proxy before it.

    Raise BadInputError for no address, UnavailableError when it cannot be had.
    """
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        text = f"{address!r} is not an address of this machine: {error.strerror}"
        raise BadInputError(text, hint=_OWN) from error
    family, kind, protocol, _, where = found
    # asyncio sends small answers at once (TCP_NODELAY) only where the socket itself says that it is TCP.
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(MAX_READERS)  # before the address is printed: a user who opens it at once only waits
    except OSError as error:
        listening.close()
        text = f"cannot listen on {address} port {port}: {error.strerror}"
        elsewhere = error.errno == errno.EADDRNOTAVAIL
        raise UnavailableError(text, hint=_OWN if elsewhere else "leave --port out to take a free one") from error
    host, bound = listening.getsockname()[:2]
    beyond = not ipaddress.ip_address(host).is_loopback
    names = machine_names() | {address.lower()} if beyond else frozenset({"localhost"})
    names |= {public.name} if public else set()
    return Listening(listening, AccessPolicy(bound, names, beyond_loopback=beyond, public=public))


def listen_on_socket(path: Path, public: PublicAddress | None = None) -> Listening:
    """Bind a Unix socket that this account alone may use, in the place of one that nobody answers.

    Raise UnavailableError when it cannot be had.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        before = os.umask(0o177)
        try:
            listening.bind(os.fspath(path))
        finally:
            os.umask(before)
        listening.listen(MAX_READERS)
    except OSError as error:
        listening.close()
        text = f"cannot listen on {path}: {error.strerror or error}"
        raise UnavailableError(text, hint="name a path that is free, of at most 107 bytes") from error
    return Listening(
        listening, AccessPolicy(0, frozenset({"localhost", *([public.name] if public else [])}), public=public)
    )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        try:
            asked.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
    return True


def preload() -> None:
    """Load and build what the first answer would otherwise wait for: two thirds of a second."""
    for name in _NEEDED:
        import_module(name)
    for name in _WHERE_INSTALLED:
        if find_spec(name):
            import_module(name)
    adapter(TrialRecord)


def serve(catalogue: Catalogue, listening: Listening, head_s: float = HEAD_S) -> None:
    """Serve until SIGINT or SIGTERM: KeyboardInterrupt, unless the process was started with SIGINT ignored.

    Nothing that a request says is written to a log.
    """
    config = uvicorn.Config(
        make_app(catalogue, listening.access),
        http=patient(head_s),
        ws="none",
        loop="asyncio",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        log_level="error",  # what clients send that is no HTTP is no concern of who serves
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_READERS,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        timeout_graceful_shutdown=_CLOSE_S,
    )
    uvicorn.Server(config).run(sockets=[listening.socket])
