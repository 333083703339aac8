"""A search that is repeatedly killed and continued ends exactly like an uninterrupted one."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nearmetal
from fake_runs import edit_study
from nearmetal import process
from nearmetal.cli.main import run
from nearmetal.run.schedule import keep
from nearmetal.store.searchdir import SearchDir
from tests.beside_runs import SEARCH_STUDY

if TYPE_CHECKING:
    from nearmetal.store.record import TrialRecord

# Dies by SIGKILL at a step of the disk, as often as requested.
VICTIM = """
import os, signal, sys
from nearmetal.cli.main import main
from nearmetal.store.disk import Disk
left = [int(sys.argv.pop(1))]
def step(self, name, path):
    left[0] -= 1
    if left[0] == 0:
        path.with_name(path.name + ".part").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
Disk.step = step
main()
"""


def _killed(folder: Path, step: int, *words: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(nearmetal.__file__).parents[1])}
    ended = process.run([sys.executable, "-c", VICTIM, str(step), *words], timeout_s=600, cwd=str(folder), env=env)
    assert ended.exit_status == -9, ended.complaint()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SEARCH_STUDY)
    return tmp_path


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished search, for tests to copy."""
    made = tmp_path_factory.mktemp("ended")
    (made / "s.toml").write_text(SEARCH_STUDY)
    assert run(["tune", str(made / "s.toml"), "--run", str(made / "search"), "--out", str(made)]) == 0
    return made / "search"


@pytest.fixture
def search(folder: Path, ended: Path) -> Path:
    return shutil.copytree(ended, folder / "search")


def test_killed_and_resumed_searches_end_like_an_uninterrupted_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", "s.toml", "--run", "whole", "--out", "alone"]) == 0
    alone = capsys.readouterr().out
    _killed(folder, 30, "tune", "s.toml", "--run", "search", "--out", "profiles")
    launches = [len(SearchDir.open(folder / "search").trials())]
    for step in (40, 60):
        _killed(folder, step, "tune", "--resume", "search")
        launches.append(len(SearchDir.open(folder / "search").trials()))
    assert run(["tune", "--resume", "search"]) == 0
    resumed = capsys.readouterr()
    assert f"{launches[-1]} launches were kept from before" in resumed.err
    assert launches == sorted(set(launches)), "every start continued where the last one died"
    assert resumed.out.replace("profiles", "alone") == alone
    name = "s-latency-bound.profile.json"
    assert (folder / "profiles" / name).read_bytes() == (folder / "alone" / name).read_bytes()
    whole, search = (SearchDir.open(folder / place).trials() for place in ("whole", "search"))
    assert [one.order for one in whole] == [one.order for one in search]


def test_profiles_of_a_resumed_search_go_to_their_directory_though_it_is_gone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each was written to a file of the directory's name, so only that of the last class was left."""
    classes = "".join(f'[[tune.classes]]\nname = "{name}"\n' for name in ("x", "y"))
    (folder / "s.toml").write_text(SEARCH_STUDY + classes)
    assert run(["tune", "s.toml", "--run", "search of mine", "--out", "profiles"]) == 0
    assert "after an interruption: nearmetal tune --resume 'search of mine'" in capsys.readouterr().err
    shutil.rmtree(folder / "profiles")
    assert run(["tune", "--resume", "search of mine"]) == 0
    made = sorted(one.name for one in (folder / "profiles").iterdir())
    assert made == ["s-latency-bound.profile.json", "s-x.profile.json", "s-y.profile.json"]


def test_profiles_go_to_their_directory_though_it_is_removed_during_the_search(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was written to a file of the directory's name, so only that of the last class was left."""
    (folder / "s.toml").write_text(SEARCH_STUDY + '[[tune.classes]]\nname = "x"\n')

    def removes(*given: object) -> TrialRecord:
        shutil.rmtree(folder / "profiles", ignore_errors=True)
        return keep(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("nearmetal.tune.measure.keep", removes)
    assert run(["tune", "s.toml", "--out", "profiles"]) == 0
    made = sorted(one.name for one in (folder / "profiles").iterdir())
    assert made[-1] == "s-x.profile.json"


def test_a_profile_that_cannot_be_written_names_the_search_that_has_it(
    search: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint was to repeat the command, which starts a new search."""
    place = search.parent / "place"
    (place / "s-latency-bound.profile.json").mkdir(parents=True)
    assert run(["tune", "--resume", str(search), "--out", str(place)]) == 1
    again = f"mend that, then write the profile by: nearmetal tune --resume {search}"
    assert again in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("taken", [False, True])
def test_a_search_whose_directory_is_removed_ends(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    search, launched = folder / "search", Counter[str]()
    there: list[SearchDir] = []

    def removes(kept: SearchDir, *given: object) -> TrialRecord:
        launched["all"] += 1
        if launched["all"] == 3:
            search.rename(folder / "away")
            if taken:
                there.append(SearchDir.create(search, kept.info, SEARCH_STUDY))
        return keep(kept, *given)  # type: ignore[arg-type]

    monkeypatch.setattr("nearmetal.tune.measure.keep", removes)
    assert run(["tune", "s.toml", "--run", "search"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "search was removed while it was being written" in said
    assert ("start again with another --run" in said) == taken
    assert launched["all"] == 3
    for one in there:
        one.close()
        assert one.trials() == []
    assert len(SearchDir.open(folder / "away").trials()) == 2


def test_an_interrupted_search_reports_how_to_continue(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("nearmetal.tune.measure.keep", interrupted)
        assert run(["tune", "s.toml", "--run", "search"]) != 0
    assert "continue with: nearmetal tune --resume search" in capsys.readouterr().err
    assert run(["tune", "--resume", "search"]) == 0
    assert (folder / "s-latency-bound.profile.json").exists()


def test_launches_of_another_search_are_refused(search: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_study(search, lambda text: text.replace("[9000]", "[8000]"))
    assert run(["tune", "--resume", "search"]) == 2
    assert "is not the one that this search asks for" in capsys.readouterr().err


@pytest.mark.usefixtures("search")
def test_a_search_is_not_taken_for_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "search"]) == 2
    assert "it holds a search; `nearmetal show search` lists its trials" in capsys.readouterr().err
    assert run(["show", "search", "--trial", "0"]) == 0
    assert "latency 8 B" in capsys.readouterr().out
    assert run(["tune", "s.toml", "--run", "search"]) == 2
    assert "nearmetal tune --resume search" in capsys.readouterr().err
    assert run(["tune", "s.toml", "--resume", "search"]) == 2


def test_a_lost_launch_is_named_and_measured_again(search: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was measured again without a word, and the hint blamed another version where the search then differed."""
    record = search / "trials" / "000003.json"
    record.write_bytes(record.read_bytes()[:-9])
    assert run(["tune", "--resume", str(search)]) == 2
    assert ", or start a new search, or delete" in " ".join(capsys.readouterr().err.split())
    record.unlink()
    assert run(["tune", "--resume", str(search)]) == 0  # the fake host gives the same figures
    assert f"the records of 1 finished launch of {search} (000003) are gone: measured again" in capsys.readouterr().err


def test_a_search_of_another_version_is_not_continued(
    search: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run --resume` refused such runs; a search mixed what two versions measured."""
    begun_by = nearmetal.__version__
    monkeypatch.setattr(nearmetal, "__version__", "99")
    assert run(["tune", "--resume", str(search)]) == 2
    assert f"was begun by nearmetal {begun_by}, this is 99" in capsys.readouterr().err


def test_a_search_that_cannot_be_kept_names_its_option(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").touch()
    assert run(["tune", "s.toml", "--run", "file/search"]) == 1
    assert "hint: name another directory with --run" in capsys.readouterr().err
