"""Every study that ships can be read, names only what exists, and has its page."""

from pathlib import Path

import pytest

from nearmetal.run.check import check_study
from nearmetal.study.plan import block
from nearmetal.study.spec import read_study

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "studies").glob("*.toml"))
PAPERS = ("musleh-", "nanos-", "lockwood-", "nasa-")


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_shipped_study_is_sound(path: Path) -> None:
    study, _ = read_study(path)
    check_study(study)
    assert study.name == path.stem
    assert block(study, 0)


@pytest.mark.parametrize("path", [p for p in STUDIES if p.stem.startswith(PAPERS)], ids=lambda path: path.stem)
def test_a_study_of_a_paper_has_a_page_that_says_what_can_differ(path: Path) -> None:
    page = (ROOT / "docs" / "studies" / f"{path.stem}.md").read_text()
    assert f"studies/{path.name}" in page
    assert "an differ" in page
    assert f"({path.stem}.md)" in (ROOT / "docs" / "studies" / "README.md").read_text()


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_shipped_study_is_in_the_list(path: Path) -> None:
    listed = (ROOT / "docs" / "studies" / "README.md").read_text()
    assert f"| [{path.stem}](" in listed or f"`{path.stem}`" in listed
