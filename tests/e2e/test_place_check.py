"""`nearmetal place --check`: the program runs under both placements, and both gains are reported."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from nearmetal.cli.main import run
from nearmetal.errors import BadInputError
from nearmetal.hosts.table import open_host
from nearmetal.predict.measured import CHOSEN, DEFAULT, measure_gain, placement_study
from nearmetal.predict.models import UNBOUNDED, Machine, NamedMachine, PathModel, Segment
from nearmetal.predict.schedule import Comm, Op, OpKind, Peer, Program, Schedule
from nearmetal.predict.trace import DoCall, RankTrace, Repeat, Trace
from nearmetal.report.prediction_json import PlacementFile, read
from nearmetal.study.spec import parse_study
from tests.compiled import compile_to
from tests.mpi_bench import mpi_of

pytestmark = [pytest.mark.mpi, pytest.mark.xdist_group("mpi")]

STUDY = """
format = 1
name = "check"
baseline = "veth"
[[path]]
name = "veth"
[[path]]
name = "shm"
[[workload]]
name = "latency"
sizes = [8, 8192]
iterations = 50
warmup = 5
[trials]
min_blocks = 3
max_blocks = 3
"""
# Ranks 0 and 2 communicate, and 1 and 3: filling host by host is the worst placement on two nodes.
PROGRAM = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    static char a[8192], b[8192];
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double begin = MPI_Wtime();
    for (int i = 0; i < 100; ++i)
        MPI_Sendrecv(a, sizeof a, MPI_BYTE, rank ^ 2, 1, b, sizeof b, MPI_BYTE, rank ^ 2, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
    if (rank == 0)
        printf("took %.6f s\\n", MPI_Wtime() - begin);
    return MPI_Finalize();
}
"""


def test_a_better_placement_is_measured_on_namespaces(tmp_path: Path) -> None:
    mpi = mpi_of("openmpi")
    (tmp_path / "pairs.c").write_text(PROGRAM)
    program = str(tmp_path / "pairs")
    compile_to(Path(program), [mpi.mpicc, f"{program}.c"])
    placements = {DEFAULT: np.array([0, 0, 1, 1], np.uint32), CHOSEN: np.array([0, 1, 0, 1], np.uint32)}
    machine = NamedMachine("veth", "as-found", "polling", Machine(None, PathModel((Segment(UNBOUNDED, 1),))))
    study = placement_study(parse_study(STUDY, "study"), machine, (program,), placements, r"took (\S+) s")
    host = open_host(study)
    try:
        lines: list[str] = []
        gain = measure_gain(study, host, 3, lines.append)
    finally:
        host.close()
    assert len(lines) == 3
    assert gain.low is not None
    assert gain.high is not None
    assert gain.low <= gain.share <= gain.high < 1


def test_predicted_and_measured_gain_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY + '[host]\nkind = "fake"\n')
    assert run(["run", "study.toml", "--out", "micro"]) == 0
    exchange = Op(OpKind.SENDRECV, rule=Peer.XOR, peer=2, message_bytes=8192, recv_rule=Peer.XOR, recv_peer=2)
    talk = Program((Repeat(50, (DoCall(0),)),), (exchange,), (Comm(0, size=4),))
    meta = RankTrace(0, 1, 1, 1, {"command": "./pairs 1"}, (), (), (), (), (), (), ())
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: [Schedule(4, (talk,))])
    monkeypatch.setattr("nearmetal.cli.place.read_trace", lambda _: Trace((meta,)))
    marked: list[str] = []
    monkeypatch.setattr("nearmetal.cli.place.measuring", lambda study: nullcontext(marked.append(study.host.kind)))
    capsys.readouterr()
    argv = ["place", "trace", "--on", "micro", "--path", "veth", "--tries", "0", "--replicas", "3", "-o", "ranks"]
    kept = tmp_path / "mine.placement.json"
    assert run([*argv, "--hosts", "n0:2,n1:2", "--check", "--check-blocks", "4", "--save", str(kept)]) == 0
    assert marked == ["fake"], "`apply` must see that its machines are measured on"
    stderr = " ".join(capsys.readouterr().err.split())
    assert re.search(r"gain of \S+ on in-order, veth: predicted \+\d", stderr)
    assert re.search(r"measured [+-]\S+ % \[[+-]\S+ %, [+-]\S+ %\]: 4 paired launches by the wall clock", stderr)
    first, second, rank, *_ = (tmp_path / "ranks").read_text().splitlines()
    assert "in-order" not in first
    assert second.startswith("# measured ")
    assert rank.startswith("rank 0=")
    assert read(kept, PlacementFile).launcher_file == (tmp_path / "ranks").read_text(), "it was without the measurement"
    assert run([*argv, "--hosts", "n0:4", "--check"]) == 0
    assert "so there is nothing to check" in " ".join(capsys.readouterr().err.split())


def test_a_model_file_has_no_host_to_measure_on(tmp_path: Path) -> None:
    from nearmetal.cli.place import command

    (tmp_path / "halo.toml").write_text("")
    (tmp_path / "model.json").write_text("{}")
    for program, message in (("trace", "model file"), ("halo.toml", "pattern")):
        argv = [str(tmp_path / program), "--on", str(tmp_path / "model.json"), "--hosts", "a:4", "--check"]
        with pytest.raises(BadInputError, match=message):
            command.main(argv, standalone_mode=False)
