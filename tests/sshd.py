"""A throw-away sshd for tests: its own keys and configuration in a temporary folder, loopback only.

A relay accepts connections on a loopback port and passes each to `sshd -i`, started with an argv prefix: with a prefix
that enters a namespace, that namespace is a machine that is reached only by ssh.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def why_not() -> str:
    """Return why sshd cannot be tested here, or ''."""
    if not SSHD or not shutil.which("ssh-keygen"):
        return "sshd or ssh-keygen is not installed (apt install openssh-server)"
    if os.geteuid() == 0:
        try:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # the directory of sshd's unprivileged process
        except OSError as error:
            return f"sshd needs /run/sshd: {error}"
    return ""


class Sshd:
    """Keys, configuration and the relays; a context manager."""

    def __init__(self, folder: Path, *, max_sessions: int = 10) -> None:
        self.folder = folder
        self.ports: list[int] = []
        self.connections: list[int] = []
        self._listeners: list[socket.socket] = []
        self._children: list[subprocess.Popen[bytes]] = []
        for name in ("host", "user", "stranger"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=600
            )
        shutil.copy(folder / "user.pub", folder / "authorized")
        (folder / "home").mkdir()
        self.config = folder / "sshd_config"
        self.config.write_text(
            f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nPidFile none\nUsePAM no\n"
            "StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
            f"AllowTcpForwarding yes\nLogLevel ERROR\nMaxSessions {max_sessions}\n"
            # What ssh prefers, safe from quantum computers, takes twice as long as all else of a connection.
            "KexAlgorithms curve25519-sha256\n"
            # Not the account's own, and not the machine's, whose journals and locks other processes may hold.
            f"SetEnv HOME={folder}/home NEARMETAL_MACHINE_STATE={folder}/machine\n"
        )
        (folder / "ssh_config").write_text("")
        (folder / "known_hosts").write_text("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unplug()

    @property
    def options(self) -> dict[str, str | int | float | bool]:
        """The options of an ssh host that may log in here."""
        return {name: str(self.folder / file) for name, file in _FILES.items()} | {"connect_timeout_s": 600}

    def serve(self, prefix: list[str]) -> int:
        """Listen on a loopback port; return it."""
        assert SSHD
        listener = socket.create_server(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        with (self.folder / "known_hosts").open("a") as known:
            known.write(f"[127.0.0.1]:{port} {(self.folder / 'host.pub').read_text()}")
        self._listeners.append(listener)
        argv = [*prefix, SSHD, "-i", "-f", str(self.config)]
        threading.Thread(target=self._relay, args=(listener, port, argv), daemon=True).start()
        self.ports.append(port)
        return port

    def unplug(self) -> None:
        """Cut every connection and accept no new ones."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.drop()

    def drop(self) -> None:
        """Cut every connection, like a pulled cable."""
        children, self._children = self._children, []
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, 9)
            child.wait(600)

    def _relay(self, listener: socket.socket, port: int, argv: list[str]) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(port)
            with connection:
                child = subprocess.Popen(
                    argv, stdin=connection, stdout=connection, stderr=subprocess.DEVNULL, start_new_session=True
                )
            self._children.append(child)


_FILES = {"identity": "user", "known_hosts": "known_hosts", "config": "ssh_config"}


class Agent:
    """A throw-away ssh-agent that holds one key; a context manager that yields its socket."""

    def __init__(self, folder: Path, key: str) -> None:
        self._socket = str(folder / "agent")
        self._key = folder / key

    def __enter__(self) -> str:
        self._agent = subprocess.Popen(["ssh-agent", "-D", "-a", self._socket], stdout=subprocess.DEVNULL)
        while self._agent.poll() is None:
            added = subprocess.run(
                ["ssh-add", "-q", str(self._key)],
                env={**os.environ, "SSH_AUTH_SOCK": self._socket},
                stderr=subprocess.DEVNULL,
                check=False,
                timeout=600,
            )
            if added.returncode == 0:
                return self._socket
            time.sleep(0.05)
        raise RuntimeError("ssh-agent does not answer")

    def __exit__(self, *_: object) -> None:
        self._agent.terminate()
        self._agent.wait(600)
