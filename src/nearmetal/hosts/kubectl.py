"""Host `kubectl`: pods that the study names or a label selects, each with a shell behind `kubectl exec`."""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nearmetal import process
from nearmetal.errors import BadInputError, ForeignFileError, UnavailableError
from nearmetal.hosts.far import host as far
from nearmetal.hosts.far.stream import open_program
from nearmetal.hosts.host import Shell
from nearmetal.reading import parse_json
from nearmetal.study.facts import COMPUTERS
from nearmetal.study.order import Order, Outcome, Scalar
from nearmetal.study.spec import NodeSpec
from nearmetal.units import by_key

OPTIONS = {
    "kubectl": "the program (`kubectl` on PATH)",
    "context": "context of the kubeconfig (the current one)",
    "namespace": "namespace of the pods (the context's own)",
    "container": "container in each pod (its default one)",
    "selector": "label of the pods, such as `job-name=mpi`, instead of [[host.node]] tables",
    "interface": "their interface on the measured path, such as `net1` of Multus (each node's own)",
    **far.OPTIONS,
}
_GET_TIMEOUT_S = 60.0


class KubectlHost(far.FarHost):
    """Carries trials out in pods; a pod that goes away fails its trial."""

    kind = "kubectl"
    reaching = frozenset({"kubectl", "context", "namespace", "container"})
    hint = "check the pod with kubectl describe"

    def __init__(self, nodes: Sequence[NodeSpec], options: Mapping[str, Scalar]) -> None:
        far.check_options(self.kind, options, OPTIONS)
        base = _program(options)
        pods = list(nodes) or _selected(base, options)
        far.check_names(self.kind, pods)
        interface = str(options.get("interface", ""))
        named = [node.model_copy(update={"interface": node.interface or interface}) for node in pods]
        shells = [partial(open_program, _exec_argv(base, options, node.address or node.name)) for node in named]
        self._marks = contextlib.ExitStack()
        self._below: dict[str, str] = {}
        self._ask = (*base, "get", "pods", *[node.address or node.name for node in named], "--output=json")
        super().__init__(named, shells, options, label=f"pods: {', '.join(node.name for node in named)}")

    def mark(self, measuring: Callable[[Iterable[str]], contextlib.AbstractContextManager[None]]) -> str:
        """Mark the nodes that the pods run on, by their names and addresses: pods stay where they are.

        Return a warning where the cluster does not say which they are, or where pods share one.
        """
        finished = process.run(self._ask, timeout_s=_GET_TIMEOUT_S)
        if not finished.ok:
            return f"`nearmetal apply` will not see which nodes are measured on: {finished.complaint()}"
        pods = _pods(finished.stdout)
        self._marks.enter_context(measuring(sorted({name for pod in pods for name in (pod.node, pod.host_ip) if name})))
        named = {node.address or node.name: name for name, node in self._nodes.items()}
        self._below = {named[pod.name]: pod.node for pod in pods if pod.name in named and pod.node}
        shared = by_key((node, name) for name, node in self._below.items())
        return "; ".join(
            f"pods {', '.join(names)} share the node {node} and its processors: their messages do not leave it"
            for node, names in shared.items()
            if len(names) > 1
        )

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        """Carry a trial out; its facts hold the nodes below its pods, which have host names of their own."""
        outcome = super().carry_out(order, body)
        machines = [str(value) for name, value in outcome.facts.items() if name.startswith("machine.")]
        nodes = [self._below.get(name, "") for name in machines]
        if not nodes or not all(nodes):
            return outcome
        return replace(outcome, facts={**outcome.facts, "kubectl.nodes": " ".join(nodes), COMPUTERS: len(set(nodes))})

    def close(self) -> None:
        """Close every shell; calling twice does nothing more."""
        super().close()
        self._marks.close()


def _program(options: Mapping[str, Scalar]) -> tuple[str, ...]:
    wanted = str(options.get("kubectl", "kubectl"))
    program = shutil.which(wanted)
    if program is None:
        raise UnavailableError(f"{wanted} is not installed here", hint="name it in the host's option `kubectl`")
    chosen = [f"--{name}={options[name]}" for name in ("context", "namespace") if name in options]
    return (program, *chosen)


def _exec_argv(base: tuple[str, ...], options: Mapping[str, Scalar], pod: str) -> tuple[str, ...]:
    container = (f"--container={options['container']}",) if "container" in options else ()
    return (*base, "exec", "--stdin", *container, pod, "--", "/bin/sh")


def _selected(base: tuple[str, ...], options: Mapping[str, Scalar]) -> list[NodeSpec]:
    """Return the running pods that the selector names, by name; they reach each other by their addresses."""
    selector = str(options.get("selector", ""))
    if not selector:
        message = "the kubectl host has no pods"
        raise BadInputError(message, hint="give [[host.node]] tables, or options = { selector = 'job-name=NAME' }")
    argv = [*base, "get", "pods", f"--selector={selector}", "--output=json"]
    finished = process.run(argv, timeout_s=_GET_TIMEOUT_S)
    if not finished.ok:
        raise UnavailableError(finished.complaint(), hint="run the same command yourself")
    found = sorted((pod for pod in _pods(finished.stdout) if pod.phase == "Running"), key=lambda pod: pod.name)
    if not found:
        raise UnavailableError(f"no pod with {selector} is running", hint=f"kubectl get pods --selector={selector}")
    # A job's pods differ at the end of their names.
    return [NodeSpec(name=pod.name[-40:].lstrip("-."), address=pod.name, reach=pod.address) for pod in found]


@dataclass(frozen=True, slots=True)
class _Pod:
    """A pod; `node` and `host_ip` are name and address of the node below it, empty where it has none yet.

    `phase` is `Terminating` of one that is being deleted, although it stays `Running` until its containers are gone.
    Of several addresses `address` is the first of IPv4, which MPI over TCP uses.
    """

    name: str
    phase: str
    address: str
    node: str
    host_ip: str


def _pods(text: bytes) -> list[_Pod]:
    """Read what `kubectl get pods` prints: of one pod that, of several a list. Raise ForeignFileError for all else."""
    try:
        raw = parse_json(text)
        return [_pod(one["metadata"], one.get("spec", {}), one.get("status", {})) for one in raw.get("items", [raw])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignFileError(f"kubectl did not print a list of pods: {error!r}") from error


def _pod(metadata: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> _Pod:
    phase = "Terminating" if metadata.get("deletionTimestamp") else str(status.get("phase"))
    addresses = [str(one["ip"]) for one in status.get("podIPs") or []]
    first = next((one for one in addresses if ":" not in one), str(status.get("podIP", "")))
    node, host_ip = str(spec.get("nodeName") or ""), str(status.get("hostIP") or "")
    return _Pod(str(metadata["name"]), phase, first, node, host_ip)
