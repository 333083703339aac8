"""`nearmetal init` writes studies that run, and refuses invalid answers before writing anything."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from nearmetal.cli.init import command
from nearmetal.cli.main import run as nearmetal
from nearmetal.cli.values import parse_sizes
from nearmetal.errors import BadInputError
from nearmetal.results.stopping import criteria_of
from nearmetal.study.draft import toml
from nearmetal.study.shipped import read_study

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = {"--host": "local", "--paths": "veth,bridge", "--workloads": "latency", "--sizes": "8", "--margin": "5%"}


def words(path: Path, **changed: str) -> list[str]:
    given = WHOLE | {f"--{name}": value for name, value in changed.items()}
    return ["init", str(path), *(word for pair in given.items() for word in pair)]


@pytest.mark.parametrize("host", ["local", "lab", "ssh", "slurm"])
def test_every_host_gets_a_study_that_can_be_planned(
    tmp_path: Path, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.toml"
    paths = "native" if host in {"ssh", "slurm"} else "native,vf" if host == "lab" else "veth,tap"
    machines = {"machines": "me@hpc1.cluster:2201,hpc2"} if host == "ssh" else {}
    assert nearmetal(words(file, host=host, paths=paths, **machines)) == 0
    assert "next: nearmetal plan" in capsys.readouterr().out
    study, _ = read_study(file)
    assert (study.name, study.host.kind, study.baseline) == ("s", host, paths.partition(",")[0])
    assert [node.port for node in study.host.node] == ([2201, 0] if host == "ssh" else [])
    needed = criteria_of(study).least_launches
    assert f"near-metal needs {needed}" in file.read_text()
    assert study.trials.max_blocks >= needed, "a first study of 12 blocks could not show near-metal, as `plan` said"


@pytest.mark.parametrize(
    ("machines", "nodes"),
    [
        ("a,b,c,d", ["a b", "c d"]),
        ("a,b", [None, None]),
        ("a,b,c,d,e", [None, None]),
        ("a,b,c,d,e,f", ["a b c", "d e f"]),
    ],
)
def test_paths_share_the_machines_out_or_leave_it_to_a_person(
    tmp_path: Path, machines: str, nodes: list[str | None]
) -> None:
    assert nearmetal(words(tmp_path / "s.toml", host="ssh", paths="bare,guest", machines=machines)) == 0
    study, text = read_study(tmp_path / "s.toml")
    assert [path.options.get("nodes") for path in study.path] == nodes
    assert ("NODE1 NODE2" in text) == (nodes[0] is None)


def test_missing_flags_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    asked = CliRunner().invoke(command, [str(file)], input="lab\n\nlatency,bw\n1K,8\n3 %\n", catch_exceptions=False)
    assert asked.exit_code == 0, asked.output
    study, _ = read_study(file)
    assert ([w.name for w in study.workload], study.workload[1].sizes) == (["latency", "bw"], [8, 1024])
    assert ([p.name for p in study.path], study.margin) == (["native", "vf"], 0.03)


@pytest.mark.parametrize("margin", ["5", "0.5", "0.05 %", "60%", "nan", "inf %"])
def test_a_margin_is_read_as_the_gate_reads_it(tmp_path: Path, margin: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`init --margin 0.5` was half a per cent, `gate --margin 0.5` half."""
    code = nearmetal(words(tmp_path / "s.toml", margin=margin))
    assert (code, read_study(tmp_path / "s.toml")[0].margin) == (0, 0.5) if margin == "0.5" else code == 2
    assert margin == "0.5" or f"--margin {margin!r} is not " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"paths": "veth,tapp"}, "'tapp'"),
        ({"workloads": "latencie"}, "'latencie'"),
        ({"workloads": "barrier"}, "no message size"),
        ({"sizes": "8,many"}, "'many'"),
        ({"paths": "veth,veth"}, "two of them"),
        ({"machines": "hpc1,hpc2"}, "--machines is for --host ssh, not local"),
        ({"host": "ssh", "machines": "hpc1"}, "one machine alone has no network to measure"),
        ({"host": "ssh", "machines": "hpc1.a,hpc1.b"}, "2 machines of the ssh host are called 'hpc1'"),
    ],
)
def test_a_wrong_answer_writes_nothing(
    tmp_path: Path, changed: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.toml"
    assert nearmetal(words(file, **changed)) == 2
    assert message in capsys.readouterr().err
    assert not file.exists()


def test_a_file_that_no_study_can_be_named_after_is_refused_before_any_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nearmetal(["init", str(tmp_path / "my study.toml")]) == 2
    assert "'my study' cannot be a name\nhint: choose another file name" in capsys.readouterr().err


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("mine")
    assert nearmetal(words(tmp_path / "s.toml")) == 2
    assert (tmp_path / "s.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "sizes"), [("8,64K", (8, 65536)), ("1M, 1 MiB,1048576", (1 << 20,)), ("64 KiB,0", (0, 65536))]
)
def test_sizes_may_be_written_in_several_ways(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "8,", "-1", "1T", "K", "1mb", "64k", "9" * 30])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        parse_sizes(text)


def test_any_text_round_trips_through_toml() -> None:
    import tomllib

    value = {"a b": 'x"\\\n\t\x7f é', "n": [1, 2.5, True]}
    assert tomllib.loads(f"v = {toml(value)}")["v"] == value


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "local", "--paths", "veht"], "there is no path 'veht'\nhint: did you mean 'veth'?"),
        (["--host", "local", "--paths", "veth", "--workloads", "latnecy"], "hint: did you mean 'latency'?"),
        (["--host", "local"], "nobody answers 'Data paths, the baseline first'\nhint: give --paths"),
        (["--host", "ssh"], "hint: give --machines"),
    ],
)
def test_a_typo_is_reported_before_the_next_question_and_an_empty_answer_is_refused(
    tmp_path: Path,
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert nearmetal(["init", str(tmp_path / "s.toml"), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_directory_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(words(tmp_path / "none" / "s.toml")) != 0
    stderr = capsys.readouterr().err
    assert "cannot write" in stderr
    assert "none/s.toml: No such file or directory" in stderr


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "argv",
    [
        ["between", "vm1", "vm2", "--minutes"],
        ["predict", "t", "--on", "r", "--compute-scale"],
    ],
)
def test_an_option_is_a_finite_number(
    argv: list[str], value: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`between` measured nothing with `--minutes nan` and ended in a traceback; no bound excludes nan."""
    monkeypatch.chdir(tmp_path)
    assert nearmetal([*argv, value]) == 2
    said = capsys.readouterr().err
    assert f"Invalid value for '{argv[-1]}': " in said
    assert "is not a number" in said or "is not in the range" in said
