"""The arguments of an application and the parsing of its output, without an MPI."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal import native
from nearmetal.errors import BadInputError, ForeignFileError, TrialError, UnavailableError
from nearmetal.process import Finished
from nearmetal.study.order import Order, PathOrder, WorkloadOrder
from nearmetal.workloads.apps import (
    APPLICATIONS,
    CLASSES,
    ApplicationWorkload,
    EndBlock,
    application_argv,
    build_apps,
    read_end_block,
)
from nearmetal.workloads.mpi.mpi import Mpi

if TYPE_CHECKING:
    from pathlib import Path

# As printed by `nmapps mg --class S` on two ranks.
PRINTED = """\
          residual norm   5.307707005736e-05  reference  5.307707005734e-05  deviation  4.3e-13

 MG Benchmark Completed.
 Class           =                        S
 Size            =             32x  32x  32
 Iterations      =                        4
 Time in seconds =              0.001615902
 Mean comm. time =              0.001116173
 Max comm. time  =              0.001159377
 Total processes =                        2
 Mop/s total     =                  4704.60
 Mop/s/process   =                  2352.30
 Operation type  =           floating point
 Verification    =               SUCCESSFUL
 Version         =              nearmetal 1
"""
READ = EndBlock("MG", "S", "32x32x32", 4, 1_615_902, 1_116_173, 2, 4704.6, verified=True)


def order(name: str = "mg", ranks: int = 2, **options: str | int) -> Order:
    asked = WorkloadOrder(
        "mine", "application", {"operation": name, "iterations": 1000, **options}, (0, 1, 0, 1)[:ranks]
    )
    return Order(0, 0, PathOrder("veth", "veth"), asked)


def finished(text: str, exit_status: int = 0) -> Finished:
    return Finished(("mpirun",), exit_status, text.encode(), b"", 1)


def test_the_end_block_is_parsed() -> None:
    assert read_end_block(PRINTED) == READ
    assert not read_end_block(PRINTED.replace("  SUCCESSFUL", "UNSUCCESSFUL")).verified


@given(st.integers(0, len(PRINTED) - 1).map(lambda end: PRINTED[:end]))
def test_a_truncated_end_block_is_refused_or_complete(text: str) -> None:
    with contextlib.suppress(ForeignFileError):
        assert read_end_block(text) == READ


@given(st.text() | st.lists(st.sampled_from(PRINTED.splitlines())).map("\n".join))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(ForeignFileError):
        assert read_end_block(text).title == "MG"


@given(st.sampled_from([line for line in PRINTED.splitlines() if "=" in line][:9]))
def test_an_end_block_with_a_missing_line_is_refused(line: str) -> None:
    if line.startswith((" Max", " Mop/s/", " Operation", " Version")):
        return
    with pytest.raises(ForeignFileError):
        read_end_block(PRINTED.replace(line, ""))


def test_the_arguments_of_each_application() -> None:
    for name, app in APPLICATIONS.items():
        assert application_argv(order(name, ranks=1, **{"class": "W"})) == [name, "--class", "W"]
        assert [app.iterations_of(letter) for letter in CLASSES] == list(app.iterations)
        assert app.ranks.holds(1)
        assert app.ranks.holds(4)
    argv = application_argv(order("advection", grid="2x1x1", steps=7))
    assert argv == ["advection", "--class", "S", "--grid", "2x1x1", "--steps", "7"]


@pytest.mark.parametrize(
    ("name", "ranks", "options", "words"),
    [
        ("bt", 1, {}, "no application 'bt'"),
        ("cg", 1, {"class": "Z"}, "no class 'Z'"),
        ("cg", 1, {"class": ""}, "no class ''"),
        ("cg", 1, {"class": "SW"}, "no class 'SW'"),
        ("cg", 3, {}, "cannot run on 3 ranks"),
        ("sp", 2, {}, "cannot run on 2 ranks"),
        ("cg", 1, {"grid": "1x1x1"}, "no option 'grid'"),
        ("advection", 1, {"gird": "1x1x1"}, "no option 'gird'"),
        ("cg", 1, {"trace": "yes"}, "'trace' is true or false"),
    ],
)
def test_impossible_arguments_are_refused_before_the_launch(
    name: str, ranks: int, options: dict[str, str | int], words: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        application_argv(order(name, ranks, **options))
    assert words in caught.value.message
    assert caught.value.hint


def test_only_the_requested_and_verified_result_is_accepted() -> None:
    workload = ApplicationWorkload()
    workload.verify(order("mg"), finished(PRINTED), {})
    for asked in (order("cg"), order("mg", **{"class": "W"}), order("mg", ranks=1)):
        with pytest.raises(TrialError, match="was ordered"):
            workload.verify(asked, finished(PRINTED), {})
    with pytest.raises(TrialError, match="verified: False"):
        workload.verify(order("mg"), finished(PRINTED.replace("  SUCCESSFUL", "UNSUCCESSFUL")), {})
    with pytest.raises(TrialError, match="refused its arguments"):
        workload.verify(order("mg"), finished("", exit_status=2), {})
    with pytest.raises(ForeignFileError):
        workload.verify(order("mg"), finished("nothing"), {})


def test_a_prebuilt_program_needs_no_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = Mpi("mpich", "5.0.2", "/nowhere/mpirun")
    monkeypatch.setenv("NEARMETAL_PREBUILT", str(tmp_path))
    monkeypatch.setattr(native, "_ROOTS", (tmp_path / "no-sources",))
    with pytest.raises(UnavailableError, match="nmapps-mpich"):
        build_apps(mpi)
    ready = tmp_path / "nmapps-mpich-5.0.2"
    ready.touch()
    assert build_apps(mpi) == ready


def test_the_least_number_of_packets() -> None:
    workload = ApplicationWorkload()
    assert workload.least_packets(order("mg", ranks=1)) == 0
    assert workload.least_packets(order("mg")) == 4
    assert workload.least_packets(order("ep")) == 1
    assert workload.least_packets(order("advection", steps=9)) == 9
