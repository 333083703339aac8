"""Kill -9 at every record and write, on igb, igbvf and netdevsim in the lab, and random histories on igb and igbvf.

Minutes each, so by `make verify-lab`.
"""

from __future__ import annotations

import base64
import json
import lzma
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import knob_campaign
import knob_lab
import labs
from nearmetal.hosts.lab import image
from nearmetal.study.order import Order, PathOrder, WorkloadOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.lab.lab import LabHost
    from nearmetal.study.order import Scalar

pytestmark = [
    pytest.mark.lab,
    pytest.mark.xdist_group("lab"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif("NEARMETAL_WHOLE_LAB" not in os.environ, reason="minutes a test: `make verify-lab`"),
]

VICTIM = Path(__file__).parents[1] / "lab_victim.py"
SETTINGS: dict[str, dict[str, Scalar]] = {
    "eth0": {"nic.rx-usecs": 50, "nic.mtu": 1400},
    "netdevsim": {"nic.rx-usecs": 30, "nic.ring-rx": 512, "nic.channels-combined": 2, "nic.pause-rx": "on"},
}


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHost]:
    with labs.opened("base") as host:
        yield host


def _modules(release: str) -> list[str]:
    """Return the modules built by `make netdevsim`, as files for the guest."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    files = sorted((cache / "nearmetal" / f"netdevsim-{release}").glob("*.ko"))
    return [f"{file.name}.xz.base64={base64.b64encode(lzma.compress(file.read_bytes())).decode()}" for file in files]


@pytest.mark.parametrize(
    ("path", "device"), [("native", "eth0"), ("vf", "eth0"), ("native", "netdevsim")], ids=["igb", "igbvf", "netdevsim"]
)
def test_kill_at_every_record_and_write_on_a_real_driver(lab: LabHost, path: str, device: str) -> None:
    modules = _modules(image.current(print).manifest.facts["kernel"]) if device == "netdevsim" else []
    options: dict[str, Scalar | list[Scalar]] = {
        "argv": ["python3", "{scratch}/lab_victim.py", device, json.dumps(SETTINGS[device])],
        "files": [f"lab_victim.py={VICTIM.read_text()}", *modules],
    }
    workload = WorkloadOrder("victim", "command", options)
    order = Order(0, 0, PathOrder(path, path), workload, seed=1, timeout_s=120.0)
    outcome = lab.carry_out(order, lambda *_: pytest.fail("outside"))
    output = outcome.files.get("command.output", b"").decode()
    if output.startswith("the kernel has no netdevsim"):
        pytest.skip("the lab's kernel has no netdevsim, as Debian builds it; `make netdevsim` builds the module")
    assert output.rstrip().endswith("all as found"), f"{outcome.reason}\n{outcome.said}\n{output}"


@pytest.mark.parametrize(("path", "first", "last"), [("native", 1, 61), ("native", 61, 121), ("vf", 121, 161)])
def test_no_setting_of_a_port_is_silently_left_changed(
    lab: LabHost, path: str, first: int, last: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Scalar | list[Scalar]] = {
        "argv": ["python3", "-S", "{scratch}/start.py", "{scratch}", "eth0", str(first), str(last)],
        "files": [f"start.py={knob_lab.START}", f"packed={knob_lab.packed()}"],
    }
    workload = WorkloadOrder("histories", "command", options)
    order = Order(0, 0, PathOrder(path, path), workload, seed=1, timeout_s=1200.0)
    outcome = lab.carry_out(order, lambda *_: pytest.fail("outside"))
    output = outcome.files.get("command.output", b"").decode()
    results = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [one["seed"] for one in results] == [*range(first, last)], f"{outcome.reason}\n{outcome.said}"
    counts: Counter[str] = Counter()
    for one in results:
        assert not one["wrong"], "\n".join(map(str, (one["seed"], one["wrong"], *one["log"])))
        counts.update(one["counts"])
    with capsys.disabled():
        sys.stdout.write(f"\n{knob_campaign.table(len(results), 0, counts)}\n")
