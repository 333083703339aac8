"""Parsing libvirt domains and reporting confounders."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.errors import ForeignFileError
from nearmetal.facts.guests import Guest, HypervisorFacts, look_below, parse_domain, parse_look, warnings
from nearmetal.hosts.machine import MachineShell
from nearmetal.run import guests
from nearmetal.run.guests import LibvirtLook, machine_of
from nearmetal.run.trial import carry_out
from nearmetal.store.query import disagreements
from nearmetal.store.rundir import TrialRecord
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.study.spec import parse_study

RECORDED = (Path(__file__).parents[1] / "data" / "domain-vf-virtio.xml").read_text()
PLAIN = """<domain type='qemu'><name>plain</name><memory unit='MiB'>64</memory><vcpu>2</vcpu><devices>
<interface type='user'><model type='virtio'/></interface></devices></domain>"""


def test_vcpus_that_are_not_plugged_in_do_not_count() -> None:
    pinned = "".join(f"<vcpupin vcpu='{number}' cpuset='{number}'/>" for number in range(4))
    text = PLAIN.replace("<vcpu>2</vcpu>", f"<vcpu current='2'>4</vcpu><cputune>{pinned}</cputune>")
    guest = parse_domain(text.replace("type='user'><model", "type='user'><driver queues='2'/><model"))
    assert (guest.vcpus, dict(guest.pins)) == (2, {0: "0", 1: "1"})
    assert not [line for line in warnings([guest], HypervisorFacts()) if "not pinned" in line or "queues" in line]


def test_a_user_space_switch_is_not_taken_for_the_kernels_vhost() -> None:
    socket = "<interface type='vhostuser'><source type='unix' path='/run/vhost0' mode='server'/>"
    (nic,) = parse_domain(PLAIN.replace("<interface type='user'>", socket)).nics
    assert (nic.backend, nic.source) == ("vhost-user", "/run/vhost0")


def test_a_guest_with_a_vf_vhost_and_an_emulated_nic() -> None:
    guest = parse_domain(RECORDED)
    assert (guest.vcpus, dict(guest.pins), guest.emulator_pin) == (4, {0: "2", 1: "3"}, "0-1")
    assert (guest.memory_bytes, guest.page_bytes, guest.locked) == (8 << 30, 1 << 30, True)
    vf, vhost, e1000, handed = guest.nics
    assert (vf.kind, vf.source, vf.backend) == ("vf", "0000:3b:02.1", "hardware")
    assert (vhost.kind, vhost.backend, vhost.queues, vhost.mtu, vhost.source) == ("virtio", "vhost", 2, 9000, "br0")
    assert (e1000.kind, e1000.backend, e1000.source) == ("e1000", "qemu", "virbr0")
    assert (handed.kind, handed.source) == ("pci", "0000:5e:00.0")
    assert guest.facts()["guest.hpc-guest.nic1.queues"] == 2


def test_confounders_are_named_with_their_figures() -> None:
    below = HypervisorFacts({"br0": 1500, "vnet5": 9000}, irqbalance=True, deep_idle={"C6": 133})
    text = "\n".join(warnings([parse_domain(RECORDED)], below))
    assert "2 of 4 vCPUs are not pinned" in text
    assert "2 queues for 4 vCPUs" in text
    assert "br0 1500, vnet5 9000, guest 9000" in text
    assert "irqbalance" in text
    assert "C6 (133 us)" in text
    assert "no huge pages" not in text


def pinned(name: str, *cpusets: str, emulator: str = "63", runs: bool = True) -> Guest:
    pins = "".join(f"<vcpupin vcpu='{number}' cpuset='{cpus}'/>" for number, cpus in enumerate(cpusets))
    tune = f"<vcpu>{len(cpusets)}</vcpu><cputune>{pins}<emulatorpin cpuset='{emulator}'/></cputune>"
    text = PLAIN.replace("<name>plain", f"<name>{name}").replace("<vcpu>2</vcpu>", tune)
    return parse_domain(text.replace("<domain", "<domain id='1'") if runs else text)


def about_cpus(*guests: Guest) -> list[str]:
    return [line for line in warnings(guests, HypervisorFacts()) if "may meet" in line or "emulator's" in line]


def test_vcpus_that_are_pinned_to_the_same_cpu_are_named() -> None:
    assert about_cpus(pinned("a", "2", "3"), pinned("b", "3-4,^4")) == [
        "a vCPU 1, b vCPU 0 may meet on CPU 3: pin each vCPU to a CPU of its own"
    ]
    assert about_cpus(pinned("a", "0-2", "0-2"))[0].startswith("a vCPU 0, a vCPU 1 may meet on CPU 0, 1, 2: ")
    assert about_cpus(pinned("a", "2"), pinned("b", "2", runs=False)) == [], "these two do not run at the same time"
    assert about_cpus(pinned("a", "2", emulator="1-2")) == [
        "a: the emulator's threads may run on the vCPUs' cores: `virsh emulatorpin a CPUS`"
    ]


@pytest.mark.parametrize("cpus", ["x", "1,,2", "^", "0-99999999999"])
def test_a_set_of_cpus_that_cannot_be_read_is_refused(cpus: str) -> None:
    with pytest.raises(ForeignFileError, match="cannot read the domain 'a'"):
        pinned("a", cpus)


def test_each_kind_of_virtio_has_vhost() -> None:
    text = PLAIN.replace("type='user'", "type='bridge'").replace("'virtio'", "'virtio-non-transitional'")
    guest = parse_domain(text)
    assert (guest.nics[0].kind, guest.nics[0].backend) == ("virtio-non-transitional", "vhost")
    assert "has 1 queues for 2 vCPUs" in "\n".join(warnings([guest], HypervisorFacts()))


def test_a_plain_emulated_guest() -> None:
    text = "\n".join(warnings([parse_domain(PLAIN)], HypervisorFacts()))
    assert "TCG" in text
    assert "2 of 2 vCPUs are not pinned" in text
    assert "no huge pages" in text
    assert "not by vhost" in text


def test_a_good_configuration_has_no_warnings() -> None:
    tidy = RECORDED.replace("queues='2'", "queues='4'").replace(
        "<emulatorpin", "<vcpupin vcpu='2' cpuset='4'/><vcpupin vcpu='3' cpuset='5'/><emulatorpin"
    )
    assert warnings([parse_domain(tidy)], HypervisorFacts({"br0": 9000, "vnet5": 9000})) == []


@pytest.mark.parametrize("text", ["", "<network/>", "<domain/>", "<!DOCTYPE x [<!ENTITY a 'b'>]><domain/>", PLAIN[:80]])
def test_xml_that_is_not_a_domain_is_refused(text: str) -> None:
    with pytest.raises(ForeignFileError):
        parse_domain(text)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(RECORDED) - 1), st.text(max_size=6))
def test_damaged_xml_gives_an_error_or_a_guest_never_a_crash(at: int, junk: str) -> None:
    with contextlib.suppress(ForeignFileError):
        assert parse_domain(RECORDED[:at] + junk + RECORDED[at + len(junk) :]).name


def test_facts_of_the_hypervisor_are_parsed() -> None:
    below = parse_look("mtu br0 1500\nidle C1 2\nidle C6 133\nrunning irqbalance 1\nidle broken\n")
    assert below == HypervisorFacts({"br0": 1500}, irqbalance=True, deep_idle={"C6": 133})


def test_the_script_gathers_facts_of_this_machine() -> None:
    with MachineShell() as shell:
        below = look_below(shell)
    assert below.mtus["lo"] == int(Path("/sys/class/net/lo/mtu").read_text())


@pytest.mark.parametrize(
    ("uri", "machine"),
    [
        ("qemu:///system", ""),
        ("qemu+unix:///session?socket=/run/x", ""),
        ("qemu+ssh://me@hv1:2222/system?keyfile=k", "me@hv1:2222"),
        ("qemu+tls://hv1/system", None),
    ],
)
def test_the_owner_of_a_libvirt_uri(uri: str, machine: str | None) -> None:
    assert machine_of(uri) == machine


def test_guests_of_several_libvirts_stay_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = {
        "qemu:///a": LibvirtLook((parse_domain(PLAIN),), ("a",)),
        "qemu:///b": LibvirtLook((parse_domain(PLAIN),), ("b",)),
    }
    monkeypatch.setattr(guests, "look_at", lambda uri, running: looks[uri])
    host = 'kind = "fake"\nlibvirt = ["qemu:///a", "qemu:///b"]'
    text = f"""format = 1\nname = "x"\nbaseline = "veth"\n[host]\n{host}\n[[path]]\nname = "veth"
[[workload]]\nname = "latency"\nsizes = [8]"""
    messages: list[str] = []
    opened = guests.open_host(parse_study(text, "x"), messages.append)
    order = Order(0, 0, PathOrder("veth", "veth"), WorkloadOrder("l", "engine", {"operation": "latency", "sizes": [8]}))
    facts = opened.carry_out(order, carry_out).facts
    assert messages == ["a", "b"]
    assert (facts["guest.plain.vcpus"], facts["guest.plain@qemu:///b.vcpus"]) == (2, 2)
    assert (opened.kind, opened.slots) == ("fake", 1)


def test_trials_through_other_guests_are_compared_only_on_request() -> None:
    records = []
    for number, pin in enumerate(("0", "0-7")):
        order = Order(number, 0, PathOrder("p", "declared"), WorkloadOrder("l", "engine", {}))
        outcome = Outcome(TrialStatus.VALID, facts={"guest.vm1.vcpu0.pin": pin, "guest.vm1.nic0.kind": "virtio"})
        records.append(TrialRecord(order, outcome, 1, "", ()))
    assert [one.fact for one in disagreements(records)] == ["guest.vm1.vcpu0.pin"]


def test_facts_of_unused_nodes_may_be_missing() -> None:
    def trial(number: int, placement: tuple[int, ...], *nodes: int, driver: str = "igb") -> TrialRecord:
        order = Order(number, 0, PathOrder("p", "native"), WorkloadOrder("l", "engine", {}, placement))
        facts = {f"n{node}.eth0.driver": driver for node in nodes}
        return TrialRecord(order, Outcome(TrialStatus.VALID, facts=facts), 1, "", ())

    pair, four = trial(0, (0, 1), 0, 1), trial(1, (0, 1, 2, 3), 0, 1, 2, 3)
    assert not disagreements([pair, four])
    found = disagreements([pair, four, trial(2, (0, 1, 2, 3), 0, 1, 3)])
    assert [str(one) for one in found] == ["n2.eth0.driver (path p): igb | not recorded"]
    found = disagreements([four, trial(2, (0, 1), 0, 1, driver="igbvf")])
    assert [one.fact for one in found] == ["n0.eth0.driver", "n1.eth0.driver"]
