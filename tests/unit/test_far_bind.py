"""Binding the names in a study to machines."""

import dataclasses

import pytest

from nearmetal.errors import BadInputError
from nearmetal.hosts.far.host import OPTIONS, bind, check_options, site_of
from nearmetal.hosts.host import Site
from nearmetal.study.order import Order, PathOrder, Scalar, WorkloadOrder
from nearmetal.study.spec import NodeSpec

MACHINES = {"h1": "ens1", "h2": "ens1", "vm1": "", "vm2": ""}


def order(kind: str = "declared", **options: str) -> Order:
    return Order(0, 0, PathOrder("p", kind, dict(options)), WorkloadOrder("w", "engine"))


def test_a_declared_path_gets_its_machines_in_order_with_their_interfaces() -> None:
    bound = bind(order(nodes="h2 h1"), MACHINES)
    assert bound.machines == ("h2", "h1")
    assert bound.order.path.options == {"interface.0": "ens1", "interface.1": "ens1"}
    assert not bound.built


def test_the_paths_interface_is_the_default_of_its_machines() -> None:
    bound = bind(order(nodes="vm1 vm2", interface="eth0"), MACHINES)
    assert bound.order.path.options == {"interface": "eth0"}


def test_the_paths_interface_goes_before_those_of_its_machines() -> None:
    """So that two paths between the same machines can be compared."""
    bound = bind(order(nodes="h1 vm1", interface="net1"), MACHINES)
    assert bound.order.path.options == {"interface": "net1"}


def test_a_recipe_is_built_on_its_hypervisor() -> None:
    bound = bind(order("bridge", hypervisor="h1"), MACHINES)
    assert (bound.machines, bound.built, bound.own_network) == (("h1",), True, True)
    assert bound.order.path.options == {}
    assert not bind(order("vf", hypervisor="h1"), MACHINES).own_network
    assert bind(order("bridge"), {"only": ""}).machines == ("only",)


def test_a_tilde_is_the_home_directory_on_the_far_side() -> None:
    assert site_of("/home/me", {}) == Site("/home/me/.cache/nearmetal", "/home/me/.local/state/nearmetal", "")
    there = site_of("/home/me", {"cache": "~/fast", "mpi_prefix": "~/mpi", "scratch": "~/tmp"})
    assert (there.cache, there.mpi_prefix, there.scratch) == ("/home/me/fast", "/home/me/mpi", "/home/me/tmp")
    assert site_of("/home/me", {"cache": "/big/~x"}).cache == "/big/~x"


@pytest.mark.parametrize("scratch", ["tmp", "", "~", "/var/my tmp"])
def test_a_directory_that_a_launcher_would_not_find_is_refused(scratch: str) -> None:
    with pytest.raises(BadInputError, match="'scratch' is not a directory for trials"):
        check_options("ssh", {"scratch": scratch}, OPTIONS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (order(nodes="h1 nowhere"), "'nowhere'"),
        (order(nodes="h1 h2 h1"), "names the machine 'h1' several times"),
        (order(nodes="h1"), "1 machines, but the workload needs 2"),
        (order("bridge"), "does not say where to build it"),
        (order("bridge", hypervisor="h9"), "'h9'"),
        (order("bridge", hypervisor="h1", network="none"), "'own' or 'machine'"),
    ],
)
def test_a_mismatch_is_refused_with_the_reason(wrong: Order, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        bind(wrong, MACHINES)


def test_the_order_itself_is_not_modified() -> None:
    given = order(nodes="h1 h2")
    before = dataclasses.replace(given, path=dataclasses.replace(given.path, options=dict(given.path.options)))
    bind(given, MACHINES)
    assert given == before


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        ([NodeSpec(name="a"), NodeSpec(name="a", address="b")], {}, "2 machines of the ssh host are called 'a'"),
        ([NodeSpec(name="a", jump="me@gate:ssh")], {}, "'me@gate:ssh' does not name a machine"),
        ([NodeSpec(name="a")], {"connect_timeout_s": "soon"}, "a number of seconds above 0, not 'soon'"),
        ([NodeSpec(name="a")], {"connect_timeout_s": -1}, "a number of seconds above 0, not -1"),
        ([NodeSpec(name="a")], {"remote_shell": "ssh -o 'x"}, 'is not a command: "ssh -o \'x": no closing quotation'),
        ([NodeSpec(name="a")], {"remote_shell": " "}, "is not a command: ' '"),
    ],
)
def test_an_impossible_ssh_host_is_refused_before_connecting(
    nodes: list[NodeSpec], options: dict[str, Scalar], message: str
) -> None:
    host = pytest.importorskip("nearmetal.hosts.ssh.host")
    with pytest.raises(BadInputError) as refused:
        host.SshHost(nodes, options)
    assert message in refused.value.message
