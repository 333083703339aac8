"""One flipped bit anywhere in a run directory: reported or without effect, but never a silently changed figure.

`NEARMETAL_FLIPS` says how many flips are tried; `make verify-store` tries 10,000.
"""

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_fabric import MadeUpHost, make_fabric
from fake_runs import STUDY, make_run
from nearmetal.errors import NearmetalError
from nearmetal.store import samples
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.samples import CellSamples
from nearmetal.store.searchdir import SearchDir
from nearmetal.store.verify import verify
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.study.spec import digest

FLIPS = int(os.environ.get("NEARMETAL_FLIPS", "300"))


def traced(root: Path) -> Path:
    """A run whose trial stored files unchanged, beside samples with flags."""
    info = RunInfo("t", digest(STUDY), "fake", "made up", "0", "2026-01-01T00:00:00+00:00")
    outcome = Outcome(TrialStatus.VALID, counters={"irq.LOC": 3}, files={"trace/events": bytes(range(256)) * 9})
    ns = np.arange(400, dtype=np.int64).reshape(2, 200) ** 2
    flags = (ns % 7 == 0).astype(np.uint8)
    with RunDir.create(root, info, STUDY) as run:
        order = Order(0, 0, PathOrder("veth", "veth"), WorkloadOrder("latency", "engine"))
        cells = [CellSamples("latency", 8, 5, (0, 1), ns // 2, ns, flags)]
        run.append(order, outcome, cells, attempt=1, started_utc="2026-01-01T00:00:00+00:00")
    return root


def search(root: Path) -> Path:
    """The same for launches of a search."""
    traced(root)
    info = RunDir.open(root).info
    (root / "run.json").unlink()
    other = root.with_name("made-search")
    SearchDir.create(other, info, STUDY).close()
    shutil.copy(other / "search.json", root)
    return root


MADE: dict[str, Callable[[Path], Path]] = {
    "run": lambda root: make_run(root, STUDY),
    "traced": traced,
    "fabric": lambda root: make_fabric(root, MadeUpHost()),
    "search": search,
}


def opened(root: Path) -> RunDir:
    return (SearchDir if (root / "search.json").exists() else RunDir).open(root)


def verifies(root: Path) -> bool:
    try:
        return not verify(opened(root)).problems
    except NearmetalError:
        return False


def everything(root: Path) -> str:
    """Return a digest of everything that figures are computed from: each reader reads all that it can."""
    run = opened(root)
    parts = [repr(run.info), run.study_text(), str(run.of_fabric)]
    for record in run.trials():
        parts += [repr(record), repr(run.files("traces", record)), repr(run.files("fabric", record))]
        for cell in record.cells:
            parts += [run.values(record, cell).tobytes().hex(), repr(run.rows(record, cell).to_pydict())]
        if record.cells:
            parts.append(repr(run.samples(record).to_pydict()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def everything_or_error(root: Path) -> str | NearmetalError:
    try:
        return everything(root)
    except NearmetalError as error:
        return error


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


@pytest.mark.parametrize("kind", MADE)
def test_no_flipped_bit_silently_changes_a_figure(tmp_path: Path, kind: str) -> None:
    root = MADE[kind](tmp_path / "run")
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    sizes = [path.stat().st_size for path in files]
    whole = everything(root)
    rng = random.Random(20261122)
    for _ in range(FLIPS // len(MADE)):
        # Half of them anywhere, half in a file drawn first, because records are small compared with samples.
        path = rng.choice(files) if rng.random() < 0.5 else rng.choices(files, sizes)[0]
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        found = everything_or_error(root)
        assert isinstance(found, NearmetalError), (
            f"bit {bit} of {path}: {'not reported' if found == whole else 'CHANGED'}"
        )
        assert path.name in found.message or str(root) in found.message, found.message
        assert not verifies(root)
        flip(path, bit)
    assert everything(root) == whole


def test_no_flipped_bit_changes_values_that_are_read_separately(tmp_path: Path) -> None:
    """Values are read without the rest of the file, and checked against sums of their own."""
    run = opened(traced(tmp_path / "run"))
    (record,) = run.trials()
    (cell,) = record.cells
    path, whole = run.samples_path(record), run.values(record, cell).tolist()
    named = 0
    for bit in random.Random(20261122).sample(range(8 * path.stat().st_size), 200):
        flip(path, bit)
        try:
            assert run.values(record, cell).tolist() == whole, f"bit {bit} of {path}"
        except NearmetalError as error:
            named += "has changed since it was recorded" in error.message
        flip(path, bit)
    assert named > 20


def test_values_are_decoded_from_the_checked_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process writes to the file after its sums were checked and before it is decoded."""
    run = opened(traced(tmp_path / "run"))
    (record,) = run.trials()
    (cell,) = record.cells
    path, whole = run.samples_path(record), run.values(record, cell).tolist()
    decode = samples._rank_values

    def overwritten(*asked: Any) -> Any:
        path.write_bytes(bytes(path.stat().st_size))
        return decode(*asked)

    monkeypatch.setattr(samples, "_rank_values", overwritten)
    assert run.values(record, cell).tolist() == whole
    with pytest.raises(NearmetalError, match="has changed"):
        run.values(record, cell)


def test_a_piece_that_was_not_checked_is_never_decoded(tmp_path: Path) -> None:
    run = opened(traced(tmp_path / "run"))
    (record,) = run.trials()
    pieces = samples._Pieces(run.samples_path(record).stat().st_size)
    with run.samples_path(record).open("rb", buffering=0) as file:
        pieces.hold(file, [(100, 50)])
        with pytest.raises(OSError, match="ends at byte"):
            pieces.hold(file, [(run.samples_path(record).stat().st_size - 5, 6)])
    assert pieces.seek(110) == pieces.tell() == 110
    assert bytes(pieces.read(40)) == run.samples_path(record).read_bytes()[110:150]
    for start, size in ((99, 2), (110, 41), (149, 2), (160, 1), (110, -1)):
        pieces.seek(start)
        with pytest.raises(OSError, match="were not verified"):
            pieces.read(size)
