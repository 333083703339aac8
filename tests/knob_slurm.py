"""The histories of `knob_histories.py` in jobs of a real Slurm.

`python knob_slurm.py FIRST STEP LAST` starts a cluster and plays them on its node n1; `apply` runs in steps of a job
there, trials and `tune` in allocations of their own. Jobs are cancelled, requeued, lose their node or reach their time
limit, in the middle of a write or while a setting waits for confirmation. `python knob_slurm.py SPEC` runs a verb in a
step.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import slurm
from knob_histories import History, quick_apply
from knob_player import PATIENCE_S
from knob_ssh import SshHistory, over_ssh
from knob_world import DEVICES, OF_SLURM, Boot, Command, Fault
from nearmetal.cli.main import run as run_verb
from nearmetal.hosts.batch.host import BatchHost
from nearmetal.hosts.batch.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nearmetal.hosts.host import Host

_NODE = "n1"
# No history waits for these limits, so that a loaded machine does not reach them.
_LIMITS = {"time_limit_s": 3600, "queue_timeout_s": 3600}
_ASKED = {"nodes": 1, "nodelist": _NODE, "exclusive": False, "blocks": 1, **_LIMITS}
_HOLD = ["sbatch", "--parsable", f"--nodelist={_NODE}", "--requeue", "--output=/dev/null", "--wrap=exec sleep 100000"]


class SlurmHistory(SshHistory):
    """A history on a node of a cluster: jobs and logged-in users share its home."""

    faults = ("", "", "kill", "interrupt", "scancel", "requeue", "node lost", "time limit", "ENOSPC", "EROFS", "EIO")
    answers = ("yes", "no", "kill", "both", "scancel", "scancel", "requeue", "node lost", "time limit")
    to = ()
    host = (_NODE,)

    def __init__(self, seed: int, other: tuple[int, int], *, sshd: Any) -> None:
        super().__init__(seed, other, sshd=sshd, alias=_NODE)
        # Jobs and log-ins share one home, and a trial's far side keeps its scripts where this machine has its journals.
        self.folder = self.home / ".local/state/nearmetal/journal"
        self.job = ""

    def reach(self, boot: Boot, *, away: bool) -> None:
        super().reach(boot, away=away)
        os.environ["XDG_STATE_HOME"] = str(self.home / ".local/state")

    def trials(self) -> Host:
        return BatchHost(Slurm(), _ASKED)

    def tuned(self, device: str) -> str:
        options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in _ASKED.items())
        path = f'[[path]]\nname = "p"\nkind = "declared"\noptions = {{ interface = "{device}" }}\n'
        return f'[host]\nkind = "slurm"\noptions = {{ {options} }}\n{path}'

    def fault(self, most: int) -> Fault:
        fault = super().fault(most)
        return replace(fault, lasting=fault.lasting and fault.kind not in OF_SLURM)

    def start_apply(self, argv: list[str], fault: Fault) -> Command:
        """Run `apply` in a step of a job on the node."""
        self.await_job()
        inside, spec = (self.root / f"{name}-{len(self.log)}" for name in ("inside", "spec"))
        request = {
            "argv": argv,
            "kind": fault.kind,
            "step": fault.step,
            "lasting": fault.lasting,
            "inside": str(inside),
        }
        spec.write_text(json.dumps(request | {"acted": str(self.acted()), "folder": str(self.folder)}))
        step = ["srun", f"--jobid={self.job}", "--overlap", "--ntasks=1", "--mpi=none", "--unbuffered", "--quiet"]
        step += [sys.executable, __file__, str(spec)]
        command = self.start(partial(os.execvp, "srun", step), Fault(), acts=fault)
        command.inside = inside
        return command

    def judge(self, command: Command, status: int) -> int:
        # srun reports a signal like a shell.
        return super().judge(command, 128 - status if command.inside and status > 128 else status)

    def await_job(self) -> None:
        """Ensure that a job runs on the node: the previous one or a new one."""
        deadline = time.monotonic() + PATIENCE_S
        while (state := _output_of("squeue", "-h", "-o", "%T", "-j", self.job) if self.job else "") != "RUNNING":
            if state not in {"PENDING", "CONFIGURING", "COMPLETING"}:
                self.job = _output_of(*_HOLD)
            if time.monotonic() > deadline:
                raise AssertionError(f"job {self.job} does not run: {_output_of('scontrol', 'show', 'job', self.job)}")
            time.sleep(0.2)

    def finish(self, command: Command) -> int:
        """Wait as usual; allocations of killed trials are released by whoever started them."""
        status = super().finish(command)
        while _output_of("squeue", "-h", "-o", "%A", "-n", "nearmetal"):
            _output_of("scancel", "--name=nearmetal")
            time.sleep(0.2)
        return status

    def roll_back(self, fault: Fault | None = None, *, away: bool = False, boot: Boot | None = None) -> int:
        """Roll back by one of the node's names, from another node or on the node itself."""
        if boot or self.random.random() < 0.5:
            return super().roll_back(fault, away=away, boot=boot)
        return self.roll_back_by_hand(fault or Fault(), away=away)

    def power_off(self) -> None:
        super().power_off()
        _output_of("scancel", "--user=root")


def _output_of(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600).stdout.strip()


@contextlib.contextmanager
def in_slurm(other: tuple[int, int]) -> Iterator[Callable[..., History]]:
    """Yield a constructor of histories; this process is on the node."""
    with over_ssh(other, SlurmHistory) as make:
        yield make


def _verb_in_step(spec: dict[str, Any]) -> int:
    Path(spec["inside"]).write_text(str(os.getpid()))
    Fault(spec["kind"], spec["step"], spec["lasting"], Path(spec["acted"])).install(Path(spec["folder"]))
    quick_apply(hanging=spec["kind"] == "hang")
    return run_verb(spec["argv"])


def _play_in_cluster(given: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder, slurm.cluster(Path(folder)) as (shell, _):
        player = Path(__file__).with_name("knob_histories.py")
        inner = ["sh", "-c", f'{DEVICES}exec "$@"', "histories", sys.executable, str(player), *given, "slurm"]
        env = {**os.environ, "SLURM_CONF": f"{folder}/slurm.conf"}
        return subprocess.run([*shell._enter(_NODE), *inner], env=env, check=False).returncode


def main() -> int:
    if sys.argv[2:]:
        return _play_in_cluster(sys.argv[1:])
    return _verb_in_step(json.loads(Path(sys.argv[1]).read_text()))


if __name__ == "__main__":
    sys.exit(main())
