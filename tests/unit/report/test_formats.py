from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fake_runs import STUDY as FAKE_STUDY
from fake_runs import make_run as make_fake_run
from nearmetal.api.comparison import of_paths
from nearmetal.cli.main import run as nearmetal
from nearmetal.report import as_csv, as_html, as_json, as_latex, as_markdown, as_table, schema, tables, words
from nearmetal.report.terminal import Console
from nearmetal.results.paths import build_view
from nearmetal.results.records import FactRow, View
from nearmetal.stats.interval import Interval
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.store.rundir import RunDir
from nearmetal.units import counted
from tests.unit.report.synthetic_run import COST, ONE_SIZE, STUDY, Recipe, make_run

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "report"


def _terminal(view: View, width: int = 80, *, brief: bool = False) -> str:
    text = io.StringIO()
    as_table.render(view, Console(file=text, width=width, color_system=None), brief=brief)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize(("name", "render"), [("terminal.txt", _terminal), ("report.md", as_markdown.render)])
def test_the_report_matches_the_golden_files(view: View, name: str, render: object) -> None:
    assert callable(render)
    assert render(view) == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_csv_matches_the_golden_file(view: View) -> None:
    """Its figures have all digits; the last ones depend on the processor."""
    golden = (GOLDEN / "report.csv").read_text(encoding="utf-8")
    assert [*map(_numbers, as_csv.render(view).splitlines())] == [*map(_numbers, golden.splitlines())]


def _numbers(line: str) -> list[str]:
    """Return the fields of a line, numbers to twelve digits."""
    return [
        f"{float(field):.12g}" if re.fullmatch(r"-?[\d.]+(e-?\d+)?", field) else field
        for field in next(csv.reader([line]))
    ]


def test_the_terminal_report_keeps_to_80_columns_and_needs_no_colour(view: View) -> None:
    text = _terminal(view)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "network namespaces of one machine" in text
    for word in ("slower", "faster", "near-metal"):
        assert word in text


def test_facts_keep_their_labels_and_shorten_their_values(view: View) -> None:
    note = "silent: 42899 interrupts/s and vector under 10843 packets/s: too little load to tell"
    fact = FactRow("knob.effect.nic.rx-usecs.n0/eth0", "", (note, None, None, None, note))
    lines = _terminal(replace(view, facts=(fact,))).splitlines()
    rows = [line.split() for line in lines if line.startswith("knob.effect")]
    assert rows[0] == [fact.name, "silent:", "42899", "interr...", "-", "-", "-"]
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("Values that end in '...'") for line in lines) == 1


def test_many_paths_are_split_into_tables_that_fit(tmp_path: Path) -> None:
    extra = "".join(f'[[path]]\nname = "path-number-{k}"\nkind = "veth"\n' for k in range(6))
    study = STUDY.replace("[[workload]]", f"{extra}[[workload]]").replace("max_blocks = 8", "max_blocks = 3")
    study = study.replace("min_blocks = 5", "min_blocks = 3")
    names = ["veth", "bridge", "macvlan", "tap", "shm", *(f"path-number-{k}" for k in range(6))]
    view = build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=3, cost=dict.fromkeys(names, 1.0))))
    text = _terminal(view)
    assert max(map(len, text.splitlines())) <= 80
    assert all(text.count(name) >= 3 for name in names)


@pytest.mark.parametrize("width", [80, 60, 30])
def test_no_terminal_is_too_narrow_for_a_figure(tmp_path: Path, width: int) -> None:
    """Three ratios of 16 letters and the name of a path leave no room for the verdict in 80 columns."""
    study = ONE_SIZE.replace('name = "shm"', 'name = "shared-memory"\nkind = "shm"')
    study = study.replace("max_blocks = 8", "max_blocks = 5")
    cost = {**COST, "shared-memory": 0.0019}
    view = build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=5, cost=cost)), distributions=False)
    told = "Counters during"  # what follows are names, which may be broken anywhere
    wide, narrow = (_terminal(view, columns).partition(told)[0] for columns in (300, width))
    figure = re.compile(r"(?<![\w.])[\d.]+\d(?![\w.])")
    for shown in (*figure.findall(wide), "undecided", "faster", "< 0.001"):
        assert narrow.count(shown) >= wide.count(shown), shown
    assert width < 80 or max(map(len, narrow.splitlines())) <= width


def test_the_brief_report_has_only_levels_and_verdicts(view: View) -> None:
    text = _terminal(view, brief=True)
    assert "Verdicts" in text
    assert "latency: mean" in text
    assert "latency: p99" not in text


def test_a_refused_percentile_is_never_shown_as_a_number(tmp_path: Path) -> None:
    view = build_view(make_run(tmp_path / "run", Recipe(blocks=5, iterations=100)))
    assert "cannot support it" in _terminal(view)
    rows = list(csv.DictReader(io.StringIO(as_csv.render(view))))
    assert {row["p99"] for row in rows} == {""}
    cell = json.loads(as_json.render(view))["cells"][0]
    assert cell["paths"][0]["p99"]["value"] is None
    assert "needs n >= 368" in cell["paths"][0]["p99"]["refused"]


def test_csv_has_unrounded_figures_of_every_path_and_cell(view: View) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv.render(view))))
    assert len(rows) == 3 * 6
    for row, (cell, one) in zip(rows, ((c, p) for c in view.cells for p in c.paths), strict=True):
        assert (row["path"], int(row["message_bytes"])) == (one.path, cell.message_bytes)
        assert float(row["median"]) == one.levels[Metric.MEDIAN].value
        assert row["verdict"] == (str(one.comparison.verdict) if one.comparison else "")
        assert row["figures_from"] == view.host_label


def test_every_format_distinguishes_blocks_from_occasions(tmp_path: Path) -> None:
    view = build_view(make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=24, hours=(1.0, 1.02, 0.98))))
    rows = [row for row in csv.DictReader(io.StringIO(as_csv.render(view))) if row["verdict"]]
    assert {(row["blocks_compared"], row["occasions_compared"]) for row in rows} == {("24", "3")}
    paths = [one for cell in json.loads(as_json.render(view))["cells"] for one in cell["paths"]]
    levels = [one["mean"] for one in paths]
    estimates = [one["comparison"]["mean"] for one in paths if one["comparison"]]
    assert {(one["blocks"], one["occasions"]) for one in (*levels, *estimates)} == {(24, 3)}
    frame = of_paths(view).cells.to_dicts()
    assert {(row["blocks"], row["occasions"]) for row in frame} == {(24, 3)}


def test_every_key_of_the_json_report_is_documented(view: View) -> None:
    page = (ROOT / "docs" / "reference" / "report-json.md").read_text(encoding="utf-8")
    # Keys of these objects are paths, verdicts and facts of the run.
    by_name = {"by_path", "counts", "provenance"}

    def keys(value: object, inside: str = "") -> set[str]:
        if isinstance(value, dict):
            own = set() if inside in by_name else set(value)
            return own.union(*(keys(each, key) for key, each in value.items()))
        return set().union(*(keys(each, inside) for each in value)) if isinstance(value, list) else set()

    missing = {key for key in keys(json.loads(as_json.render(view))) if f"`{key}`" not in page}
    assert not missing
    assert f"`report_format` is {as_json.report(view).report_format}" in page


def test_the_json_report_gives_the_reason_of_each_verdict(view: View) -> None:
    verdicts = json.loads(as_json.render(view))["verdicts"]
    assert [one["reason"] for one in verdicts] == [one.reason for one in view.verdicts]
    assert "slower in 3 of 3 cells" in verdicts[0]["reason"]


def test_a_hostile_title_stays_text_in_markdown(tmp_path: Path) -> None:
    title = "a | b <script>alert(1)</script> # `c` [x](http://example.org)"
    study = STUDY.replace("Software data paths of this machine", title)
    text = as_markdown.render(build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=3))))
    assert "<script" not in text
    assert "\\[x\\](http" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(21.149, "21.15"), (0.31302, "0.3130"), (12345.6, "12346"), (0.0, "0"), (999.96, "1000"), (9.99999, "10.00")],
)
def test_figures_have_four_significant_digits(value: float, text: str) -> None:
    assert words.figure(value) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (21.09, 21.21, "21.09..21.21"),
        (1.0172, 1784.8, "1.02..1785"),
        (2.0, float("inf"), "2.000..unbounded"),
        (6.3e-8, 9.1e9, "unbounded"),
        (0.00865, 28.9, "0.00865..28.9"),
    ],
)
def test_intervals_show_only_significant_digits(low: float, high: float, text: str) -> None:
    assert words.span(low, high) == text


def test_ratios_and_p_values_read_as_in_papers() -> None:
    assert words.ratio_span(Interval(9.9996, 10.04, 0.95)) == "10.0..10.0"
    assert words.ratio_span(Interval(0.0594, 0.06, 0.95)) == "0.0594..0.0600"
    assert words.ratio_span(Interval(0.5, float("inf"), 0.95)) == "0.500..unbounded"
    assert words.ratio_span(Interval(5.8e-9, 2.2e9, 0.95)) == "<0.001..>1000"
    assert words.ratio_span(None) == "-"
    assert (words.p_value(0.00004), words.p_value(0.62), words.p_value(None)) == ("< 0.001", "0.620", "-")
    assert words.percent(286_893.56) == "over 100,000 %"
    assert words.percent(287.76) == "28,776 %"
    assert (words.percent(0.05), words.percent(0.00742), words.percent(1.2)) == ("5 %", "0.74 %", "120 %")


def _answer(view: View, lines: int = 40) -> list[str]:
    text = io.StringIO()
    as_table.answer(view, Console(file=text, width=80, color_system=None), lines=lines)
    return text.getvalue().splitlines()


def test_the_answer_comes_first_and_fits_a_screen(view: View) -> None:
    lines = _answer(view)
    assert len(lines) <= 40
    text = " ".join(lines)
    for one in view.verdicts:
        assert f"{one.path}: {one.verdict}, {words.times(one, 'veth')} ({one.reason})." in text
    assert lines[1].startswith(f"{view.verdicts[0].path}: "), "one sentence per path comes first"
    assert sum(line.startswith(("8 B ", "1 KiB ", "64 KiB ")) for line in lines) == 12, "no ratio is left out"


def test_a_study_with_one_path_is_answered_by_its_figures(tmp_path: Path) -> None:
    alone = STUDY.partition('[[path]]\nname = "bridge"')[0] + STUDY[STUDY.index("[[workload]]") :]
    view = build_view(make_run(tmp_path / "run", Recipe(study=alone, blocks=3)))
    text = " ".join(_answer(view))
    assert "latency, latency (half a round trip), mean: 8 B: " in text
    levels = {words.size(cell): cell.paths[0].levels for cell in view.cells}
    for size, of in levels.items():
        assert f"{size}: {words.level(of[HEADLINE])} us (median {words.level(of[Metric.MEDIAN])})" in text
    means = dict(zip(levels, (row[1].split("\n")[0] for row in tables.levels(view, view.groups[0]).rows), strict=True))
    assert means == {size: words.level(of[HEADLINE]) for size, of in levels.items()}, "the tables have the same figure"
    for mean, median, said in (
        (None, 2.0, "8 B: refused (median 2.000 us)"),
        (2.0, None, "8 B: 2.000 us (median refused)"),
        (None, None, "no valid trial"),
    ):
        (cell,) = view.cells[:1]
        figures = {
            metric: replace(one, value=value, refused="" if value else "no middle")
            for metric, value in ((HEADLINE, mean), (Metric.MEDIAN, median))
            if (one := cell.paths[0].levels[metric])
        }
        path = replace(cell.paths[0], levels={**cell.paths[0].levels, **figures})
        assert said in words.alone(replace(view, cells=(replace(cell, paths=(path,)),)))[0]
    assert "of each launch's mean (1 % trimmed at each end), median and p99;" in words.method_sentence(view)


def test_the_answer_fits_a_screen_when_names_wrap(tmp_path: Path) -> None:
    names = [f"{number}-{'n' * 37}" for number in range(6)]
    extra = "".join(f'[[path]]\nname = "{name}"\nkind = "veth"\n' for name in names)
    study = STUDY.replace("[[workload]]", f"{extra}[[workload]]").replace(
        '"latency"', f'"{"l" * 40}"\noperation = "latency"'
    )
    cost = {**COST, **dict.fromkeys(names, 2.0)}
    view = build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=3, cost=cost)))
    for lines in (40, 30, 26):
        drawn = _answer(view, lines)
        assert len(drawn) <= lines
        assert re.fullmatch(r"\d+ (more not shown, all of smaller cost|ratios? not shown)\.", drawn[-1])
    assert re.search(r"ratios? not shown", drawn[-1]), "nothing left out costs more than what is shown"


def test_sentences_leave_room_for_ratios(view: View) -> None:
    """A study of seven programs filled the screen with causes and steps, and showed not one ratio."""
    wordy = replace(view, causes=tuple(f"cause {number}{' and so on' * 70}" for number in range(4)))
    drawn = _answer(wordy, 40)
    assert len(drawn) <= 40
    assert any(line.startswith("Ratio to") for line in drawn)
    assert sum(line.startswith("cause ") for line in drawn) < 3


@pytest.mark.parametrize("form", ["csv", "latex"])
def test_formats_without_sentences_come_with_cautions_on_stderr(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = Recipe(study=ONE_SIZE, blocks=5, busy=5, facts=lambda order: {"kernel.release": f"6.{order.block // 3}"})
    make_run(tmp_path / "run", facts)
    assert nearmetal(["compare", str(tmp_path / "run"), "--format", form, "--allow-mixed"]) == 0
    told = capsys.readouterr().err
    assert "MIXED PROVENANCE, compared on request: kernel.release: 6.0 | 6.1" in told
    assert "CAUTION: " in told
    assert nearmetal(["compare", str(tmp_path / "run"), "--format", "json", "--allow-mixed"]) == 0
    cautions = json.loads(capsys.readouterr().out)["cautions"]
    assert cautions[-1].startswith("30 of 30 launches ran on a busy machine"), "JSON left them out"
    assert nearmetal(["show", str(tmp_path / "run"), "--as", "osu"]) == 0
    told = capsys.readouterr().err
    assert "MIXED PROVENANCE: kernel.release: 6.0 | 6.1\nCAUTION: 30 of 30 launches ran on a busy machine" in told
    assert "kernel.release: 6.0 | 6.1." in of_paths(build_view(RunDir.open(tmp_path / "run"), allow_mixed=True)).says


@pytest.mark.parametrize(
    "argv",
    [
        "compare RUN --format csv",
        "compare RUN --format latex",
        "show RUN --as osu",
        "history add RUN.duckdb RUN",
    ],
)
def test_a_path_that_failed_is_named_where_no_line_is_of_it(
    argv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was in no row of CSV or of OMB's columns, and nothing was said; what succeeded when repeated is in them."""
    fails = Recipe(study=ONE_SIZE, blocks=5, fails=lambda order, attempt: order.path.label == "tap" or attempt == 1)
    make_run(tmp_path / "RUN", fails)
    assert nearmetal(argv.replace("RUN", str(tmp_path / "RUN")).split()) == 0
    captured = capsys.readouterr()
    assert ",tap," not in captured.out
    (told,) = [line for line in captured.err.splitlines() if line.startswith("FAILED")]
    assert re.match(r"FAILED: \d+ launches of latency over tap failed, 5 trials lost: ", told)


def test_of_too_many_verdicts_the_costliest_are_told_first(view: View) -> None:
    many = [replace(one, path=f"{one.path}-{n}") for one in view.verdicts for n in range(9)]
    lost = replace(many[0], path="lost", worst=None, best=None)
    wide = replace(view, verdicts=(*many, lost))
    told = [
        line.partition(":")[0] for line in _answer(wide) if line.startswith(("shm", "tap", "bridge", "mac", "lost"))
    ]
    assert told == [*(f"bridge-{n}" for n in range(3)), *(f"tap-{n}" for n in range(9)), "lost"]
    lead = re.sub("<[^>]+>", "", as_html._lead(wide))
    assert re.search(r"slower: tap-0 \([^)]+ times\), .*tap-6 \([^)]+ times\), lost, 11 more; faster", lead)


def test_a_cell_without_a_size_shows_only_its_name(view: View) -> None:
    cell = replace(view.cells[0], message_bytes=0, sized=False)
    other = replace(cell, group=replace(cell.group, workload="barrier"))
    table, _ = tables.shortest(replace(view, cells=(other, *view.cells)), 40)
    assert table.rows[0][0] == "barrier (latency)"
    assert table.rows[len(other.paths) - 1][0].endswith(", 8 B")


def test_a_run_with_failures_is_answered_in_forty_lines(tmp_path: Path) -> None:
    one, other = Recipe(blocks=5, fails=lambda order, _: order.path.label in {"tap", "shm"}), Recipe(blocks=5)
    lines = _answer(build_view(make_run(tmp_path / "failed", one)))
    assert len(lines) <= 40
    text = " ".join(lines)
    assert "tap: undecided (not compared in 3 of 3 cells)." in text
    assert "launches of latency over tap failed, 5 trials lost: " in text
    assert "nearmetal show RUN --trial" in text
    assert "failed" not in " ".join(_answer(build_view(make_run(tmp_path / "good", other))))


@pytest.mark.parametrize("lines", [16, 20, 24])
def test_the_cheapest_rows_are_left_out_first_and_counted(view: View, lines: int) -> None:
    answer = _answer(view, lines)
    cells = [line.split() for line in answer if line.startswith(("8 B ", "1 KiB ", "64 KiB "))]
    shown = [round(float(cell[3]), 3) for cell in cells]
    every = [one.comparison.headline.ratio for cell in view.cells for one in cell.paths if one.comparison]
    assert len(answer) <= lines
    assert sorted(shown, reverse=True) == [round(one, 3) for one in sorted(every, reverse=True)[: len(shown)]]
    left_out = len(every) - len(shown)
    assert answer[-1] == (
        f"{left_out} more not shown, all of smaller cost." if shown else f"{counted(left_out, 'ratio')} not shown."
    )


def test_columns_can_be_mapped_only_to_a_published_table(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(["compare", str(run.root), "--map", "x=tap"]) == 2
    assert "--map has no effect without --published" in capsys.readouterr().err


def test_figures_too_short_for_the_clock_are_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    study = STUDY.replace('name = "latency"', 'name = "bw"')
    made = make_run(tmp_path / "run", Recipe(study=study, blocks=3, idle=1.0))
    uncompared = {one.uncompared for cell in build_view(made).cells for one in cell.paths if "veth" not in one.path}
    assert uncompared == {"0 ns: faster than the clock can tell"}
    assert words.noise_sentence(build_view(made)).endswith("no mean of veth: 0 ns: faster than the clock can tell.")
    assert nearmetal(["show", str(made.root), "--as", "osu"]) == 0
    assert "nan" in capsys.readouterr().out
    assert not [one for one in recwarn if one.category is RuntimeWarning]


def test_messages_of_no_bytes_are_called_so_beside_those_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their row had a dash, and their verdict read as the workload's (`Worst: latency: 2.4`). A barrier was `0 B`."""
    text = FAKE_STUDY.replace("[trials]", '[[workload]]\nname = "barrier"\n[trials]').replace('[8, "1 KiB"]', "[0, 8]")
    view = build_view(RunDir.open(make_fake_run(tmp_path / "run", text)), distributions=False)
    latency, barrier = view.groups
    assert [row[0] for row in tables.levels(view, latency).rows] == ["0 B", "8 B"]
    assert [row[0] for row in tables.levels(view, barrier).rows] == ["-"]
    assert [words.cell_title(view, cell) for cell in view.cells] == ["latency, 0 B", "latency, 8 B", "barrier"]
    for trial in ("0", "1", "2", "3", "4", "5"):
        assert nearmetal(["show", str(tmp_path / "run"), "--trial", trial]) == 0
    shown = {line.split(":")[1] for line in capsys.readouterr().out.splitlines() if line.startswith("cell: ")}
    assert shown == {" latency 0 B", " latency 8 B", " barrier"}


def test_a_command_called_like_an_operation_is_no_osu_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ping of 2 ms was a latency of 1 ms, and a rate of 10 Gbit/s a bandwidth of 0.00 MB/s."""
    text = FAKE_STUDY.replace(
        "[trials]",
        '[[workload]]\nname = "bw"\nkind = "command"\noptions = { argv = ["true"], figure = "wall" }\n[trials]',
    )
    root = str(make_fake_run(tmp_path / "run", text))
    assert nearmetal(["show", root, "--as", "osu"]) == 0
    shown = capsys.readouterr().out
    assert "workload latency" in shown
    assert "workload bw" not in shown


def test_a_last_column_of_words_is_flush_left_in_latex(view: View) -> None:
    assert "\\begin{tabular}{llrl}" in as_latex.table(tables.verdicts(view))
    assert "\\begin{tabular}{lrrrr}" in as_latex.table(tables.noise(view)), "figures are flush right"


def test_latex_tables_are_complete_and_names_cannot_inject_tex(tmp_path: Path) -> None:
    text = as_latex.render(build_view(make_run(tmp_path / "run", Recipe(study=STUDY, blocks=3))))
    assert text.count("\\begin{table}") == text.count("\\end{table}") == text.count("\\bottomrule") >= 4
    for line in text.splitlines():
        if line.endswith("\\\\"):
            assert line.count(" & ") >= 2
    assert "size & veth & bridge & macvlan & tap & shm" in text
    assert as_latex.escape("50%_of\\tap {&}") == "50\\%\\_of\\textbackslash{}tap \\{\\&\\}"


def test_only_intervals_stand_in_brackets() -> None:
    """A workload below its path, and a second mode below the first, were printed as if they were intervals."""
    rows = (("tap\nlatency 8 B", "tuned\n/ plain", "1.200\n1.100..1.300", "9.98 (48 %)\n20.0 (52 %)", "1.000\n-"),)
    table = tables.Table("Settings", ("cell", "setting", "mean", "centres", "p99"), rows, left=2)
    assert (
        "| tap latency 8 B | tuned / plain | 1.200 \\[1.100..1.300\\] | 9.98 (48 %), 20.0 (52 %) | 1.000 \\[-\\] |"
        in (as_markdown.table(table))
    )
    mean = "1.200 {\\footnotesize [1.100, 1.300]}"
    assert f"tap latency 8 B & tuned / plain & {mean} & 9.98 (48 \\%), 20.0 (52 \\%) & " in as_latex.table(table)


def test_every_key_of_plan_and_show_is_in_the_schema(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "s.toml"
    study.write_text(run.study_text())
    schema = set(re.findall(r"`(\w+)`", (ROOT / "docs/reference/report-json.md").read_text()))
    free = {"order", "outcome", "knobs"}  # of the run directory, and names of knobs
    for verb in (["plan", str(study)], ["show", str(run.root)], ["show", str(run.root), "--trial", "1"]):
        assert nearmetal([*verb, "--format", "json"]) == 0
        missing = keys(json.loads(capsys.readouterr().out), free) - schema
        assert not missing, f"{verb[0]}: not in the schema"


def keys(value: object, free: set[str]) -> set[str]:
    """Return every key of a JSON value, except below the free ones."""
    if isinstance(value, dict):
        below = [keys(one, free) for key, one in value.items() if key not in free]
        return set(value).union(*below)
    return set().union(*(keys(one, free) for one in value)) if isinstance(value, list) else set()


def test_run_prints_its_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.toml").write_text(FAKE_STUDY)
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "r"), "--format", "json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["report_format"] == 2
    assert "report.html" in printed.err


def test_a_json_record_needs_all_of_its_fields() -> None:
    with pytest.raises(AttributeError, match="label"):
        schema.made(schema.HostJson, object(), kind="fake")
