"""`nearmetal fabric STUDY|RUN`: every pair of a cluster's nodes, and what stands out."""

import contextlib
from pathlib import Path

import click

from nearmetal.cli.progress import warn
from nearmetal.cli.values import COUNT, PATH, format_option
from nearmetal.errors import BadInputError, ExitCode, StoreError, command_line
from nearmetal.fabric.against import AGAINST_SEED, against, check_nodes
from nearmetal.fabric.measure import measure, passed_over, whole_order
from nearmetal.fabric.survey import Survey, survey
from nearmetal.report import fabric_html, fabric_json, fabric_text
from nearmetal.run.begin import default_root, info_of
from nearmetal.run.check import check_path
from nearmetal.run.guests import measuring, open_host
from nearmetal.run.preflight import rehearse
from nearmetal.store.disk import Disk
from nearmetal.store.rundir import RunDir
from nearmetal.study.shipped import find_study, read_study, with_hosts_file


@click.command(name="fabric", epilog="Exit codes: 0 nothing named, 1 something named, 4 not measured to the end.")
@click.argument("source", metavar="STUDY|RUN", type=PATH)
@click.option("--path", "path_name", default="", help="The path to measure [default: the study's baseline].")
@click.option("--nodes", type=COUNT, default=None, help="How many nodes [default: as in the study].")
@click.option("--out", type=PATH, help="The run directory [default: runs/NAME-fabric-TIME].")
@click.option("--no-bisection", is_flag=True, help="Skip the bisection bandwidth test.")
@click.option("--against", "base", type=PATH, help="Compare with this earlier run of the same nodes.")
@click.option("--html", type=PATH, help="Also write an HTML page with heat maps.")
@format_option("table", "json")
def command(
    *,
    source: Path,
    path_name: str,
    nodes: int | None,
    out: Path | None,
    no_bisection: bool,
    base: Path | None,
    html: Path | None,
    form: str,
) -> int:
    """Measure all pairs of a STUDY's nodes and name the slow nodes and links, or show a finished RUN."""
    shown = source.is_dir() and find_study(source) == source
    if shown:
        if path_name or nodes or out or no_bisection:
            text = f"{source} is a finished run; --path, --nodes, --out and --no-bisection only go with a study"
            raise BadInputError(text, hint=command_line("fabric", source))
        root = source
    earlier = survey(RunDir.open(base)) if base else None
    if html and (html.is_dir() or not html.parent.is_dir()):
        text = f"cannot write {html}: {'it is a directory' if html.is_dir() else 'its directory is not there'}"
        raise StoreError(text, hint="name a file in a directory that is there; nothing was measured")
    if not shown:
        root = _measured(source, path_name, nodes or 0, out, earlier, bisection=not no_bisection)
    found = survey(RunDir.open(root))
    if earlier:
        compared = against(found, earlier, seed=AGAINST_SEED)
        shown_as = fabric_json.against_json if form == "json" else fabric_text.against_text
        click.echo(shown_as(compared, found, earlier).rstrip("\n"))
    else:
        click.echo(fabric_json.as_json(found) if form == "json" else fabric_text.as_text(found).rstrip("\n"))
    click.echo(f"run: {root}", err=True)
    if html:
        Disk().put_bytes(html, fabric_html.as_html(found).encode())
    if found.named:
        return ExitCode.FAILED
    return ExitCode.OK if found.complete else ExitCode.PARTIAL


def _measured(
    study: Path, path_name: str, nodes: int, out: Path | None, earlier: Survey | None, *, bisection: bool
) -> Path:
    """Measure the fabric of a study; return its run directory. `earlier` is what it will be compared with."""
    spec, text = read_study(study)
    spec, hosts = with_hosts_file(spec)
    order = whole_order(spec, path_name, nodes, bisection=bisection)
    for sentence in passed_over(spec):
        warn(sentence)
    if earlier:
        check_nodes(len(order.workload.placement), earlier)
    check_path(spec.host.kind, next(path for path in spec.path if path.name == order.path.label))
    RunDir.refuse_used(root := out or default_root(f"{spec.name}-fabric"))
    with contextlib.closing(open_host(spec, warn)) as host, measuring(spec):
        rehearse(spec.name, [order], host, warn)
        with RunDir.create(root, info_of(spec, text, host), text, hosts_text=hosts, of_fabric=True) as run:
            measure(order, spec.margin, host, run, lambda message: click.echo(message, err=True))
    return root
