"""`nearmetal serve` as a process: many readers, garbage requests, and a browser that follows a run."""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import httpx2
import pytest
import uvicorn

from nearmetal.cli.main import run
from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.serve import answers
from nearmetal.serve.app import make_app
from nearmetal.serve.behind import PublicAddress
from nearmetal.serve.cache import RecentCache
from nearmetal.serve.catalogue import Catalogue
from nearmetal.serve.guard import AccessPolicy
from nearmetal.serve.server import MAX_READERS, Listening, listen, listen_on_socket, serve
from tests.browser import PAPER, browse, first_pixel, needs_chromium
from tests.fake_runs import list_anew
from tests.unit.report.synthetic_run import STUDY, Recipe, make_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send

SMALL = STUDY.replace('sizes = [8, "1 KiB", "64 KiB"]', "sizes = [8]")
READERS = 200
HEADROOM_BYTES = 64 << 20
"""What 200 readers may add to the memory that one reader needed."""


class Served:
    def __init__(self, folder: Path) -> None:
        argv = [sys.executable, "-c", "from nearmetal.cli.main import main; main()", "serve", str(folder)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=(\S{43})", self.url)
        assert found, self.url
        self.port, self.token = int(found[1]), found[2]

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208 (only how many)

    @property
    def peak_bytes(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmHWM:")[1].split()[0]) * 1024

    def end(self) -> tuple[str, str]:
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "first", Recipe(study=SMALL, blocks=5))
    make_run(folder / "second", Recipe(study=SMALL, blocks=5, seed=8))
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    """The server of a process of its own, which starts once; the last test here that needs it ends it."""
    server = Served(folder)
    yield server
    if server.process.poll() is None:
        server.process.kill()
    server.process.communicate()


def test_the_example_opens_at_its_report_and_leaves_nothing() -> None:
    argv = [sys.executable, "-c", "from nearmetal.cli.main import main; main()", "try", "--no-browser"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with httpx2.Client(trust_env=False, timeout=600, follow_redirects=True) as client:
            page = client.get(address)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=600)
    assert page.status_code == 200
    assert 'id="verdicts"' in page.text
    assert process.returncode == 0
    folder = re.search(r"the run is (\S+)/example until", stderr)
    assert folder
    assert not Path(folder[1]).exists()


def test_two_hundred_readers_at_once(served: Served) -> None:
    paths = ("/", "/runs/first", "/runs/second/live", "/runs/damaged", "/api/v1/compare?run=second&base=first")
    asyncio.run(_read(served, 1, paths))
    descriptors, peak_bytes = served.descriptors, served.peak_bytes
    answers = asyncio.run(_read(served, READERS, paths))
    assert len(answers) == READERS * len(paths)
    assert {status for status, _ in answers} == {200, 422}
    assert {size for status, size in answers if status == 200 and size > 60_000}
    assert served.peak_bytes - peak_bytes < HEADROOM_BYTES
    while served.descriptors > descriptors + 8:  # the readers do not wait for the connection to close
        time.sleep(0.02)


async def _read(served: Served, readers: int, paths: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return status and size of each answer, read without httpx, which took more time than the server."""
    bearer = f"Host: 127.0.0.1:{served.port}\r\nAuthorization: {served.headers['Authorization']}"

    async def get(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, int]:
        writer.write(f"GET {path} HTTP/1.1\r\n{bearer}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"\r\ncontent-length: (\d+)\r\n", head)
        assert size, head
        return int(head.split()[1]), len(await reader.readexactly(int(size[1])))

    async def one() -> list[tuple[int, int]]:
        answers: list[tuple[int, int]] = []
        while len(answers) < len(paths):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            # On a busy machine a reader's request may be too late, and the server hangs up.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while len(answers) < len(paths):
                    answers.append(await get(paths[len(answers)], reader, writer))
            writer.close()
        return answers

    return [answer for answers in await asyncio.gather(*(one() for _ in range(readers))) for answer in answers]


RUBBISH = [
    b"",
    b"\r\n\r\n",
    b"GET",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /%zz%00%ff?%=&&=;token HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: =;;=\xff\r\nAuthorization: \xff\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


def _say(port: int, request: bytes) -> bytes:
    """Return the beginning of the response, or nothing if the server hung up."""
    with socket.create_connection(("127.0.0.1", port), timeout=600) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(4096)
    return b""


def test_what_follows_an_answered_request_ends_the_connection(served: Served) -> None:
    """Its body goes on as no HTTP could; a second answer is not possible, and was a traceback."""
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=600) as connection:
        connection.sendall(head)
        answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 4"), answer
        connection.sendall(b"zz\r\n")
        while left := connection.recv(4096):
            answer += left
    assert answer.count(b"HTTP/1.1") == 1


def test_garbage_requests_are_refused_and_others_are_still_served(served: Served) -> None:
    held = [socket.create_connection(("127.0.0.1", served.port), timeout=600) for _ in range(20)]
    for connection in held:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Never-")
    each_anew = served.headers | {"Connection": "close"}
    with httpx2.Client(headers=each_anew, trust_env=False, timeout=600) as client:
        for request in RUBBISH:
            answer = _say(served.port, request)
            assert not answer or re.match(rb"HTTP/1\.1 4\d\d ", answer), answer[:80]
            assert client.get(served.base).status_code == 200
    for connection in held:
        connection.close()


def test_the_token_is_printed_once_and_written_nowhere(served: Served) -> None:
    command_line = Path(f"/proc/{served.process.pid}/cmdline").read_bytes()
    assert served.token.encode() not in command_line
    welcome = httpx2.get(served.url, trust_env=False, timeout=600)
    assert welcome.status_code == 303
    for path in ("/", "/nope", "/?token=wrong", f"/runs/damaged?token={served.token}"):
        httpx2.get(f"{served.base}{path}", trust_env=False, timeout=600)
    out, err = served.end()
    assert served.process.returncode == 0
    assert out == ""
    assert served.token not in err
    said = ["serving 3 runs", "stopped"]
    assert [line.partition(" of ")[0] for line in err.splitlines()] == said, "nothing of the garbage above either"


@pytest.mark.parametrize("end", [KeyboardInterrupt, None], ids=["ctrl-c", "kill -INT of a job in the background"])
def test_a_stopped_server_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: type[BaseException] | None
) -> None:
    """A shell starts jobs in the background with SIGINT ignored: no KeyboardInterrupt follows there."""
    monkeypatch.setattr("nearmetal.serve.server.serve", Mock(side_effect=end))
    assert run(["serve", str(folder)]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "stopped"


def test_an_unusable_listening_address_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for argv, code, message in (
            ([str(folder), "--port", str(taken.getsockname()[1])], 3, "Address already in use"),
            ([str(folder), "--listen", "192.0.2.7"], 3, "hint: `ip address` lists"),
            ([str(folder), "--listen", "no.such.name.invalid"], 2, "is not an address of this machine"),
            ([str(folder / "nope")], 2, "is not a directory"),
        ):
            assert run(["serve", *argv]) == code
            captured = capsys.readouterr()
            assert message in captured.err
            assert "hint: " in captured.err
            assert captured.out == ""


@pytest.mark.parametrize(("address", "warned"), [("0.0.0.0", True), ("127.0.0.1", False), ("localhost", False)])
def test_beyond_loopback_comes_with_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str, *, warned: bool
) -> None:
    monkeypatch.setattr("nearmetal.serve.server.serve", lambda catalogue, listening: None)
    assert run(["serve", "--listen", address, str(folder)]) == 0
    captured = capsys.readouterr()
    assert ("warning: anyone who can reach this address" in captured.err) == warned
    assert "?token=" in captured.out


def test_small_responses_are_not_delayed(folder: Path) -> None:
    """Without our protocol asyncio leaves Nagle's algorithm on, and a response waits 40 ms for the reader's ACK."""
    with contextlib.closing(listen("127.0.0.1", 0).socket) as listening:
        assert listening.proto == socket.IPPROTO_TCP


@contextlib.contextmanager
def _serving(folder: Path, listening: Listening, head_s: float = 10.0) -> Iterator[None]:
    """Serve from a separate process, which ends with the block."""
    child = os.fork()
    if child == 0:
        try:
            serve(Catalogue(folder), listening, head_s)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        listening.socket.close()


def _asked(connection: socket.socket, access: AccessPolicy, path: str = "/", host: str = "localhost") -> bytes:
    with contextlib.closing(connection):
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {access.token}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_silent_connections_do_not_block_others(folder: Path) -> None:
    listening = listen("127.0.0.1", 0)
    where = listening.socket.getsockname()[:2]
    with _serving(folder, listening), contextlib.ExitStack() as stack:
        for number in range(MAX_READERS + 10):
            silent = stack.enter_context(socket.create_connection(where))
            if number % 2:
                silent.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        assert _asked(socket.create_connection(where), listening.access).startswith(b"HTTP/1.1 200")


def test_a_silent_connection_is_closed(folder: Path) -> None:
    listening = listen("127.0.0.1", 0)
    where = listening.socket.getsockname()[:2]
    with _serving(folder, listening, head_s=0.1):
        for begun in (b"", b"GET / HTTP/1.1\r\n"):
            with contextlib.closing(socket.create_connection(where)) as silent:
                silent.sendall(begun)
                with contextlib.suppress(ConnectionResetError):
                    assert silent.recv(1) == b""  # waits until the server has closed it
        answer = b""
        while not answer:  # on a busy machine even this reader may be too slow for so short a limit
            with contextlib.suppress(ConnectionError):
                answer = _asked(socket.create_connection(where), listening.access)
        assert answer.startswith(b"HTTP/1.1 200")


def test_a_unix_socket_behind_a_proxy_with_a_path(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "serve.sock"
    public = PublicAddress.parse("https://cluster.example.org/tools/nearmetal/")
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stale.bind(str(place))
    stale.close()
    listening = listen_on_socket(place, public)
    assert listening.url.startswith("https://cluster.example.org/tools/nearmetal/?token=")
    assert place.stat().st_mode & 0o777 == 0o600

    def ask(path: str, host: str) -> bytes:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(place))
        return _asked(connection, listening.access, path, host)

    with _serving(folder, listening):
        with pytest.raises(UnavailableError, match="cannot listen"):
            listen_on_socket(place)
        for path in ("/", "/tools/nearmetal/", "/tools/nearmetal"):  # a proxy strips the path, or does not
            head, _, body = ask(path, "cluster.example.org").partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert f"content-length: {len(body)}".encode() in head.lower()
            links = set(re.findall(rb'(?:href|action|src)="(/[^"]*)"', body))
            assert links
            assert all(link.startswith(b"/tools/nearmetal/") for link in links), links
        slash = ask("/tools/nearmetal/history/?metric=p99", "cluster.example.org").lower()
        assert b"location: /tools/nearmetal/history?metric=p99\r\n" in slash
        welcome = ask(f"/?token={listening.access.token}", "cluster.example.org").lower()
        assert b"location: /tools/nearmetal/\r\n" in welcome
        assert b"path=/tools/nearmetal/" in welcome
        assert b"secure" in welcome
        assert ask("/", "elsewhere.example.org").startswith(b"HTTP/1.1 421")


NGINX = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr notice;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder};
    scgi_temp_path {folder};
    server {{ listen unix:{folder}/front.sock; {location} }}
}}
"""


@contextlib.contextmanager
def _nginx(folder: Path, location: str) -> Iterator[httpx2.Client]:
    """Start nginx with one location, and yield a client that connects only to it."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("there is no nginx here (apt install nginx)")
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, location=location, user="user root;" if os.geteuid() == 0 else ""))
    with subprocess.Popen([program, "-p", str(folder), "-c", str(config)], stderr=subprocess.PIPE, text=True) as nginx:
        assert nginx.stderr is not None
        try:
            output = []
            for line in nginx.stderr:
                output.append(line)
                if "start worker process " in line:
                    break
            else:
                pytest.fail("".join(output))
            transport = httpx2.HTTPTransport(uds=str(folder / "front.sock"))
            with httpx2.Client(transport=transport, timeout=600, follow_redirects=True) as client:
                yield client
        finally:
            nginx.terminate()


@pytest.mark.parametrize("takes_path_off", [True, False])
def test_behind_nginx_every_link_works(folder: Path, tmp_path: Path, *, takes_path_off: bool) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "browse-runs.md").read_text()
    shown = re.search(r"```nginx\n(.*?)```", page, re.DOTALL)
    assert shown, "the page shows a location for nginx"
    place = tmp_path / "serve.sock"
    location = shown[1].replace("/run/user/1000/nearmetal.sock", str(place))
    assert str(place) in location
    if not takes_path_off:
        location = location.replace(f"{place}:/", f"{place}")
    public = "http://cluster.example.org/nearmetal"
    listening = listen_on_socket(place, PublicAddress.parse(public))
    with _serving(folder, listening), _nginx(tmp_path, location) as client:
        assert client.get(f"{public}/").status_code == 401
        first = client.get(listening.url)
        assert (first.status_code, str(first.url)) == (200, f"{public}/"), "the token is removed from the address"
        seen, left = {"/nearmetal/"}, _links(first.text)
        while left:
            link = left.pop()
            answer = client.get(f"http://cluster.example.org{link}")
            assert answer.status_code == 200, link
            seen.add(link)
            if answer.headers["content-type"].startswith("text/html") and "/report" not in link:
                left |= _links(answer.text) - seen
        assert any("/runs/" in link for link in seen)
        assert len(client.get(f"{public}/api/v1/runs").json()["runs"]) > 0
        assert client.get(f"{public}/", headers={"Host": "elsewhere.example.org"}).status_code == 421
        assert client.get("http://cluster.example.org/").status_code == 404, "nginx's own answer"


def _links(page: str) -> set[str]:
    """Return where the links of a page lead on this server; each must be below the proxy's path."""
    found = {html.unescape(link).partition("#")[0] for link in re.findall(r'(?:href|src)="(/[^"]*)"', page)}
    assert all(link.startswith("/nearmetal/") for link in found), found
    return found


@pytest.mark.parametrize(
    "url", ["", "cluster", "ftp://a/b", "https://", "https://a/b?c", 'https://a/"x', "https://a//b", "http://["]
)
def test_an_invalid_public_address_is_refused(url: str) -> None:
    with pytest.raises(BadInputError, match="not the address"):
        PublicAddress.parse(url)


# ---- in a browser


@contextlib.contextmanager
def _in_this_process(app: ASGIApp) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join(timeout=600)
    listening.close()


@needs_chromium
@pytest.mark.parametrize("path", ["/?", "/compare?run=second&base=first&"])
def test_pages_are_styled_and_print_nothing_on_the_console(folder: Path, tmp_path: Path, path: str) -> None:
    access = AccessPolicy(8470)
    with _in_this_process(make_app(Catalogue(folder), access)) as port:
        url = f"http://127.0.0.1:{port}{path}token={access.token}"
        finished = browse(url, tmp_path / "profile", f"--screenshot={tmp_path / 'shot.png'}", "--window-size=1280,900")
    assert first_pixel((tmp_path / "shot.png").read_bytes()) == PAPER["light"]
    assert (tmp_path / "shot.png").stat().st_size > 20_000
    assert "CONSOLE" not in finished.stderr


@needs_chromium
def test_the_live_page_follows_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser loads the page; before its second request a trial is added, which must then appear on the page."""
    monkeypatch.setattr(answers, "RecentCache", lambda: RecentCache(seconds=0.0))
    make_run(tmp_path / "runs" / "run", Recipe(study=SMALL, blocks=5))
    last = max((tmp_path / "runs" / "run" / "trials").iterdir())
    hidden = last.rename(tmp_path / last.name)
    list_anew(tmp_path / "runs" / "run")
    access = AccessPolicy(8470)
    inner = make_app(Catalogue(tmp_path / "runs"), access)
    looks: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/live/part"):
            looks.append(scope["path"])
            if len(looks) == 2:
                hidden.rename(last)
        await inner(scope, receive, send)

    with _in_this_process(app) as port:
        url = f"http://127.0.0.1:{port}/runs/run/live?token={access.token}"
        finished = browse(url, tmp_path / "profile", "--virtual-time-budget=9000", "--dump-dom")
    assert len(looks) >= 2
    assert "6 of at most 6 trials; 30 valid in all" in finished.stdout
    assert 'class="cards"' in finished.stdout
    assert "CONSOLE" not in finished.stderr
