"""`nearmetal between HOST1 HOST2`: no study file; look, say what will be measured, measure, answer."""

import shlex
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

import click

from nearmetal.cli.progress import warn
from nearmetal.cli.rollback import settle_far
from nearmetal.cli.run import carry_out
from nearmetal.cli.values import PATH, FiniteRange, parse_sizes, read_option, write_file
from nearmetal.errors import BadInputError, ExitCode, UnavailableError
from nearmetal.facts.look import MachineLook, look
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.report import words
from nearmetal.results.records import View
from nearmetal.run.begin import begin
from nearmetal.run.between import LinkRequest, MachinePair, check_looks, doubts, node_named, propose
from nearmetal.stats.equivalence import Verdict
from nearmetal.study.shipped import read_nodes

_SIZES = "8,64K"


@click.command(name="between")
@click.argument("first", metavar="HOST1")
@click.argument("second", metavar="HOST2")
@click.option("--against", nargs=2, metavar="HOST3 HOST4", help="The baseline, such as the bare hosts of two VMs.")
@click.option("--size", "sizes", default=_SIZES, show_default=True, help="Message sizes, separated by commas.")
@click.option(
    "--minutes", type=FiniteRange(min=0.1), default=2.0, show_default=True, help="Approximate measuring time."
)
@click.option("--hosts", type=PATH, help="A file of [[node]] tables that define the host names.")
@click.option("-o", "--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of host kind ssh.")
@click.option("--study", type=PATH, help="Where to write the study [default: between-NAMES.toml, numbered if taken].")
@click.option("--out", type=PATH, help="The run directory [default: runs/NAME-TIME].")
@click.option(
    "--look", "only_look", is_flag=True, help="Inspect the machines and write the study, but measure nothing."
)
def command(  # noqa: PLR0917 (click passes by name)
    first: str,
    second: str,
    against: tuple[str, str] | None,
    sizes: str,
    minutes: float,
    hosts: Path | None,
    options: Sequence[str],
    study: Path | None,
    out: Path | None,
    *,
    only_look: bool,
) -> int:
    """Measure the network between HOST1 and HOST2; no study file needed.

    Inspects the machines over ssh, measures what the MPI and the tools installed there allow, and ends with a verdict,
    its largest doubt and the next command. With --against, a second pair is the baseline.
    """
    asked = _asked([(first, second), *([against] if against else [])], sizes, minutes, hosts, options)
    looks = _looked(asked)
    check_looks(asked.pairs, looks)
    proposal = propose(asked, looks)
    _show(asked, looks)
    for line in proposal.measured:
        click.echo(f"will measure {line}", err=True)
    for line in proposal.left_out:
        click.echo(f"left out     {line}", err=True)
    target = study or _unused(f"{asked.name}.toml", proposal.text)
    write_file(target, proposal.text)
    click.echo(f"study: {target}", err=True)
    if only_look:
        return ExitCode.OK
    with begin(target, out, warn, settle_far) as (spec, run, host):
        view, ending = carry_out(spec, run, host)
    given = [] if sizes == _SIZES else ["--size", sizes]
    given += [*(["--hosts", str(hosts)] if hosts else []), *(word for one in options for word in ("-o", one))]
    _answer(asked, looks, view)
    click.echo(f"next: {_next(view, asked.budget_s, run.root, [first, second, *(against or ())], given)}")
    return ExitCode.PARTIAL if ending.given_up else ExitCode.OK


def _unused(name: str, text: str) -> Path:
    """Return the file of that name, or of one with a number behind it, where another study is in it, perhaps edited."""
    stem = name.removesuffix(".toml")
    files = (Path(name if number == 1 else f"{stem}-{number}.toml") for number in count(1))
    return next(one for one in files if not one.exists() or one.read_bytes() == text.encode())


def _asked(
    names: Sequence[tuple[str, str]], sizes: str, minutes: float, hosts: Path | None, options: Sequence[str]
) -> LinkRequest:
    known = {node.name: node for node in read_nodes(hosts)} if hosts else {}
    pairs = tuple(MachinePair(node_named(one, known), node_named(other, known)) for one, other in names)
    taken = [node.name for pair in pairs for node in pair.nodes]
    if len(set(taken)) != len(taken):
        text = f"two machines are called {max(taken, key=taken.count)!r}"
        raise BadInputError(text, hint="give them different names in a file of [[node]] tables: --hosts FILE")
    return LinkRequest(pairs, parse_sizes(sizes), minutes * 60, dict(map(read_option, options)))


def _looked(asked: LinkRequest) -> dict[str, MachineLook]:
    """Look at every machine at once."""
    try:
        from nearmetal.hosts.ssh.host import SshHost  # noqa: PLC0415 (asyncssh may be missing)
    except ImportError as error:
        raise UnavailableError(f"asyncssh is missing: {error}", hint="pip install 'nearmetal[ssh]'") from error
    others = {node.name: (pair.reach(node), node.interface) for pair in asked.pairs for node in pair.nodes}
    looks: dict[str, MachineLook] = {}

    def at(machine: FarMachine) -> None:
        other, interface = others[machine.name]
        looks[machine.name] = look(machine.run, other, str(asked.options.get("mpi_prefix", "")), interface)

    with closing(SshHost([node for pair in asked.pairs for node in pair.nodes], asked.options)) as host:
        host.on_all(at)
    return looks


def _show(asked: LinkRequest, looks: dict[str, MachineLook]) -> None:
    for pair in asked.pairs:
        for node in pair.nodes:
            seen = looks[node.name]
            mpi = f"{seen.mpi or 'no MPI'}{'' if seen.compiler or not seen.mpi else ' without mpicc'}"
            click.echo(
                f"{node.name}: {seen.what}, {seen.system}, kernel {seen.kernel}, {seen.cpus} CPUs, load {seen.load:g}\n"
                f"  to {seen.address} by {seen.nic}; {mpi}; {' '.join(sorted(seen.tools)) or 'no network tools'}",
                err=True,
            )


def _answer(asked: LinkRequest, looks: dict[str, MachineLook], view: View) -> None:
    if len(asked.pairs) == 1:
        names = [node.name for node in asked.pairs[0].nodes]
        click.echo(f"answer for {names[0]} and {names[1]}:")
        for sentence in words.alone(view):
            click.echo(f"  {sentence}")
        click.echo(f"  {words.noise_sentence(view)}")
    click.echo(f"largest doubt: {doubts(asked, looks)[0]}")


def _next(view: View, budget_s: float, root: Path, typed: Sequence[str], given: Sequence[str]) -> str:
    """Return the next command: `typed` are the machines as they were named, `given` are further options."""
    again, rest = f"nearmetal between {shlex.join(typed[:2])} --against", f" {shlex.join(given)}".rstrip()
    if len(typed) == 2:
        return f"compare with a baseline: {again} HOST3 HOST4{rest}"
    if any(path.verdict is Verdict.UNDECIDED for path in view.verdicts):
        return f"more launches: {again} {shlex.join(typed[2:])} --minutes {budget_s / 15:g}{rest}"
    if all(path.verdict in {Verdict.NEAR_METAL, Verdict.FASTER} for path in view.verdicts):
        return f"every figure behind it: nearmetal report {shlex.quote(str(root))}"
    return f"what could close the gap: nearmetal advise {shlex.quote(str(root))}"
