from __future__ import annotations

import builtins
import math
import subprocess
import sys
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from bench.support.made_up_fabric import Faults

import nearmetal as nm
from fake_fabric import MadeUpHost, make_fabric
from nearmetal.api.comparison import Comparison
from nearmetal.api.frame import Frame
from nearmetal.errors import BadInputError, ForeignFileError, UnavailableError
from nearmetal.report.schema import VerdictJson
from nearmetal.store.query import MixedError
from tests.unit.report.synthetic_run import COST, STUDY, Recipe, make_run

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.study.order import Order

SMALL = STUDY.replace('sizes = [8, "1 KiB", "64 KiB"]', "sizes = [8, 1024]")
ATTACK = "<script>alert(1)</script>"


def _fails(order: Order, attempt: int) -> bool:
    return order.trial == 0 or (order.trial == 1 and attempt == 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> nm.Run:
    root = tmp_path_factory.mktemp("runs") / "first"
    make_run(root, Recipe(study=SMALL, blocks=6, iterations=500, fails=_fails))
    return nm.open_run(root)


def test_the_import_is_cheap_and_complete() -> None:
    code = (
        "import sys, nearmetal as nm; heavy = {'numpy', 'pyarrow', 'rich', 'click', 'pydantic'} & set(sys.modules);"
        "assert not heavy, heavy; assert set(nm.__all__) <= set(dir(nm)); [getattr(nm, name) for name in nm.__all__];"
        "assert 'pandas' not in sys.modules and 'polars' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        nm.nope  # noqa: B018 (the access is the test)


def test_the_import_changes_nothing_of_other_libraries() -> None:
    """The statistics put off loading numpy.f2py and numpy.testing, for the program that imported them, too."""
    code = (
        "import sys, types; finders = list(sys.meta_path); import nearmetal as nm, nearmetal.stats.order;"
        "[getattr(nm, name) for name in nm.__all__]; assert sys.meta_path == finders;"
        "late = [one for one, of in sys.modules.items() if type(of).__name__ == '_LazyModule']; assert not late, late"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_trials_include_every_attempt(run: nm.Run) -> None:
    trials = run.trials.to_dicts()
    assert len(trials) == 36 + 2
    assert [one["status"] for one in trials[:4]] == ["failed", "failed", "failed", "valid"]
    assert trials[0]["reason"] == "the launch did not end within 30 s; no output"
    assert trials[3]["attempt"] == 2


def test_samples_match_the_store(run: nm.Run) -> None:
    frame = run.samples(trial=5, message_bytes=8)
    assert frame.columns[-6:] == ("rank", "iteration", "warmup", "flags", "begin_ns", "ns")
    table = frame.to_arrow()
    assert table.num_rows == 2 * 500
    assert set(table.column("rank").to_pylist()) == {0, 1}
    assert min(table.column("iteration").to_pylist()) == 100
    record = run._directory.trials()[7]
    assert record.order.trial == 5
    first_rank = table.filter(pa.array(frame["rank"] == 0)).column("ns").to_numpy()
    assert np.array_equal(first_rank, run._directory.values(record, record.cells[0]))
    everything = run.samples(trial=5, message_bytes=8, everything=True)
    assert len(everything) == 2 * 600
    assert everything["warmup"].sum() == 2 * 100


def test_values_and_summaries_agree(run: nm.Run) -> None:
    values = run.values(path="tap", message_bytes=1024).to_polars()
    medians = values.group_by("trial").agg(pl.col("ns").median()).sort("trial")["ns"].to_list()
    summary = [one for one in run.summary().to_dicts() if one["path"] == "tap" and one["message_bytes"] == 1024]
    assert [one["median_ns"] for one in summary] == medians
    assert all(one["p99_9_ns"] is None and one["p99_ns"] for one in summary)


def test_frames_convert_to_other_libraries(run: nm.Run) -> None:
    frame = run.trials
    assert pa.table(frame).equals(frame.to_arrow())
    assert pl.DataFrame(frame).height == len(frame) == len(frame.to_pandas())
    assert frame.to_pandas()["path"].tolist() == frame.to_polars()["path"].to_list()
    with pytest.raises(BadInputError, match="no column 'nope'"):
        frame["nope"]


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_missing_library_is_named(run: nm.Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [one for one in sys.modules if one.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    real = builtins.__import__

    def without(wanted: str, *rest: object) -> object:
        if wanted.partition(".")[0] == name:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(wanted, *rest)  # type: ignore[arg-type]

    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnavailableError, match=f"{name} is not installed here") as raised:
        getattr(run.trials, f"to_{name}")()
    assert "pip install" in raised.value.hint


def test_comparison_of_paths(run: nm.Run) -> None:
    found = run.compare()
    assert repr(found).endswith(f"\n\n{len(found.cells)} cells: see .cells")
    one = Comparison(found.says, found.verdicts, Frame("one", found.cells.to_arrow().slice(0, 1)))
    assert repr(one).endswith("\n\n1 cell: see .cells")
    verdicts = {one["path"]: one["verdict"] for one in found.verdicts.to_dicts()}
    assert verdicts["tap"] == "slower"
    assert verdicts["shm"] == "faster"
    cells = found.cells.to_dicts()
    assert len(cells) == 2 * 5
    assert {one["verdict"] for one in cells if one["path"] == "veth"} == {None}
    tap = next(one for one in cells if one["path"] == "tap")
    assert tap["low"] < tap["ratio"] < tap["high"]
    with pytest.raises(BadInputError, match="fixed by the study"):
        run.compare(margin=0.1)


def test_comparison_of_runs(run: nm.Run, tmp_path: Path) -> None:
    slower = Recipe(study=SMALL, blocks=5, iterations=500, cost={**COST, "bridge": 1.5}, seed=8)
    other = nm.open_run(make_run(tmp_path / "slower", slower).root)
    found = other.compare(run)
    assert found.verdicts["verdict"].tolist() == ["worse"]
    assert {one["verdict"] for one in found.cells.to_dicts() if one["path"] == "bridge"} == {"worse"}
    assert found.says.endswith(f"Figures from {run.info.host_label}.")
    assert other.compare(run, margin=0.9).verdicts["verdict"].tolist() == ["within"]
    for wrong in (5, 1, 0, -0.05, math.nan, True, "5 %"):
        with pytest.raises(BadInputError, match=r"margin .* is not a share between 0 and 1") as refused:
            other.compare(run, margin=wrong)  # type: ignore[arg-type]
        assert refused.value.hint == "margin=0.05 means 5 %"


def test_verdicts_have_the_names_of_the_report(run: nm.Run) -> None:
    assert set(run.compare().verdicts.columns) < {one.name for one in fields(VerdictJson)}


def test_shortened_values_of_a_frame_are_whole_in_its_rows() -> None:
    """A notebook was told of `--format json`, an option of the command line."""
    assert "3032106" in repr(Frame("t", pa.table({"rate": [3032106.4]}))), "3.0321e+06"
    long = Frame("t", pa.table({"run": ["a"], "reason": ["why " * 60]}))
    assert repr(long).endswith("Values that end in '...' are shortened; .to_dicts() has them whole.")


def test_notebook_output_is_escaped(tmp_path: Path) -> None:
    study = SMALL.replace('name = "latency"', 'name = "latency"').replace(
        '"Software data paths of this machine"', f"'''{ATTACK}'''"
    )
    fails = Recipe(study=study, blocks=3, iterations=50, fails=lambda order, attempt: order.path.label == "tap")
    run = nm.open_run(make_run(tmp_path / ATTACK.replace("/", "|"), fails).root)
    base = nm.open_run(make_run(tmp_path / "base", replace(fails, seed=8)).root)
    for shown in (run, run.trials, run.summary(), run.compare(), run.compare(base)):
        text = shown._repr_html_()  # type: ignore[attr-defined]
        assert "<script>" not in text
        assert "<p" in text or "<table" in text
        assert repr(shown)
    assert "&lt;script&gt;" in run._repr_html_()
    assert "<script>" not in run.html()


def test_errors_have_hints(run: nm.Run, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no valid trial with path 'vlan', message_bytes 8"):
        run.samples(path="vlan", message_bytes=8)
    with pytest.raises(ForeignFileError, match="is not a run directory"):
        nm.open_run(tmp_path)
    empty = nm.open_run(make_run(tmp_path / "empty", Recipe(study=SMALL, blocks=0)).root)
    assert len(empty.trials) == 0
    assert repr(empty.trials) == "Trials: no rows"
    assert empty.trials._repr_html_() == "<p>Trials: no rows</p>"
    with pytest.raises(BadInputError, match="no valid trial with samples"):
        empty.summary()
    mixed = Recipe(study=SMALL, blocks=3, iterations=50, facts=lambda order: {"kernel.release": f"6.{order.block}"})
    changed = nm.open_run(make_run(tmp_path / "mixed", mixed).root)
    with pytest.raises(MixedError):
        changed.compare()
    assert changed.compare(allow_mixed=True).verdicts["verdict"].size == 4


def test_damaged_samples_are_refused(tmp_path: Path) -> None:
    run = nm.open_run(make_run(tmp_path / "run", Recipe(study=SMALL, blocks=1, iterations=50)).root)
    path = run.path / "samples" / "000000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    for read in (run.samples, run.values):
        with pytest.raises(ForeignFileError, match="has changed since it was recorded"):
            read(trial=0)


def test_runs_of_a_directory_are_listed_oldest_first(run: nm.Run) -> None:
    assert [one.path for one in nm.open_runs(run.path.parent)] == [run.path]
    with pytest.raises(BadInputError, match="runz is not a directory"):
        nm.open_runs(run.path.parent / "runz")


def test_a_fabric_is_a_table_of_pairs(run: nm.Run, tmp_path: Path) -> None:
    fabric = nm.open_run(make_fabric(tmp_path / "fabric", MadeUpHost(Faults(latency_nodes={5: 2.0}))))
    pairs = fabric.pairs()
    assert (pairs.columns, len(pairs)) == (("node", "partner", "latency_us", "bandwidth_mb_per_s"), 8 * 7)
    slow = {row["node"] for row in pairs.to_dicts() if row["latency_us"] > 1.5 * np.median(pairs["latency_us"])}
    assert slow == {f"n{number}" for number in range(8)}, "n5 is one end of every slow pair"
    n5 = pairs.to_pandas().query("node == 'n5'")
    assert n5["latency_us"].min() > 1.5 * np.median(pairs["latency_us"])
    assert ".pairs()" in fabric._repr_html_()
    with pytest.raises(nm.NearmetalError, match="is a fabric run"):
        fabric.compare()
    with pytest.raises(nm.NearmetalError, match="contains no measured fabric"):
        run.pairs()
