"""Existing output as the trials of a new run, which then compares like any other.

The k-th launch of a label that measured a cell is its block k. Nothing was interleaved or drawn at random, so what
changed on the machines between the files is in the ratios: the run says so wherever it is shown.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.reading import read_bytes
from nearmetal.results.shown import shown_for
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.samples import CellSamples
from nearmetal.study.draft import block, entries
from nearmetal.study.facts import IMPORTED_NOTES, IMPORTED_WINDOW
from nearmetal.study.fields import MOST
from nearmetal.study.order import Order, Outcome, PathOrder, Scalar, TrialStatus, WorkloadOrder
from nearmetal.study.spec import MOST_BLOCKS, digest, parse_study
from nearmetal.units import counted
from nearmetal.workloads.figures import IMPORTED, IMPORTED_MESSAGES
from nearmetal.workloads.samples import read_foreign
from nearmetal.workloads.tools.tool import NO_SIZE, Foreign

HOST_KIND = "import"
HOST_LABEL = (
    "files of other programs: not measured by nearmetal, the order of the launches is unknown, and a mean supports "
    "no percentile"
)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")
_MOST_LETTERS, _DIGITS_OF_SUM = 40, 6
_LEAST_BLOCKS = 3
_HINT_ONCE = "give each launch once: an interval needs independent launches"
_DIGITS_BY_CHANCE = 32
"""Equal figures of this many digits in all are of one launch; a few sizes in hundredths of a us may well agree."""


@dataclass(frozen=True, slots=True)
class AdoptedFile:
    """What became of one file."""

    file: str
    label: str
    block: int
    found: Foreign[CellSamples]


def adopt(files: Sequence[tuple[str, Path]], root: Path, *, baseline: str = "") -> list[AdoptedFile]:
    """Make a run directory of labelled files; raise before anything is written when one of them cannot be read.

    `files` are (label, path) in the order of the blocks. Labels become paths, the first is the baseline unless
    `baseline` names another.
    """
    adopted = _read(files)
    labels = list(dict.fromkeys(one.label for one in adopted))
    base = baseline or labels[0]
    if base not in labels:
        raise BadInputError(f"no file has the label {base!r}", hint=f"labels given: {', '.join(labels)}")
    _refuse_many(labels, adopted)
    text = _study_text(base, labels, adopted)
    study = parse_study(text, "the import")
    info = RunInfo.now(study.name, digest(text), HOST_KIND, HOST_LABEL)
    with RunDir.create(root, info, text) as run:
        for number, one in enumerate(adopted):
            facts: dict[str, Scalar] = {"import.file": one.file, IMPORTED_NOTES: "; ".join(one.found.lacks)}
            if one.found.window:
                facts[IMPORTED_WINDOW] = one.found.window
            if one.found.version:
                facts[f"{one.found.program}.version"] = one.found.version
            outcome = Outcome(TrialStatus.VALID, launch_argv=("import", one.file), facts=facts)
            run.append(_order(number, one), outcome, one.found.cells, attempt=1, started_utc=info.created_utc)
    return adopted


def _read(files: Sequence[tuple[str, Path]]) -> list[AdoptedFile]:
    adopted: list[AdoptedFile] = []
    seen: dict[tuple[str, str, str, int], int] = {}
    problems = []
    for label, path in files:
        if not _LABEL.fullmatch(label):
            raise BadInputError(f"{label!r} cannot be a label", hint="letters, digits and . _ + -, at most 40")
        try:
            found = read_foreign(read_bytes(path))
        except OSError as error:
            problems.append(f"{path}: {_why_unread(path, error)}")
            continue
        except ForeignFileError as error:
            problems.append(f"{path}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
            continue
        for named in found:
            one = replace(named, workload=_short(named.workload))
            cells = [(label, one.workload, cell.operation, cell.message_bytes) for cell in one.cells]
            block = max(seen.get(cell, 0) for cell in cells)
            seen |= dict.fromkeys(cells, block + 1)
            adopted.append(AdoptedFile(str(path), label, block, one))
    if problems:
        count = counted(len(problems), "file")
        hint = "name output files of benchmarks: nearmetal import native=a.txt vm=b.txt"
        raise ForeignFileError(f"{count} cannot be imported:\n  " + "\n  ".join(problems), hint=hint)
    if not adopted:
        raise BadInputError("no files to import", hint="nearmetal import native=a.txt vm=b.txt")
    _refuse_copies(files, adopted)
    _refuse_unsized(adopted)
    return adopted


def _short(name: str) -> str:
    """Return a name that a study may have: of a longer one its beginning, and a sum, so that no two become one."""
    if len(name) <= _MOST_LETTERS:
        return name
    digits = sha256(name.encode()).hexdigest()[:_DIGITS_OF_SUM]
    return f"{name[: _MOST_LETTERS - 1 - _DIGITS_OF_SUM]}-{digits}"


def _why_unread(path: Path, error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return f"it is a directory (name its files: {path}/*)"
    pattern = " (after LABEL= the shell does not fill in a pattern: name each file)" if "*" in path.name else ""
    return f"{error.strerror}{pattern}"


def _refuse_copies(files: Sequence[tuple[str, Path]], adopted: Sequence[AdoptedFile]) -> None:
    """Raise BadInputError where one launch would count twice: its interval would be of a spread that nobody saw."""
    given: dict[Path, Path] = {}
    for _, path in files:
        if given.setdefault(path.resolve(), path) is not path:
            raise BadInputError(f"{path} is given twice", hint=_HINT_ONCE)
    known: dict[tuple[object, ...], AdoptedFile] = {}
    for one in adopted:
        cells = one.found.cells
        figures = tuple((cell.operation, cell.message_bytes, sha256(cell.ns.tobytes()).digest()) for cell in cells)
        first = known.setdefault((one.found.workload, *figures), one)
        if first is not one and _digits(one) >= _DIGITS_BY_CHANCE:
            raise BadInputError(
                f"{one.file} ({one.label}) holds a launch of {first.file} ({first.label}): all figures are the same",
                hint=_HINT_ONCE,
            )


def _refuse_unsized(adopted: Sequence[AdoptedFile]) -> None:
    """Raise BadInputError where launches of an unknown size would stand beside others, as if it were 0 B."""
    told = {(one.found.workload, cell.operation) for one in adopted for cell in one.found.cells if cell.message_bytes}
    for one in adopted:
        if NO_SIZE in one.found.lacks and (one.found.workload, one.found.cells[0].operation) in told:
            raise BadInputError(
                f"{one.file} does not say the size of its messages, as other files of {one.found.workload} do",
                hint="import files without a size into a run of their own",
            )


def _digits(one: AdoptedFile) -> int:
    """Return how many digits its figures have in all, as they were printed: a rate's duration has others."""
    workload = _order(0, one).workload
    shown = [(shown_for(workload, cell.operation, cell.message_bytes), cell.ns.ravel()) for cell in one.found.cells]
    figures = (scale.value(ns) for scale, values in shown for ns in values.tolist())
    return sum(len(f"{figure:.8e}".partition("e")[0].replace(".", "").rstrip("0")) for figure in figures)


def _refuse_many(labels: Sequence[str], adopted: Sequence[AdoptedFile]) -> None:
    """Raise BadInputError for more than a run holds, in words of the files: nobody wrote the study that is made."""
    workloads = list(dict.fromkeys(one.found.workload for one in adopted))
    for kind, names in (("label", labels), ("benchmark", workloads)):
        if len(names) > MOST:
            text = f"{counted(len(names), kind)} ({names[0]}, ..., {names[-1]}), but a run holds at most {MOST}"
            raise BadInputError(text, hint=f"import the files in parts of at most {MOST} {kind}s")
    last = max(adopted, key=lambda one: one.block)
    if last.block < MOST_BLOCKS:
        return
    same = (last.label, last.found.workload)
    files = list(dict.fromkeys(one.file for one in adopted if (one.label, one.found.workload) == same))
    where = files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} the first"
    raise BadInputError(
        f"{1 + last.block} launches of {last.found.workload} under the label {last.label} (in {where}), but a run "
        f"holds at most {MOST_BLOCKS}",
        hint="cut the output into parts, and give each a label (LABEL=FILE) or import it as a run of its own",
    )


def _order(number: int, one: AdoptedFile) -> Order:
    sizes: list[Scalar] = [cell.message_bytes for cell in one.found.cells]
    options: dict[str, Scalar | list[Scalar]] = {
        "operation": one.found.cells[0].operation,
        "sizes": list(dict.fromkeys(sizes)),
        "window": IMPORTED_MESSAGES,
    }
    placement = tuple(rank % 2 for rank in range(max(1, one.found.ranks)))
    return Order(
        number,
        one.block,
        PathOrder(one.label, IMPORTED),
        WorkloadOrder(one.found.workload, IMPORTED, options, placement),
    )


def _study_text(baseline: str, labels: Sequence[str], adopted: Sequence[AdoptedFile]) -> str:
    """Return the study that these files could have come from."""
    blocks = max(_LEAST_BLOCKS, 1 + max(one.block for one in adopted))
    title = "Results imported from files of other programs"
    lines = [
        "# Made by `nearmetal import`; it cannot be run again.",
        *entries({"format": 1, "name": "imported", "title": title, "baseline": baseline}),
        *block("[host]", {"kind": HOST_KIND}),
    ]
    for label in labels:
        lines += block("[[path]]", {"name": label, "kind": IMPORTED})
    for workload in dict.fromkeys(one.found.workload for one in adopted):
        lines += block("[[workload]]", {"name": workload, "kind": IMPORTED})
    return "\n".join([*lines, *block("[trials]", {"min_blocks": blocks, "max_blocks": blocks}), ""])
