"""Every shipped study can be read, refers only to existing names, and has a docs page."""

import json
from pathlib import Path

import pytest

from nearmetal.cli.main import run as nearmetal
from nearmetal.errors import BadInputError
from nearmetal.run.check import check_study
from nearmetal.study.plan import block
from nearmetal.study.shipped import read_study

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "studies").glob("*.toml"))
PAPERS = ("musleh-", "nanos-", "lockwood-", "nasa-")


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_shipped_study_is_valid(path: Path) -> None:
    study, _ = read_study(path)
    check_study(study)
    assert study.name == path.stem
    assert block(study, 0)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_plan_fits_a_terminal_without_truncating_names_or_sizes(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert nearmetal(["plan", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "\N{HORIZONTAL ELLIPSIS}" in line]
    for workload in read_study(path)[0].workload:
        assert any(line.startswith(f"{workload.name} ") for line in lines)
    assert not [line for line in lines if line.split()[:1] in (["B"], ["KiB"], ["MiB"])]


def test_a_plan_shows_the_iterations_of_large_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """It showed 384 for all sizes, of which 64 KiB had 20."""
    assert nearmetal(["plan", "sriov-vm"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("latency")]
    assert [("384 104 20" in row, " 384 " in row) for row in rows] == [(True, True), (False, True)]


def test_a_plan_names_all_that_ends_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said nothing of `precision`, with which a run may end while comparisons are undecided."""
    assert nearmetal(["plan", "sriov-gap"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "every comparison is decided, or its mean known to 1 %, and no noise floor is above 2 %: about" in said
    (tmp_path / "s.toml").write_text((ROOT / "studies" / "sriov-gap.toml").read_text().replace("floor =", "#"))
    assert nearmetal(["plan", str(tmp_path / "s.toml")]) == 0
    assert "is decided, or its mean known to 1 %: about" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("path", [p for p in STUDIES if p.stem.startswith(PAPERS)], ids=lambda path: path.stem)
def test_a_study_of_a_paper_has_a_page_on_possible_differences(path: Path) -> None:
    page = (ROOT / "docs" / "studies" / f"{path.stem}.md").read_text()
    assert f"studies/{path.name}" in page
    assert "an differ" in page
    assert f"({path.stem}.md)" in (ROOT / "docs" / "studies" / "README.md").read_text()


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_shipped_study_is_in_the_list(path: Path) -> None:
    listed = (ROOT / "docs" / "studies" / "README.md").read_text()
    assert f"| [{path.stem}](" in listed or f"`{path.stem}`" in listed


def test_a_shipped_study_runs_by_its_name() -> None:
    study, text = read_study(Path("paths"))
    assert (study.name, text) == ("paths", (ROOT / "studies" / "paths.toml").read_text())


def test_a_local_file_takes_precedence_over_a_shipped_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "paths").write_text((ROOT / "studies" / "aa.toml").read_text())
    monkeypatch.chdir(tmp_path)
    assert read_study(Path("paths"))[0].name == "aa"


@pytest.mark.parametrize(
    ("word", "message"),
    [("pathes", "did you mean 'paths'?"), ("qqq", "`nearmetal studies` lists"), ("gone.toml", "`nearmetal studies`")],
)
def test_an_unknown_name_gets_the_closest_study_or_the_list(word: str, message: str) -> None:
    with pytest.raises(BadInputError) as raised:
        read_study(Path(word))
    assert message in raised.value.hint


def test_the_list_names_every_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(["studies"]) == 0
    names = {line.split(" ")[0] for line in capsys.readouterr().out.splitlines()}
    assert {path.stem for path in STUDIES} <= names
    assert nearmetal(["studies", "--format", "json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [path.stem for path in STUDIES]


def test_every_lab_study_of_latency_measures_both_paces() -> None:
    lab = [study for study, _ in map(read_study, STUDIES) if study.host.kind == "lab"]
    paces = {
        study.name: {one.pace for one in study.workload if (one.operation or one.name) == "latency"} for study in lab
    }
    assert len([one for one in paces.values() if one]) > 5
    one_pace = {name for name, found in paces.items() if found and found != {"back-to-back", "random"}}
    assert one_pace == {"predict-lab"}, "a fit uses only back-to-back messages"
