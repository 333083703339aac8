"""`apply` sees that a run measures on the host whose settings it would change."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.main import run
from nearmetal.errors import TrialError
from nearmetal.hosts.batch.host import BatchHost
from nearmetal.hosts.batch.scheduler import JobState
from nearmetal.hosts.fake import FakeHost
from nearmetal.knobs import places, registry
from nearmetal.knobs.folder import measured, refuse_measured_far
from nearmetal.run.guests import measuring, open_host
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.study.spec import parse_study
from nearmetal.tune.profile import Profile
from tests.unit.test_slurm import Scripted

if TYPE_CHECKING:
    from nearmetal.study.spec import Study

PATH = 'name = "s"\nbaseline = "p"\n[[path]]\nname = "p"\nkind = "{}"\n[[workload]]\nname = "latency"\nsizes = [8]\n'
FAR = PATH.format("declared") + (
    '[host]\nkind = "ssh"\n'
    '[[host.node]]\nname = "vm1"\naddress = "10.0.0.1"\nuser = "root"\n[[host.node]]\nname = "vm2"\n'
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/nearmetal/journal"


def test_a_full_disk_stops_no_measurement(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run may be on another disk than the mark, and the lock keeps changes away without a name."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nearmetal.knobs.folder.os.write", full)
    with measured(state), pytest.raises(TrialError, match="another process measures on far now"):
        refuse_measured_far(state, "far")


def test_runs_share_a_host_and_keep_changes_away_until_the_last_has_ended(state: Path) -> None:
    with measured(state):
        with measured(state), pytest.raises(TrialError, match=f"process {os.getpid()} measures on far now"):
            refuse_measured_far(state, "far")
        with pytest.raises(TrialError, match=f"process {os.getpid()}"):
            refuse_measured_far(state, "far")
    refuse_measured_far(state, "far")


def test_where_nothing_can_be_written_a_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with measured(tmp_path / "file" / "journal"):
        pass


@pytest.mark.parametrize("name", ["vm1", "10.0.0.1", "root@vm1", "root@10.0.0.1", "vm2"])
def test_a_far_machine_is_known_by_each_of_its_names(name: str) -> None:
    with measuring(parse_study(FAR, "s.toml")), pytest.raises(TrialError, match=f"measures on {name} now"):
        places.refuse_measured(name, name)


def test_machines_of_a_file_are_measured_on(tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text('[[node]]\nname = "vm9"\n')
    text = f'{PATH.format("declared")}[host]\nkind = "ssh"\nhosts_file = "{tmp_path}/hosts.toml"\n'
    with measuring(parse_study(text, "s.toml")), pytest.raises(TrialError, match="measures on vm9 now"):
        places.refuse_measured("vm9", "vm9")


def test_a_second_run_on_the_same_machines_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.run.guests.table.open_host", lambda _: FakeHost({}))
    first, second = parse_study(FAR, "a.toml"), parse_study(FAR.replace('name = "vm2"', 'name = "vm3"'), "b.toml")
    said: list[str] = []
    open_host(second, said.append)
    assert said == []
    with measuring(first):
        open_host(second, said.append)
    assert said == [f"process {os.getpid()} measures on vm1 now: the two disturb each other"]


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setattr("nearmetal.run.guests.table.open_host", lambda _: FakeHost({}))
    return parse_study(PATH.format("veth"), "s.toml")


def test_this_machine_gets_no_folder_by_a_run(state: Path, local: Study) -> None:
    with measuring(local), pytest.raises(TrialError, match=f"process {os.getpid()} measures on this machine now"):
        places.refuse_measured("local", "")
    assert not state.exists()
    places.refuse_measured("local", "")


_MEASURE = """
import os, sys
from nearmetal.knobs.presence import measuring_from_here
with measuring_from_here(sys.argv[1]):
    if sys.argv[2:]:
        os.setuid(int(sys.argv[2]))
    print(flush=True)
    sys.stdin.read()
"""


def user_named(name: str) -> int:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    return pwd.getpwnam(name).pw_uid


@pytest.mark.parametrize("user", ["", "nobody"])
def test_a_run_of_any_user_and_home_on_this_machine_is_seen_until_it_is_killed(
    tmp_path: Path, local: Study, user: str
) -> None:
    argv = [sys.executable, "-c", _MEASURE, "", *([str(user_named(user))] if user else [])]
    elsewhere = os.environ | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "another")}
    said: list[str] = []
    with subprocess.Popen(argv, env=elsewhere, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        open_host(local, said.append)
        other.kill()
    of_whom = f" of {user}" if user else ""
    assert said == [f"process {other.pid}{of_whom} measures on this machine now: the two disturb each other"]
    open_host(local, said.append)
    assert len(said) == 1, "it left nothing behind"
    assert not (tmp_path / "another").exists()


_LOOK = """
import os, re, sys
from pathlib import Path
from nearmetal.errors import TrialError
from nearmetal.knobs import places
os.setuid(int(sys.argv[1]))
try:
    places.refuse_measured("local", "")
except TrialError as error:
    print(error.message)
with places.measuring(["local"]):
    sockets = Path("/proc/net/unix").read_text()
    print(bool(re.search(rf" @nearmetal-measures-[0-9a-f]+-{os.getpid()}-", sockets)))
"""


def test_a_user_who_may_write_nowhere_sees_root_and_is_seen() -> None:
    argv = [sys.executable, "-c", _LOOK, str(user_named("nobody"))]
    with places.measuring(["local"]):
        looked = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    assert looked.stdout == f"process {os.getpid()} of root measures on this machine now\nTrue\n"


_SESSIONS = """
import os, sys
from nearmetal.knobs import places
os.setuid(int(sys.argv[1]))
print(places.changed_here_for_now())
"""


def test_another_user_is_told_before_measuring_that_root_has_an_open_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was said, and the figures were those of settings that root had put on for a time."""
    argv = [sys.executable, "-c", _SESSIONS, str(user_named("nobody"))]
    with tempfile.TemporaryDirectory() as seen_by_all:
        Path(seen_by_all).chmod(0o755)
        monkeypatch.setenv("NEARMETAL_MACHINE_STATE", f"{seen_by_all}/machine")
        monkeypatch.setenv("HOME", "/nonexistent")
        monkeypatch.delenv("XDG_STATE_HOME")
        registry.note(tmp_path / "1-1.journal", 0, "# was: host.busy_read of local 0\n")
        told = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=600, check=True).stdout
        script = f"{seen_by_all}/machine/1-1.journal.0.undo.sh"
        assert told == f"['root has not ended a session that changes settings of this machine: {script}']\n"
        registry.forget(tmp_path / "1-1.journal")
        assert subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=600, check=True).stdout == "[]\n"


def running(*nodes: str) -> JobState:
    return JobState("", "running", "RUNNING", nodes=nodes, left_s=1000)


def test_nodes_of_an_allocation_are_measured_on_while_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(0, 0, PathOrder("p", "declared"), WorkloadOrder("l", "engine", placement=(0, 1)))
    host = BatchHost(Scripted([running("n7", "n8")]), {})
    monkeypatch.setattr("nearmetal.run.guests.table.open_host", lambda _: host)
    study = parse_study(PATH.format("declared") + '[host]\nkind = "slurm"\n', "s.toml")
    with contextlib.closing(open_host(study)) as opened:
        assert opened.carry_out(order, lambda shell, order: Outcome(TrialStatus.VALID)).status is TrialStatus.VALID
        for node in ("n7", "n8"):  # between trials, too
            with pytest.raises(TrialError, match=f"measures on {node} now"):
                places.refuse_measured(node, node)
    for node in ("n7", "n8"):
        places.refuse_measured(node, node)


@pytest.mark.parametrize("pods", [1, 2])
def test_the_nodes_below_pods_are_measured_on(tmp_path: Path, pods: int) -> None:
    status = {"phase": "Running", "podIP": "10.0.0.1"}
    items = [
        {
            "metadata": {"name": f"mpi-{n}"},
            "spec": {"nodeName": f"worker-{n}"},
            "status": {**status, "hostIP": f"10.9.0.{n}"},
        }
        for n in range(pods)
    ]
    (tmp_path / "pods.json").write_text(json.dumps({"items": items} if pods > 1 else items[0]))
    (program := tmp_path / "kubectl").write_text(
        f'#!/bin/sh\n[ "$1" = get ] && exec cat {tmp_path}/pods.json\nexec sh\n'
    )
    program.chmod(0o755)
    tables = "".join(f'[[host.node]]\nname = "mpi-{n}"\n' for n in range(pods))
    text = f'{PATH.format("declared")}[host]\nkind = "kubectl"\noptions = {{ kubectl = "{program}" }}\n{tables}'
    below = [name for n in range(pods) for name in (f"worker-{n}", f"10.9.0.{n}")]
    with contextlib.closing(open_host(parse_study(text, "s.toml"))):
        for name in below:
            with pytest.raises(TrialError, match=f"measures on {name} now"):
                places.refuse_measured(name, name)
    for name in below:
        places.refuse_measured(name, name)


def test_pods_on_one_node_are_named_and_are_one_computer(tmp_path: Path) -> None:
    items = [
        {"metadata": {"name": pod}, "spec": {"nodeName": node}, "status": {}}
        for pod, node in (("a-0", "w0"), ("a-1", "w0"), ("a-2", "w1"))
    ]
    (tmp_path / "pods.json").write_text(json.dumps({"items": items}))
    (program := tmp_path / "kubectl").write_text(
        f'#!/bin/sh\n[ "$1" = get ] && exec cat {tmp_path}/pods.json\nexec sh\n'
    )
    program.chmod(0o755)
    tables = "".join(f'[[host.node]]\nname = "p{n}"\naddress = "a-{n}"\ninterface = "lo"\n' for n in range(3))
    text = f'{PATH.format("declared")}[host]\nkind = "kubectl"\noptions = {{ kubectl = "{program}" }}\n{tables}'
    said: list[str] = []
    with contextlib.closing(open_host(parse_study(text, "s.toml"), said.append)) as host:
        orders = [
            Order(0, 0, PathOrder("p", "declared", {"nodes": nodes}), WorkloadOrder("l", "engine", placement=(0, 1)))
            for nodes in ("p0 p1", "p0 p2")
        ]
        facts = [host.carry_out(order, lambda *_: Outcome(TrialStatus.VALID)).facts for order in orders]
    assert said == ["pods p0, p1 share the node w0 and its processors: their messages do not leave it"]
    assert [(one["kubectl.nodes"], one["nodes.computers"]) for one in facts] == [("w0 w0", 1), ("w0 w1", 2)]


def test_a_cluster_that_does_not_say_where_pods_run_is_measured(tmp_path: Path) -> None:
    (program := tmp_path / "kubectl").write_text('#!/bin/sh\n[ "$1" = get ] && echo no >&2 && exit 1\nexec sh\n')
    program.chmod(0o755)
    text = f'{PATH.format("declared")}[host]\nkind = "kubectl"\noptions = {{ kubectl = "{program}" }}\n'
    said: list[str] = []
    study = parse_study(f'{text}[[host.node]]\nname = "mpi-0"\n', "s.toml")
    with contextlib.closing(open_host(study, said.append)) as host:
        assert host.label == "pods: mpi-0"
    assert len(said) == 1
    assert said[0].startswith("`nearmetal apply` will not see which nodes are measured on: ")


@pytest.mark.parametrize(("host", "name"), [("local", "n7"), ("n7", "n7"), ("root@n7", "n7"), ("local", "n7.site")])
def test_apply_knows_a_machine_by_the_name_that_a_job_has_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: str, name: str
) -> None:
    monkeypatch.setattr("nearmetal.cli.apply.open_shell", lambda _: pytest.fail("the machine was opened"))
    monkeypatch.setattr("nearmetal.cli.apply.socket.gethostname", lambda: "n7.site")
    (profile := tmp_path / "p.json").write_text(Profile("p", "any", ("eth0",), {"nic.mtu": "1400"}).to_json())
    with places.measuring([name]):
        assert run(["apply", str(profile), "--host", host]) == 1
    said = capsys.readouterr().err
    assert f"measures on {'this machine' if host == 'local' else host} now" in said
    note = f"note: runs that others measure on {host} from other machines are not seen\n"
    assert (note in said) == (host != "local")


def test_apply_changes_nothing_of_a_machine_that_is_measured_on(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearmetal.cli.apply.open_shell", lambda _: pytest.fail("the machine was opened"))
    (profile := tmp_path / "p.json").write_text(Profile("p", "any", (), {"host.busy_read": "50"}).to_json())
    with places.measuring(["local"]):
        assert run(["apply", str(profile)]) == 1
    said = capsys.readouterr().err
    assert f"error: process {os.getpid()} measures on this machine now" in said
    assert "hint: wait until it ends" in said
