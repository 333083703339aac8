"""A control group of the kernel with a quota of processor time, where this machine lets one be made."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_TOP = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000


@contextlib.contextmanager
def quota_of(processors: float) -> Iterator[tuple[str, ...]]:
    """Yield what stands before the command of a program that shall have so much processor time; else skip the test."""
    v1 = (_TOP / "cpu/cpu.cfs_quota_us").exists()
    group = (_TOP / "cpu" if v1 else _TOP) / f"nearmetal-test-{os.getpid()}"
    quota_us = round(processors * _PERIOD_US)
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        file, text = ("cpu.cfs_quota_us", f"{quota_us}") if v1 else ("cpu.max", f"{quota_us} {_PERIOD_US}")
        if not (group / file).exists():
            pytest.skip(f"{group} has no quota of processor time")
        (group / file).write_text(text)
        yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    finally:
        group.rmdir()
