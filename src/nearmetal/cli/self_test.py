"""`nearmetal self-test`: after an installation, does each part do here what it must? Seconds, and nothing is left."""

from importlib import import_module, resources
from pathlib import Path

import click

from nearmetal import scratch
from nearmetal.api.run import run_study
from nearmetal.cli.doctor import attempted, draw
from nearmetal.errors import ExitCode, NearmetalError
from nearmetal.report import as_html
from nearmetal.report.words import judged
from nearmetal.results.paths import build_view
from nearmetal.store.archive import unarchive
from nearmetal.store.rundir import RunDir
from nearmetal.workloads.mpi.table import FLAVOURS, find_mpi

_EXAMPLE = {"guest-vf, default": 2.909, "guest-vf, tuned": 1.590}
"""Path and setting -> its largest ratio to the baseline, known of the example that comes with nearmetal."""
_AS_KNOWN = 0.05
_STUDY = """
format = 1
name = "self-test"
baseline = "veth"
host = {{ kind = "local" }}
mpi = {{ flavour = "{flavour}" }}
path = [{{ name = "veth" }}]
workload = [{{ name = "latency", sizes = [8], iterations = 50, warmup = 5, progress = "blocking" }}]
trials = {{ min_blocks = 3, max_blocks = 3 }}
"""


@click.command(name="self-test")
def command() -> int:
    """Check that this installation works: files, statistics, simulator, and one real measurement.

    Exits with 1 if a part fails; a measurement that this machine does not allow is reported, but is not a failure.
    """
    with scratch.folder("nm") as folder:
        findings = [
            attempted("example", lambda: _example(folder / "example")),
            attempted("simulator", _simulator),
            *(attempted(f"measure {one}", lambda one=one: _measured(folder, one), needed=False) for one in FLAVOURS),  # type: ignore[misc]
        ]
    draw(findings)
    return ExitCode.OK if all(one.ok for one in findings if one.needed) else ExitCode.FAILED


def _example(root: Path) -> str:
    """Read the example whole, judge it anew and draw its report."""
    with resources.as_file(resources.files("nearmetal.serve") / "example.zip") as archive:
        count = unarchive(archive, root)
    view = build_view(RunDir.open(root))
    found = {judged(view, one): round(one.worst[1].headline.ratio, 3) for one in view.verdicts if one.worst}
    if found.keys() != _EXAMPLE.keys() or any(abs(found[p] / _EXAMPLE[p] - 1) > _AS_KNOWN for p in found):
        raise NearmetalError(f"the example's ratios are {found}, not {_EXAMPLE}", hint="reinstall nearmetal and numpy")
    size = len(as_html.render(view).encode())
    return f"{count} files as recorded, ratios as expected, a report of {size:,} bytes"


def _simulator() -> str:
    try:
        import_module("nearmetal.predict._sim")
    except ImportError as error:
        hint = "install a wheel for this Python"
        raise NearmetalError(f"the simulator cannot be loaded: {error}", hint=hint) from error
    return "loads"


def _measured(folder: Path, flavour: str) -> str:
    """Run three blocks on a virtual cable and ask that every launch counts."""
    find_mpi(flavour)
    study = folder / f"{flavour}.toml"
    study.write_text(_STUDY.format(flavour=flavour), encoding="utf-8")
    records = RunDir.open(run_study(study, folder / flavour).path).trials()
    failed = [one.outcome for one in records if not one.valid]
    if failed:
        count = f"{len(failed)} of {len(records)}"
        raise NearmetalError(f"{count} launches failed: {failed[0].reason}", hint=failed[0].hint)
    return f"{len(records)} launches over a virtual cable, each proven by its counters"
