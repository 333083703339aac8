"""From a run's name to what is shown of it: looked up, checked, drawn once, kept while nothing changes."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nearmetal.errors import BadInputError, ForeignFileError, NearmetalError, command_line
from nearmetal.fabric.survey import survey
from nearmetal.gate import as_json as gate_as_json
from nearmetal.history import as_html as history_html
from nearmetal.history import as_json as history_json
from nearmetal.predict.trace_file import trace_of
from nearmetal.predict.trace_view import view_trace
from nearmetal.report import as_html, as_json, fabric_html, fabric_json, schema, trace_html, words
from nearmetal.report.markup import Markup
from nearmetal.report.progress import progress
from nearmetal.results.between import judge_runs
from nearmetal.results.gated import Gate
from nearmetal.results.paths import build_view
from nearmetal.results.waterfalls import waterfalls
from nearmetal.serve import beside, overview, pages
from nearmetal.serve.cache import Cache, RecentCache
from nearmetal.serve.catalogue import Catalogue, Entry, SavedResult, SavedResultKind, state, state_beside
from nearmetal.serve.over_time import over_time
from nearmetal.serve.overview import Filter
from nearmetal.stats.summary import Metric
from nearmetal.store.query import MixedError, refuse_fabric
from nearmetal.store.rundir import RunDir, TrialRecord

MAX_SAMPLES = 200_000_000
"""A run that says it holds more is not read: pooled, its durations would take more memory than a server may."""
MAX_FABRIC_BYTES = 512 << 20
"""The same for the samples of a whole fabric; 1,024 nodes take 330 MB."""
KEPT_BYTES = 64 << 20
MAX_GLANCE_SAMPLES = 20_000_000
"""What a list reads of a run by itself; larger ones are read when they are opened."""
GLANCES_AT_ONCE = 4
GLANCE_S = 0.1
"""How long a list waits for runs that it does not know yet: its first answer must not take longer than a glance."""


class NoSuchRunError(NearmetalError):
    """A name that is not on the list."""


@dataclass(frozen=True, slots=True)
class Text:
    """An answer, and the tag that changes with it."""

    content: bytes
    tag: str


def encoded(text: str) -> bytes:
    """Return text as UTF-8; bytes of a path that are no text are escaped."""
    return text.encode("utf-8", "backslashreplace")


class Answers:
    """Everything that is served, by name of the run."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._lists: RecentCache[tuple[Entry, ...]] = RecentCache()
        self._beside: RecentCache[tuple[SavedResult, ...]] = RecentCache()
        self._states: RecentCache[str] = RecentCache()
        self._texts = Cache(KEPT_BYTES)
        self._glances = Cache(KEPT_BYTES // 4)
        self._reading: set[asyncio.Future[bytes]] = set()

    async def entries(self) -> tuple[Entry, ...]:
        """Return the list of runs."""
        return await self._lists.get("runs", self.catalogue.entries)

    async def entry(self, name: str) -> Entry:
        """Return a run that can be read; raise NoSuchRunError or ForeignFileError."""
        for one in await self.entries():
            if one.name == name:
                if one.info is None:
                    raise ForeignFileError(one.problem, hint="restore it from a backup, or look at another run")
                return one
        raise NoSuchRunError(f"there is no run {name!r} here", hint="the list of runs is at /")

    async def beside(self) -> tuple[SavedResult, ...]:
        """Return the files next to the runs."""
        return await self._beside.get("beside", self.catalogue.beside)

    async def beside_text(self, kind: SavedResultKind, name: str, *, program: bool = False) -> Text:
        """Return the page of a trace, a prediction or a placement; for a program the same as JSON."""
        found = (one for one in await self.beside() if (one.kind, one.name) == (kind, name))
        one = next(found, None)
        if one is None:
            raise NoSuchRunError(f"there is nothing called {name!r} among {kind} here", hint="the list is at /")
        known = await self._states.get(f"{kind} {name}", lambda: state_beside(one))
        draw = beside.as_json if program else beside.as_page
        return await self._kept(f"{known} {kind} {name} {program}", lambda: draw(one))

    async def history(self, asked: Mapping[str, str], wanted: Filter, *, program: bool = False) -> Text:
        """Return the runs that a filter holds as a history; `asked` is the query, its metric among it."""
        shown = [one for one in await self.entries() if wanted.holds(one)]
        runs: list[tuple[Path, str]] = []
        unread = tuple(f"{one.name}: {one.problem}" for one in shown if one.info is None)
        for one in sorted(shown, key=lambda one: one.info.created_utc if one.info else "", reverse=True):
            if one.info and not one.of_fabric:
                try:
                    runs.append((one.root, await self._state(one)))
                except NearmetalError as error:
                    unread += (f"{one.name}: {error.message}",)
        root = str(self.catalogue.root)

        def make() -> str:
            found = over_time(root, runs, _check_glance, Metric(asked["metric"]), wanted.path)
            if not found.series:
                why = f": {found.left_out[0]}" if found.left_out else ""
                of = f" of path {wanted.path!r}" if wanted.path else ""
                text = f"none of {len(runs)} runs here has a {asked['metric']}{of}{why}"
                raise NoSuchRunError(text, hint="the list of runs is at /")
            found = replace(found, left_out=(*unread, *found.left_out))
            if program:
                return history_json.render(found) + "\n"
            return history_html.render(found, pages.over_history(asked))

        return await self._kept(
            f"{[known for _, known in runs]} {unread} history {sorted(asked.items())} {program}", make
        )

    async def glances(self, shown: Sequence[Entry]) -> dict[str, Markup | None]:
        """Return what runs found, None for those that are still being read; a few are read at a time."""
        found: dict[str, Markup | None] = {}
        keys: dict[str, str] = {}
        for one in shown:
            if one.info and not one.of_fabric:
                try:
                    keys[one.name] = f"{await self._state(one)} {one.name}"
                except NearmetalError as error:
                    found[one.name] = overview.no_glance(error.message)
        unknown = [one for one in shown if one.name in keys and not self._glances.knows(keys[one.name])]
        tasks = {asyncio.ensure_future(self._glance(one, keys[one.name])) for one in unknown[:GLANCES_AT_ONCE]}
        self._reading |= tasks
        for task in tasks:
            task.add_done_callback(self._reading.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=GLANCE_S)
        for one in shown:
            if one.name in keys:
                known = self._glances.knows(keys[one.name])
                found[one.name] = Markup((await self._glance(one, keys[one.name])).decode()) if known else None
        return found

    async def _glance(self, one: Entry, key: str) -> bytes:
        return await self._glances.get(key, lambda: encoded(_glance_of(one)))

    async def of_run(self, draw: Callable[..., str], name: str, **asked: object) -> Text:
        """Return what `draw` makes of a run: of its entry, of itself, opened, and of what else was asked."""
        one = await self.entry(name)
        what = f"{draw.__name__} {sorted(asked.items())} {one.running}"
        return await self._text([one], what, lambda run: draw(one, run, **asked))

    async def live_page(self, name: str) -> Text:
        """Return a run's live page, whole."""
        part = await self.of_run(live_part, name)
        one = await self.entry(name)
        return Text(encoded(pages.live_page(one, part.content.decode(), part.tag)), part.tag)

    async def compare_page(self, runs: Sequence[str], base: str, *, allow_mixed: bool) -> Text:
        """Return runs against a base as HTML; two whole fabrics node by node."""
        every = [await self.entry(one) for one in (*runs, base)]
        if len(runs) == 1 and all(one.of_fabric for one in every):
            return await self._text(every, "compared fabrics", pages.compare_fabrics)
        if len(runs) == 1:
            return await self._compared(runs[0], base, "page", pages.compare_page, allow_mixed=allow_mixed)

        known = "\n".join([f"{await self._state(one)} {one.name} {one.running}" for one in every])
        return await self._kept(f"{known} compared {allow_mixed}", lambda: _many(every, allow_mixed=allow_mixed))

    async def compare_json(self, run: str, base: str, *, allow_mixed: bool) -> Text:
        """Return one run against another as JSON, as `nearmetal gate --format json` prints it."""
        return await self._compared(run, base, "json", gate_as_json.render, allow_mixed=allow_mixed)

    async def _compared(
        self, run: str, base: str, what: str, draw: Callable[[Gate], str], *, allow_mixed: bool
    ) -> Text:
        both = (await self.entry(run), await self.entry(base))
        what = f"compared {what} {allow_mixed} {[one.running for one in both]}"
        return await self._text(both, what, lambda *runs: draw(judge_runs(*runs, allow_mixed=allow_mixed)))

    async def _text(self, of: Sequence[Entry], what: str, make: Callable[..., str]) -> Text:
        """Return what `make` returns for these runs, opened; kept while the files of none of them change."""
        states = [f"{await self._state(one)} {one.name}" for one in of]
        return await self._kept("\n".join((*states, what)), lambda: make(*map(_opened, of)))

    async def _kept(self, key: str, make: Callable[[], str]) -> Text:
        """Return what `make` returns, kept under a key that changes with all that it reads."""
        tag = hashlib.sha256(encoded(key)).hexdigest()[:32]
        return Text(await self._texts.get(key, lambda: _made(make)), f'"{tag}"')

    async def _state(self, one: Entry) -> str:
        return await self._states.get(one.name, lambda: state(one.root))


# ---- what is drawn of one run: of its entry, and of itself


def report_page(one: Entry, run: RunDir, *, allow_mixed: bool) -> str:
    """Return a run's report as HTML; a whole fabric's is its heat maps."""
    if one.of_fabric:
        return fabric_html.as_html(survey(run), pages.over_fabric(one))
    view, traced = build_view(run, allow_mixed=allow_mixed), waterfalls(run)
    return as_html.render(view, traced, pages.over_report(one, _profiled(run), traced=bool(traced)))


def waterfall_page(one: Entry, run: RunDir) -> str:
    """Return where the messages of a run's traced trials spent their time."""
    refuse_fabric(run)
    if not (found := waterfalls(run)):
        raise BadInputError(
            f"no trial of {one.name} was traced",
            hint="a workload with `options = { waterfall = true }` leaves one, as in the study sriov-waterfall",
        )
    baseline = run.study().baseline
    return pages.waterfall_page(one, run.info.host_label, baseline, found)


def trace_page(one: Entry, run: RunDir, *, trial: str) -> str:
    """Return the MPI calls of a traced program in one trial of a run."""
    profiled = _profiled(run)
    shown = next((record for record in profiled if str(record.order.trial) == trial), None)
    if shown is None:
        text = f"there is no trace of MPI calls of trial {trial!r} in {one.name}"
        raise NoSuchRunError(text, hint="the list is at /")
    trace = trace_of(run.profile(shown), f"{shown.order.workload.label} of {one.name}, trial {trial}")
    return trace_html.as_html(view_trace(trace), pages.over_trace(one, shown, profiled))


def report_json(_: Entry, run: RunDir, *, allow_mixed: bool) -> str:
    """Return a run's report as JSON; it has no distributions."""
    return as_json.render(build_view(run, allow_mixed=allow_mixed, distributions=False))


def fabric_as_json(_: Entry, run: RunDir) -> str:
    """Return what a fabric's run says as JSON, as `nearmetal fabric --format json` prints it."""
    return fabric_json.as_json(survey(run)) + "\n"


def progress_json(one: Entry, run: RunDir) -> str:
    """Return how far a run has come as JSON."""
    refuse_fabric(run)
    return schema.as_json(progress(run, run.trials(), running=one.running)) + "\n"


def live_part(one: Entry, run: RunDir) -> str:
    """Return the part of a run's live page that changes; trials of mixed provenance are shown, and marked."""
    refuse_fabric(run)
    so_far = progress(run, run.trials(), running=one.running)
    view, nothing_yet = None, ""
    try:
        view = build_view(run, allow_mixed=True, distributions=False)
    except BadInputError as error:
        nothing_yet = words.as_sentence(error.message)
    return pages.live_part(so_far, view, nothing_yet)


def _profiled(run: RunDir) -> list[TrialRecord]:
    """Return the valid trials that left a trace of MPI calls."""
    return [record for record in run.trials() if record.valid and run.keeps("mpi", record)]


def _many(every: Sequence[Entry], *, allow_mixed: bool) -> str:
    """Return runs against the last one, read one after another; what is wrong with one of them does not hide others."""
    base, gates, left_out = _opened(every[-1]), [], {}
    for one in every[:-1]:
        try:
            gates.append(judge_runs(_opened(one), base, allow_mixed=allow_mixed))
        except MixedError:
            raise  # the page offers to compare all the same
        except NearmetalError as error:
            left_out[one.name] = error.message
    if not gates:
        raise BadInputError(
            f"none of these runs can be compared with {every[-1].name}: {next(iter(left_out.values()))}"
        )
    return pages.compare_many(every[-1].name, gates, left_out)


def _opened(one: Entry) -> RunDir:
    run = RunDir.open(one.root).held()
    _check_size(run)
    return run


def _made(make: Callable[[], str]) -> bytes:
    try:
        return encoded(make())
    except OSError as error:
        raise ForeignFileError(f"a run changed while it was read, or lacks a file: {error}") from error


def _glance_of(one: Entry) -> Markup:
    """Return what a list shows of a run, or why it shows nothing."""
    try:
        run = RunDir.open(one.root).held()
        _check_size(run, MAX_GLANCE_SAMPLES)
        return overview.glance(build_view(run, allow_mixed=True, distributions=False))
    except NearmetalError as error:
        return overview.no_glance(error.message)
    except OSError as error:
        return overview.no_glance(f"a file is missing: {error.strerror}")


def _check_glance(root: Path) -> None:
    """Raise ForeignFileError for a run of which a list or a history would read too much."""
    _check_size(RunDir.open(root), MAX_GLANCE_SAMPLES)


def _check_size(run: RunDir, most: int = MAX_SAMPLES) -> None:
    """Raise ForeignFileError for a run that is too large, before any sample is read."""
    if run.of_fabric and (most_bytes := max(map(run.fabric_bytes, run.trials()), default=0)) > MAX_FABRIC_BYTES:
        text = f"{run.root} holds a file of {most_bytes} bytes, at most {MAX_FABRIC_BYTES} are served"
        raise ForeignFileError(text, hint=command_line("fabric", run.root, "--html", "page.html"))
    samples = sum(max(0, cell.ranks) * max(0, cell.iterations) for record in run.trials() for cell in record.cells)
    if samples > most:
        text = f"{run.root} holds {samples} samples, at most {most} are served"
        raise ForeignFileError(text, hint=command_line("report", run.root))
