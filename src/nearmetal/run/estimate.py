"""How long a study will take, before anything has run: a rough answer to 'coffee or lunch?'."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.study.plan import combinations

if TYPE_CHECKING:
    from nearmetal.study.spec import Study, WorkloadSpec

# Orders of magnitude of a small machine, for an estimate that is labelled "about": an MPI launch with its path,
# one small message through two network stacks, and bytes through a software path.
LAUNCH_NS = 2_000_000_000
MESSAGE_NS = 30_000
BYTES_PER_US = 1_000


def estimate(study: Study) -> tuple[int, int]:
    """Return about how many ns the fewest and the most blocks take."""
    per_block = sum(_trial_ns(workload) for _, workload, _ in combinations(study))
    return per_block * study.trials.min_blocks, per_block * study.trials.max_blocks


def _trial_ns(workload: WorkloadSpec) -> int:
    iterations = workload.iterations + workload.warmup
    sizes = workload.sizes or [0]
    return LAUNCH_NS + sum(iterations * (MESSAGE_NS + size * 1_000 // BYTES_PER_US) for size in sizes)
