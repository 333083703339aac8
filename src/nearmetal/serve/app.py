"""The web application: paths, queries and status codes; what they answer comes from `answers` and `pages`."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from nearmetal.errors import NearmetalError
from nearmetal.report import schema
from nearmetal.report.markup import policy
from nearmetal.serve import answers, openapi, overview, pages
from nearmetal.serve.answers import Answers, NoSuchRunError, Text, encoded
from nearmetal.serve.behind import PathPrefixMiddleware
from nearmetal.serve.catalogue import Catalogue, Entry, SavedResultKind
from nearmetal.serve.guard import AccessPolicy, Guard
from nearmetal.serve.overview import Filter
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.store.query import MixedError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

API = "/api/"
_FLAGS = {"true": True, "false": False}


class BadQueryError(NearmetalError):
    """A query that no page understands."""


def make_app(catalogue: Catalogue, access: AccessPolicy) -> ASGIApp:
    """Return the ASGI application that serves the runs of a catalogue to those whom the access policy admits."""
    of = Answers(catalogue)
    served = _Routes(of)
    routes = [
        Route("/", served.run_list),
        Route("/runs/{name}", _page(partial(of.of_run, answers.report_page), mixed=True)),
        Route("/runs/{name}/waterfall", _page(partial(of.of_run, answers.waterfall_page))),
        Route("/runs/{name}/traces/{trial}", _page(partial(of.of_run, answers.trace_page))),
        Route("/runs/{name}/live", _page(of.live_page, pages.LIVE)),
        Route("/runs/{name}/live/part", _data(partial(of.of_run, answers.live_part), "text/html")),
        *(Route(f"/{kind}/{{name}}", _page(partial(of.beside_text, kind))) for kind in SavedResultKind),
        Route("/compare", served.compare),
        Route("/history", served.history),
        Route("/static/live.js", _script),
        Route("/openapi.json", _openapi),
        Route("/api/v1/runs", served.api_runs),
        Route("/api/v1/runs/{name}", _data(partial(of.of_run, answers.report_json), mixed=True)),
        Route("/api/v1/runs/{name}/fabric", _data(partial(of.of_run, answers.fabric_as_json))),
        Route("/api/v1/runs/{name}/progress", _data(partial(of.of_run, answers.progress_json))),
        *(
            Route(f"/api/v1/{kind}/{{name}}", _data(partial(of.beside_text, kind, program=True)))
            for kind in SavedResultKind
        ),
        Route("/api/v1/compare", served.api_compare),
        Route("/api/v1/history", served.api_history),
    ]
    handlers = {NearmetalError: _refused, _MixedPageError: _mixed, HTTPException: _no_such_page, Exception: _broken}
    guarded = Guard(Starlette(routes=routes, exception_handlers=handlers), access, refusal)
    return PathPrefixMiddleware(guarded, access.public.path) if access.public and access.public.path else guarded


class _Routes:
    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def run_list(self, request: Request) -> Response:
        by, descending, wanted = _listing(request, sort="changed", order="desc")
        everything = await self._answers.entries()
        rows = overview.sorted_runs([one for one in everything if wanted.holds(one)], by, descending=descending)
        known = await self._answers.glances(rows)
        root, beside = str(self._answers.catalogue.root), await self._answers.beside()
        page = overview.run_list(overview.RunList(root, everything, rows, known, wanted, by, descending, beside))
        return _html(page, pages.PLAIN)

    async def compare(self, request: Request) -> Response:
        runs, base, allow_mixed = _compared(request)
        with _offering_mixed(request):
            text = await self._answers.compare_page(runs, base, allow_mixed=allow_mixed)
        return _html(text.content, pages.PLAIN)

    async def history(self, request: Request) -> Response:
        text = await self._answers.history(*_over_time(request))
        return _html(text.content, pages.PLAIN)

    async def api_history(self, request: Request) -> Response:
        text = await self._answers.history(*_over_time(request), program=True)
        return _tagged(request, text, "application/json")

    async def api_runs(self, request: Request) -> Response:
        by, descending, wanted = _listing(request, sort="name", order="asc")
        shown = [one for one in await self._answers.entries() if wanted.holds(one)]
        runs = overview.sorted_runs(shown, by, descending=descending)
        found = schema.RunsJson(runs=[_run(one) for one in runs])
        return Response(encoded(schema.as_json(found, None)), media_type="application/json")

    async def api_compare(self, request: Request) -> Response:
        runs, base, allow_mixed = _compared(request)
        if len(runs) > 1:
            raise BadQueryError("the answer for programs is of one run and its base", hint="ask once for each run")
        text = await self._answers.compare_json(runs[0], base, allow_mixed=allow_mixed)
        return _tagged(request, text, "application/json")


def _page(
    answer: Callable[..., Awaitable[Text]], may: str = pages.PLAIN, *, mixed: bool = False
) -> Callable[[Request], Awaitable[Response]]:
    """Return what shows a page; `answer` takes what the path says, and `allow_mixed` of the query where it is asked."""

    async def show(request: Request) -> Response:
        with _offering_mixed(request):
            text = await answer(**request.path_params, **_mixed_of(request, asked=mixed))
        return _html(text.content, may)

    return show


def _data(
    answer: Callable[..., Awaitable[Text]], media_type: str = "application/json", *, mixed: bool = False
) -> Callable[[Request], Awaitable[Response]]:
    """Return what gives a program an answer, which takes the same."""

    async def give(request: Request) -> Response:
        return _tagged(request, await answer(**request.path_params, **_mixed_of(request, asked=mixed)), media_type)

    return give


def _mixed_of(request: Request, *, asked: bool) -> dict[str, bool]:
    """Return whether trials of mixed provenance are wanted, nothing where that is no question; no other query is."""
    return (
        {"allow_mixed": _flag(_query(request, allow_mixed="false"))} if asked else dict.fromkeys(_query(request), False)
    )


class _MixedPageError(Exception):
    """Mixed provenance, on a page that can offer to compare all the same at `path`."""

    def __init__(self, error: MixedError, path: str) -> None:
        super().__init__(error.message)
        self.path = path


@contextlib.contextmanager
def _offering_mixed(request: Request) -> Iterator[None]:
    try:
        yield
    except MixedError as error:
        asked = [pair for pair in request.query_params.multi_items() if pair[0] != "allow_mixed"]
        query = urlencode([*asked, ("allow_mixed", "true")])
        raise _MixedPageError(error, f"{quote(request.scope['path'])}?{query}") from error


def _run(one: Entry) -> schema.RunJson:
    of_study = ("host_kind", "host_label", "created_utc", "nearmetal_version")
    known = {name: getattr(one.info, name, None) for name in of_study}
    return schema.made(
        schema.RunJson, one, study=one.info.study_name if one.info else None, problem=one.problem or None, **known
    )


async def _script(request: Request) -> Response:
    _query(request)
    script = resources.files("nearmetal.serve") / "static" / "live.js"
    return Response(script.read_bytes(), media_type="text/javascript")


async def _openapi(request: Request) -> Response:
    _query(request)
    return _json(openapi.document())


# ---- queries


def _query(request: Request, **known: str) -> Mapping[str, str]:
    """Return the query's values over the defaults in `known`; of several runs the last.

    Raise BadQueryError for names that are not there, and for another one with two values.
    """
    given = dict(request.query_params)
    for name, value in request.query_params.multi_items():
        if name not in known:
            text = f"{name!r} is not a parameter of this page"
            raise BadQueryError(text, hint=f"known: {', '.join(known) or 'none'}")
        if name != "run" and value != given[name]:
            text = f"{name!r} has two values: {value!r} and {given[name]!r}"
            raise BadQueryError(text, hint="leave one of the two out")
    return {**known, **given}


def _one_of(asked: Mapping[str, str], name: str, values: Mapping[str, object]) -> str:
    if asked[name] not in values:
        raise BadQueryError(f"not understood: {name}={asked[name]!r}", hint=f"one of: {', '.join(values)}")
    return asked[name]


def _listing(request: Request, **defaults: str) -> tuple[str, bool, Filter]:
    """Return what a list is sorted by, whether backwards, and what it is narrowed to."""
    asked = _query(request, **defaults, **asdict(Filter()))
    descending = {"asc": False, "desc": True}
    order = descending[_one_of(asked, "order", descending)]
    return _one_of(asked, "sort", overview.COLUMNS), order, _filter(asked)


def _over_time(request: Request) -> tuple[dict[str, str], Filter]:
    """Return what a history is asked for, without what was left empty, and the runs that it is of."""
    asked = _query(request, metric=HEADLINE, **asdict(Filter()))
    _one_of(asked, "metric", dict.fromkeys(Metric))
    return {name: value for name, value in asked.items() if value}, _filter(asked)


def _filter(asked: Mapping[str, str]) -> Filter:
    for name in ("since", "until"):
        if asked[name] and not _is_date(asked[name]):
            raise BadQueryError(f"not a date: {name}={asked[name]!r}", hint=f"{name}=2026-01-31")
    return Filter(**{name: asked[name] for name in asdict(Filter())})


def _is_date(text: str) -> bool:
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _flag(asked: Mapping[str, str]) -> bool:
    return _FLAGS[_one_of(asked, "allow_mixed", _FLAGS)]


def _compared(request: Request) -> tuple[list[str], str, bool]:
    """Return the runs, their base, and whether mixed trials are wanted; a base among the runs is left out."""
    asked = _query(request, run="", base="", allow_mixed="false")
    base = asked["base"]
    runs = [one for one in dict.fromkeys(request.query_params.getlist("run")) if one]
    runs = [one for one in runs if one != base] or runs
    if not runs or not base:
        raise BadQueryError("a comparison needs two runs", hint="?run=NAME&base=NAME")
    return runs, base, _flag(asked)


# ---- answers


def _html(text: str | bytes, may: str, status: int = 200) -> Response:
    content = encoded(text) if isinstance(text, str) else text
    # A frame's owner can only be named in a header.
    return HTMLResponse(content, status, {"Content-Security-Policy": f"{policy(may)}; frame-ancestors 'none'"})


def _json(value: object, status: int = 200) -> Response:
    return Response(encoded(json.dumps(value)), status, media_type="application/json")


def _tagged(request: Request, text: Text, media_type: str) -> Response:
    """Return the text, or that it is still the one that the reader has."""
    headers = {"ETag": text.tag}
    if request.headers.get("if-none-match") == text.tag:
        return Response(status_code=304, headers=headers)
    return Response(text.content, 200, headers, media_type)


def refusal(path: str, status: int, message: str, hint: str) -> Response:
    """Return an error as what the path's reader expects: JSON for programs, a page for people."""
    if path.startswith((API, "/openapi.json")):
        return _json({"error": {"message": message, "hint": hint}}, status)
    return _html(pages.problem_page(status, message, hint), pages.PLAIN, status)


_STATUS: dict[type[NearmetalError], int] = {NoSuchRunError: 404, BadQueryError: 400}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, NearmetalError)
    return refusal(request.url.path, _STATUS.get(type(error), 422), error.message, error.hint)


async def _mixed(_: Request, error: Exception) -> Response:
    assert isinstance(error, _MixedPageError)
    page = pages.problem_page(422, str(error), "", link=(error.path, "Show it anyway"))
    return _html(page, pages.PLAIN, 422)


async def _no_such_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(request.url.path, error.status_code, error.detail.lower(), "the list of runs is at /")


async def _broken(request: Request, error: Exception) -> Response:
    """Answer; the traceback goes to stderr with the server's log."""
    what = f"nearmetal failed on this: {type(error).__name__}"
    return refusal(request.url.path, 500, what, "the traceback is on the server's stderr; please report it")
