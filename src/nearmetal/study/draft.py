"""Studies that nearmetal writes for people: TOML with comments, from a few answers. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nearmetal.study.spec import NodeSpec
from nearmetal.units import format_size


@dataclass(frozen=True, slots=True)
class Draft:
    """The answers that a study needs; the first path is the baseline, `nodes` are for hosts of kind `ssh`."""

    name: str
    host: str
    paths: tuple[str, ...]
    workloads: tuple[str, ...]
    sizes: tuple[int, ...]
    margin: float
    nodes: tuple[NodeSpec, ...] = ()


def entries(table: Mapping[str, object]) -> list[str]:
    """Return the lines `key = value` of a table."""
    return [f"{key} = {toml(value)}" for key, value in table.items()]


def block(head: str, table: Mapping[str, object]) -> list[str]:
    """Return an empty line, a heading such as `[host]` and its entries."""
    return ["", head, *entries(table)]


def toml(value: object) -> str:
    """Write a value as TOML: JSON's text, numbers, booleans and lists are TOML's; tables are written inline."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    # DEL is the one control character that JSON leaves unescaped and TOML refuses.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def node_tables(nodes: Sequence[NodeSpec]) -> list[str]:
    """Return the [[host.node]] tables of machines."""
    return [line for node in nodes for line in block("[[host.node]]", node.model_dump(exclude_defaults=True))]


def draft_text(draft: Draft) -> str:
    """Return a commented study: every line that one is likely to change says what it does."""
    sizes = ", ".join(toml(format_size(size)) if size >= 1024 else str(size) for size in draft.sizes)
    lines = [
        "# `nearmetal plan FILE` shows how long this takes, `nearmetal run FILE` runs it.",
        "# Every key: docs/reference/study.md.",
        "format = 1",
        f"name = {toml(draft.name)}",
        f"baseline = {toml(draft.paths[0])}  # the path to compare the others with; measured twice",
        f"margin = {toml(f'{draft.margin * 100:g} %')}  # differences up to this still count as equal",
        "",
        "[host]",
        f"kind = {toml(draft.host)}  # local, lab, ssh or slurm: where trials run",
        *node_tables(draft.nodes),
    ]
    for path, machines in zip(draft.paths, _machines_of_paths(draft), strict=True):
        lines += ["", "[[path]]", f"name = {toml(path)}"]
        if draft.host in {"ssh", "slurm"}:
            lines += ['kind = "declared"  # the machines as they are', *_path_options(draft, machines)]
    for workload in draft.workloads:
        lines += ["", "[[workload]]", f"name = {toml(workload)}", f"sizes = [{sizes}]"]
    lines += [
        "",
        "# A second setting compares knobs too; `nearmetal knobs` lists what a machine has.",
        "# [[setting]]",
        '# name = "as-found"',
        "# [[setting]]",
        '# name = "no-moderation"',
        '# knobs = { "nic.rx-usecs" = 0 }',
        "",
        "[trials]",
        "min_blocks = 5   # launches of every combination before the first check whether to stop",
        "max_blocks = 16  # more only while a comparison is undecided; near-metal needs 14",
        "",
    ]
    return "\n".join(lines)


def _machines_of_paths(draft: Draft) -> list[list[str]]:
    """Return the machines of each path, in the order in which they were named; none where they do not divide evenly.

    Without names a path would take the first of all, and every path the same.
    """
    names = [node.name for node in draft.nodes]
    each, rest = divmod(len(names), len(draft.paths))
    if len(draft.paths) == 1 or rest or each < _LEAST_MACHINES:
        return [[] for _ in draft.paths]
    return [names[start : start + each] for start in range(0, len(names), each)]


_LEAST_MACHINES = 2


def _path_options(draft: Draft, machines: Sequence[str]) -> list[str]:
    if machines:
        return [f'options = {{ nodes = {toml(" ".join(machines))} }}  # add: interface = "eth0"']
    if draft.host == "slurm":
        return ['# options = { interface = "ib0", partition = "PARTITION" }  # what this path has for itself']
    return ['# options = { nodes = "NODE1 NODE2", interface = "eth0" }  # default: the first machines above']
