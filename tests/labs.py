"""The real lab for tests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import NearmetalError
from nearmetal.hosts.lab.lab import LabHost, open_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.study.order import Scalar


@contextlib.contextmanager
def opened(machine: str, **options: Scalar) -> Iterator[LabHost]:
    """Open the lab with a machine of that name; skip the test where it cannot run, with its reason."""
    try:
        host = open_lab({"machine": machine, **options}, lambda _: None)
    except NearmetalError as error:
        pytest.skip(f"{error.message}; {error.hint}")
    with contextlib.closing(host):
        yield host
