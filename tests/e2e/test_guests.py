"""`nearmetal guests` on a real libvirt in session mode, with an emulated domain of an unprivileged user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

DOMAIN = """<domain type='qemu'><name>nm-guest</name><memory unit='MiB'>64</memory><vcpu>2</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/><ioapic driver='qemu'/></features>
<cpu mode='custom'><model>qemu64</model></cpu><cputune><vcpupin vcpu='0' cpuset='0'/></cputune>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
<interface type='user'><model type='virtio'/></interface><interface type='user'><model type='e1000'/></interface>
</devices></domain>"""
NOBODY = 65534


def test_a_running_domain_is_read_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
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
            [*session, "create", f"{folder}/domain.xml"], capture_output=True, timeout=60, check=False
        )
        if made.returncode:
            pytest.skip(f"libvirt starts no domain here: {made.stderr.decode()}")
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        code = "import sys; from nearmetal.cli.main import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", code, "guests", "--libvirt", "qemu:///session", "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    finally:
        subprocess.run([*session, "destroy", "nm-guest"], capture_output=True, timeout=60, check=False)
        subprocess.run(["pkill", "-F", f"{folder}/libvirt/libvirtd.pid"], timeout=20, check=False)
        subprocess.run(["pkill", "-F", f"{folder}/libvirt/virtlogd.pid"], timeout=20, check=False)
        shutil.rmtree(folder, ignore_errors=True)
    told = json.loads(done.stdout)
    assert told["facts"]["guest.nm-guest.nic0.kind"] == "virtio"
    assert told["facts"]["guest.nm-guest.nic1.kind"] == "e1000"
    assert any("1 of 2 vCPUs are not pinned" in warning for warning in told["warnings"])
