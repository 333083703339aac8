"""Views of a trace and parsing of launch lines, on small hand-made traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal.cli.main import run as cli
from nearmetal.errors import BadInputError
from nearmetal.predict.elf import Executable, read_executable
from nearmetal.predict.models import Machine
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.trace import (
    Call,
    CallFlag,
    CallKind,
    CallTime,
    CommKind,
    Communicator,
    DoCall,
    Gap,
    RankTrace,
    Repeat,
    Trace,
)
from nearmetal.predict.trace_file import read_trace
from nearmetal.predict.trace_view import Traffic, matrix, read_placement, regular_placement, view_trace
from nearmetal.predict.tracing import LaunchLine, mpi_of, new_trace_directory, traced_command, understand
from nearmetal.report.trace_html import as_html
from nearmetal.report.trace_text import as_json, as_text, rounded_size, shade
from nearmetal.workloads.mpi.mpi import Mpi
from tests.trace_writer import encode_rank, made_rank, rank_file_name
from tests.unit.test_predict_verbs import model_of, path
from tests.unit.test_validate import one_message

RANKS = 4


def ring_rank(rank: int, *, command: str = "ring") -> RankTrace:
    """Each rank sends 1000 messages of 64 bytes to the next one in a communicator of reversed ranks."""
    calls = (
        Call(CallKind.INIT),
        Call(CallKind.SEND, comm=2, peer=RANKS - 1 - (rank + 1) % RANKS, message_bytes=64),
        Call(CallKind.RECV, comm=2, peer=RANKS - 1 - (rank - 1) % RANKS, message_bytes=64),
        Call(CallKind.ALLREDUCE, message_bytes=8),
        Call(CallKind.SEND, CallFlag.NONBLOCKING, peer=rank, message_bytes=3, request=0),
    )
    return made_rank(
        rank,
        RANKS,
        calls,
        Communicator(99, CommKind.SPLIT, 0, tuple(range(RANKS))[::-1], RANKS - 1 - rank),
        elapsed_ns=1_000_000,
        meta={"node": f"host{rank // 2}", "command": command, "library": "Some MPI", "profiler_ns": "1000"},
        times=(
            CallTime(1, 5_000_000, 5_000_000),
            CallTime(1000, 100_000, 300),
            CallTime(1000, 200_000, 900),
            CallTime(10, 300_000, 40_000),
            CallTime(1, 10, 10),
        ),
        gaps=(Gap(2010, 390_000, (100, 200)),),
        program=(Repeat(1000, (DoCall(1), DoCall(2))), Repeat(10, (DoCall(3),)), DoCall(0), DoCall(4)),
    )


def ring(command: str = "ring") -> Trace:
    return Trace(tuple(ring_rank(rank, command=command) for rank in range(RANKS)), source="here")


def test_messages_are_shown_between_world_ranks() -> None:
    view = view_trace(ring())
    sent = {(pair.source, pair.destination): (pair.messages, pair.total_bytes) for pair in view.pairs}
    assert sent == {
        **{(rank, (rank + 1) % RANKS): (1000, 64_000) for rank in range(RANKS)},
        **{(rank, rank): (1, 3) for rank in range(RANKS)},
    }
    assert Traffic.sum_of(view.pairs) == Traffic(4004, 256_012)


def test_times_exclude_init() -> None:
    first = view_trace(ring()).ranks[0]
    assert (first.compute_ns, first.mpi_ns, first.profiler_ns) == (390_000, 600_010, 1000)


def test_operations_are_sorted_by_time() -> None:
    rows = view_trace(ring()).calls
    assert [(row.name, row.calls, row.total_ns) for row in rows] == [
        ("Allreduce", 40, 1_200_000),
        ("Recv", 4000, 800_000),
        ("Send", 4000, 400_000),
        ("Isend", 4, 40),
    ]
    assert [row.name for row in view_trace(ring()).calls if row.is_collective] == ["Allreduce"]


def test_sizes_are_grouped_by_powers_of_two() -> None:
    bins = [(one.up_to_bytes, one.messages) for one in view_trace(ring()).sizes]
    assert bins == [(4, 4), (8, 0), (16, 0), (32, 0), (64, 4000)]


def test_crossings_depend_on_the_placement() -> None:
    placements = [found for text in ("block:2", "cyclic:2", "block:4") if (found := regular_placement(text, RANKS))]
    shares = [(one.placement, one.nodes, one.messages) for one in view_trace(ring(), placements).crossings]
    assert shares == [("as traced", 2, 2000), ("block:2", 2, 2000), ("cyclic:2", 2, 4000), ("block:4", 1, 0)]


@pytest.mark.parametrize(
    "text",
    [
        "a\na\nb\nb\n",
        "# ranks\na:2\na\nb slots=2\nb\n",
        "# hydra's\na:2\nb:1\nb:1  # again\n",
        "a slots=2 max_slots=4\nb slots = 2\n",
        "rank 3=b slot=1\nrank 2=b slot=0\nrank 0=a slot=0:1\nrank 1=a",
    ],
)
def test_placements_are_read_from_host_lists_and_rankfiles(text: str, tmp_path: Path) -> None:
    file = tmp_path / "placement"
    file.write_text(text)
    assert read_placement(file, RANKS).nodes == ("a", "a", "b", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\n", "places 2 ranks"),
        ("a:2\nb:3\n", "places 5 ranks"),
        ("a:16\nb:16\nc:16\nd:16\n", "places 64 ranks"),  # all four would run on a, each was on a node of its own
        ("a slots=16\nb slots=16\nc slots=16\nd slots=16\n", "places 64 ranks"),
        ("a:4\nb\n", "places 2 ranks"),
        ("rank 0=a\nrank 0=b\n", "twice"),
    ],
)
def test_placements_that_do_not_fit_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "placement"
    file.write_text(text)
    with pytest.raises(BadInputError, match=message):
        read_placement(file, RANKS)
    with pytest.raises(BadInputError, match="cannot read"):
        read_placement(tmp_path / "nothing", RANKS)
    with pytest.raises(BadInputError, match="no rank"):
        regular_placement("block:0", RANKS)


def test_a_matrix_groups_ranks() -> None:
    view = view_trace(ring())
    assert matrix(view, 64).tolist()[0] == [3, 64_000, 0, 0]
    assert matrix(view, 2).tolist() == [[64_006, 64_000], [64_000, 64_006]]


def test_a_row_of_grouped_ranks_begins_with_its_first() -> None:
    """Of 100 ranks in 64 rows, that of ranks 2 and 3 was labelled 1."""
    ranks = [made_rank(rank, 100, [Call(CallKind.SEND, peer=rank, message_bytes=8)]) for rank in range(100)]
    timed = [replace(rank, times=(CallTime(1, 1, 1),)) for rank in ranks]
    rows = [line for line in as_text(view_trace(Trace(tuple(timed)))).splitlines() if line.endswith("|")]
    first = [next(rank for rank in range(100) if rank * 64 // 100 == row) for row in range(64)]
    assert [int(line.split("|")[0]) for line in rows] == first


def test_computing_that_waited_is_not_blamed_on_an_option_that_threads_exclude() -> None:
    """--processor-time, which the profiler cannot do with threads that call at once, was the remedy all the same."""
    for threads, remedy in (("1", "--processor-time leaves that out"), ("2", "it cannot be left out")):
        meta = {"gaps": "elapsed", "processors": "1", "threads": "multiple", "calling_threads": threads}
        ranks = (replace(one, meta=one.meta | meta) for one in ring().ranks)
        assert f"compute includes waiting for one; {remedy}" in " ".join(
            as_text(view_trace(Trace(tuple(ranks)))).replace("of ranks whose threads call MPI at once, ", "").split()
        )


def test_shades_span_four_decades() -> None:
    assert [shade(value, 1e6, 10) for value in (0, 1, 1e2, 1e4, 1e6)] == [0, 1, 1, 5, 9]


def test_the_text_shows_the_main_figures() -> None:
    text = as_text(view_trace(ring()))
    assert "Time: 39.0 % compute, 60.0 % in MPI\n" in text
    assert "       0 |..@@" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_the_processors_of_a_trace_are_shown() -> None:
    about = {"processor": "AMD EPYC", "processors": "1", "gaps": "elapsed"}
    text = as_text(view_trace(Trace(tuple(replace(one, meta=one.meta | about) for one in ring().ranks))))
    assert "\nOn AMD EPYC\n" in text
    assert "note: 2 ranks of a node shared fewer processors" in text
    first, *others = ring().ranks
    one_of_them = Trace((replace(first, meta=first.meta | about), *others))
    assert one_of_them.processor == "AMD EPYC", "the others' files do not contain theirs"
    assert "\nOn " not in as_text(view_trace(ring()))


def unbroken(text: str) -> str:
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def test_time_without_a_processor_is_shown_where_compute_leaves_it_out() -> None:
    """A third of the time of ranks that shared processors was in no column."""
    ranks = (replace(one, meta=one.meta | {"gaps": "processor"}, elapsed_ns=1_500_000) for one in ring().ranks)
    text = as_text(view_trace(Trace(tuple(ranks))))
    assert "Time: 26.0 % compute, 40.0 % in MPI, 33.9 % outside MPI without a processor\n" in text


@pytest.mark.parametrize(
    ("calls", "share"),
    [
        ("Put 4,Win_fence 2,Cancel 1,Iprobe 1", 0.0),
        ("Isendrecv 25,Put 7", 0.15),  # at most 25 of 100 waits, of 60 % of the time
        ("Rput 250", 0.6),
        ("Psend_init 1,Pready 80", 0.6),  # may have been started before every wait
        ("File_iwrite 1,Ibarrier 4,Neighbor_alltoall 9", 0.03),
    ],
)
def test_waits_for_recorded_and_unrecorded_requests_at_once_are_reported(calls: str, share: float) -> None:
    """A `Waitall` of a partitioned and a recorded receive was replayed as one of 8 B; the calls took `0.0 %`."""

    def waiting(one: RankTrace) -> RankTrace:
        wait = Call(CallKind.WAIT, request=len(one.lists))
        return replace(
            one,
            lists=(*one.lists, (0,)),
            calls=(*one.calls, wait),
            times=(*one.times, CallTime(100, 600_000, 9_000)),
            program=(*one.program, DoCall(len(one.calls))),
            meta=one.meta | {"unsupported": "1", "unsupported_calls": calls},
        )

    trace = Trace(tuple(map(waiting, ring().ranks)))
    assert trace.opaque_wait_share == pytest.approx(share)
    told = unbroken(as_text(view_trace(trace)))
    assert ("all ranks' time may have been for their requests, too" in told) == (share > 0)
    assert schedule_from_trace(trace).opaque_wait_share == trace.opaque_wait_share
    exact = Trace(tuple(replace(one, meta=one.meta | {"mixed_ns": "1000"}) for one in trace.ranks))
    assert exact.opaque_wait_share == pytest.approx(1000 * len(exact.ranks) / exact.elapsed_ns)


def test_missing_parts_of_the_figures_are_reported() -> None:
    about = {"unsupported": "7", "unsupported_calls": "Put 4,Win_fence 2,Cancel 1,?x 3"}
    lacking = Trace(tuple(replace(one, meta=one.meta | about) for one in ring().ranks))
    assert "28 calls seen but not recorded (MPI_Put, MPI_Win_fence, MPI_Cancel)" in unbroken(
        as_text(view_trace(lacking))
    )
    long = Trace(tuple(replace(one, meta=one.meta | about | {"unsupported_ns": "250000"}) for one in ring().ranks))
    assert "their time counts as compute (1 ms, 25.0 % of all ranks' time)" in unbroken(as_text(view_trace(long)))
    assert schedule_from_trace(long).opaque_time_share == 0.25
    threads = Trace(tuple(replace(one, meta=one.meta | about | {"unsupported_ns": "3000000"}) for one in ring().ranks))
    assert schedule_from_trace(threads).opaque_time_share == 1
    endless = Trace(tuple(replace(one, meta=one.meta | about | {"unsupported_ns": "9" * 5000}) for one in ring().ranks))
    assert schedule_from_trace(endless).opaque_time_share == 0  # no number that the profiler writes
    unknown = Trace(tuple(replace(one, meta=one.meta | {"unsupported_ns": "250000"}) for one in ring().ranks))
    assert "requests of calls that the profiler does not know: their messages" in unbroken(as_text(view_trace(unknown)))
    busy = Trace(tuple(replace(one, meta=one.meta | {"paused_ns": "250000"}) for one in ring().ranks))
    assert "25.0 % of all ranks' time passed in pauses of less than 2 us" in unbroken(as_text(view_trace(busy)))
    assert schedule_from_trace(busy).paused_share == 0.25
    working = Trace(tuple(replace(one, meta=one.meta | {"worked_ns": "250000"}) for one in ring().ranks))
    assert schedule_from_trace(working).worked_share == 0.25
    asleep = Trace(tuple(replace(one, meta=one.meta | {"blocked_ns": "250000"}) for one in ring().ranks))
    assert "25.0 % of all ranks' time passed outside MPI while they slept" in as_text(view_trace(asleep))
    assert schedule_from_trace(asleep).blocked_share == 0.25


def test_json_has_everything() -> None:
    data = json.loads(as_json(view_trace(ring())))
    assert data["nearmetal_trace_view"] == 1
    assert {"ranks", "calls", "sizes", "pairs", "crossings", "recorded_calls", "unsupported_calls"} <= data.keys()


def test_html_escapes_the_command() -> None:
    page = as_html(view_trace(ring("<script>alert(1)</script>")))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<rect") >= 8
    volume = rounded_size(view_trace(ring()).sizes[0].total_bytes)
    assert f"<td>{volume}</td>" in page, "figures of a last column are flush right"


# ---------------------------------------------------------------- launch lines


def launch(name: str, *rest: str) -> LaunchLine:
    return LaunchLine((name, *rest), Path("/opt/mpi/bin") / name, None, None)


VARIABLES = {"A": "1", "B": "x y"}


def test_open_mpi_gets_variables_for_every_app_context() -> None:
    mpi = Mpi("openmpi", "5.0.1", "/opt/mpi/bin/mpirun")
    line = launch("mpirun", "-n", "2", "./a", ":", "-n", "1", "./b")
    given = ("-x", "A=1", "-x", "B=x y")
    assert traced_command(line, mpi, VARIABLES) == (
        "mpirun", *given, "-n", "2", "./a", ":", *given, "-n", "1", "./b"
    )  # fmt: skip


def test_mpich_and_slurm_get_variables_once() -> None:
    mpich = Mpi("mpich", "4.0", "/opt/mpi/bin/mpirun")
    assert traced_command(launch("mpirun", "./a"), mpich, VARIABLES) == (
        "mpirun", "-genv", "A", "1", "-genv", "B", "x y", "./a"
    )  # fmt: skip
    assert traced_command(launch("srun", "./a"), mpich, VARIABLES) == ("srun", "--export=ALL,A=1,B=x y", "./a")


def test_a_command_without_a_launcher_is_refused() -> None:
    with pytest.raises(BadInputError, match="not with an MPI launcher") as caught:
        understand(["./program"])
    assert "mpirun -n 1 ./program" in caught.value.hint
    with pytest.raises(BadInputError, match="nothing to trace"):
        understand([])


def test_a_trace_given_for_a_command_is_to_be_shown(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        understand([str(tmp_path)])
    assert caught.value.hint == f"nearmetal trace show {tmp_path}"


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    assert new_trace_directory(tmp_path / "a" / "b").is_dir()
    (tmp_path / "a" / "file").touch()
    with pytest.raises(BadInputError, match="not empty"):
        new_trace_directory(tmp_path / "a")


def test_executables_name_their_libraries(tmp_path: Path) -> None:
    found = read_executable(Path("/bin/sh").resolve())
    assert found is not None
    assert found.dynamic
    assert any(name.startswith("libc.so") for name in found.needed)
    assert found.mpi_library == ""
    damaged = tmp_path / "damaged"
    damaged.write_bytes(Path("/bin/sh").read_bytes()[:40])
    assert read_executable(damaged) is None
    damaged.write_text("#!/bin/sh\n")
    assert read_executable(damaged) is None


def test_an_unterminated_library_name_is_truncated(tmp_path: Path) -> None:
    """Thousands of entries may point into one string: each was read to the end of the file."""
    kept = Path(__file__).parents[1] / "data/fuzz/executable/shared"
    place = tmp_path / "endless"
    place.write_bytes(kept.read_bytes().replace(b"\x01\0\0\0\0\0\0\0\x0e", b"\x01\0\0\0\0\0\0\0\xe0") + b"x" * 10_000)
    found = read_executable(place)
    assert found is not None
    assert len(found.needed[1]) == 4096


def test_the_standard_abi_is_refused() -> None:
    program = Executable(dynamic=True, needed=("libmpi_abi.so.1", "libc.so.6"), has_mpi_inside=False)
    line = LaunchLine(("mpirun", "./a"), Path("/opt/mpi/bin/mpirun"), Path("./a"), program)
    with pytest.raises(BadInputError, match="standard ABI"):
        mpi_of(line)


def test_a_page_says_in_a_sentence_what_a_program_did_not_call() -> None:
    called = {"times": (CallTime(1, 5, 5),), "program": (DoCall(0),), "meta": {"node": "n"}}
    silent = made_rank(0, 1, (Call(CallKind.INIT),), elapsed_ns=1000, **called)
    page = as_html(view_trace(Trace((silent,), source="here")))
    assert "No message was sent." in page
    assert "No collective was called." in page
    assert "None." not in page


def test_a_trace_of_the_first_of_several_programs_says_so_wherever_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the command that recorded it did: it was shown and predicted as the whole launch."""
    for rank in range(2):
        (tmp_path / rank_file_name(rank)).write_bytes(encode_rank(one_message(rank)))
    model = model_of(tmp_path, Machine(path(1), path(5)))
    seen = []
    for _ in range(2):
        assert cli(["trace", "show", str(tmp_path)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert cli(["predict", str(tmp_path), "--on", model, "--replicas", "1"]) == 0
        told = capsys.readouterr().err
        seen.append("several MPI programs one after another, and the trace is of the first" in shown)
        seen.append("several MPI programs one after another, and only the first is predicted" in told)
        (tmp_path / f"{rank_file_name(0)}.part").touch()
    assert seen == [False, False, True, True]
    assert json.loads(as_json(view_trace(read_trace(tmp_path))))["first_of_several"] is True
