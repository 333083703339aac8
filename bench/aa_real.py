"""50 real A/A comparisons: the baseline of studies/aa.toml against itself, 5 blocks each, judged like any comparison.

python bench/aa_real.py [--run DIR]      DIR: a finished run of studies/aa.toml; without it one is made (4 minutes)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from nearmetal.results.series import launches
from nearmetal.stats.summary import HEADLINE, over_blocks
from nearmetal.store.rundir import RunDir

BLOCKS = 5
HERE = Path(__file__).parent


def comparisons(run: RunDir) -> list[dict[str, object]]:
    """Return consecutive groups of `BLOCKS` blocks in which both launches were valid."""
    records = run.trials()
    sides = {
        cell.path: over_blocks(by_block, HEADLINE)[0]
        for cell, by_block in launches(run, records).items()
        if (cell.operation, cell.message_bytes) == ("latency", 8)
    }
    both = sorted(sides["veth"].keys() & sides["veth-again"].keys())
    groups = [both[i : i + BLOCKS] for i in range(0, len(both) - BLOCKS + 1, BLOCKS)]
    return [
        {
            "name": f"blocks {group[0]} to {group[-1]}",
            "first": [sides["veth"][b] for b in group],
            "again": [sides["veth-again"][b] for b in group],
        }
        for group in groups
    ]


def main() -> int:
    """Make the run when none is given, and hand its comparisons to the calibration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = options.run or Path(scratch) / "aa"
        if options.run is None:
            nearmetal = [sys.executable, "-c", "from nearmetal.cli.main import main; main()"]
            subprocess.run([*nearmetal, "run", str(HERE.parent / "studies" / "aa.toml"), "--out", str(run)], check=True)
        figures = Path(scratch) / "aa.json"
        found = comparisons(RunDir.open(run))
        print(f"{len(found)} real A/A comparisons of {BLOCKS} blocks")
        figures.write_text(json.dumps(found))
        judge = [sys.executable, str(HERE / "aa_calibration.py"), "--real", str(figures)]
        return subprocess.run(judge, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
