"""Launch lines are pure functions: the same job gives the same argv, without any MPI on the machine."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from nearmetal import process
from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.facts.inventory import sharing_facts
from nearmetal.hosts.batch.slurm import SrunStarter
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.shell import MachinesShell, Memory
from nearmetal.hosts.far.stream import open_program
from nearmetal.hosts.host import Site
from nearmetal.study.order import Order, PathOrder, Scalar, WorkloadOrder
from nearmetal.workloads.mpi.mpi import Job, Mpi
from nearmetal.workloads.mpi.table import launch
from nearmetal.workloads.parallel import check_effect, check_environment, waits
from nearmetal.workloads.processors import cores, processors
from tests.quotas import quota_of

OPENMPI4 = Mpi("openmpi", "4.1.4", "/usr/bin/mpirun.openmpi")
OPENMPI5 = Mpi("openmpi", "5.0.11", "/opt/openmpi/bin/mpirun")
MPICH4 = Mpi("mpich", "4.0.2", "/usr/bin/mpirun.mpich")
MPICH5 = Mpi("mpich", "5.0.2", "/opt/mpich/bin/mpiexec.hydra")

ALONE = Job(nodes=("n0", "n0"), program=("./nmbench", "--op", "latency"))
APART = Job(
    nodes=("n0", "n1"),
    program=("./nmbench",),
    remote_shell="/run/agent",
    interface="eth0",
    subnet="10.77.0.0/24",
)

ORDER = Order(0, 0, PathOrder("p", "veth"), WorkloadOrder("w", "engine"))


def has(argv: tuple[str, ...], *words: str) -> bool:
    """Return whether the words appear in argv one after another."""
    return any(argv[start : start + len(words)] == words for start in range(len(argv)))


@pytest.mark.parametrize("mpi", [OPENMPI4, OPENMPI5, MPICH4, MPICH5])
def test_ranks_of_one_node_use_shared_memory_and_no_remote_shell(mpi: Mpi) -> None:
    command = launch(mpi, ALONE)
    assert command.argv[0] == mpi.mpirun
    assert has(command.argv, "-n", "2", *ALONE.program)
    everything = " ".join([*command.argv, *command.env.values()])
    assert "tcp" not in everything
    assert "agent" not in everything


def test_openmpi_4_gets_an_agent_even_on_one_node() -> None:
    """Otherwise it fails with `plm_rsh_agent: ssh : rsh` not found on a machine that has neither, such as the lab's."""
    alone = dataclasses.replace(ALONE, remote_shell="/run/agent")
    assert has(launch(OPENMPI4, alone).argv, "--mca", "plm_rsh_agent", "/run/agent")
    assert "/run/agent" not in launch(OPENMPI5, alone).argv


def test_openmpi_gets_every_layer_and_the_subnet() -> None:
    argv = launch(OPENMPI5, APART).argv
    assert has(argv, "--mca", "pml", "ob1")
    assert has(argv, "--mca", "btl", "self,sm,tcp")
    assert has(argv, "--mca", "btl_tcp_if_include", "10.77.0.0/24")
    assert has(argv, "--prtemca", "plm_ssh_agent", "/run/agent")
    in_scratch = launch(OPENMPI5, dataclasses.replace(APART, scratch="/tmp/nm-1")).argv
    assert has(in_scratch, "--prtemca", "prte_tmpdir_base", "/tmp/nm-1")
    older_in_scratch = launch(OPENMPI4, dataclasses.replace(APART, scratch="/tmp/nm-1")).argv
    assert has(older_in_scratch, "--mca", "orte_tmpdir_base", "/tmp/nm-1")
    older = launch(OPENMPI4, APART).argv
    assert has(older, "--mca", "plm_rsh_agent", "/run/agent")
    assert has(older, "--mca", "btl", "self,vader,tcp")


def test_openmpi_is_told_single_addresses_by_their_31() -> None:
    """It takes /32 for every interface, the loopback too, and ranks waited for each other for ever."""
    pods = dataclasses.replace(APART, subnet="10.244.1.7/32,10.244.2.9/32,10.244.2.8/32")
    assert has(launch(OPENMPI5, pods).argv, "--mca", "btl_tcp_if_include", "10.244.1.6/31,10.244.2.8/31")


def test_openmpi_keeps_the_order_of_ranks_with_one_context_per_group() -> None:
    argv = launch(OPENMPI5, dataclasses.replace(APART, nodes=("n0", "n1", "n1", "n0"))).argv
    first = argv.index("-n")
    program = APART.program
    assert argv[first:] == (
        *("-n", "1", "--host", "n0:1", *program, ":"),
        *("-n", "2", "--host", "n1:2", *program, ":"),
        *("-n", "1", "--host", "n0:1", *program),
    )


def test_a_launch_that_mpich_may_never_end_says_so() -> None:
    newer = Mpi("mpich", "4.2.0", MPICH4.mpirun)
    assert "pull request 6596" in launch(MPICH4, APART).late_hint
    assert not any("6596" in launch(mpi, APART).late_hint for mpi in (newer, MPICH5))
    assert "6596" not in launch(MPICH4, ALONE).late_hint, "ranks of one node do not use UCX"
    for mpi, job in ((MPICH4, APART), (newer, APART), (MPICH5, ALONE)):
        assert "ended by itself before MPI_Finalize" in launch(mpi, job).late_hint
    assert not any(launch(mpi, APART).late_hint for mpi in (OPENMPI4, OPENMPI5)), "they end all ranks"


def test_mpich_keeps_the_order_of_ranks_and_names_each_node_once() -> None:
    returning = dataclasses.replace(APART, nodes=("n0", "n1", "n1", "n0"))
    argv = launch(MPICH5, returning).argv
    assert has(argv, "-hosts", "n0:2,n1:2", "-rankmap", "0,1,1,0", "-n", "4", "./nmbench")
    assert has(argv, "-launcher", "ssh", "-launcher-exec", "/run/agent")
    node_by_node = dataclasses.replace(APART, nodes=("n0", "n0", "n1", "n1"))
    assert has(launch(MPICH4, node_by_node).argv, "-hosts", "n0:2,n1:2", "-n", "4", "./nmbench")
    with pytest.raises(UnavailableError, match="must follow each other"):
        launch(MPICH4, returning)


def test_mpich_never_crosses_nodes_by_shared_memory() -> None:
    env = launch(MPICH5, APART).env
    assert env["UCX_TLS"] == "self,tcp"
    assert env["UCX_NET_DEVICES"] == "eth0"
    assert env["FI_PROVIDER"] == "tcp"


def test_root_of_a_user_namespace_may_run_openmpi() -> None:
    assert launch(OPENMPI5, ALONE).env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_the_environment_of_ranks_is_passed_by_the_launcher() -> None:
    asked = dataclasses.replace(APART, environment=(("LD_PRELOAD", "/t race.so"),))
    assert launch(OPENMPI5, asked).argv.count("LD_PRELOAD=/t race.so") == 2, "once per app context"
    assert has(launch(MPICH5, asked).argv, "-genv", "LD_PRELOAD", "/t race.so")
    assert "LD_PRELOAD" not in launch(MPICH5, asked).env, "the launcher itself is not preloaded"


def test_blocking_progress_sleeps_if_the_version_supports_it() -> None:
    blocking = dataclasses.replace(ALONE, progress="blocking")
    assert has(launch(OPENMPI5, blocking).argv, "--mca", "threads_pthreads_yield_strategy", "nanosleep")
    assert launch(MPICH5, blocking).env["MPIR_CVAR_ENABLE_HEAVY_YIELD"] == "1"


@pytest.mark.parametrize("mpi", [OPENMPI4, MPICH4])
def test_blocking_progress_is_refused_if_the_version_does_not_support_it(mpi: Mpi) -> None:
    with pytest.raises(UnavailableError, match="has no blocking progress") as caught:
        launch(mpi, dataclasses.replace(ALONE, progress="blocking"))
    assert "polling" in caught.value.hint


def test_a_program_that_sleeps_instead_of_yielding_gives_open_mpi_4_blocking_progress() -> None:
    argv = launch(OPENMPI4, dataclasses.replace(ALONE, progress="blocking", sleeps=True)).argv
    assert has(argv, "--mca", "mpi_yield_when_idle", "1")


def test_ranks_of_several_nodes_sleep_until_a_message_arrives() -> None:
    blocking = dataclasses.replace(APART, progress="blocking", sleeps=True, environment=(("NEARMETAL_YIELD", "sleep"),))
    argv = launch(OPENMPI4, blocking).argv
    assert argv.count("NEARMETAL_YIELD=events") == argv.count("OMPI_MCA_opal_event_include=epoll") == 2
    assert "NEARMETAL_YIELD=sleep" not in argv, "Open MPI refuses a variable that has two values"
    assert "NEARMETAL_YIELD=sleep" in launch(OPENMPI5, blocking).argv
    together = dataclasses.replace(blocking, nodes=("n0", "n0"))
    assert "NEARMETAL_YIELD=sleep" in launch(OPENMPI4, together).argv, "shared memory raises no events"


class SlurmShell:
    """What a launch by a batch system asks of a shell."""

    scratch = "/tmp/nm"
    site = Site("cache", "state", starter=SrunStarter("7", ("n0", "n1")))

    def machine_name(self, node: str) -> str:
        return node

    def write(self, path: str, data: bytes, *, node: str = "") -> None: ...


@pytest.mark.parametrize("mpi", [OPENMPI4, OPENMPI5])
def test_a_batch_system_gives_ranks_the_environment_of_the_mpis_own_launcher(mpi: Mpi) -> None:
    job = dataclasses.replace(APART, progress="blocking", sleeps=True, environment=(("NEARMETAL_YIELD", "sleep"),))
    own, started = launch(mpi, job), launch(mpi, job, SlurmShell())  # type: ignore[arg-type]
    exported = dict(value.split("=", 1) for flag, value in itertools.pairwise(own.argv) if flag == "-x")
    assert exported["NEARMETAL_YIELD"] == ("events" if mpi.major < 5 else "sleep")
    assert exported.items() <= started.env.items()
    assert started.argv[-1:] == job.program


def test_processors_are_those_that_a_far_machine_lets_programs_use() -> None:
    """Also where paths have the same machines in another order."""
    allowed = str(min(os.sched_getaffinity(0)))
    machines = [
        FarMachine(name, partial(open_program, (*prefix, "/bin/sh")))
        for name, prefix in (("free", ()), ("held", ("taskset", "-c", allowed)))
    ]
    memory = Memory()
    found = []
    for order in (machines, machines[::-1]):
        with MachinesShell(order, [one.name for one in order], Site("cache", "state"), memory) as shell:
            for node in ("n0", "n1"):
                shell.add_node(node)
            found.append([cores(shell, node) for node in ("n0", "n1")])
    for one in machines:
        one.close()
    assert found == [[len(os.sched_getaffinity(0)), 1], [1, len(os.sched_getaffinity(0))]]


def test_a_quota_of_processor_time_bounds_the_ranks_that_have_a_processor_each() -> None:
    """Ranks of a container with a limit polled, as if they had every processor of its machine."""
    with quota_of(1.5) as held:
        here = [sys.executable, "-c", "from nearmetal.hosts.processors import own_processors as o; print(o())"]
        assert process.run([*held, *here], timeout_s=60).text == "1\n"
        machine = FarMachine("held", partial(open_program, (*held, "/bin/sh")))
        with (
            contextlib.closing(machine),
            MachinesShell([machine], ["held"], Site("cache", "state"), Memory()) as shell,
        ):
            shell.add_node("n0")
            assert processors(shell, ["n0", "n0"]) == 1
            assert sharing_facts(shell, ["n0"])["nodes.processors"] == 1


_PARALLEL = """
import nearmetal.hosts.lab.cluster as cluster
from nearmetal.hosts.lab.lab import slots_of
from nearmetal.predict import simulate
from tests.unit.simulated import ping
from tests.unit.test_predict_odd import NAMED
from nearmetal.predict.native import Placement
cluster._available_mib = lambda: 1 << 20
threads, replay = [], simulate._sim.simulate
simulate._sim.simulate = lambda *given, **options: threads.append(given[4]) or replay(*given, **options)
simulate.simulate(ping(8), NAMED.machine, Placement.block(2, 1), seed=1, replicas=4)
print(slots_of({"nodes": 2}), *threads)
"""


def test_a_quota_bounds_the_machines_of_the_lab_and_the_threads_of_a_replay() -> None:
    """In a container both took every processor of its machine, and waited for their slices."""
    with quota_of(1.5) as held:
        argv = [*held, sys.executable, "-c", _PARALLEL]
        tests = Path(__file__).parents[1]
        said = process.run(argv, timeout_s=600, env={**os.environ, "PYTHONPATH": f"{tests.parent}:{tests}"})
    assert said.text == "1 1\n", said.complaint()


def test_polling_ranks_yield_only_if_they_outnumber_cores() -> None:
    crowded = dataclasses.replace(ALONE, oversubscribed=True)
    assert has(launch(OPENMPI5, ALONE).argv, "--mca", "mpi_yield_when_idle", "0")
    assert has(launch(OPENMPI5, crowded).argv, "--mca", "mpi_yield_when_idle", "1")
    assert "MPIR_CVAR_POLLS_BEFORE_YIELD" not in launch(MPICH5, ALONE).env
    assert launch(MPICH5, crowded).env["MPIR_CVAR_POLLS_BEFORE_YIELD"] == "1"


@pytest.mark.parametrize(
    ("mpi", "words"),
    [
        (OPENMPI4, (("--bind-to", "core"), ("--map-by", "numa"))),
        (OPENMPI5, (("--bind-to", "core"), ("--map-by", "numa:OVERSUBSCRIBE"))),
        (MPICH5, (("-bind-to", "core"), ("-map-by", "numa"))),
    ],
)
def test_binding_and_mapping_appear_once_in_a_launch(mpi: Mpi, words: tuple[tuple[str, str], ...]) -> None:
    argv = launch(mpi, dataclasses.replace(ALONE, bind="core", map_by="numa")).argv
    for option, value in words:
        assert has(argv, option, value)
        assert argv.count(option) == 1, "launchers refuse a repeated option"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": ()}, "0 ranks"),
        ({"program": ()}, "a program"),
        ({"bind": "hwthread"}, "'hwthread'"),
        ({"remote_shell": ""}, "ranks on 2 nodes"),
        ({"subnet": ""}, "ranks on 2 nodes"),
    ],
)
def test_a_job_that_cannot_be_launched_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        launch(OPENMPI5, dataclasses.replace(APART, **change))


def test_an_unknown_flavour_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInputError, match="'lam'") as caught:
        launch(Mpi("lam", "7", "mpirun"), ALONE)
    assert "openmpi, mpich" in caught.value.hint


@pytest.mark.parametrize(
    ("knobs", "mpi", "placed", "refusal"),
    [
        ({"mpi.srq-limit": 60}, OPENMPI4, {}, r"mpi\.srq-limit would change nothing with openmpi-4.1.4: .*over TCP"),
        ({"mpi.inline-bytes": 64}, OPENMPI5, {}, r"mpi\.inline-bytes would change nothing"),
        ({"mpi.inline-bytes": 64, "mpi.transport": "openib,self"}, OPENMPI5, {}, r"mpi\.inline-bytes"),
        ({"mpi.inline-bytes": 64, "mpi.transport": "openib,self"}, OPENMPI4, {}, ""),
        ({"mpi.yield-sleep-ns": 1000}, OPENMPI5, {}, "ranks do not sleep"),
        ({"mpi.yield-sleep-ns": 1000, "mpi.progress": "blocking"}, OPENMPI5, {}, ""),
        ({"mpi.eager-bytes": 1000}, MPICH5, {"one_node": True}, "all ranks are on one node"),
        ({"mpi.eager-bytes": 1000}, MPICH5, {}, ""),
        ({"mpi.map": "core"}, OPENMPI5, {}, "binds no rank"),
        ({"mpi.map": "core"}, OPENMPI5, {"binds": True}, ""),
    ],
)
def test_a_knob_that_would_change_nothing_is_refused(
    knobs: dict[str, Scalar], mpi: Mpi, placed: dict[str, bool], refusal: str
) -> None:
    """Its setting was measured as if it had been on."""
    asked = dataclasses.replace(ORDER, knobs=knobs)
    said = pytest.raises(UnavailableError, match=refusal) if refusal else nullcontext()
    with said:
        check_effect(asked, mpi, **{"one_node": False, "binds": False, **placed})


def test_an_environment_that_would_override_a_setting_is_refused() -> None:
    """`mpi.eager-bytes` counted as on, and the ranks had the limit of the command's `env`."""
    limit = "OMPI_MCA_btl_tcp_eager_limit"
    check_environment({limit: "65616"}, {"HOME": "/root", limit: "65616"})
    with pytest.raises(UnavailableError, match=f"the setting makes {limit} '65616', but .* makes it '4096'"):
        check_environment({limit: "65616"}, {limit: "4096"})


def test_a_setting_says_how_ranks_wait() -> None:
    """The record told how they would have waited without it."""
    assert waits(dataclasses.replace(ORDER, knobs={"mpi.progress": "blocking"})) == "blocking"
    assert waits(ORDER) == "polling"
