"""What a run directory is taken for, and what its questions answer."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fake_runs import STUDY, Silent, make_run
from nearmetal.cli.main import run as nearmetal
from nearmetal.errors import ForeignFileError, StoreError
from nearmetal.hosts.fake import FakeHost
from nearmetal.hosts.ssh import machines_named
from nearmetal.results.between import Question, judge, read_pair
from nearmetal.run.begin import begin
from nearmetal.run.schedule import run_study
from nearmetal.store import sums
from nearmetal.store.listing import LIST
from nearmetal.store.record import record_paths
from nearmetal.store.rundir import RunDir, RunInfo, is_of_fabric
from nearmetal.store.searchdir import SearchDir, open_either
from nearmetal.study.spec import digest

INFO = RunInfo.now("small", digest(STUDY), "fake", "made up")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield a run that no test changes."""
    return make_run(tmp_path_factory.mktemp("kept") / "run", STUDY)


@pytest.mark.parametrize(
    ("folders", "of_fabric"),
    [
        (("samples",), False),
        (("fabric",), True),
        (("samples", "fabric"), False),  # of a study with a workload of all pairs
        ((), False),  # a copy that lost its empty folder
    ],
)
def test_a_run_is_a_whole_fabrics_if_it_has_a_folder_for_one_and_none_for_samples(
    tmp_path: Path, folders: tuple[str, ...], of_fabric: bool
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir()
    assert is_of_fabric(tmp_path) == of_fabric


def test_trials_come_in_the_order_of_the_plan(kept: Path) -> None:
    run = RunDir.open(kept)
    assert [record.order.trial for record in run.trials()] == list(range(9))
    assert run.held() is run
    assert run.trials() == RunDir.open(kept).trials()


def test_a_run_that_is_held_stays_as_it_was(tmp_path: Path) -> None:
    run = RunDir.open(make_run(tmp_path / "run", STUDY))
    before = run.held().trials()
    record_paths(run.root)[-1].unlink()
    before.pop()
    assert len(run.trials()) == 9, "neither its files nor who asked before changes it"
    with pytest.raises(ForeignFileError, match=r"000008\.json is missing, but its trial was finished") as raised:
        RunDir.open(run.root).trials()
    again = f"nearmetal run --resume {run.root}"
    assert raised.value.hint == f"restore it from a backup, or measure the trial of a lost record again: {again}"


def test_a_run_whose_directory_was_replaced_writes_no_more(kept: Path, tmp_path: Path) -> None:
    """Its record would break the list of the run that is there now."""
    root = tmp_path / "run"
    one = RunDir.open(kept).trials()[0]

    def append(run: RunDir) -> None:
        run.append(one.order, one.outcome, [], attempt=1, started_utc=one.started_utc)

    lost = RunDir.create(root, INFO, STUDY)
    append(lost)
    shutil.rmtree(root)
    with pytest.raises(StoreError, match=r"was removed while it was being written \(No such file"):
        append(lost)
    there = RunDir.create(root, INFO, STUDY)
    with pytest.raises(StoreError, match=r"was removed while .* another nearmetal writes to it now"):
        append(lost)
    append(there)
    there.close()
    lost.close()
    assert len(RunDir.open(root).trials()) == 1


def test_a_run_and_a_search_are_told_apart(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "run", INFO, STUDY).close()
    SearchDir.create(tmp_path / "search", INFO, STUDY).close()
    assert type(open_either(tmp_path / "run")) is RunDir
    assert type(open_either(tmp_path / "search")) is SearchDir
    with pytest.raises(ForeignFileError) as raised:
        RunDir.open(tmp_path / "search")
    assert raised.value.hint == f"it holds a search; `nearmetal show {tmp_path}/search` lists its trials"


def test_a_search_knows_where_its_profiles_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with SearchDir.create(tmp_path / "search", INFO, STUDY) as search:
        with pytest.raises(ForeignFileError) as raised:
            search.kept_out()
        assert raised.value.hint == "name the place with --out"
        search.keep_out(Path("profiles"))
        assert search.kept_out() == tmp_path / "profiles"


def test_a_run_is_written_elsewhere_only_while_another_holds_it(kept: Path) -> None:
    reader = RunDir.open(kept)
    assert not reader.written_elsewhere
    with RunDir.open_for_writing(kept) as writer:
        assert reader.written_elsewhere
        assert not writer.written_elsewhere
    assert not reader.written_elsewhere


def test_a_run_opened_for_reading_takes_no_trial(kept: Path) -> None:
    reader = RunDir.open(kept)
    record = reader.trials()[0]
    with pytest.raises(StoreError, match="is open for reading only"):
        reader.append(record.order, record.outcome, [], attempt=2, started_utc=INFO.created_utc)


def test_a_file_that_a_record_does_not_name_is_not_used(kept: Path) -> None:
    run = RunDir.open(kept)
    record = run.trials()[0]
    assert run.sum_of(record, run.samples_path(record)) == record.sums["samples/000000.parquet"]  # type: ignore[index]
    assert run.keeps("samples", record)
    assert not run.keeps("traces", record)
    assert run.files("traces", record) == {}
    with pytest.raises(ForeignFileError, match=r"the record of .*/traces/000000\.zip does not name it"):
        run.sum_of(record, kept / "traces" / "000000.zip")


@pytest.mark.parametrize(("folder", "most_bytes"), [("fabric", 4 * 1024**3), ("traces", 256 * 1024**2)])
def test_files_that_unpack_to_too_much_are_refused_unread(kept: Path, folder: str, most_bytes: int) -> None:
    run = RunDir.open(kept)
    record = replace(run.trials()[0], sums=None)  # as of the first format
    (kept / folder).mkdir()
    with zipfile.ZipFile(kept / folder / "000000.zip", "w") as archive:
        archive.writestr("large", b"x")
        archive.filelist[0].file_size = most_bytes + 1  # what its directory says
    with pytest.raises(ForeignFileError, match=f"unpacks to more than {most_bytes} bytes"):
        run.files(folder, record)


HOSTS_STUDY = """
name = "far"
baseline = "a"
path = [{ name = "a", kind = "declared", options = { nodes = "m1 m2" } }]
host = { kind = "ssh", node = [{ name = "m1" }], hosts_file = "hosts.toml" }
workload = [{ name = "latency", sizes = [8], iterations = 20 }]
trials = { min_blocks = 3, max_blocks = 3 }
"""


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Measure a study with a hosts file, which is then edited; return the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("nearmetal.run.guests.table.open_host", lambda _: FakeHost({}))
    Path("far.toml").write_text(HOSTS_STUDY)
    return measured("run", '[[node]]\nname = "m2"\naddress = "10.0.0.2"\n')


def measured(name: str, hosts: str) -> Path:
    Path("hosts.toml").write_text(hosts)
    with begin(Path("far.toml"), Path(name), anyway=True) as (spec, run, host):
        Path("hosts.toml").write_text('[[node]]\nname = "m9"\n')
        run_study(spec, host, run, Silent())
        assert [node.name for node in machines_named(spec.host)] == ["m1", "m2"]
        return run.root


def test_a_run_keeps_its_hosts_file(far: Path) -> None:
    """It was read again whenever the run was continued, from wherever that was, as it was by then."""
    study = RunDir.open(far).study()
    assert [(node.name, node.address) for node in machines_named(study.host)] == [("m1", ""), ("m2", "10.0.0.2")]
    assert (far / "hosts.toml").read_text() == '[[node]]\nname = "m2"\naddress = "10.0.0.2"\n'
    assert json.loads((far / "run.json").read_text())["run_format"] == 5
    assert "hosts_file" in RunDir.open(far).study_text(), "the study is as it was given"
    assert nearmetal(["report", str(far), "--out", "page.html"]) == 0
    assert "10.0.0.2" in Path("page.html").read_text()


def test_a_hosts_file_goes_into_the_archive(far: Path) -> None:
    assert nearmetal(["archive", str(far), "far.nmrun"]) == 0
    assert nearmetal(["unarchive", "far.nmrun", "back"]) == 0
    assert nearmetal(["verify", "back"]) == 0
    assert (Path("back") / "hosts.toml").read_bytes() == (far / "hosts.toml").read_bytes()


def test_trials_that_share_a_launch_keep_the_samples_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paced = '[[workload]]\nname = "paced"\noperation = "latency"\nsizes = [8, 64]\niterations = 64\nwarmup = 8\n'
    roots = [
        make_run(tmp_path / name, STUDY.replace("[trials]", f"{paced}\n[trials]\n{shared}"))
        for name, shared in (("apart", ""), ("together", "share_launches = true"))
    ]
    apart, together = ({one.order.trial: one.cells for one in RunDir.open(root).trials()} for root in roots)
    assert apart == together
    assert len(apart) == 18
    for root in roots:  # the plan listed the seeded order, also of trials that share launches
        run_order = [int(line.split()[-1]) for line in (root / LIST).read_text().splitlines()][:6]
        study = str(root / "study.toml")
        assert nearmetal(["plan", study, "--order"]) == 0
        listed = capsys.readouterr().out.partition("the first block, in its order\n")[2].splitlines()
        assert [int(line.split()[0]) for line in listed] == run_order
        assert nearmetal(["plan", study, "--format", "json"]) == 0
        assert [one["trial"] for one in json.loads(capsys.readouterr().out)["first_block"]] == run_order


@pytest.mark.parametrize("gone", [True, False])
def test_an_edited_hosts_file_is_refused(far: Path, capsys: pytest.CaptureFixture[str], gone: bool) -> None:
    if gone:
        (far / "hosts.toml").unlink()
    else:
        (far / "hosts.toml").write_text('[[node]]\nname = "m3"\n')
    said = "cannot be read" if gone else "is no longer the hosts file of this run"
    with pytest.raises(ForeignFileError, match=said) as raised:
        RunDir.open(far).study()
    assert raised.value.hint == f"restore it from a backup; field `hosts` of {far}/run.json has it"
    assert nearmetal(["verify", str(far)]) == 1
    assert f"{far}/hosts.toml" in capsys.readouterr().out
    assert nearmetal(["compare", str(far)]) == 2


def test_a_gate_names_what_differs_in_two_hosts_files(far: Path) -> None:
    other = measured("other", '[[node]]\nname = "m2"\naddress = "10.0.0.3"\n')
    found = judge(read_pair(RunDir.open(other), RunDir.open(far), Question(0.05)))
    changes = [str(change) for change in found.changes]
    assert 'hosts file node[m2].address: "10.0.0.2" -> "10.0.0.3"' in changes


@pytest.mark.parametrize(("version", "hosts"), [(4, "x"), (5, None), (6, "x")])
def test_a_hosts_file_belongs_to_its_format_alone(kept: Path, tmp_path: Path, version: int, hosts: str | None) -> None:
    raw = json.loads((kept / "run.json").read_text())
    del raw["sha256"]
    path = tmp_path / "run.json"
    path.write_bytes(sums.sealed(raw | {"run_format": version} | ({} if hosts is None else {"hosts": hosts})))
    with pytest.raises(ForeignFileError, match="lacks or misnames a field" if version < 6 else "it knows 1 to 5"):
        RunDir.open(tmp_path)
