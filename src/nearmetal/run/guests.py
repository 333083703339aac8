"""The guests of a study, as their libvirt reports them: read before the first trial, kept in every trial."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from nearmetal.errors import BadInputError, NearmetalError, TrialError, UnavailableError
from nearmetal.facts.guests import Guest, HypervisorFacts, look_below, parse_domain, warnings
from nearmetal.hosts import table
from nearmetal.hosts.batch.host import BatchHost
from nearmetal.hosts.far.host import FarHost
from nearmetal.hosts.host import FarShell, Host, Shell
from nearmetal.hosts.machine import MachineShell
from nearmetal.hosts.ssh import machines_named
from nearmetal.knobs import places
from nearmetal.packages import packages_of
from nearmetal.run.lost import settle, settled_first
from nearmetal.run.nodes import on_every_node
from nearmetal.study.order import Order, Outcome, Scalar, TrialStatus
from nearmetal.study.spec import Study


@dataclass(frozen=True, slots=True)
class LibvirtLook:
    """What was found at one URI: guests, and warnings in sentences."""

    guests: tuple[Guest, ...]
    warnings: tuple[str, ...]


def look_at(uri: str, *, running: bool = False) -> LibvirtLook:
    """Read the domains of one libvirt, and the machine below them where it is this one or ssh reaches it.

    Raise UnavailableError when libvirt does not answer. A machine that cannot be looked at is a warning.
    """
    with MachineShell() as shell:
        guests = tuple(parse_domain(text) for text in domain_xml(shell, uri, running=running))
        below, not_seen = _below(shell, uri)
    nobody = [] if guests else [f"no guest {'runs' if running else 'is defined'} at {uri}"]
    return LibvirtLook(guests, (*nobody, *not_seen, *warnings(guests, below)))


def _below(shell: Shell, uri: str) -> tuple[HypervisorFacts, list[str]]:
    machine = machine_of(uri)
    if machine == "":
        return look_below(shell), []
    try:
        if machine is None:
            raise UnavailableError("only a URI with `+ssh` gives access to that machine")
        from nearmetal.hosts.ssh.host import machine_shell  # noqa: PLC0415 (asyncssh may be missing)

        with machine_shell(machine) as far:
            return look_below(far), []
    except (NearmetalError, ImportError) as error:
        return HypervisorFacts(), [f"the host of {uri} was not inspected (MTUs, irqbalance, idle states): {error}"]


class Settle(Protocol):
    """Raises UnfinishedError for a far machine whose settings an earlier session left changed, or puts them back."""

    def __call__(self, shell: FarShell, *, measuring: bool) -> None:
        """Look at one machine; `measuring` is as for `knobs.rollback.refuse_unfinished`."""


def refuse(shell: FarShell, *, measuring: bool) -> None:
    """Refuse what an earlier session left changed."""
    places.refuse_unfinished_on(shell, measuring=measuring)


@runtime_checkable
class MarkingHost(Protocol):
    """A host that learns by itself which machines it measures on: the nodes of an allocation, or below pods."""

    def mark(self, measuring: Callable[[Iterable[str]], AbstractContextManager[None]]) -> str:
        """Let `measuring` mark these machines, by name, for as long as the host has them; return why it cannot."""


def open_host(study: Study, warn: Callable[[str], object] = lambda _: None, settle: Settle = refuse) -> Host:
    """Return the host of a study; its trials carry the facts of every far machine, and of the guests of its libvirts.

    `warn` is called with each known confounder, before anything is measured, and `settle` with each far machine that
    is known by now: those of an allocation are looked at in its trials. Raise UnavailableError when the host cannot
    work here, or a libvirt does not answer, and UnfinishedError when trials would run on a machine and an earlier
    session has left its settings changed.
    """
    if study.host.kind == places.LOCAL:
        places.refuse_unfinished_here()
        for sentence in places.changed_here_for_now():
            warn(sentence)
    for sentence in _measured_already(study):
        warn(sentence)
    looks = {uri: look_at(uri, running=True) for uri in study.host.libvirt}
    for look in looks.values():
        for sentence in look.warnings:
            warn(sentence)
    host = table.open_host(study)
    try:
        for shell in host.shells() if isinstance(host, FarHost) else ():
            settle(shell, measuring=not _sets_knobs(study))
        if isinstance(host, MarkingHost) and (unmarked := host.mark(places.measuring)):
            warn(unmarked)
    except BaseException:
        host.close()
        raise
    return _HostWithFacts(host, _facts(looks.items())) if looks or isinstance(host, FarHost | BatchHost) else host


def _sets_knobs(study: Study) -> bool:
    """Return whether trials of a study change settings: its sessions refuse every open journal, not only changes."""
    return study.tune is not None or any(setting.knobs for setting in study.setting)


def measuring(study: Study) -> AbstractContextManager[None]:
    """Let `apply` see that the machines of a study are measured on; far ones by each name that it may know them by."""
    return places.measuring(sorted({name for names in _names(study) for name in names}))


def _names(study: Study) -> list[list[str]]:
    """Return the names by which each machine of a study may be known."""
    if study.host.kind == places.LOCAL:
        return [[places.LOCAL]]
    nodes = machines_named(study.host)
    every = [[name for name in (one.name, one.address) if name] for one in nodes]
    logins = [[f"{one.user}@{name}" for name in names if one.user] for one, names in zip(nodes, every, strict=True)]
    return [[*names, *users] for names, users in zip(every, logins, strict=True)]


def _measured_already(study: Study) -> Iterator[str]:
    """Yield a sentence for each machine on which another process measures now; far, one of this user and from here."""
    for names in _names(study):
        for name in (one for one in names if "/" not in one):
            try:
                places.refuse_measured(name, name)
            except TrialError as error:
                yield f"{error.message}: the two disturb each other"
                break


def _facts(looks: Iterable[tuple[str, LibvirtLook]]) -> dict[str, Scalar]:
    """Return the facts of all guests; one whose name an earlier URI has, too, is told apart by its own."""
    named: dict[str, Guest] = {}
    for uri, look in looks:
        for guest in look.guests:
            name = guest.name if guest.name not in named else f"{guest.name}@{uri}"
            named[name] = replace(guest, name=name)
    return {key: value for guest in named.values() for key, value in guest.facts().items()}


class _HostWithFacts:
    """A host whose trials carry further facts; all else is the host's own."""

    def __init__(self, host: Host, facts: dict[str, Scalar]) -> None:
        self._host = host
        self._facts = facts
        self.kind, self.label, self.slots = host.kind, host.label, host.slots

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        outcome = self._host.carry_out(order, settled_first(on_every_node(body)))
        if outcome.status is not TrialStatus.VALID and order.knobs and isinstance(self._host, FarHost):
            outcome = replace(outcome, reason="; ".join(filter(None, [outcome.reason, settle(self._host)])))
        return replace(outcome, facts={**self._facts, **outcome.facts})

    def close(self) -> None:
        self._host.close()


# ---- domains of a libvirt, through the program `virsh`: lighter than its Python binding, which has to be built

_VIRSH_TIMEOUT_S = 30.0


def domain_xml(shell: Shell, uri: str, *, running: bool = False) -> list[str]:
    """Return the XML of every domain, or of the `running` ones alone, as they run.

    Raise UnavailableError when libvirt does not answer.
    """
    if not uri or uri.startswith("-"):
        raise BadInputError(f"{uri!r} is not a libvirt URI", hint="such as qemu:///system or qemu+ssh://host/system")
    names = _virsh(shell, uri, "list", *([] if running else ["--all"]), "--name").splitlines()
    return [_virsh(shell, uri, "dumpxml", "--domain", name) for name in filter(None, map(str.strip, names))]


def _virsh(shell: Shell, uri: str, *arguments: str) -> str:
    finished = shell.run(["virsh", "--quiet", "--connect", uri, *arguments], timeout_s=_VIRSH_TIMEOUT_S, check=False)
    if not finished.ok:
        raise UnavailableError(
            f"libvirt at {uri} does not answer: {finished.complaint()}",
            hint=f"`virsh --connect URI list` must work first; without virsh, {packages_of('virsh')}",
        )
    return finished.text


def machine_of(uri: str) -> str | None:
    """Return whose libvirt a URI means: '' for this machine's, `[USER@]NAME[:PORT]` behind ssh, None for other ways."""
    scheme, _, rest = uri.partition("://")
    where = rest.partition("/")[0]
    if not where:
        return ""
    return where if scheme.endswith("+ssh") else None
