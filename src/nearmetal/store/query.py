"""Questions to a run: which trials may stand side by side.

Figures measured under another kernel, MPI, NIC or version of the code differ for reasons unrelated to the path, so they
are compared only on request. Guests and bare hosts are machines of their own, whose kernels differ as a rule: there a
kernel must stay what it is on each path, and reports caution where paths differ (`results.evidence`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nearmetal.errors import BadInputError, command_line
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.facts import FactScope, scope_of
from nearmetal.study.order import Scalar

_FactsOn = tuple[int, dict[str, Scalar]]
"""On how many nodes a trial ran, and facts of it."""


class MixedError(BadInputError):
    """Trials that are to be compared differ in what no path is to blame for; a person may compare them all the same."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One fact that has several values where it must have one; `within` names the path or workload, '' for all."""

    fact: str
    within: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        place = f" ({self.within})" if self.within else ""
        return f"{self.fact}{place}: {' | '.join(self.values)}"


def valid(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that may be compared: one a combination and block, the last valid attempt."""
    last = {record.order.trial: record for record in records if record.valid}
    return sorted(last.values(), key=lambda record: record.order.trial)


def disagreements(records: Iterable[TrialRecord]) -> tuple[Disagreement, ...]:
    """Return every fact that must agree between these trials and does not.

    The guests must agree over all trials. So must the machine and its kernel, except where paths have machines of their
    own: there over the trials of one path, as an interface must; versions (`mpi.version`, `engine.build` ...) over the
    trials of one workload. A trial that lacks a fact where others on as many nodes have it disagrees with them, as `not
    recorded`.
    """
    groups: dict[tuple[str, str], list[_FactsOn]] = {}
    for record in records:
        of: dict[FactScope, dict[str, Scalar]] = defaultdict(dict)
        for name, value in record.outcome.facts.items():
            of[scope_of(name)][name] = value
        path, workload, nodes = record.order.path.label, record.order.workload.label, record.order.nodes
        code = of["code"] | {"mpi": record.order.mpi}
        groups.setdefault((_on_machines_of(record), "machine"), []).append((nodes, of["machine"]))
        groups.setdefault(("", "guest"), []).append((nodes, of["guest"]))
        groups.setdefault((f"path {path}", "nic"), []).append((nodes, of["interface"]))
        groups.setdefault((f"workload {workload}", "code"), []).append((nodes, code))
    return tuple(found for (within, _), sets in groups.items() for found in _differing(within, sets))


def _on_machines_of(record: TrialRecord) -> str:
    """Return the path that has machines of its own, such as guests or bare hosts; '' where all paths are on one."""
    named = "machine.0" in record.outcome.facts or record.order.path.kind == "declared"
    return f"path {record.order.path.name}" if named else ""


def _differing(within: str, sets: Sequence[_FactsOn]) -> list[Disagreement]:
    found = []
    for key in sorted({key for _, facts in sets for key in facts}):
        having = {nodes for nodes, facts in sets if key in facts}  # two nodes have no fact of a third
        seen = (str(facts.get(key, "not recorded")) for nodes, facts in sets if key in facts or nodes in having)
        values = tuple(dict.fromkeys(seen))
        if len(values) > 1:
            found.append(Disagreement(key, within, values))
    return found


def refuse_mixed(found: Sequence[Disagreement]) -> None:
    """Raise MixedError when trials that are to be compared disagree."""
    if found:
        count = "1 fact differs" if len(found) == 1 else f"{len(found)} facts differ"
        lines = "\n  ".join(str(one) for one in found)
        raise MixedError(
            f"{count} between trials that are to be compared:\n  {lines}",
            hint="the run was continued on a changed machine: start a new run, or compare anyway with "
            "--allow-mixed, which the report will mention",
        )


def refuse_fabric(run: RunDir) -> None:
    """Raise BadInputError for the run of a whole fabric: it has one launch of all pairs, and no cells."""
    if run.of_fabric:
        raise BadInputError(
            f"{run.root} is a fabric run: all pairs were measured in one launch, so there are no trials to compare",
            hint=f"`{command_line('fabric', run.root)}` reads it, `--against` compares it with another fabric's",
        )
