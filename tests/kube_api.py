"""A Kubernetes API server for tests: kubectl's requests before `get pods` and `exec`, and exec itself by WebSocket.

The protocol is `v5.channel.k8s.io` (apimachinery, pkg/util/remotecommand/constants.go), which kubectl speaks since
1.31: binary messages whose first byte is the channel, and on channel 3 a Status with the program's exit code. A pod is
a command on this machine that starts its container's programs. No TLS, so kubectl sends no credentials.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import shutil
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
_BINARY, _GOODBYE, _PING, _PONG = 2, 8, 9, 10
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LEAST = (1, 31)


def why_not() -> str:
    """Return why no kubectl here can use this server, or ''."""
    program = shutil.which("kubectl")
    if program is None:
        return "kubectl is not installed"
    version = subprocess.run(
        [program, "version", "--client"], capture_output=True, text=True, check=False, timeout=600
    ).stdout
    found = re.search(r"v(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < _LEAST:
        return f"kubectl here does not exec by WebSocket, as it does since 1.31: {version.strip()}"
    return ""


class KubeApi(ThreadingHTTPServer):
    """The server: `pods` are the items that `get pods` lists, `entered` maps a pod's name to the command that enters
    it.
    """

    daemon_threads = True

    def __init__(self, pods: Sequence[Mapping[str, Any]], entered: Mapping[str, Sequence[str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.pods, self.entered = pods, entered
        self.running: list[subprocess.Popen[bytes]] = []
        self.connections: list[socket.socket] = []
        self.asked: list[str] = []

    def hang_up(self) -> None:
        """Drop every connection to a pod without a closing handshake."""
        while self.connections:
            self.connections.pop().shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Stop serving, and end the programs in the pods."""
        self.shutdown()
        self.server_close()
        for child in self.running:
            with child:
                child.kill()

    def write_config(self, path: Path) -> None:
        """Write a kubeconfig whose context `test` is this server; no current context is set."""
        cluster = {"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}
        context = {"name": "test", "context": {"cluster": "test", "user": "", "namespace": "default"}}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context]}
        path.write_text(json.dumps(config))


@contextlib.contextmanager
def reached(api: KubeApi, config: Path) -> Iterator[KubeApi]:
    """Serve, with KUBECONFIG naming the server."""
    api.write_config(config)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(config))
        try:
            yield api
        finally:
            api.end()


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: KubeApi

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.server.asked.append(self.path)
        pod = re.fullmatch(r"/api/v1/namespaces/hpc/pods/([^/]+)(/exec)?", url.path)
        if url.path in _DISCOVERY:
            self._say(_DISCOVERY[url.path])
        elif url.path == "/api/v1/namespaces/hpc/pods":
            wanted = parse_qs(url.query).get("labelSelector", [""])[0]
            found = [one for one in self.server.pods if _labels(one) == wanted or not wanted]
            self._say({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": found})
        elif pod and pod[2] and pod[1] in self.server.entered:
            self._exec(pod[1], parse_qs(url.query))
        elif pod and pod[1] in self.server.entered:
            found = [one for one in self.server.pods if one["metadata"]["name"] == pod[1]]
            self._say({**found[0], "spec": {"containers": [{"name": "mpi"}]}})
        else:
            name = pod[1] if pod else url.path
            self._refuse(404, "NotFound", f'pods "{name}" not found')

    def _say(self, answer: object, status: int = 200) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, reason: str, message: str) -> None:
        status_object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self._say({**status_object, "message": message, "reason": reason, "code": status}, status)

    def _exec(self, pod: str, query: Mapping[str, list[str]]) -> None:
        if "v5.channel.k8s.io" not in self.headers.get("Sec-WebSocket-Protocol", ""):
            self._refuse(400, "BadRequest", "this server takes v5.channel.k8s.io only")
            return
        if query.get("container") != ["mpi"]:
            self._refuse(400, "BadRequest", f"container {query.get('container')} is not valid for pod {pod}")
            return
        key = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + _GUID).encode()).digest()
        self.send_response(101, "Switching Protocols")
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
            self.send_header(name, value)
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(key).decode())
        self.send_header("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
        self.end_headers()
        self.close_connection = True
        self.server.connections.append(self.connection)
        pipe = subprocess.PIPE
        argv = [*self.server.entered[pod], *query["command"]]
        child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
        self.server.running.append(child)
        _Session(child, self.rfile, self.wfile, tuple(map(_asked_for(query), ("stdin", "stdout", "stderr")))).carry()


def _asked_for(query: Mapping[str, list[str]]):
    return lambda name: query.get(name) in (["true"], ["1"])


def _labels(pod: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in pod["metadata"]["labels"].items())


class _Session:
    """One program's streams as messages; it ends with the program, and the program's input with the connection."""

    def __init__(self, child: subprocess.Popen[bytes], incoming: IO[bytes], outgoing: IO[bytes], asked) -> None:
        self.child, self.incoming, self.outgoing = child, incoming, outgoing
        self.stdin, self.stdout, self.stderr = asked
        self.lock = threading.Lock()

    def carry(self) -> None:
        assert self.child.stdout
        assert self.child.stderr
        streams = [(STDOUT, self.child.stdout, self.stdout), (STDERR, self.child.stderr, self.stderr)]
        readers = [threading.Thread(target=self._forward, args=one, daemon=True) for one in streams]
        taker = threading.Thread(target=self._take, daemon=True)
        for thread in (*readers, taker):
            thread.start()
        for reader in readers:
            reader.join()
        self._send(_BINARY, bytes([ERROR]) + json.dumps(_status(self.child.wait())).encode())
        self._send(_GOODBYE, b"\x03\xe8")
        taker.join()

    def _forward(self, channel: int, pipe: IO[bytes], wanted: bool) -> None:
        while data := pipe.read1(16 * 1024):  # type: ignore[attr-defined]
            if wanted:
                self._send(_BINARY, bytes([channel]) + data)

    def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        head = bytes([0x80 | kind]) + (bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big"))
        with self.lock, contextlib.suppress(OSError):  # the client has hung up
            self.outgoing.write(head + data)
            self.outgoing.flush()

    def _take(self) -> None:
        """Read until the client closes the connection or hangs up; either ends the program's input."""
        assert self.child.stdin
        with contextlib.suppress(OSError):
            while (message := self._message()) is not None:
                kind, data = message
                if kind == _GOODBYE:
                    break
                if kind == _PING:
                    self._send(_PONG, data)
                elif data[:1] == bytes([CLOSE]):
                    if data[1:2] == bytes([STDIN]):
                        self.child.stdin.close()
                elif data[:1] == bytes([STDIN]) and self.stdin:
                    self.child.stdin.write(data[1:])
                    self.child.stdin.flush()
        with contextlib.suppress(OSError):
            self.child.stdin.close()

    def _message(self) -> tuple[int, bytes] | None:
        """Return the kind and the bytes of the next whole message, or None at the end."""
        whole, first = b"", 0
        while True:
            head = self.incoming.read(2)
            if len(head) < 2:
                return None
            size = head[1] & 0x7F
            if size >= 126:
                size = int.from_bytes(self.incoming.read(2 if size == 126 else 8), "big")
            mask = self.incoming.read(4)
            masked = self.incoming.read(size)
            if len(masked) < size:
                return None
            whole += bytes(byte ^ mask[at % 4] for at, byte in enumerate(masked))
            first = first or head[0] & 0x0F
            if head[0] & 0x80:
                return first, whole


def _status(code: int) -> dict[str, object]:
    """Return the Status that an API server sends for a program's end; a signal is 128 and more, as a runtime has it."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    shown = code if code > 0 else 128 - code
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {shown}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(shown)}]},
    }


_VERBS = {"namespaced": True, "singularName": ""}
_DISCOVERY: dict[str, object] = {
    "/api/v1/namespaces/hpc": {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "hpc"}},
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {"name": "pods", "kind": "Pod", "verbs": ["get", "list"], "shortNames": ["po"], **_VERBS},
            {"name": "pods/exec", "kind": "PodExecOptions", "verbs": ["create", "get"], **_VERBS},
        ],
    },
}
