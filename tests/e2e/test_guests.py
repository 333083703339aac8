"""`nearmetal guests` on a real libvirt in session mode, with an emulated domain of an unprivileged user."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearmetal.cli.main import run
from nearmetal.store.rundir import RunDir

DOMAIN = """<domain type='qemu'><name>nm-guest</name><memory unit='MiB'>64</memory><vcpu>2</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/><ioapic driver='qemu'/></features>
<cpu mode='custom'><model>qemu64</model></cpu><cputune><vcpupin vcpu='0' cpuset='0'/></cputune>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
<interface type='user'><model type='virtio'/></interface><interface type='user'><model type='e1000'/></interface>
</devices></domain>"""
NOBODY = 65534


STUDY = """
format = 1
name = "through-guests"
baseline = "veth"
host = { kind = "fake", libvirt = ["qemu:///session"] }
path = [{ name = "veth" }]
workload = [{ name = "latency", sizes = [8], iterations = 30 }]
trials = { min_blocks = 3, max_blocks = 3 }
"""


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A libvirt of an unprivileged user with one running domain; `virsh` in PATH talks to it."""
    virsh = shutil.which("virsh")
    if not virsh or not Path("/usr/sbin/libvirtd").exists() or not Path("/usr/bin/qemu-system-x86_64").exists():
        pytest.skip("libvirt or QEMU is not installed (apt install libvirt-daemon libvirt-clients qemu-system-x86)")
    if os.geteuid() != 0:
        pytest.skip("the test becomes an unprivileged user, which needs root")
    folder = Path(tempfile.mkdtemp(prefix="nm-virt-", dir="/tmp"))  # its socket's path must be short
    os.chown(folder, NOBODY, NOBODY)
    variables = ("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")
    user = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"
    wrapper = folder / "virsh"
    wrapper.write_text(f'#!/bin/sh\nexec {user} env {" ".join(f"{v}={folder}" for v in variables)} {virsh} "$@"\n')
    wrapper.chmod(0o755)
    (folder / "domain.xml").write_text(DOMAIN)
    (folder / "domain.xml").chmod(0o644)
    session = [str(wrapper), "-q", "-c", "qemu:///session"]
    try:
        made = subprocess.run(
            [*session, "create", f"{folder}/domain.xml"], capture_output=True, timeout=600, check=False
        )
        if made.returncode:
            pytest.skip(f"libvirt starts no domain here: {made.stderr.decode()}")
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield session
    finally:
        subprocess.run([*session, "destroy", "nm-guest"], capture_output=True, timeout=600, check=False)
        subprocess.run(["pkill", "-F", f"{folder}/libvirt/libvirtd.pid"], timeout=600, check=False)
        subprocess.run(["pkill", "-F", f"{folder}/libvirt/virtlogd.pid"], timeout=600, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def test_a_running_domain_is_parsed_warned_about_and_recorded_in_every_trial(
    session: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["guests", "--libvirt", "qemu:///session", "--format", "json"]) == 0
    stdout = json.loads(capsys.readouterr().out)
    assert stdout["facts"]["guest.nm-guest.nic0.kind"] == "virtio"
    assert stdout["facts"]["guest.nm-guest.nic1.kind"] == "e1000"
    assert any("1 of 2 vCPUs are not pinned" in warning for warning in stdout["warnings"])

    (tmp_path / "study.toml").write_text(STUDY)
    assert run(["run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().err.splitlines()
    (warned,) = [number for number, line in enumerate(lines) if "1 of 2 vCPUs are not pinned" in line]
    assert warned < next(number for number, line in enumerate(lines) if "block" in line), "before anything is measured"
    records = RunDir.open(tmp_path / "run").trials()
    assert len(records) == 6
    assert {record.outcome.facts["guest.nm-guest.vcpu0.pin"] for record in records} == {"0"}

    subprocess.run([*session, "destroy", "nm-guest"], capture_output=True, timeout=600, check=True)
    assert run(["run", "--resume", str(tmp_path / "run")]) == 0
    assert "no guest runs at qemu:///session" in capsys.readouterr().err
