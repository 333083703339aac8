"""The pages: the list, what stands over a report, a run as it goes, and refusals. All else is drawn by `report`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote, urlencode

from nearmetal.fabric.against import AGAINST_SEED, against, paired_by
from nearmetal.fabric.survey import survey
from nearmetal.gate import as_table as gate_as_table
from nearmetal.gate import many
from nearmetal.gate import words as gate_words
from nearmetal.reading import shown_name
from nearmetal.report import as_html, charts, fabric_html, fabric_text, waterfall_html, words
from nearmetal.report.markup import Markup, PageFrame, element, header, listed, page, scrolling, section, together
from nearmetal.report.overview import between_runs
from nearmetal.report.progress import RunProgress, last_trials, sentence
from nearmetal.results.gated import Gate
from nearmetal.results.records import View
from nearmetal.results.waterfalls import Waterfall
from nearmetal.serve.catalogue import Entry, SavedResult
from nearmetal.stats.between import Standing
from nearmetal.stats.summary import Metric
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.units import counted

PLAIN = "form-action 'self'"
LIVE = "script-src 'self'; connect-src 'self'; form-action 'none'"
"""What pages may do beside showing themselves: ask this server for a comparison, or for news."""
EVERY_MS = 2_000
"""How often a page that follows a run asks for news."""
MAX_TRACES = 24
"""How many other traces of a run a page leads to."""
_OCCASIONS = "Figures are over the occasions of this run: before the last one's end they are preliminary."
_EARLY = "This study stops by itself: its intervals and verdicts are valid at every look, including now."
_FIXED = (
    "The number of blocks of this study is fixed: figures before its end are preliminary; only the last ones count."
)
_FRESH = (
    "These are fresh blocks of another run: they count when `nearmetal gate`, which measures them, judges that run."
)
_RUNNING = "A nearmetal process on this machine is writing this run."
_STILL = "No nearmetal process on this machine is writing this run: it has ended, was interrupted, or runs elsewhere."
_COLOURS = {
    Standing.WITHIN: "near-metal",
    Standing.BETTER: "faster",
    Standing.WORSE: "slower",
    Standing.UNDECIDED: "undecided",
}
_TWO_RUNS = (
    "Two runs are not interleaved: whatever else changed between them is part of the difference. Nothing is measured "
    "again here; `nearmetal gate` does so before it calls a run worse."
)


def readable(utc: str) -> str:
    """Return a time in UTC for people, to the second; the column says that it is UTC."""
    return utc[:19].replace("T", " ")


def run_path(name: str, rest: str = "") -> str:
    """Return the path of a run's page."""
    return f"/runs/{quote(name, safe='')}{rest}"


# ---- one run


def over_report(one: Entry, profiled: Sequence[TrialRecord], *, traced: bool) -> PageFrame:
    """Return what stands over a run's report: the way to everything else.

    `profiled` are trials with traces of MPI calls, `traced` says that there are waterfalls.
    """
    links = [("/", "All runs")]
    if one.info is None or one.info.host_kind != "import":  # files have no progress
        links.append((run_path(one.name, "/live"), "Follow it" if one.running else "Progress and last trials"))
    links += [(run_path(one.name, "/waterfall"), "Where a message's time went")] if traced else []
    links += [(_trace_path(one, profiled[0]), "MPI calls of its programs")] if profiled else []
    return _navigation(one.name, [*links, (_json_path(one), "The report as JSON")])


def _trace_path(one: Entry, record: TrialRecord) -> str:
    return run_path(one.name, f"/traces/{record.order.trial}")


def over_trace(one: Entry, shown: TrialRecord, profiled: Sequence[TrialRecord]) -> PageFrame:
    """Return what stands over the trace of one trial's MPI calls: the way to the report and to the others."""
    links = [("/", "All runs"), (run_path(one.name), "The report")]
    links += [(_trace_path(one, other), _trial(other)) for other in profiled if other is not shown][:MAX_TRACES]
    return _navigation(_trial(shown), links)


def _trial(record: TrialRecord) -> str:
    order = record.order
    return f"{order.workload.label} on {order.path.label}, trial {order.trial}"


def waterfall_page(one: Entry, label: str, baseline: str, found: Sequence[Waterfall]) -> str:
    """Return the page of a run's traced messages; `label` says what its figures are."""
    return page(
        f"{one.name}: where a message's time went",
        charts.shapes(),
        header("nearmetal explain", one.name, labels=[label]),
        element("main", waterfall_html.section(found, baseline, as_html.table_region)),
        frame=_navigation(one.name, [("/", "All runs"), (run_path(one.name), "The report")]),
        skip="waterfalls",
    )


def over_fabric(one: Entry) -> PageFrame:
    """Return the same for a whole fabric, which is one launch and cannot be followed."""
    return _navigation(one.name, [("/", "All runs"), (f"{_json_path(one)}/fabric", "The same as JSON")])


def beside_path(one: SavedResult) -> str:
    """Return the path of the page of a file next to runs."""
    return f"/{one.kind}/{quote(one.name, safe='')}"


def over_beside(one: SavedResult) -> PageFrame:
    """Return the heading of the page of a file next to runs."""
    return _navigation(one.name, [("/", "All runs"), (f"/api/v1{beside_path(one)}", "The same as JSON")])


def over_history(asked: Mapping[str, str]) -> PageFrame:
    """Return what stands over the history of runs; `asked` is the query that narrowed them."""
    metrics = [(f"/history?{urlencode({**asked, 'metric': one})}", f"By {one}") for one in Metric]
    narrowed = {name: value for name, value in asked.items() if name != "metric"}
    links = [(f"/?{urlencode(narrowed)}" if narrowed else "/", "These runs"), ("/", "All runs"), *metrics]
    return _navigation("over time", [*links, (f"/api/v1/history?{urlencode(asked)}", "The same as JSON")])


def _json_path(one: Entry) -> str:
    return f"/api/v1{run_path(one.name)}"


def _navigation(where: str, links: Sequence[tuple[str, str]], may: str = PLAIN) -> PageFrame:
    """Return the frame of a page of this server: the way to the others above it."""
    pages = listed([*(element("a", text, href=at) for at, text in links), where])
    return PageFrame(element("nav", pages, aria_label="Pages"), may)


def live_page(one: Entry, part: str, tag: str) -> str:
    """Return the page that follows a run; `part` is what changes, from `live_part`, with its entity tag."""
    script = element("script", src="/static/live.js", defer=True)
    again = element("noscript", element("meta", http_equiv="refresh", content="5"))
    return page(
        f"{one.name}, live",
        charts.shapes(),
        element(
            "main",
            element("h1", one.name),
            element("p", "", id="link", role="status", class_="note"),
            element(
                "div",
                Markup(part),
                id="live",
                data_source=run_path(one.name, "/live/part"),
                data_tag=tag,
                data_every=EVERY_MS,
            ),
        ),
        frame=_navigation(one.name, [("/", "All runs"), (run_path(one.name), "The report")], LIVE),
        head=together(script, again),
        skip="live",
    )


def live_part(so_far: RunProgress, view: View | None, nothing_yet: str) -> str:
    """Return the part that changes: progress, last trials, and what the comparisons say so far.

    `view` is None, and `nothing_yet` says why, as long as nothing can be compared.
    """
    early = [element("h2", "So far"), element("p", _when_valid(so_far), class_="note")]
    if view is None:
        early.append(element("p", nothing_yet))
    else:
        if not so_far.running:
            early += [element("p", line, class_="note") for line in words.unfinished(view.unfinished)]
        early += [element("p", f"Mixed provenance: {line}", class_="honest warn") for line in view.mixed]
        early.append(element("p", f"Figures from {view.host_label}. {words.blocks_sentence(view)}", class_="note"))
        groups = [as_html.group_section(view, g, n, distributions=False) for n, g in enumerate(view.groups)]
        early += [as_html.verdicts(view, distributions=False), *groups]
    return together(
        element("p", _RUNNING if so_far.running else _STILL, class_="meta"),
        element("p", sentence(so_far), class_="lead"),
        element(
            "p",
            element("label", "trials, of the most that the study may take ", for_="trials"),
            element("progress", id="trials", value=so_far.valid, max=max(1, so_far.most_trials)),
        ),
        as_html.table_region(last_trials(so_far)),
        *early,
    )


def _when_valid(so_far: RunProgress) -> str:
    if so_far.fresh:
        return _FRESH
    if so_far.occasion > 1:
        return _OCCASIONS
    return _EARLY if so_far.planned_blocks[0] < so_far.planned_blocks[1] else _FIXED


# ---- two runs


def compare_page(gate: Gate) -> str:
    """Return the page that sets one run against another."""
    run, base = (replace(side, root=many.name(side)) for side in (gate.run, gate.base))
    lead = [element("p", one) for one in gate_words.unfinished(replace(gate, run=run, base=base))]
    if gate.mixed:
        lead.append(element("strong", "Mixed provenance, compared on request"))
        lead += [element("p", one) for one in gate.mixed]
    lead += [element("p", one) for one in gate_words.cautions(gate)]
    failed = [*(one for one in gate.judged if not one.standing.passes), *gate.against]
    return _two_runs(
        many.name(gate.run),
        many.name(gate.base),
        f"{gate.run.blocks} and {gate.base.blocks} blocks. {gate_words.figures_from(gate)}",
        element("div", *lead, class_="honest warn") if lead else together(),
        element("p", *_finding(gate), class_="lead"),
        charts.shapes(),
        between_runs(gate, many.name(gate.base)),
        *(element("p", said) for said in (gate_words.not_in_base(gate), gate_words.others(gate)) if said),
        element("p", gate_words.noise(gate)),
        element("p", _TWO_RUNS, class_="note"),
        element(
            "div",
            section("Cell by cell", *map(as_html.table_region, gate_as_table.tables(gate))),
            section(
                "What differs besides the figures",
                listed(map(str, gate.changes)) or element("p", "Nothing that was recorded."),
                listed(
                    (f"{gate.title(one)}: {gate_words.cell(one)}" for one in failed),
                    element("h2", "Why the others are not within"),
                ),
            ),
            class_="pair",
        ),
    )


def _two_runs(
    name: str, base_name: str, meta: str, warning: Markup, *content: Markup, links: Sequence[tuple[str, str]] = ()
) -> str:
    """Return a page of two runs: where it is, whose figures these are, and its content."""
    title = f"{name} against {base_name}"
    ways = links or [(run_path(one), one) for one in (base_name, name)]
    return page(
        title,
        header("nearmetal serve", title, warning, meta=meta),
        element("main", *content, id="compared"),
        frame=_navigation("compared", [("/", "All runs"), *ways]),
        skip="compared",
    )


def _finding(gate: Gate) -> list[str]:
    """Return the finding in one sentence."""
    return [
        f"Against {many.name(gate.base)}, where {words.limit(gate.margin)} more still counts as equal, "
        f"{many.name(gate.run)} is ",
        element("span", str(gate.verdict), class_=f"verdict {_COLOURS[gate.verdict]}"),
        f": of {counted(len(gate.judged), 'cell')}, by {gate.metric}, {gate_words.tally(gate)}.",
    ]


def compare_fabrics(run: RunDir, base: RunDir) -> str:
    """Return the page that sets one fabric against another of the same nodes."""
    ours, theirs = survey(run), survey(base)
    compared = against(ours, theirs, seed=AGAINST_SEED)
    name, base_name = map(shown_name, (run.root.name, base.root.name))
    return _two_runs(
        name,
        base_name,
        f"{len(ours.names)} nodes, paired by {paired_by(ours, theirs)}. Figures from {ours.info.host_label}.",
        together(),
        *(fabric_html.against_section(one, name, base_name) for one in compared),
        element("p", fabric_text.AGAINST_NOTE, class_="note"),
    )


def compare_many(base_name: str, gates: Sequence[Gate], left_out: Mapping[str, str]) -> str:
    """Return the page that sets runs against one base: a run a row, a path a column, the worst first.

    `left_out` is why a run could not be compared, by its name.
    """
    ranked = many.ranked(gates)
    labels = dict.fromkeys(label for gate in ranked for label in (gate.run.host_label, gate.base.host_label))
    if len(ranked) <= many.MOST_IN_CELLS:
        names = [many.name(gate.run) for gate in ranked]
        cells = as_html.table_region(gate_as_table.many(ranked, names, base_name))
    else:
        cells = element("p", f"Cells of at most {many.MOST_IN_CELLS} runs are shown in one table.", class_="note")
    margins = sorted(gate.margin for gate in ranked)  # each that of its study
    equal = " to ".join(dict.fromkeys(words.limit(margins[end]) for end in (0, -1)))
    stand: list[str] = [f"Against {base_name}, where {equal} more still counts as equal: "]
    for number, (standing, which) in enumerate(many.standings(ranked)):
        stand += [
            "; " if number else "",
            element("span", standing, class_=f"verdict {_COLOURS[standing]}"),
            f" {which}",
        ]
    return _two_runs(
        f"{len(gates) + len(left_out)} runs",
        base_name,
        f"Where these figures come from: {'; '.join(labels)}.",
        together(*(element("p", line, class_="honest warn") for line in many.warnings(ranked))),
        element("p", *stand, ".", class_="lead"),
        scrolling(_standings_table(ranked), f"Runs against {base_name}, path by path"),
        element("p", many.NOTE, " Point at a field to read it; a run's name leads to all of its cells.", class_="note"),
        *(element("p", f"{name} is left out: {why}.", class_="honest warn") for name, why in left_out.items()),
        element("p", _TWO_RUNS, class_="note"),
        cells,
        links=[(run_path(base_name), base_name)],
    )


def _standings_table(gates: Sequence[Gate]) -> Markup:
    """Return a table of runs and paths, every field in the colour of its standing."""
    titles, fields = many.matrix(gates)
    head = [element("th", title, scope="col", class_="words") for title in ("run", "created (UTC)", "verdict")]
    head += [element("th", title, scope="col") for title in titles]
    rows = [
        element(
            "tr",
            element("th", _pair_link(gate), scope="row"),
            element("td", readable(gate.run.created_utc), class_="words"),
            element("td", element("span", gate.verdict, class_=f"verdict {_COLOURS[gate.verdict]}"), class_="words"),
            *(element("td", one.text, title=one.tip, class_=one.standing and _COLOURS[one.standing]) for one in row),
        )
        for gate, row in zip(gates, fields, strict=True)
    ]
    return element("table", element("thead", element("tr", *head)), element("tbody", *rows))


def _pair_link(gate: Gate) -> Markup:
    query = urlencode({"run": many.name(gate.run), "base": many.name(gate.base)})
    return element("a", many.name(gate.run), href=f"/compare?{query}")


# ---- refusals


def problem_page(status: int, message: str, hint: str, link: tuple[str, str] | None = None) -> str:
    """Return the page for what cannot be shown; `link` is where and what else may be done about it."""
    steps = [element("p", f"Next step: {hint}.")] if hint else []
    steps += [element("p", element("a", link[1], href=link[0]))] if link else []
    body = element(
        "main",
        element("p", f"nearmetal serve, {status}", class_="eyebrow"),
        element("h1", "This cannot be shown"),
        *(element("p", line, class_="honest warn") for line in words.as_sentence(message).splitlines()),
        *steps,
        element("p", element("a", "All runs", href="/")),
        id="problem",
    )
    return page("Cannot be shown", body, skip="problem")
