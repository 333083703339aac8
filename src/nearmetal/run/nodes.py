"""Facts of all nodes that are machines of their own: the body of a trial (`run.trial`) asks the first alone."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from nearmetal.facts.inventory import machine_facts
from nearmetal.hosts.host import OnNode, Shell, is_far, machines_of
from nearmetal.results.evidence import UNLIKE
from nearmetal.study.order import Order, Outcome, Scalar


def on_every_node(body: Callable[[Shell, Order], Outcome]) -> Callable[[Shell, Order], Outcome]:
    """Return the body of a trial with facts of every node's machine in its outcome."""

    def with_all(shell: Shell, order: Order) -> Outcome:
        outcome = body(shell, order)
        return replace(outcome, facts=_of_every_node(shell, outcome.facts)) if is_far(shell) else outcome

    return with_all


def _of_every_node(shell: Shell, facts: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return facts in which one of the first node's machine says what it is on which node, where they differ."""
    first, *others = machines_of(shell)
    values = {name: {value: [first]} for name, value in facts.items()}
    for node in others if facts else ():
        for name, value in machine_facts(OnNode(shell, node)).items():
            if name in values:
                values[name].setdefault(value, []).append(node)
    differing = {name: there for name, there in values.items() if len(there) > 1}
    if not differing:
        return dict(facts)
    said = {
        name: "; ".join(f"{value} ({', '.join(nodes)})" for value, nodes in there.items())
        for name, there in differing.items()
    }
    return {**facts, **said, UNLIKE: ", ".join(sorted(said))}
