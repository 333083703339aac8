"""OMB, IMB and mpi4py as workloads: launched by a real MPI, with programs that print like the real ones.

A script replaces each suite, because Debian has no packages of OMB and IMB: it takes the same arguments as the real one
and prints, on rank 0, a table in the same format. The real mpi4py is measured too, and IMB-MPI1 where it is on PATH.
"""

from __future__ import annotations

import shutil
import stat
import sys
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.hosts.local import LocalHost
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.results.shown import shown_for
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.workloads.mpi.table import find_mpi
from nearmetal.workloads.samples import decode
from nearmetal.workloads.table import find_workload

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

RANK_0_ONLY = '#!/bin/sh\n[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] || exit 0\n'
OMB_BW = """
for size in $(echo "$2" | cut -d: -f1); do
    printf '# OSU MPI Bandwidth Test v7.4\\n# Datatype: MPI_CHAR.\\n# Size      Bandwidth (MB/s)\\n%s   200.00\\n' $size
done
"""
OMB_BARRIER = "printf '\\n# OSU MPI Barrier Latency Test v5.8\\n# Avg Latency(us)\\n             8.32\\n'\n"
IMB = """
while [ "$1" != -msglen ]; do shift; done
size=$(cat "$2")
printf '#    Intel(R) MPI Benchmarks 2021.11, MPI-1 part\\n# Benchmarking Allreduce\\n# #processes = 2\\n'
printf '       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\\n  %s  50  1.00  3.00  2.00\\n\\n' $size
"""
PYTHON = """
[ "$1" != -c ] || { echo "$0"; exit; }
printf '# MPI PingPong Test\\n# Size [B]  Bandwidth [MB/s] | Time Mean [s] \\302\\261 StdDev [s]  Samples\\n'
printf '        %s             11.14 | 7.5e-06 \\302\\261 6.8417e-08       50\\n' "$5"
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RANK_0_ONLY + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def asked(kind: str, placement: tuple[int, ...] = (0, 0), **options: object) -> WorkloadOrder:
    base = {"operation": "latency", "sizes": [], "iterations": 50, "warmup": 5}
    return WorkloadOrder("w", kind, {**base, **options}, placement)  # type: ignore[arg-type]


def carried_out(workload: WorkloadOrder, path: str = "shm", mpi: str = "mpich") -> Outcome:
    try:
        find_mpi(mpi)
        with NamespaceShell():
            pass
    except UnavailableError as error:
        pytest.skip(error.render())
    return LocalHost().carry_out(Order(0, 0, PathOrder(path, path), workload, mpi=mpi, timeout_s=600.0), carry_out)


def figures(outcome: Outcome, workload: WorkloadOrder) -> dict[tuple[str, int], float]:
    assert outcome.status is TrialStatus.VALID, outcome.reason
    return {
        (cell.operation, cell.message_bytes): round(
            shown_for(workload, cell.operation, cell.message_bytes).value(int(cell.ns[0, 0])), 3
        )
        for cell in decode(outcome)
    }


def test_omb_is_found_below_its_folder_and_run_size_by_size(tmp_path: Path) -> None:
    script(tmp_path / "mpi" / "pt2pt" / "osu_bw", OMB_BW)
    workload = asked("omb", operation="bw", sizes=[96, 4096], folder=str(tmp_path))
    outcome = carried_out(workload, mpi="openmpi")
    assert figures(outcome, workload) == {("bw", 96): 200.0, ("bw", 4096): 200.0}
    assert outcome.facts["omb.program"] == str(tmp_path / "mpi" / "pt2pt" / "osu_bw")
    assert outcome.facts["mpi.flavour"] == "openmpi"
    assert outcome.counters["tool.iterations"] == 2 * (50 + 5), "counters cover all iterations, but one mean is printed"


def test_omb_barrier_has_no_size(tmp_path: Path) -> None:
    script(tmp_path / "osu_barrier", OMB_BARRIER)
    workload = asked("omb", operation="barrier", folder=str(tmp_path))
    assert figures(carried_out(workload), workload) == {("barrier", 0): 8.32}


def test_imb_reads_its_sizes_from_a_file(tmp_path: Path) -> None:
    script(tmp_path / "IMB-MPI1", IMB)
    workload = asked("imb", operation="allreduce", sizes=[96], folder=str(tmp_path))
    assert figures(carried_out(workload), workload) == {("allreduce", 96): 2.0}


def test_mpi4py_is_run_by_the_interpreter_that_has_it(tmp_path: Path) -> None:
    # When asked for its version it is not yet a rank.
    python = script(tmp_path / "python3", PYTHON)
    python.write_text("#!/bin/sh\n" + PYTHON.replace("printf '#", RANK_0_ONLY.split("\n", 1)[1] + "printf '#", 1))
    workload = asked("mpi4py", sizes=[128], python=str(python))
    assert figures(carried_out(workload), workload) == {("latency", 128): 7.5}


def test_output_of_another_program_fails_the_trial(tmp_path: Path) -> None:
    script(tmp_path / "osu_latency", OMB_BARRIER)
    outcome = carried_out(asked("omb", sizes=[8], folder=str(tmp_path)))
    assert outcome.status is TrialStatus.FAILED
    assert "was asked for ('latency', 8)" in outcome.reason


@pytest.mark.parametrize(
    ("kind", "message"), [("omb", "osu_latency of omb"), ("imb", "IMB-MPI1"), ("mpi4py", "python3")]
)
def test_a_missing_suite_is_named_with_where_to_get_it(kind: str, message: str, tmp_path: Path) -> None:
    option = "python" if kind == "mpi4py" else "folder"
    outcome = carried_out(asked(kind, sizes=[8], **{option: str(tmp_path)}))
    assert outcome.status is TrialStatus.FAILED
    assert message in outcome.reason
    assert "install" in outcome.hint


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (asked("omb", operation="halo", sizes=[8]), "one of"),
        (asked("omb", (0, 1, 0, 1), operation="message_rate", sizes=[8]), "on one node"),
        (asked("imb", operation="bw", sizes=[8]), "one of"),
        (asked("mpi4py", sizes=[96]), "powers of two"),
        (asked("mpi4py", sizes=[64], folder="/opt"), "no option 'folder'"),
    ],
)
def test_what_a_suite_cannot_do_is_refused_before_anything_starts(workload: WorkloadOrder, message: str) -> None:
    kind = find_workload(workload.kind)
    with pytest.raises(BadInputError) as raised:
        kind.check(workload)
    assert message in f"{raised.value.message} {raised.value.hint}"


def test_the_real_imb_over_a_network_path() -> None:
    program = shutil.which("IMB-MPI1")
    if program is None:
        pytest.skip("IMB-MPI1 is not on PATH")
    workload = asked("imb", (0, 1), sizes=[64, 65536], iterations=100)
    found = figures(carried_out(workload, "veth"), workload)
    assert len(found) == 2
    assert all(figure > 0 for figure in found.values())


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_the_real_mpi4py_over_a_network_path(mpi: str) -> None:
    workload = asked("mpi4py", (0, 1), sizes=[64, 65536], iterations=100, python=sys.executable)
    found = figures(carried_out(workload, "veth", mpi), workload)
    assert len(found) == 2
    assert all(figure > 0 for figure in found.values())
