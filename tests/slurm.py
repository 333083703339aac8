"""A throw-away Slurm for tests: munged, slurmctld and two slurmd, in namespaces of this machine joined by a cable.

Each slurmd has a namespace of its own with `eth0`, so that a trial crosses a network; the controller is in the first.
Programs that talk to it (sbatch, srun ...) run in that namespace too, through wrappers in `bin`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import UnavailableError
from nearmetal.hosts.batch.host import BatchHost
from nearmetal.hosts.batch.slurm import Slurm
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.paths.table import find_path
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus
from nearmetal.workloads.mpi.table import find_mpi

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.host import Helper, Shell

NODES = ["n0", "n1"]
_DAEMONS = ("munged", "slurmctld", "slurmd")
_CLIENTS = ("sbatch", "scontrol", "scancel", "srun", "sinfo", "squeue")
_START_S = 300.0
_CONFIG = """ClusterName=throwaway
SlurmctldHost=n0(10.77.0.1)
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket={s}/munge.sock,cred_expire=5
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={s}/state
SlurmdSpoolDir={s}/spool-%n
SlurmctldPidFile={s}/ctld.pid
SlurmdPidFile={s}/slurmd-%n.pid
SlurmctldLogFile={s}/ctld.log
SlurmdLogFile={s}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=1
SlurmctldDebug=debug2
KillWait=2
OverTimeLimit=0
TmpFS={s}/scratch-%n
SchedulerParameters=batch_sched_delay=1,sched_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName=n0 NodeAddr=10.77.0.1 CPUs={cpus} RealMemory=500 State=UNKNOWN
NodeName=n1 NodeAddr=10.77.0.2 CPUs={cpus} RealMemory=500 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=test Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=YES PriorityTier=1
PartitionName=whole Nodes=ALL MaxTime=60 State=UP OverSubscribe=EXCLUSIVE PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=2 PreemptMode=OFF
"""


def why_not() -> str:
    """Return why Slurm cannot be tested here, or ''."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in (*_DAEMONS, *_CLIENTS) if not shutil.which(name, path=path)]
    if missing:
        return f"{missing[0]} is not installed (apt install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "slurmd needs root"


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[NamespaceShell, Path]]:
    """Start the cluster; yield the shell of its nodes and the directory of its client programs."""
    if why_not():
        pytest.skip(why_not())
    try:
        namespaces = NamespaceShell()
    except UnavailableError as error:
        pytest.skip(error.render())
    with namespaces as shell:
        for node in NODES:
            shell.add_node(node)
            (folder / f"scratch-{node}").mkdir()
            (folder / f"spool-{node}").mkdir()
            shell.run(["mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup"], node=node)  # slurmd wants it mounted
        find_path("veth").up(shell, PathOrder("veth", "veth"), NODES)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (folder / "slurm.conf").write_text(_CONFIG.format(s=folder, cpus=max(2, os.cpu_count() or 2)))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # loaded but not used here
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.sock"]
        munged += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed"]
        shell.start(["/usr/sbin/" + munged[0], *munged[1:]], node="n0")
        config = f"SLURM_CONF={folder}/slurm.conf"
        start_controller(shell, folder)
        for node in NODES:
            shell.start(["env", config, "/usr/sbin/slurmd", "-D", "-N", node], node=node)
        clients = _wrappers(folder, shell)
        _await_idle(clients, folder)
        yield shell, clients


def start_controller(shell: NamespaceShell, folder: Path) -> Helper:
    """Start slurmctld, which finds its former state."""
    return shell.start(["env", f"SLURM_CONF={folder}/slurm.conf", "/usr/sbin/slurmctld", "-D"], node="n0")


@contextlib.contextmanager
def host(folder: Path, mpi: str = "openmpi", **options: str | float) -> Iterator[BatchHost]:
    """Yield a host over a throw-away cluster, its programs first in PATH."""
    with cluster(folder) as (_, clients), over(clients, mpi, **options) as made:
        yield made


@contextlib.contextmanager
def over(clients: Path, mpi: str = "openmpi", **options: str | float) -> Iterator[BatchHost]:
    """Yield a host over a cluster, its programs first in PATH."""
    try:
        prefix = Path(find_mpi(mpi).mpirun).parents[1]
    except UnavailableError as error:
        pytest.skip(error.render())
    given: dict[str, str | int | float | bool] = {"interface": "eth0", "mpi_prefix": str(prefix)}
    given |= {"cache": os.environ["NEARMETAL_FAR_CACHE"], "time_limit_s": 3600, "queue_timeout_s": 600, **options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(clients), prepend=":")
        with contextlib.closing(BatchHost(Slurm(), given)) as made:
            yield made


def tool(*argv: str, check: bool = True) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=600, check=check).stdout


def look(shell: Shell, order: Order) -> Outcome:
    """Carry out no launch, but return the job."""
    del order
    shell.add_node("n0")
    return Outcome(TrialStatus.VALID, said=shell.run(["hostname"], node="n0").text.strip())


def await_end_of_job(job: str, node: str) -> None:
    """Wait until the controller knows that a node has finished a job; the client programs are first in PATH."""
    config = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=600, check=True)
    log = Path(re.search(r"^SlurmctldLogFile\s*=\s*(.+)$", config.stdout, re.MULTILINE)[1])  # type: ignore[index]
    finished = re.compile(rf"_slurm_rpc_epilog_complete: JobId={job}\b.* Node={node}\b")
    deadline = time.monotonic() + _START_S
    while not finished.search(log.read_text(errors="replace")):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{node} is not done with job {job}; the controller's last words: {log.read_text()[-2000:]}"
            )
        time.sleep(0.1)


def _wrappers(folder: Path, shell: NamespaceShell) -> Path:
    clients = folder / "bin"
    clients.mkdir()
    for name in _CLIENTS:
        entering = " ".join(shell._enter("n0"))
        wrapper = clients / name
        program = shutil.which(name)
        wrapper.write_text(
            f'#!/bin/sh\nPATH=${{PATH#{clients}:}} SLURM_CONF={folder}/slurm.conf exec {entering} {program} "$@"\n'
        )
        wrapper.chmod(0o755)
    return clients


def _await_idle(clients: Path, folder: Path) -> None:
    deadline = time.monotonic() + _START_S
    sinfo = [str(clients / "sinfo"), "-h", "-N", "-p", "test", "-o", "%T"]
    while True:
        listed = subprocess.run(sinfo, capture_output=True, text=True, timeout=600, check=False)
        if listed.stdout.split() == ["idle", "idle"]:
            return
        if time.monotonic() > deadline:
            logs = "\n".join(path.read_text()[-800:] for path in folder.glob("*.log"))
            pytest.skip(f"Slurm did not come up on {socket.gethostname()}: {listed.stdout} {listed.stderr}\n{logs}")
        time.sleep(0.1)
