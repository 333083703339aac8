"""Plant small errors into the code behind the figures, one at a time, and name those no test detects: `make mutate`.

python -m tests.mutate [--sample N] [ROOM | MODULE...]. With `--sample`, N errors of each room, always the same. Each
error is compiled in place of its module in a separate process, so that no file is changed; further processes started by
a test do not have it.

Results of 23 to 27 November 2026: in `knobs.journal`, `knobs.session` and `run` all errors were planted, in the other
rooms the first of a sample of 100 in random order, which are a random sample, too. Of workloads, fabric and history
(27 November) samples of 12 to 25 of a few modules at a time; some of their new tests were there before all but those of
workloads.tools. Seen now: with the tests that were written for the others.

| room | planted | seen | seen now | the others |
|---|--:|--:|--:|---|
| stats | 39 | 29 | 38 | below |
| results | 71 | 55 | 70 | the launch whose lines `causes` looks up: one that another lacks never counts |
| store | 51 | 40 | 50 | below |
| knobs.journal | 87 | not counted | 84 | descriptor 0, or which number stands for a closed one |
| knobs.session | 80 | 80 | 80 | |
| run.schedule, run.timers | 86 | 84 | 84 | below |
| predict, 15 other modules | 390 | 304 | 356 of another 388 | not listed: of place, scale and fit_run |
| predict.segments, .fit, .decide | 45 | 33 | 38 | the sign of a symmetric draw; 1 more or less of 19 cases |
| workloads.tools, 11 modules | 75 | 42 | 66 | 7 were of code that did nothing and is gone; below |
| workloads, 8 modules | 50 | 39 | 45 | launches of suites and the fake host, which slower tests see |
| fabric.detect, .figures | 18 | 14 | 16 | below |
| history, 4 modules | 12 | 10 | 11 | below |
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.util
import os
import random
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ROOT = Path(__file__).parents[1]
MOST_CPU_S = 180
"""What the tests of one error may use; an endless loop is an error that was seen."""
_RUN = ("tests/unit/test_cell_reads.py", "tests/e2e/test_run_fake.py")
_STATS = tuple(f"tests/unit/test_stats_{name}.py" for name in ("summary", "compare", "stopping", "modes", "widen"))
_FITTED = tuple(
    f"tests/unit/test_{name}.py" for name in ("segments", "fit", "fit_run", "fit_collectives", "lab_moderation")
)
_PREDICTED = tuple(
    f"tests/unit/test_{name}.py" for name in ("validate", "validated_cases", "predict_odd", "predict_verbs")
)
_PLACED = tuple(f"tests/unit/test_{name}.py" for name in ("place", "partition", "place_verb", "predict_input"))
_TOOLS = (
    "tests/unit/test_tool_recordings.py",
    "tests/unit/test_tool_fields.py",
    "tests/unit/test_tool_launches.py",
    "tests/unit/test_tool_formats.py",
    "tests/unit/test_tool_workloads.py",
    "tests/contract/test_tables.py",
    "tests/property/test_tool_formats.py",
)
_FRAMED = (
    "tests/unit/test_decode.py",
    "tests/golden/test_sample_file.py",
    "tests/property/test_sample_file.py",
    "tests/property/test_fabric_file.py",
)
_FABRIC = ("tests/unit/test_fabric_exact.py", "tests/unit/test_fabric_detect.py")
TESTS: dict[str, tuple[str, ...]] = {
    "stats.__init__": ("tests/unit/report/test_start.py",),
    "stats.summary": (*_STATS, "tests/property/test_stats.py"),
    "stats.order": (*_STATS, "tests/property/test_stats.py"),
    "stats.compare": _STATS,
    "stats.stopping": (*_STATS, "tests/unit/test_stats_calibration.py"),
    "stats.boundaries": (*_STATS, "tests/unit/test_stats_calibration.py"),
    "stats.paired": (*_STATS, "tests/property/test_stats.py"),
    "stats.between": ("tests/unit/test_stats_between.py",),
    "stats.conclude": _STATS,
    "stats.equivalence": _STATS,
    "stats.modes": ("tests/unit/test_stats_modes_exact.py", "tests/unit/test_stats_modes.py"),
    "stats.widen": ("tests/unit/test_stats_widen.py", "tests/unit/test_stats_compare.py"),
    "stats.bootstrap": _STATS,
    "stats.changes": ("tests/property/test_changes.py", "tests/e2e/test_history.py"),
    "stats.interval": _STATS,
    "stats.two_way": ("tests/unit/test_fabric_detect.py",),
    "results.shown": (
        "tests/unit/test_tool_formats.py",
        "tests/unit/report/test_view.py",
        "tests/unit/report/test_formats.py",
    ),
    "results.series": (
        "tests/unit/test_stats_between.py",
        "tests/unit/test_parts.py",
        "tests/unit/report/test_steps.py",
        "tests/e2e/test_gate.py",
    ),
    "results.comparisons": ("tests/unit/report/test_view.py", "tests/unit/report/test_steps.py"),
    "results.paths": (
        "tests/unit/report/test_view.py",
        "tests/unit/report/test_formats.py",
        "tests/unit/report/test_steps.py",
        "tests/e2e/test_import.py",
    ),
    "results.stopping": ("tests/unit/test_unfinished.py", "tests/unit/test_parts.py", *_RUN),
    "results.between": (
        "tests/unit/test_stats_between.py",
        "tests/unit/test_serve_compare.py",
        "tests/e2e/test_gate.py",
    ),
    "results.causes": ("tests/unit/report/test_causes.py",),
    "results.evidence": ("tests/unit/report/test_advice.py", "tests/unit/report/test_view.py"),
    "results.gated": ("tests/unit/test_pages.py", "tests/e2e/test_gate.py"),
    "results.osu": ("tests/e2e/test_import.py",),
    "results.published": ("tests/unit/report/test_published.py",),
    "results.published_tables": ("tests/unit/report/test_published.py",),
    "results.records": (
        "tests/unit/test_parts.py",
        "tests/unit/report/test_view.py",
        "tests/unit/report/test_formats.py",
    ),
    "results.waterfalls": ("tests/golden/test_waterfall.py", "tests/unit/report/test_waterfall.py"),
    "store.record": (
        "tests/unit/test_rundir.py",
        "tests/unit/test_record.py",
        "tests/fault/test_flipped_bits.py",
        "tests/e2e/test_verify.py",
        *_RUN,
    ),
    "store.listing": ("tests/unit/test_record.py", "tests/unit/test_cell_reads.py", "tests/e2e/test_verify.py"),
    "store.samples": (
        "tests/unit/test_samples.py",
        "tests/fault/test_flipped_bits.py",
        "tests/e2e/test_verify.py",
        *_RUN,
    ),
    "store.sums": (
        "tests/unit/test_sums.py",
        "tests/unit/test_cell_reads.py",
        "tests/fault/test_flipped_bits.py",
        "tests/e2e/test_verify.py",
    ),
    "store.rundir": (
        "tests/unit/test_rundir.py",
        "tests/unit/test_record.py",
        "tests/fault/test_store_kill.py",
        "tests/e2e/test_verify.py",
        "tests/unit/test_api.py",
        *_RUN,
    ),
    "store.archive": ("tests/e2e/test_archive.py", "tests/unit/test_reading.py"),
    "store.bundle": ("tests/unit/test_bundle.py", "tests/unit/test_rundir.py", "tests/unit/test_reading.py"),
    "store.disk": (
        "tests/unit/test_disk.py",
        "tests/unit/test_private_files.py",
        "tests/fault/test_store_kill.py",
        "tests/fault/test_tune_resume.py",
        *_RUN,
    ),
    "store.searchdir": ("tests/e2e/test_tune.py", "tests/fault/test_tune_resume.py"),
    "store.misnamed": ("tests/unit/test_meant.py",),
    "store.query": ("tests/unit/test_query.py", "tests/unit/test_api.py", "tests/e2e/test_gate.py"),
    "store.verify": ("tests/e2e/test_verify.py", "tests/fault/test_flipped_bits.py"),
    "knobs.journal": (
        "tests/unit/test_journal.py",
        "tests/property/test_knob_files.py",
        "tests/fault/test_knob_journals.py",
    ),
    "knobs.session": (
        "tests/unit/test_knob_session.py",
        "tests/fault/test_knob_journals.py",
        "tests/fault/test_knob_faults.py",
    ),
    "run.schedule": (
        "tests/unit/test_schedule.py",
        "tests/unit/test_schedule_prepares.py",
        *_RUN,
    ),
    "run.timers": ("tests/unit/test_timers.py",),
    "predict.fit": _FITTED,
    "predict.segments": _FITTED,
    "predict.residual": _FITTED,
    "predict.wire": (*_FITTED, "tests/unit/test_simulate_work.py"),
    "predict.fit_run": (*_FITTED, "tests/unit/test_predict_verbs.py"),
    "predict.crossing": ("tests/unit/test_crossing.py",),
    "predict.in_a_row": ("tests/unit/test_in_a_row.py",),
    "predict.measured": ("tests/unit/test_place_gain.py", "tests/e2e/test_place_check.py"),
    "predict.calibration": ("tests/unit/test_calibration.py", *_PREDICTED),
    "predict.decide": _PREDICTED,
    "predict.conditions": _PREDICTED,
    "predict.validate": _PREDICTED,
    "predict.scale": ("tests/unit/test_scale.py", "tests/unit/test_doubts_of_traces.py"),
    "predict.traffic": (
        "tests/unit/test_traffic.py",
        "tests/unit/test_doubts_of_traces.py",
        "tests/unit/test_vector_collectives.py",
        "tests/unit/test_simulate_collectives.py",
        *_PLACED,
    ),
    "predict.place": _PLACED,
    "predict.inter": ("tests/unit/test_inter.py",),
    "predict.doubts_of_messages": (
        "tests/unit/test_doubts_of_messages.py",
        "tests/unit/test_doubts_of_traces.py",
        "tests/unit/test_simulate.py",
        "tests/unit/test_fit_run.py",
        *_PREDICTED,
        *_PLACED,
    ),
    "predict.doubt": ("tests/unit/test_doubts.py", "tests/unit/test_doubts_of_traces.py", *_PREDICTED),
    "predict.machine_file": ("tests/unit/test_machine_file.py", "tests/unit/test_predict_input.py", *_PREDICTED),
    "predict.model_file": ("tests/unit/test_model_file.py", "tests/unit/test_reading.py"),
    "predict.moderation": ("tests/unit/test_machine_file.py", "tests/property/test_moderation.py"),
    "predict.launcher_files": _PLACED,
    "predict.simulate": (
        "tests/unit/test_simulated_times.py",
        "tests/unit/test_simulate.py",
        "tests/unit/test_replay_limits.py",
    ),
    "predict.patterns": ("tests/unit/test_patterns.py", "tests/unit/test_simulate.py", "tests/unit/test_place.py"),
    "predict.doubts": (
        "tests/unit/test_doubts.py",
        "tests/unit/test_doubts_of_traces.py",
        "tests/unit/test_calibration.py",
        "tests/unit/test_collective_rules.py",
        "tests/unit/test_predict_odd.py",
        *_FITTED,
        *_PLACED,
    ),
    "workloads.tools.hpcc": _TOOLS,
    "workloads.tools.imb": _TOOLS,
    "workloads.tools.iperf2": _TOOLS,
    "workloads.tools.iperf3": _TOOLS,
    "workloads.tools.lines": _TOOLS,
    "workloads.tools.mpi4py": _TOOLS,
    "workloads.tools.netperf": _TOOLS,
    "workloads.tools.npb": _TOOLS,
    "workloads.tools.nuttcp": _TOOLS,
    "workloads.tools.omb": _TOOLS,
    "workloads.tools.perftest": _TOOLS,
    "workloads.tools.perftest_dump": _TOOLS,
    "workloads.tools.qperf": _TOOLS,
    "workloads.tools.sockperf": _TOOLS,
    "workloads.tools.tool": _TOOLS,
    "workloads.figures": ("tests/unit/test_decode.py", *_TOOLS),
    "workloads.rounds": ("tests/unit/test_rounds.py", "tests/property/test_fabric_file.py"),
    "workloads.streams": ("tests/unit/test_decode.py", *_TOOLS),
    "workloads.samples": ("tests/unit/test_decode.py", *_TOOLS),
    "workloads.sample_file": _FRAMED,
    "workloads.framed_file": _FRAMED,
    "workloads.framed_header": _FRAMED,
    "workloads.mpi_benchmarks": _TOOLS,
    "fabric.detect": _FABRIC,
    "fabric.figures": _FABRIC,
    "fabric.against": _FABRIC,
    "fabric.unseen": _FABRIC,
    "history.view": ("tests/unit/test_history_exact.py", "tests/e2e/test_history.py"),
    "history.collect": ("tests/unit/test_history_exact.py", "tests/e2e/test_history.py"),
    "history.records": ("tests/unit/test_history_exact.py", "tests/e2e/test_history.py"),
    "history.words": ("tests/unit/test_history_exact.py", "tests/e2e/test_history.py"),
}
"""The modules, and the quick tests that should see an error in each."""

SURVIVE = {
    ("stats.changes", "2.0"): "the unit of the ranks, of which the statistic takes the standard deviation",
    ("stats.between", "700.0"): "exp of 700 and of 701 are both beyond every use",
    ("stats.between", "1000"): "whether 1,001 blocks are named or called too many",
    (
        "stats.conclude",
        "special.bdtr(slow, n, self.rarest_mode) > ALPHA * (1.0 + 1e-09)",
    ): "equal to no probability",
    ("stats.modes", "statistic * math.sqrt(x.size) > _CRITICAL"): "equal to no statistic",
    ("stats.modes", "two[best] >= two[best].max() - 1e-12"): "equal to no sum",
    ("store.samples", "131072"): "how much is hashed at once: it decides the time alone",
    ("store.archive", "1048576"): "how much is copied at once, likewise",
    ("store.samples", "end_bytes > size"): "a file of its directory alone has another sum in any case",
    ("store.sums", "100000"): "how many files are remembered as seen: it decides the time alone",
    ("store.sums", "2000000000"): "1 ns of 2 s, by which a file is too young to be known",
    ("stats.widen", "special.fdtrc(k - 1, n - k, among / within) > _VARIANTS_P"): "equal to no probability",
    ("stats.widen", "1.0 + interval.level"): "the t of the other tail, which is squared",
    ("run.timers", "40000000"): "1 ns of 40 ms: a hundred times less than the share that counts as near",
    ("run.timers", "200000000"): "1 ns of 200 ms, likewise",
    (
        "run.schedule",
        "0",
    ): "of a run without records: its first occasion is the one to run, and its ending the one reported",
    ("run.schedule", "len(running) < host.slots"): "one more waits in the pool, which has no more threads than slots",
    ("predict.crossing", "200"): "how many exchanges a replay has, of which one is the median",
    ("predict.crossing", "0"): "the name of the only communicator, or the other one of two pairs of marks",
    ("predict.traffic", "512"): "whether 512 or 513 ranks stand for more",
    ("predict.fit_run", "1 < size <= SMALL_BYTES"): "the time of 1 B is told of 1 B in either case",
    ("predict.launcher_files", "1000"): "how long a line is: hydra takes 1,023 characters",
    ("predict.place", "4"): "how often the search for a better cut begins anew: it ends by itself",
    ("predict.place", "20000"): "how many ranks are looked at for a better cut: it decides the time alone",
    ("predict.segments", "sizes[stop - 1] <= eager_up_to_bytes < sizes[stop]"): "a size at the limit ends at it anyway",
    ("workloads.tools.perftest", "abs(rate * of / moved - 1) < _ROUNDING"): "equal to no quotient",
    ("workloads.rounds", "low + high"): "the difference is odd where the sum is",
    ("fabric.detect", "controls > limit"): "equal to no residual",
    ("fabric.detect", "_median(log_excess) - back > math.log1p(found.margin)"): "equal to no excess",
    ("history.words", "ratio > 1.0"): "a change of level is never of nothing",
    ("run.timers", "0.0"): "a cell without a summary: 1 ns is as far from every timer as 0 ns",
}
"""Errors that no test can see, and why; they do not count."""

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def _swapped(node: Any) -> ast.AST:
    if isinstance(node, ast.Compare):
        return ast.Compare(node.left, [_SWAPPED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    node.op = _SWAPPED[type(node.op)]()
    return cast("ast.AST", node)


def _returns(node: Any) -> bool:
    """Return whether a `return` returns anything but None."""
    return node.value is not None and getattr(node.value, "value", ...) is not None


def _returned(node: Any) -> ast.AST:
    """Return None in place of anything but True and False, for which None could stand; those are swapped."""
    value = getattr(node.value, "value", ...)
    return ast.Return(ast.Constant(not value if isinstance(value, bool) else None))


_PLANTS: tuple[tuple[type[ast.AST], Callable[[Any], bool], Callable[[Any], ast.AST]], ...] = (
    (ast.BinOp, lambda node: type(node.op) in _SWAPPED, _swapped),
    (ast.BoolOp, lambda _: True, _swapped),
    (ast.Compare, lambda _: True, _swapped),
    (ast.Constant, lambda node: type(node.value) in {int, float}, lambda node: ast.Constant(node.value + 1)),
    (ast.UnaryOp, lambda node: isinstance(node.op, ast.Not), lambda node: cast("ast.AST", node.operand)),
    (ast.Return, _returns, _returned),
    (ast.Expr, lambda node: isinstance(node.value, ast.Call), lambda _: ast.Pass()),
)
"""Which nodes have an error, and what it makes of them."""


class _Error(ast.NodeTransformer):
    """Plants the error with a given number, or none for 0; `line` and `what` describe it, `line` is 0 when there are no
    more.

    `met` lists what each error up to then changes.
    """

    def __init__(self, number: int) -> None:
        self._left = number
        self.line = 0
        self.what = ""
        self.met: list[str] = []

    def _take(self, node: ast.AST, what: str) -> bool:
        self.met.append(what)
        self._left -= 1
        if self._left == 0:
            self.line, self.what = getattr(node, "lineno", 0), what
        return self._left == 0

    def visit(self, node: ast.AST) -> ast.AST:
        """Plant the error here if it is its turn, else below; types and messages are left unchanged."""
        if isinstance(node, ast.AnnAssign | ast.arg | ast.Raise | ast.JoinedStr):
            return node
        if isinstance(node, ast.FunctionDef):
            node.body = [self.visit(one) for one in node.body]  # type: ignore[misc] # statements stay statements
            return node
        planted = next((plant for kind, wanted, plant in _PLANTS if isinstance(node, kind) and wanted(node)), None)
        if planted is not None and self._take(node, ast.unparse(node)):
            return ast.copy_location(planted(node), node)
        return self.generic_visit(node)


def errors(tree: ast.Module) -> list[str]:
    """Return what each error changes, in numeric order."""
    every = _Error(0)
    every.visit(copy.deepcopy(tree))
    return every.met


def error(tree: ast.Module, number: int) -> tuple[int, str, ast.Module] | None:
    """Return (line, what is changed, the changed module) of the error with that number, from 1 on."""
    planted = _Error(number)
    changed = planted.visit(copy.deepcopy(tree))
    assert isinstance(changed, ast.Module)
    return (planted.line, planted.what, ast.fix_missing_locations(changed)) if planted.line else None


class _Planted(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Loads the changed module in place of its file."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self._name, self._path, self._tree = name, path, tree

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the loader of the changed module."""
        del path, target
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._name else None

    def get_source(self, fullname: str) -> str:
        """Return the original source."""
        del fullname
        return self._path.read_text()

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed module."""
        module.__file__ = str(self._path)
        exec(compile(self._tree, str(self._path), "exec"), module.__dict__)


_ARGUMENTS = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider")


def seen(name: str, path: Path, tree: ast.Module, tests: Sequence[str]) -> bool:
    """Return whether a test fails, crashes or does not end with this error; raise RuntimeError without tests."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        sys.meta_path.insert(0, _Planted(name, path, tree))
        # One file after another: most errors are detected by the first, and the others need not be loaded.
        os._exit(next((code for test in tests if (code := int(pytest.main([*_ARGUMENTS, test])))), 0))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code in {pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED}:
        raise RuntimeError(f"no tests for {name}: {', '.join(tests)}")
    return code != 0


def source(module: str) -> Path:
    """Return the file of a module."""
    return ROOT / "src" / "nearmetal" / (module.replace(".", "/") + ".py")


def room(module: str) -> str:
    """Return the room that a module's errors count for."""
    return module.partition(".")[0]


def planted(whole: dict[str, ast.Module], most: int | None) -> Iterator[tuple[str, int, str, ast.Module]]:
    """Yield (module, line, what was changed, the changed module) of each error, or of `most` of each room."""
    places: dict[str, list[tuple[str, int]]] = {}
    passing: set[tuple[str, ...]] = set()
    for module, tree in whole.items():
        if TESTS[module] not in passing and seen(f"nearmetal.{module}", source(module), tree, TESTS[module]):
            raise RuntimeError(f"the tests of {module} fail without any error")
        passing.add(TESTS[module])
        numbers = (number for number, what in enumerate(errors(tree), 1) if (module, what) not in SURVIVE)
        places.setdefault(room(module), []).extend((module, number) for number in numbers)
    for name, found in places.items():
        for module, number in found if most is None else random.Random(name).sample(found, min(most, len(found))):
            made = error(whole[module], number)
            assert made is not None
            yield module, *made


def own_first(module: str) -> list[str]:
    """Return the tests of a module, those with its name first: most errors are detected there."""
    return sorted(TESTS[module], key=lambda path: module.replace(".", "_") not in path)


def main() -> int:
    """Print survivors as they are found, and each room's share of detected errors; exit with 1 if one is below 90 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="take this many errors of each room")
    parser.add_argument("names", nargs="*", default=list(TESTS), metavar="ROOM or MODULE")
    asked = parser.parse_args()
    os.chdir(ROOT)
    for name in ("numpy", "pyarrow.parquet", "pydantic", "scipy.special"):  # once, for all forked children
        importlib.import_module(name)

    chosen = sorted((one for one in TESTS if any(f"{one}.".startswith(f"{name}.") for name in asked.names)), key=room)
    whole = {module: ast.parse(source(module).read_text()) for module in chosen}
    counts: dict[str, list[bool]] = {}
    for module, line, what, tree in planted(whole, asked.sample):
        found = counts.setdefault(room(module), [])
        found.append(seen(f"nearmetal.{module}", source(module), tree, own_first(module)))
        if not found[-1]:
            sys.stdout.write(f"{module}:{line}: {what}\n")
        sys.stdout.write(f"{room(module)}: {sum(found)} of {len(found)} so far\r")
        sys.stdout.flush()
    for name, found in counts.items():
        sys.stdout.write(f"{name}: {sum(found)} of {len(found)}\n")
    return 0 if all(sum(found) >= 0.9 * len(found) for found in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
