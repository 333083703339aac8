"""Validation of `nearmetal predict` in the lab: programs on two and four machines, on bare ports and in guests.

    python bench/validate_lab.py                     # measure (75 min and more), predict, print tables
    python bench/validate_lab.py --keep DIR          # keep runs in DIR, measure only what it lacks
    python bench/validate_lab.py --keep DIR --write  # also write the cases into the package, and the picture
    python bench/validate_lab.py --held-out ...      # on paths and placements that the model was not made with

All machines are of kind `kvm`, and no message is held back by autocorking. Paths are fitted from micro-benchmarks alone
(those of studies/predict-lab.toml); what programs do comes from traces taken inside one machine. A case with the
drivers' moderation is predicted from samples under it, and from those without it by the driver's rule. Goals: median
absolute error at most 4 %; no case above 15 % without a warning; paths in the right order wherever they differ
measurably. Exit code 4 when one is missed, 3 where the lab cannot run.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import astuple, dataclass, fields
from math import exp
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from nearmetal.predict.calibration import Errors, LabCase, lab_cases
from nearmetal.predict.validate import wrong_orders
from nearmetal.report.prediction_json import CaseJson, ValidationFile, read
from nearmetal.store.rundir import RunDir
from nearmetal.study import plan
from nearmetal.study.spec import parse_study
from nearmetal.workloads.apps import APPLICATIONS
from support.coverage import coverage
from support.goals import ended, short_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GOAL, WARNED_ABOVE = 0.04, 0.15
NEARMETAL = str(Path(sys.executable).with_name("nearmetal"))
RX_USECS = {"default": 3, "tuned": 0}
RULES = {"guest-vf": "igbvf:usecs=3", "vf": "igbvf:usecs=3"}
RULE = "igb-queue:usecs=3"
"""The rule of the driver that takes a path's interrupts: the function's, or the port's below everything else."""
PORTS = ("native", "guest-vf")
CARDS = ("bridge", "vhost", "virtio")
"""Paths without `nic.rx-usecs`: an option of theirs sets the port below, so that each setting is a run of its own."""
UNSEEN = ("vf", "macvlan", "tap", "passthrough")
"""Paths that no program had been launched on when the model was made; measured like cards."""
PLACEMENTS = {
    "2x1": [0, 1],
    "2x2": [0, 0, 1, 1],
    "2x2 cyclic": [0, 1, 0, 1],
    "4x1": [0, 1, 2, 3],
    "4x2": [0, 0, 1, 1, 2, 2, 3, 3],
}
"""Machines by ranks on each."""
ROOT = Path(__file__).parents[1]
WIDTH, LEFT, ROW = 760, 210, 20
COLOURS = {"S": "#0b62a4", "W": "#d55e00"}
HEAD = """format = 1
name = "{name}"
seed = 20261123
baseline = "{baseline}"
[host]
kind = "lab"
options = {{ machine = "kvm"{machines} }}
[trials]
min_blocks = 3
max_blocks = 3
timeout = "600 s"
"""


@dataclass(frozen=True)
class Group:
    """Programs that are launched together: where, of which class, on which paths and settings."""

    where: str
    letter: str
    paths: tuple[str, ...]
    settings: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return len(PLACEMENTS[self.where])

    @property
    def programs(self) -> list[str]:
        """Return the programs that run on so many ranks."""
        return [name for name in APPLICATIONS if APPLICATIONS[name].ranks.holds(self.ranks)]

    @property
    def name(self) -> str:
        """Return the name of the run that launches the programs."""
        return "-".join((self.where.replace(" ", "-"), self.letter, *self.paths[:1], *self.settings))

    @property
    def traces(self) -> str:
        """Return the name of the run that traces them."""
        return f"traces-{self.letter}-{self.ranks}"

    def micro(self, setting: str) -> str:
        """Return the name of the run that measured the paths under a setting."""
        if set(self.paths) <= set(UNSEEN):
            return f"paths-unseen-{setting}"
        return f"paths-{setting}" if self.paths[0] in CARDS else "paths"


OF_EVERY_CASE = (" is not finished: ", " are not compared: ", " measured the whole path; launches differ")
"""Warnings that say nothing of a case: one block is enough in the lab, where launches hardly differ."""
BOTH = ("default", "tuned")
GROUPS = (
    *(Group("2x1", letter, PORTS, BOTH) for letter in "SW"),
    *(Group("2x1", letter, CARDS, (setting,)) for letter in "SW" for setting in BOTH),
    *(Group(where, "S", (path,), ("tuned",)) for where in ("2x2", "2x2 cyclic") for path in ("native", "bridge")),
    Group("4x1", "S", PORTS, ("tuned",)),
    Group("4x1", "S", ("bridge", "vhost"), ("tuned",)),
)
HELD_OUT = (
    *(Group("2x1", "S", UNSEEN, (setting,)) for setting in reversed(BOTH)),
    Group("4x1", "S", ("vf", "passthrough"), ("tuned",)),
    Group("4x1", "S", ("virtio",), ("tuned",)),
    Group("4x2", "S", ("bridge",), ("tuned",)),
    Group("4x2", "S", ("vf",), ("tuned",)),
)


# ---------------------------------------------------------------- measuring


def head(name: str, baseline: str, **machines: int) -> str:
    """Return a study's first tables; `machines` are options of the host, of a cluster where there are any."""
    cluster = "".join(f", {option} = {value}" for option, value in machines.items())
    return HEAD.format(name=name, baseline=baseline, machines=cluster)


def workload(name: str, letter: str, nodes: list[int], *, trace: bool = False) -> str:
    """Return the table of a program; a trace is taken inside one machine."""
    grid = f', grid = "{len(nodes)}x1x1"' if name == "advection" else ""
    placed = f"ranks = {len(nodes)}" if trace else f"placement = {nodes}"
    options = f'class = "{letter}"{grid}{", trace = true" if trace else ""}'
    return f'[[workload]]\nname = "{name}"\nkind = "application"\n{placed}\noptions = {{ {options} }}\n'


def tables(paths: Iterable[str], settings: Iterable[str]) -> str:
    """Return the tables of paths and settings."""
    rows = []
    for path in paths:
        option = "" if path in PORTS else f"options = {{ rx_usecs = {RX_USECS[next(iter(settings))]} }}\n"
        rows.append(f'[[path]]\nname = "{path}"\n{option}')
    for setting in settings:
        moderation = f'"nic.rx-usecs" = {RX_USECS[setting]}, ' if set(paths) <= set(PORTS) else ""
        rows.append(f'[[setting]]\nname = "{setting}"\nknobs = {{ {moderation}"host.tcp_autocorking" = 0 }}\n')
    return "".join(rows)


def studies(groups: Iterable[Group]) -> dict[str, str]:
    """Return every study that the groups need, by the name of its run."""
    found = {}
    shipped = (ROOT / "studies" / "predict-lab.toml").read_text()
    micro = shipped[shipped.index("[[workload]]") : shipped.index("[[setting]]")]
    needed = {group.micro(setting) for group in groups for setting in group.settings}
    apart = ((paths, (setting,)) for paths in (CARDS, UNSEEN) for setting in reversed(BOTH))
    for paths, settings in ((PORTS, BOTH), *apart):
        name = Group("2x1", "S", paths, settings).micro(settings[0])
        if name not in needed:
            continue
        inside = '[[path]]\nname = "shm"\n' if "tuned" in settings else ""  # for two ranks on each machine
        found[name] = head(name, paths[0], nodes=2, launches=7) + inside + tables(paths, settings) + micro
    for group in groups:
        nodes = PLACEMENTS[group.where]
        traced, placed = (
            "".join(workload(name, group.letter, nodes, trace=trace) for name in group.programs)
            for trace in (True, False)
        )
        found[group.traces] = head(group.traces, "shm") + '[[path]]\nname = "shm"\n' + traced
        start = head(group.name, group.paths[0], nodes=max(nodes) + 1, launches=len(group.programs))
        found[group.name] = start + tables(group.paths, group.settings) + placed
    return found


def measure(folder: Path, name: str, study: str, blocks: int) -> None:
    """Measure the blocks of a study that its run does not have."""
    text, out = folder / f"{name}.toml", folder / name
    text.write_text(study)
    done = len(RunDir.open(out).trials()) // len(plan.block(parse_study(study, name), 0)) if out.is_dir() else 0
    where = ["--resume", str(out)] if out.is_dir() else [str(text), "--out", str(out)]
    if done < blocks:
        subprocess.run([NEARMETAL, "run", *where, "--blocks", str(blocks - done)], check=False)
    if not out.is_dir():
        raise SystemExit(3)


# ---------------------------------------------------------------- predicting


def predicted(folder: Path, group: Group, name: str, micro: str, *how: str) -> tuple[CaseJson, bool]:
    """Return the one case that `predict --validate` compares, and whether it came with a warning."""
    kept = folder / "one.validation.json"
    command = [NEARMETAL, "predict", f"{folder / group.traces}:{name}", "--on", str(folder / micro), *how]
    command += ["--validate", str(folder / group.name), "--workload", name, "--replicas", "16", "--save", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr}")
    (case,) = read(kept, ValidationFile).cases
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    return case, any(not any(common in line for common in OF_EVERY_CASE) for line in warnings)


def cases_of(folder: Path, group: Group) -> Iterator[LabCase]:
    """Yield the cases of a group."""
    for name in group.programs:
        for path in group.paths:
            for setting in group.settings:
                on = ("--path", path, "--setting", setting)
                case, warned = predicted(folder, group, name, group.micro(setting), *on)
                by_rule: tuple[float | None, ...] = None, None
                if setting == "default":
                    rule = ["--setting", "tuned", "--interrupts", RULES.get(path, RULE), "--as", setting]
                    if path not in PORTS:  # one run cannot hold both settings of the port beneath
                        rule += ["--moderated", str(folder / group.micro(setting))]
                    ruled, warned = predicted(folder, group, name, group.micro("tuned"), "--path", path, *rule)
                    by_rule = round(ruled.predicted_ns / 1e6, 2), in_ms(ruled.predicted_p99_ns)
                launches_ms = " ".join(f"{ns / 1e6:.2f}" for ns in case.launches_ns)
                of = (group.where, name, group.letter, path, setting, launches_ms)
                p99 = in_ms(median(case.p99_ns) if case.p99_ns else None), in_ms(case.predicted_p99_ns)
                predicted_ms = round(case.predicted_ns / 1e6, 2)
                yield LabCase(*of, predicted_ms, by_rule[0], warned, group in HELD_OUT, *p99, by_rule[1])


def in_ms(ns: float | None) -> float | None:
    """Return an iteration's time to a tenth of a microsecond."""
    return None if ns is None else round(ns / 1e6, 4)


def orders(cases: list[LabCase], *, of_settings: bool) -> tuple[int, int]:
    """Return the pairs of paths (and settings) of a program that differ measurably, and those in the wrong order."""
    return wrong_orders(
        (
            (case.where, case.program, case.letter, "" if of_settings else case.setting),
            median(case.times_ms),
            (max(case.times_ms) - min(case.times_ms)) / median(case.times_ms),
            case.best_ms,
        )
        for case in cases
    )


# ---------------------------------------------------------------- showing


def rows(cases: list[LabCase], where: str, letter: str) -> Iterator[str]:
    """Yield a table of the cases of a placement and class: a row a program, what was measured and the error of each."""
    here = [case for case in cases if (case.where, case.letter) == (where, letter)]
    columns = list(dict.fromkeys((case.path, case.setting) for case in here))
    yield f"| {where}, class {letter} | " + " | ".join(f"{path}, {setting}" for path, setting in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for name in dict.fromkeys(case.program for case in here):
        found = {(case.path, case.setting): case for case in here if case.program == name}
        told = (shown(found[column]) if column in found else "-" for column in columns)
        yield f"| {name} | " + " | ".join(told) + " |"


def shown(case: LabCase) -> str:
    """Return what was measured and the error."""
    return f"{median(case.times_ms):.4g} ms, {case.error:+.1%}".replace("%", " %")


def picture(cases: list[LabCase]) -> str:
    """Return an SVG with a row for each placement, path and setting, and a point for each program."""
    lines = defaultdict(list)
    for case in cases:
        lines[case.where, case.path, case.setting].append(case)
    height = ROW * (len(lines) + 2)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{WIDTH}" height="{height}" fill="white"/>'
    ]
    for percent in range(-30, 31, 10):
        x = across(percent / 100)
        drawn.append(f'<path d="M{x} {ROW}V{height - ROW}" stroke="{"#555" if percent == 0 else "#ddd"}"/>')
        told = f"{percent:+d} %" if percent else "0 %"
        drawn.append(f'<text x="{x}" y="{height - 6}" text-anchor="middle">{told}</text>')
    for at, ((where, path, setting), found) in enumerate(lines.items(), 1):
        y = ROW * (at + 0.5)
        drawn.append(f'<text x="8" y="{y + 4}">{where}, {path}, {setting}</text>')
        for case in found:
            told = f"{case.program} {case.letter}: {shown(case)}"
            drawn.append(
                f'<circle cx="{across(case.error)}" cy="{y}" r="4" fill="{COLOURS[case.letter]}" fill-opacity="0.6">'
                f"<title>{told}</title></circle>"
            )
    for at, (letter, colour) in enumerate(COLOURS.items()):
        x = LEFT + 90 * at
        drawn.append(f'<circle cx="{x}" cy="12" r="4" fill="{colour}"/><text x="{x + 8}" y="16">class {letter}</text>')
    drawn.append(f'<text x="{WIDTH - 8}" y="16" text-anchor="end">error of the predicted time</text></svg>')
    return "\n".join(drawn) + "\n"


def across(error: float) -> float:
    """Return where an error stands; those beyond 35 % stand at the edge."""
    return round(LEFT + (WIDTH - LEFT - 20) * (min(max(error, -0.35), 0.35) + 0.35) / 0.7, 1)


def summary(cases: list[LabCase]) -> Iterator[str]:
    """Yield the table of median and worst errors."""
    yield "| machines x ranks on each, class, setting | cases | median error | worst |"
    yield "|---|--:|--:|---|"
    groups = defaultdict(list)
    for case in cases:
        groups[case.where, case.letter, case.setting].append(case)
    for (where, letter, setting), found in [*groups.items(), (("all", "", ""), cases)]:
        worst = max(found, key=lambda case: abs(case.error))
        name = ", ".join(one for one in (where, letter, setting) if one)
        middle = median(abs(case.error) for case in found)
        of = f"{worst.program} {worst.letter} on {worst.path}"
        yield f"| {name} | {len(found)} | {middle:.1%} | {worst.error:+.1%} ({of}) |".replace("%", " %")


def intervals(cases: Iterable[LabCase]) -> Iterator[str]:
    """Yield the table of intervals by class, and how many cases are inside: of programs left out, and held out."""
    yield "| class | cases | interval | inside if their program is left out | held out: inside |"
    yield "|---|--:|---|--:|--:|"
    found = [(case.case_class, one.held_out, one.program, case.error) for one in cases for case in one.cases()]
    for name in dict.fromkeys(case_class for case_class, *_ in found):
        known, held_out = ([row[2:] for row in found if row[:2] == (name, held)] for held in (False, True))
        if not known:
            continue
        inside, judged, _ = coverage(known)
        span = Errors(name, tuple(sorted(error for _, error in known))).span()
        told, within = "too few cases", "-"
        if span:
            told = f"{span[0]:.2f} to {span[1]:.2f}"
            within = f"{sum(span[0] <= exp(error) <= span[1] for _, error in held_out)} of {len(held_out)}"
        yield f"| {name} | {len(known)} | {told} | {inside} of {judged} | {within} |"


def with_shipped(cases: list[LabCase]) -> list[LabCase]:
    """Return the cases and those that ship of the other kind, those that were held out last."""
    others = [case for case in lab_cases() if case.held_out != cases[0].held_out]
    return sorted([*others, *cases], key=lambda case: case.held_out)


def write(cases: list[LabCase]) -> None:
    """Write the cases into the package, and the picture of those that were not held out."""
    (ROOT / "docs/pictures/prediction-lab.svg").write_text(picture([case for case in cases if not case.held_out]))
    with (ROOT / "src/nearmetal/predict/validated_lab.csv").open("w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(LabCase)])
        writer.writerows(astuple(case) for case in cases)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="Where runs are kept, and found again.")
    parser.add_argument("--blocks", type=int, default=1, help="How often each launch is repeated.")
    parser.add_argument("--write", action="store_true", help="Write the cases and the picture into the repository.")
    parser.add_argument("--held-out", action="store_true", help="Programs on paths and placements that were held out.")
    options = parser.parse_args()
    groups = HELD_OUT if options.held_out else GROUPS
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        for name, study in studies(groups).items():
            measure(folder, name, study, options.blocks)
        cases = [case for group in groups for case in cases_of(folder, group)]
    print("\n".join(summary(cases)), end="\n\n")
    for where, letter in dict.fromkeys((case.where, case.letter) for case in cases):
        print("\n".join(rows(cases, where, letter)), end="\n\n")
    print("\n".join(intervals(with_shipped(cases))), end="\n\n")
    if options.write:
        write(with_shipped(cases))
    apart, wrong = orders(cases, of_settings=False)
    print(f"{wrong} of {apart} pairs of paths with a measurable difference are in the wrong order")
    print("{1} of {0} with those of other settings".format(*orders(cases, of_settings=True)))
    unwarned = [f"no warning: {case}" for case in cases if abs(case.error) > WARNED_ABOVE and not case.warned]
    missed = short_of("median error, %", 100 * median(abs(case.error) for case in cases), 100 * GOAL)
    return ended([*missed, *short_of("pairs in the wrong order", wrong, 0), *unwarned])


if __name__ == "__main__":
    sys.exit(main())
