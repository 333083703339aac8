"""Connections: asyncssh on its own thread, behind plain calls.

Host keys are always checked. Keys come from the agent, from ssh's usual places or from one named file; there are no
passwords, so nothing secret passes through nearmetal. The only command that is ever requested is the constant
`exec /bin/sh`: sshd hands requests to the user's login shell as text, so nothing that varies may be in them.
"""

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

import asyncssh

from nearmetal.errors import UnavailableError
from nearmetal.hosts.far.stream import Inbox, LostError, Stream
from nearmetal.hosts.ssh import Login, parse_login

T = TypeVar("T")

_COMMAND = "exec /bin/sh"
_MAX_CONNECTIONS = 8
_KEEPALIVE_S = 15


@dataclass(frozen=True, slots=True)
class SshReach:
    """How machines are reached: paths of files (empty for ssh's own), the time for one connection, how many at once."""

    identity: str = ""
    known_hosts: str = ""
    config: str = ""
    connect_timeout_s: float = 20.0
    parallel: int = 32


@dataclass(frozen=True, slots=True)
class SshAddress:
    """One sshd; `jump` as in `ssh -J`, `connect_timeout_s` is 0 where the time for every connection holds."""

    name: str
    login: Login
    jump: str = ""
    connect_timeout_s: float = 0.0

    def __str__(self) -> str:
        port = f" port {self.login.port}" if self.login.port else ""
        where = f"{self.login.address}{port}"
        return self.name if where == self.name else f"{self.name} ({where})"

    @property
    def hops(self) -> list[Login]:
        """Return the jump hosts on the way; raise BadInputError for one that is none."""
        return [parse_login(hop.strip()) for hop in self.jump.split(",") if hop.strip()]

    @property
    def command(self) -> str:
        """The command with which a person reaches it."""
        login = self.login
        user, port = f"{login.user}@" if login.user else "", f"-p {login.port} " if login.port else ""
        jump = f"-J {self.jump} " if self.jump else ""
        return f"ssh {jump}{port}{user}{login.address}"


class Connector:
    """The thread, the event loop and the connections; every call is safe from any thread."""

    def __init__(self, access: SshReach) -> None:
        self._access = access
        self._loop = asyncio.new_event_loop()
        self._gate = asyncio.Semaphore(access.parallel)
        self._open: dict[SshAddress, list[asyncssh.SSHClientConnection]] = {}
        self._hops: list[asyncssh.SSHClientConnection] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="nearmetal-ssh", daemon=True)
        self._thread.start()

    def open_shell(self, place: SshAddress) -> Stream:
        """Start `sh` on a machine, connecting first where needed; raise UnavailableError or LostError."""
        return self._do(self._open_shell(place))

    def close(self) -> None:
        """Close every connection and end the thread; calling twice does nothing more."""
        if self._thread.is_alive():
            self._do(self._close_all())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _do(self, work: Coroutine[object, object, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise LostError("the connections are closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _open_shell(self, place: SshAddress) -> Stream:
        """Use the newest connection; sshd limits the shells of one (MaxSessions), so a full one gets a successor."""
        connections = self._open.setdefault(place, [])
        connections[:] = [one for one in connections if not one.is_closed()]
        limit_s = place.connect_timeout_s or self._access.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                for attempt in range(_MAX_CONNECTIONS):
                    fresh = not connections or attempt > 0
                    if fresh:
                        connections.append(await self._connect(place))
                    with contextlib.suppress(asyncssh.ChannelOpenError):
                        return await self._shell_on(connections[-1])
        except TimeoutError as error:
            raise UnavailableError(
                f"{place} did not answer ssh within {limit_s:g} s",
                hint="check address and jump host with plain ssh, or raise `connect_timeout_s` of the node or the host",
            ) from error
        except (OSError, asyncssh.Error) as error:
            raise _explained(place, error) from error
        raise LostError(f"{place.name} refuses more shells", hint="raise MaxSessions in its sshd_config")

    async def _connect(self, place: SshAddress) -> asyncssh.SSHClientConnection:
        async with self._gate:
            tunnel: asyncssh.SSHClientConnection | None = None
            for hop in place.hops:
                tunnel = await self._one_hop(hop, tunnel)
                self._hops.append(tunnel)
            return await self._one_hop(place.login, tunnel)

    async def _one_hop(self, login: Login, tunnel: asyncssh.SSHClientConnection | None) -> asyncssh.SSHClientConnection:
        access = self._access
        return await asyncssh.connect(
            login.address,
            login.port or (),
            username=login.user or (),
            tunnel=tunnel or (),
            known_hosts=access.known_hosts or (),
            client_keys=[access.identity] if access.identity else (),
            config=[access.config] if access.config else (),
            password_auth=False,
            kbdint_auth=False,
            agent_forwarding=False,
            request_pty=False,  # whatever the configuration says: a terminal has no stderr, and echoes
            keepalive_interval=_KEEPALIVE_S,
        )

    async def _shell_on(self, connection: asyncssh.SSHClientConnection) -> Stream:
        inbox = Inbox()
        channel, _ = await connection.create_session(lambda: _Session(inbox), _COMMAND, encoding=None)
        later = self._later

        def write(data: bytes) -> None:
            later(functools.partial(_write, channel, data))

        return Stream(inbox, write, lambda: later(functools.partial(_end, channel)), lambda: later(channel.close))

    def _later(self, deed: Callable[[], None]) -> None:
        if self._loop.is_closed():
            raise LostError("the connections are closed")
        self._loop.call_soon_threadsafe(deed)

    async def _close_all(self) -> None:
        everything = [one for connections in self._open.values() for one in connections]
        everything += reversed(self._hops)
        self._open.clear()
        self._hops.clear()
        for connection in everything:
            connection.close()
        for connection in everything:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await connection.wait_closed()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports of refused logins close in the loop's next turns


class _Session(asyncssh.SSHClientSession[bytes]):
    """Hands what a channel says to an inbox."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._status: int | None = None

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._inbox.put(2 if datatype == asyncssh.EXTENDED_DATA_STDERR else 1, data)

    def exit_status_received(self, status: int) -> None:
        self._status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:  # noqa: ARG002
        self._inbox.end(None, f"sh was ended by SIG{signal}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._inbox.end(self._status, str(exc) if exc else "the channel was closed")


def _write(channel: asyncssh.SSHClientChannel[bytes], data: bytes) -> None:
    if not channel.is_closing():
        channel.write(data)


def _end(channel: asyncssh.SSHClientChannel[bytes]) -> None:
    if not channel.is_closing():
        channel.write_eof()


def _explained(place: SshAddress, error: OSError | asyncssh.Error) -> UnavailableError:
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        message = f"the host key of {place} is not in known_hosts, so nothing was sent"
        hint = f"log in once with `{place.command}` and compare the fingerprint it shows"
        return UnavailableError(message, hint=hint)
    if isinstance(error, asyncssh.PermissionDenied):
        return UnavailableError(
            f"{place} refuses the login",
            hint="load your key into ssh-agent, or name its file in the option `identity`; passwords are not supported",
        )
    why = (error.strerror if isinstance(error, OSError) else "") or str(error)
    if (
        isinstance(error, OSError) and error.errno and why.startswith("Connect call failed")
    ):  # asyncio's, not the reason
        why = os.strerror(error.errno)
    if isinstance(error, FileNotFoundError) and error.filename:  # the program of a ProxyCommand
        why = f"{why}: {error.filename}"
    return UnavailableError(f"cannot connect to {place}: {why}", hint=f"check it with `{place.command}`")
