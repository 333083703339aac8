"""The server against its own OpenAPI document, and against run directories from untrusted sources."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from fake_fabric import MadeUpHost, make_fabric
from nearmetal.errors import NearmetalError
from nearmetal.results.paths import build_view
from nearmetal.serve import openapi
from nearmetal.serve.app import make_app
from nearmetal.serve.catalogue import Catalogue
from nearmetal.serve.guard import AccessPolicy
from nearmetal.store.rundir import RunDir
from tests.unit.report.synthetic_run import STUDY, Recipe, make_run

if TYPE_CHECKING:
    from pathlib import Path

SMALL = STUDY.replace('sizes = [8, "1 KiB", "64 KiB"]', "sizes = [8]")
DOOR = AccessPolicy(8470)
HEADERS = {"Authorization": f"Bearer {DOOR.token}", "Host": "127.0.0.1:8470"}
NAMES = ("first", "second", "damaged", "empty", "fabric")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("runs")
    for name in NAMES[:2]:
        make_run(folder / name, Recipe(study=SMALL, blocks=3, iterations=400))
    make_run(folder / "empty", Recipe(study=SMALL, blocks=0))
    make_fabric(folder / "fabric", MadeUpHost())
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text('{"run_format": 1}')
    return schemathesis.openapi.from_asgi("/openapi.json", make_app(Catalogue(folder), DOOR), headers=HEADERS)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize("path", openapi.document()["paths"])
def test_the_server_conforms_to_its_document(api: Any, path: str, mode: schemathesis.GenerationMode) -> None:
    """Requests that the document allows and others: status, type and schema of each response."""
    try:
        strategy = api[path]["GET"].as_strategy(generation_mode=mode)
    except schemathesis.errors.InvalidSchema as error:
        pytest.skip(f"nothing to get wrong: {error}")

    @given(case=strategy)
    @settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def conforms(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=HEADERS)

    conforms()


@given(names=st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), mixed=st.sampled_from(["true", "false"]))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_requests_with_real_names_conform_too(api: Any, names: tuple[str, str], mixed: str) -> None:
    run, base = names
    for path, values in (
        ("/api/v1/runs/{name}", {"path_parameters": {"name": run}, "query": {"allow_mixed": mixed}}),
        ("/api/v1/runs/{name}/fabric", {"path_parameters": {"name": run}}),
        ("/api/v1/runs/{name}/progress", {"path_parameters": {"name": run}}),
        ("/api/v1/compare", {"query": {"run": run, "base": base, "allow_mixed": mixed}}),
    ):
        answer = api[path]["GET"].Case(**values).call_and_validate(headers=HEADERS)
        assert answer.status_code in (200, 422)


# ---- run directories from anywhere

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [place for key, one in inner for place in _places(one, (*at, key))]


def _spoil(raw: Any, data: st.DataObject) -> None:
    *way, last = data.draw(st.sampled_from(_places(raw)))
    for key in way:
        raw = raw[key]
    if isinstance(raw, dict) and data.draw(st.booleans()):
        del raw[last]
    else:
        raw[last] = data.draw(_JSON)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("sound") / "run", Recipe(study=SMALL, blocks=2, iterations=30)).root


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_record_can_crash_a_reader(sound: Path, tmp_path: Path, data: st.DataObject) -> None:
    root = tmp_path / "run"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(sound, root)
    path = root / data.draw(st.sampled_from(["run.json", "trials/000000.json", "trials/000003.json"]))
    raw = json.loads(path.read_text())
    for _ in range(data.draw(st.integers(1, 2))):
        _spoil(raw, data)
    path.write_text(json.dumps(raw))
    try:
        build_view(RunDir.open(root), allow_mixed=True)
    except NearmetalError as error:
        assert error.message  # noqa: PT017 (either a view, or an error that says something)


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_can_crash_the_server(sound: Path, tmp_path: Path, data: st.DataObject) -> None:
    root = tmp_path / "runs" / "run"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(sound, root)
    names = ["run.json", "study.toml", "trials/000000.json", "samples/000000.parquet", "samples/000003.parquet"]
    path = root / data.draw(st.sampled_from(names))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:at]
    else:
        content[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    path.write_bytes(content)
    app = make_app(Catalogue(tmp_path / "runs"), DOOR)
    with TestClient(app, base_url="http://127.0.0.1:8470", headers=HEADERS) as client:
        assert client.get("/").status_code == 200
        for rest in ("", "/live"):
            assert client.get(f"/runs/run{rest}").status_code in (200, 422)
