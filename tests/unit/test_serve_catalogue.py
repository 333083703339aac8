"""How `nearmetal serve` lists directories, valid and hostile, and what it caches."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from fake_runs import rewrite
from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.serve import pages
from nearmetal.serve.app import make_app
from nearmetal.serve.cache import Cache
from nearmetal.serve.catalogue import Catalogue, state
from nearmetal.serve.guard import AccessPolicy
from nearmetal.store.disk import is_being_written
from nearmetal.store.rundir import RunDir
from tests.unit.report.synthetic_run import STUDY, Recipe, make_run

if TYPE_CHECKING:
    from pathlib import Path

SMALL = STUDY.replace('sizes = [8, "1 KiB", "64 KiB"]', "sizes = [8]")
DOOR = AccessPolicy(8470)
SIGNED_IN = {"Authorization": f"Bearer {DOOR.token}"}


def test_names_that_are_not_valid_text_are_shown_and_found(tmp_path: Path) -> None:
    make_run(tmp_path / "run", Recipe(study=SMALL, blocks=1)).root.rename(tmp_path / os.fsdecode(b"a\xff\n\x1b[31m"))
    client = TestClient(make_app(Catalogue(tmp_path), DOOR), base_url="http://127.0.0.1:8470", headers=SIGNED_IN)
    name = client.get("/api/v1/runs").json()["runs"][0]["name"]
    assert name == "a\\udcff\\n\\x1b[31m"
    assert client.get(f"/api/v1{pages.run_path(name)}/progress").status_code == 200
    assert client.get(pages.run_path(name)).status_code == 200


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is not a directory"):
        Catalogue(tmp_path / "nope")


@pytest.mark.parametrize("place", ["run.json", "study.toml", "trials", "trials/000000.json", "samples/000000.parquet"])
def test_links_are_not_followed_out_of_a_run(tmp_path: Path, place: str) -> None:
    make_run(tmp_path / "runs" / "run", Recipe(study=SMALL, blocks=1))
    path = tmp_path / "runs" / "run" / place
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ForeignFileError):
        state(tmp_path / "runs" / "run")


def test_linked_directories_are_not_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "run", Recipe(study=SMALL, blocks=1))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "run")
    assert Catalogue(tmp_path / "runs").entries() == ()


@pytest.mark.parametrize("place", ["run.json", "study.toml", "trials/x.json"])
def test_a_pipe_does_not_block(tmp_path: Path, place: str) -> None:
    make_run(tmp_path / "run", Recipe(study=SMALL, blocks=1))
    (tmp_path / "run" / place).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "run" / place)
    app = make_app(Catalogue(tmp_path), DOOR)
    with TestClient(app, base_url="http://127.0.0.1:8470", headers=SIGNED_IN) as opened:
        assert opened.get("/").status_code == 200
        assert opened.get("/runs/run").status_code == 422


def test_a_file_that_is_restored_with_its_time_or_made_readable_is_read_again(tmp_path: Path) -> None:
    """The error that it could not be read, or had changed, was shown until the server was started anew."""
    root = make_run(tmp_path / "run", Recipe(study=SMALL, blocks=1)).root
    path = root / "trials" / "000000.json"
    found, known = path.stat(), state(root)
    while path.stat().st_ctime_ns == found.st_ctime_ns:  # kernels of old count in ticks
        path.write_bytes(path.read_bytes())
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert path.stat().st_mtime_ns == found.st_mtime_ns
    assert state(root) != known


def test_a_run_that_claims_too_much_is_not_read(tmp_path: Path) -> None:
    make_run(tmp_path / "run", Recipe(study=SMALL, blocks=1))
    record = tmp_path / "run" / "trials" / "000000.json"
    rewrite(record, lambda raw: raw["cells"][0].update(iterations=10**12))
    app = make_app(Catalogue(tmp_path), DOOR)
    with TestClient(app, base_url="http://127.0.0.1:8470", headers=SIGNED_IN) as opened:
        answer = opened.get("/api/v1/runs/run")
    assert answer.status_code == 422
    assert "at most 200000000 are served" in answer.json()["error"]["message"]


def test_a_run_in_progress_is_recognized(tmp_path: Path) -> None:
    make_run(tmp_path / "run", Recipe(study=SMALL, blocks=1))
    assert not is_being_written(tmp_path / "run")
    with RunDir.open_for_writing(tmp_path / "run"):
        assert is_being_written(tmp_path / "run")
        assert Catalogue(tmp_path).entries()[0].running
    assert not is_being_written(tmp_path / "run")


# ---- caches


def test_concurrent_requests_render_a_page_once() -> None:
    made: list[int] = []
    begun, all_wait = threading.Event(), threading.Event()

    def make() -> bytes:
        made.append(threading.get_ident())
        begun.set()
        all_wait.wait()
        return b"text"

    async def ask() -> list[bytes]:
        cache = Cache(1 << 20)
        gone = asyncio.create_task(cache.get("key", make))
        await asyncio.to_thread(begun.wait)
        gone.cancel()
        waiting = [asyncio.create_task(cache.get("key", make)) for _ in range(50)]
        await asyncio.sleep(0)
        all_wait.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(ask()) == [b"text"] * 50
    assert len(made) == 1


def test_failures_are_cached_and_the_cache_is_bounded() -> None:
    made: list[str] = []

    def make(name: str) -> bytes:
        made.append(name)
        if name == "bad":
            raise ForeignFileError("damaged")
        return bytes(1000)

    async def ask() -> None:
        cache = Cache(limit_bytes=10_000)
        for _ in range(2):
            with pytest.raises(ForeignFileError, match="damaged"):
                await cache.get("bad", lambda: make("bad"))
        for number in range(100):
            await cache.get(number, lambda: make("good"))
        assert cache._held_bytes <= 10_000
        assert len(cache._texts) <= 5
        assert 99 in cache._texts

    asyncio.run(ask())
    assert made.count("bad") == 1
