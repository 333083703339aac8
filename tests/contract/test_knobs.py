"""What every knob must do, and what must be refused before a write."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from scripts.reference.knobs import reference

from knob_machine import KnobMachine
from nearmetal.errors import BadInputError
from nearmetal.knobs import drivers, mpi
from nearmetal.knobs.access import KnobError, write_one
from nearmetal.knobs.affinity import lingers
from nearmetal.knobs.hold import KNOB_UNPROVEN, hold
from nearmetal.knobs.knob import Knob, Numbers, OneOf, Target, WholeNumber, canon
from nearmetal.knobs.look import look
from nearmetal.knobs.mpi import mpi_environment
from nearmetal.knobs.plan import plan
from nearmetal.knobs.table import FAMILIES, find
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.study.order import Scalar

KNOBS = [knob for family in FAMILIES.values() for knob in family]
ENDS = Endpoints((Endpoint("", "eth1", "10.0.0.1"),), "10.0.0.0/24")
ETH1 = Target("", "eth1")


def _machine(tmp_path: Path, **nic: str) -> KnobMachine:
    named = {key.replace("_", "-"): value for key, value in nic.items()}
    return KnobMachine.make(tmp_path / "machine", {"eth1": named}, {"/proc/sys/net/core/busy_read": "0\n"})


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
class TestEveryKnob:
    def test_is_found_by_its_name(self, knob: Knob) -> None:
        assert find(knob.name) is knob

    def test_describes_itself_and_its_values(self, knob: Knob) -> None:
        assert knob.about
        assert knob.kind.about()

    def test_refuses_nonsense(self, knob: Knob) -> None:
        with pytest.raises(BadInputError, match=knob.name):
            canon(knob, "no such; value")

    def test_reads_as_absent_with_a_reason(self, knob: Knob, tmp_path: Path) -> None:
        empty = KnobMachine.make(tmp_path, {}, {})
        reading = knob.read(empty, Target("", "eth9" if knob.scope == "interface" else ""))
        assert reading.value is None
        assert reading.reason

    def test_disturbs_only_what_exists(self, knob: Knob) -> None:
        for name in knob.disturbs:
            assert find(name).stage >= knob.stage

    def test_keeps_canonical_values(self, knob: Knob) -> None:
        match knob.kind:
            case WholeNumber(lowest=lowest, highest=highest):
                values = [str(lowest), str(highest)]
            case OneOf(choices=choices):
                values = list(choices) or ["cubic"]
            case Numbers(count=count):
                values = [" ".join(str(n) for n in range(count))]
            case _:
                values = ["0", "0-3,8", "10"]
        for value in values:
            assert canon(knob, value) == value


def put(machine: KnobMachine, knob: Knob, target: Target, value: str) -> None:
    for step in knob.steps(machine, target, value):
        write_one(machine, step.access, step.value)


def test_reads_and_writes_go_through_ethtool_and_files(tmp_path: Path) -> None:
    machine = _machine(tmp_path)
    for name, target, old, new in (
        ("nic.rx-usecs", ETH1, "16", "5"),
        ("nic.gro", ETH1, "on", "off"),
        ("nic.mtu", ETH1, "1500", "9000"),
        ("host.busy_read", Target(""), "0", "50"),
    ):
        knob = find(name)
        assert knob.read(machine, target).value == old
        put(machine, knob, target, new)
        assert knob.read(machine, target).value == new


def test_modes_are_written_before_values_and_values_survive(tmp_path: Path) -> None:
    machine = _machine(tmp_path)
    with hold(machine, ENDS, {"nic.rx-usecs": 7, "nic.adaptive-rx": False}, tmp_path) as held:
        assert machine.writes == ["eth1 adaptive-rx", "eth1 rx-usecs"]
        assert held.facts["knob.nic.rx-usecs"] == "7"
        assert held.facts["knob.disturbed.nic.rx-frames of eth1"] == "32 -> 64"
    assert machine.nic("eth1")["rx-frames"] == "32"


def test_the_order_of_writes_never_passes_through_an_illegal_state(tmp_path: Path) -> None:
    machine = _machine(tmp_path, adaptive_rx="off", rx_frames="0")
    seen = []
    shell = KnobMachine(machine.root, lambda _what: seen.append(machine.nic("eth1")))
    with hold(shell, ENDS, {"nic.rx-usecs": 0, "nic.rx-frames": 1}, tmp_path):
        seen.append(machine.nic("eth1"))
    assert not [state for state in seen if state["rx-usecs"] == state["rx-frames"] == "0"]


@pytest.mark.parametrize(
    ("driver", "setting", "reason"),
    [
        ("igb", {"nic.rx-usecs": "5"}, "nic.rx-usecs 5 is not among"),
        ("igbvf", {"nic.rx-usecs": "1"}, "dynamic modes"),
        ("igb", {"nic.tx-usecs": "10"}, "share an interrupt"),
        ("mlx5_core", {"nic.rx-usecs": "4096"}, "12 bits"),
        ("mlx5_core", {"nic.rx-usecs": "0", "nic.rx-frames": "0"}, "no interrupt would ever come"),
        ("mlx4_en", {"nic.rx-usecs-low": "128", "nic.rx-usecs-high": "0"}, "not below"),
        ("mlx4_en", {"nic.pkt-rate-low": "400", "nic.pkt-rate-high": "400"}, "not below"),
        ("mlx4_en", {"nic.adaptive-rx": "on", "nic.rx-usecs": "8"}, "overrides it"),
        ("mlx4_en", {"nic.tx-frames-irq": "0"}, "interrupt budget"),
        ("iavf", {"nic.adaptive-rx": "on", "nic.rx-usecs": "8"}, "turn it off"),
        ("virtio_net", {"nic.adaptive-rx": "on", "nic.rx-usecs": "8"}, "turn it off"),
        ("ixgbevf", {"nic.rx-usecs": "1023"}, "not among"),
        ("ixgbe", {"nic.rx-usecs": "1023"}, "not among"),
        ("ixgbe", {"nic.tx-usecs": "10"}, "share an interrupt"),
        ("i40e", {"nic.rx-usecs": "8161"}, "steps of 2 us"),
        ("i40e", {"nic.adaptive-tx": "on", "nic.tx-usecs": "8"}, "turn it off"),
        ("i40e", {"nic.rx-usecs-high": "237"}, "rate limit"),
        ("ice", {"nic.rx-usecs": "8161"}, "ICE_ITR_MAX"),
        ("ice", {"nic.adaptive-rx": "on", "nic.rx-usecs": "8"}, "turn it off"),
        ("bnxt_en", {"nic.rx-frames": "32768"}, "silently truncated"),
        ("gve", {"nic.rx-usecs": "8191"}, "DQO"),
        ("gve", {"nic.ring-rx": "1000"}, "powers of two"),
        ("ena", {"nic.rx-usecs": "32768"}, "15 bits"),
        ("ena", {"nic.adaptive-rx": "on", "nic.rx-usecs": "8"}, "overrides it"),
        ("ena", {"nic.ring-rx": "128"}, "less becomes 256"),
        ("bnxt_en", {"nic.adaptive-rx": "on", "nic.rx-usecs": "8"}, "overrides it"),
        ("mlx5_core", {"nic.adaptive-tx": "on", "nic.tx-usecs": "8"}, "silently drops tx-usecs"),
        ("mlx5_core", {"nic.channels-rx": "4"}, "set channels-combined"),
        ("ice", {"nic.rx-usecs-high": "2"}, "rate limit"),
        ("ice", {"nic.adaptive-tx": "on", "nic.rx-usecs-high": "20"}, "turn it off"),
        ("i40e", {"nic.tx-usecs-high": "20"}, "follows rx-usecs-high"),
        ("mana", {"nic.ring-tx": "64"}, "128 to 16384"),
    ],
)
def test_illegal_settings_are_refused_with_the_drivers_reason(
    driver: str, setting: dict[str, str], reason: str
) -> None:
    with pytest.raises(BadInputError, match=reason):
        drivers.check(driver, {}, setting)


@pytest.mark.parametrize(
    ("driver", "name", "written", "read"),
    [
        ("mlx4_en", "nic.ring-rx", "300", "512"),
        ("mlx4_en", "nic.rx-frames", "65535", "44"),
        ("iavf", "nic.rx-usecs", "51", "52"),
        ("i40e", "nic.rx-usecs", "51", "52"),
        ("i40e", "nic.rx-usecs-high", "50", "48"),
        ("ice", "nic.rx-usecs", "51", "51"),
        ("ice", "nic.ring-rx", "65", "96"),
        ("ena", "nic.ring-rx", "1000", "512"),
        ("mana", "nic.ring-rx", "1000", "1024"),
        ("ixgbe", "nic.ring-tx", "65", "72"),
        ("i40e", "nic.rx-usecs", "8160", "8160"),
        ("tun", "nic.rx-frames", "132", "64"),
        ("igb", "nic.rx-usecs", "3", "3"),
        ("unheard-of", "nic.rx-usecs", "5", "5"),
    ],
)
def test_rounding_by_drivers_is_known(driver: str, name: str, written: str, read: str) -> None:
    assert drivers.reads_back(driver, name, written) == read


def test_values_that_a_driver_resets_are_written_afterwards_and_restored(tmp_path: Path) -> None:
    """iavf creates new queues at every change of their number, which start adaptive and at 50 us."""
    machine = _machine(tmp_path, driver="iavf", adaptive_rx="off", rx_usecs="20", channels_combined="4")
    before = machine.nic("eth1")
    with hold(machine, ENDS, {"nic.rx-usecs": 0, "nic.channels-combined": 2}, tmp_path, put_back=True) as held:
        assert machine.writes[0] == "eth1 channels-combined"
        assert (machine.nic("eth1")["rx-usecs"], machine.nic("eth1")["adaptive-rx"]) == ("0", "off")
        assert held.facts["knob.nic.adaptive-rx"] == "off"
    assert machine.nic("eth1") == before


def test_illegal_setting_is_refused_before_any_write(tmp_path: Path) -> None:
    machine = _machine(tmp_path, driver="igb")
    with pytest.raises(BadInputError, match="igb does not accept"), hold(machine, ENDS, {"nic.rx-usecs": 5}, tmp_path):
        pytest.fail("must be refused")
    assert machine.writes == []


def test_a_value_that_does_not_stick_is_an_error(tmp_path: Path) -> None:
    machine = _machine(tmp_path, driver="liar")
    with pytest.raises(KnobError, match="reads back '16'"), hold(machine, ENDS, {"nic.rx-usecs": 5}, tmp_path):
        pytest.fail("must not be measured")


def test_an_inconclusive_read_back_is_reported(tmp_path: Path) -> None:
    machine = _machine(tmp_path, driver="igbvf")
    with hold(machine, ENDS, {"nic.rx-usecs": 50}, tmp_path) as held:
        assert "interface down/up" in str(held.facts["knob.unproven.nic.rx-usecs"])


def test_settings_without_a_snapshot_are_not_changed(tmp_path: Path) -> None:
    machine = _machine(tmp_path)
    with pytest.raises(KnobError, match="does not list this parameter"):
        plan(machine, {"nic.adaptive-tx": "off"}, [ETH1])
    with pytest.raises(KnobError, match="holds it fixed"):
        plan(machine, {"nic.lro": "on"}, [ETH1])


@pytest.mark.parametrize(
    ("entries", "value", "table"),
    [
        ([0, 1, 2, 0, 1, 2, 0, 1], "3", "none"),
        ([0, 0, 0, 0, 0, 0, 0, 0], "1", "none"),
        ([0, 0, 0, 0, 1, 1, 1, 1], None, "4,4"),
        ([0, 0, 0, 2, 2, 2, 2, 2], None, "3,0,5"),
        ([1, 1, 1, 1, 1, 1, 1, 1], None, "1+1"),
        ([2, 3, 4, 2, 3, 4, 2, 3], None, "2+3"),
        ([0, 2, 1, 0, 2, 1, 0, 2], None, "none"),
        ([], None, None),
    ],
)
def test_a_table_of_flows_is_read_where_it_could_be_restored(
    tmp_path: Path, entries: list[int], value: str | None, table: str | None
) -> None:
    """Of igb's own table, in blocks, the driver was said not to list it."""
    lines = [f"{at:5}: " + " ".join(f"{entry:5}" for entry in entries[at : at + 4]) for at in range(0, len(entries), 4)]
    tool = tmp_path / "ethtool"
    tool.write_text(
        "#!/bin/sh\ncat << 'END'\nRX flow hash indirection table for eth1:\n" + "\n".join(lines) + "\nEND\n"
    )
    tool.chmod(0o755)
    where = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for name, read in (("nic.rss-equal", value), ("nic.rss-table-parts", table)):
        (access,) = find(name).accesses(_machine(tmp_path), Target("", "eth1"))
        printed = subprocess.run(access.show, check=True, env=where, capture_output=True, text=True)
        assert access.pick.find(printed.stdout) == read
        of_its_own = "its table is in an order of its own" if entries and value is None else ""
        assert name != "nic.rss-equal" or access.pick.why_not(printed.stdout) == of_its_own


def test_limits_of_the_machine_are_respected(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="68 to 9000"):
        plan(_machine(tmp_path), {"nic.mtu": 9001}, [ETH1])


def test_management_interface_is_refused(tmp_path: Path) -> None:
    machine = _machine(tmp_path, adaptive_rx="off")
    (machine.root / "routes").write_text("default via 10.0.0.254 dev eth1 proto static\n")
    with pytest.raises(BadInputError, match="carries the default route") as refused:
        plan(machine, {"nic.rx-usecs": 5}, [ETH1])
    assert "apply PROFILE --allow-management" in refused.value.hint, "studies have no such option"
    assert plan(machine, {"nic.rx-usecs": 5}, [ETH1], allow_management=True).cells


def test_rival_programs_are_named(tmp_path: Path) -> None:
    machine = _machine(tmp_path, adaptive_rx="off")
    (machine.root / "processes").write_text("bash\nirqbalance\nNetworkManager\n")
    assert [rival.program for rival in plan(machine, {"nic.rx-usecs": 5}, [ETH1]).rivals] == ["NetworkManager"]


def test_vfs_are_never_created_or_removed_and_the_refusal_explains_it() -> None:
    for name in ("nic.numvfs", "nic.sriov-numvfs", "nic.vfs"):
        with pytest.raises(BadInputError, match="VFs"):
            find(name)


def test_an_unknown_knob_is_refused_with_similar_names() -> None:
    with pytest.raises(BadInputError) as caught:
        find("nic.rx-usec")
    assert "nic.rx-usecs" in caught.value.hint
    with pytest.raises(BadInputError) as unknown:
        find("nic.rss-tables")
    assert "nic.rss-table," not in f"{unknown.value.hint},".replace("?", ",")


def test_a_single_queue_accepts_only_what_its_device_accepts() -> None:
    for setting, reason in (
        ({"nic.rx-usecs.queue3": "4096"}, "nic.rx-usecs.queue3 4096 is not among"),
        ({"nic.rx-usecs.queue3": "0", "nic.rx-frames.queue3": "0"}, "no interrupt would ever come"),
    ):
        with pytest.raises(BadInputError, match=reason):
            drivers.check("mlx5_core", {}, setting)
    drivers.check("mlx5_core", {}, {"nic.rx-usecs.queue3": "0", "nic.rx-frames.queue4": "0"})


def test_queue_knobs_go_to_one_queue(tmp_path: Path) -> None:
    (access,) = find("nic.rx-usecs.queue3").accesses(_machine(tmp_path), ETH1)
    assert access.show == ("ethtool", "-Q", "eth1", "queue_mask", "0x8", "--show-coalesce")


def test_frames_that_a_driver_does_not_count_are_no_reason() -> None:
    """ethtool over ioctl prints them as 0: igb was said to give no interrupt at rx-usecs 0."""
    present = {"nic.rx-usecs": "3", "nic.rx-frames": "0", "nic.tx-usecs": "0", "nic.tx-frames": "0"}
    drivers.check("igb", present, {"nic.rx-usecs": "0"})
    with pytest.raises(BadInputError, match="no interrupt would ever come"):
        drivers.check("mlx5_core", present, {"nic.rx-usecs": "0"})


@pytest.mark.parametrize("text", ["3-2", "1,3-2", "0-", "-1", "0,,1", "1 2"])
def test_a_list_of_processors_is_taken_whole_or_not_at_all(text: str) -> None:
    """`1,3-2` was taken for processor 1."""
    with pytest.raises(BadInputError, match="a list of processors"):
        canon(find("nic.irq-affinity"), text)


def test_spread_affinity_gives_each_vector_a_processor(tmp_path: Path) -> None:
    vectors = {f"/sys/class/net/eth1/device/msi_irqs/{irq}": "msix\n" for irq in (31, 32, 33)}
    files = {f"/proc/irq/{irq}/smp_affinity_list": "0-3\n" for irq in (31, 32, 33)}
    machine = KnobMachine.make(tmp_path / "machine", {"eth1": {}}, {**vectors, **files})
    with hold(machine, ENDS, {"nic.irq-affinity": "spread:0,2"}, tmp_path) as held:
        told = {name: value for name, value in held.facts.items() if not name.startswith(KNOB_UNPROVEN)}
        assert told == {"knob.nic.irq-affinity": "0;2", "knob.was.nic.irq-affinity": "0-3"}
        # They stayed on the processors of the setting, and nothing said so (igb, Linux 6.1).
        assert "any of the processors 0-3" in str(held.facts[f"{KNOB_UNPROVEN}nic.irq-affinity"])
        assert machine.read("/proc/irq/33/smp_affinity_list") == b"0\n"
    assert machine.read("/proc/irq/33/smp_affinity_list") == b"0-3\n"


def test_interrupts_of_the_port_above_a_nic_are_not_taken_for_its_own(tmp_path: Path) -> None:
    """A NIC without message-signalled interrupts had those of the port of its bus, which `nic.irq-affinity` moved."""
    above = {f"/sys/class/net/{name}/msi_irqs/31": "msi\n" for name in ("eth1", "eth2")}  # .../device/..
    files = {"/proc/irq/31/smp_affinity_list": "0-3\n", "/sys/class/net/eth1/device/irq": "11\n"}
    files |= {"/sys/class/net/eth2/device/features": "1\n"}
    machine = KnobMachine.make(tmp_path, {"eth1": {"driver": "e1000"}, "eth2": {"driver": "virtio_net"}}, above | files)
    found = [find("nic.irq-affinity").read(machine, Target("", name)).value for name in ("eth1", "eth2")]
    assert found == [None, "0-3"], "eth2 is a virtio NIC, whose interrupts are of the device above it"


@pytest.mark.parametrize(("old", "stays"), [("2", False), ("12", False), ("0-3", True), ("0,2", True)])
def test_interrupts_of_one_processor_do_not_linger(old: str, stays: bool) -> None:
    assert bool(lingers("nic.irq-affinity", old)) is stays
    assert not lingers("nic.rps-cpus", old)


def test_idle_states_are_limited_by_latency(tmp_path: Path) -> None:
    folder = "/sys/devices/system/cpu/cpu0/cpuidle"
    files = {f"{folder}/state{i}/latency": f"{us}\n" for i, us in enumerate((0, 2, 133))}
    files |= {f"{folder}/state{i}/disable": "0\n" for i in range(3)}
    machine = KnobMachine.make(tmp_path / "machine", {"eth1": {}}, files)
    knob: Knob = find("host.idle-latency-us")
    assert knob.read(machine, Target("")).value == "133"
    put(machine, knob, Target(""), "10")
    assert knob.read(machine, Target("")).value == "2"


@pytest.mark.parametrize(("asked", "longest"), [("0", "0"), ("10", "2"), ("1000", "133")])
def test_a_trial_records_idle_states_by_their_latency(tmp_path: Path, asked: str, longest: str) -> None:
    """It recorded the switches of the states, `0;1` for 0 and 10 us alike, and 0 for what was 133 before."""
    folders = [f"/sys/devices/system/cpu/cpu{cpu}/cpuidle" for cpu in (0, 1)]
    states = [(f"{folder}/state{i}", us) for folder in folders for i, us in enumerate((0, 2, 133))]
    files = {f"{state}/latency": f"{us}\n" for state, us in states} | {f"{state}/disable": "0\n" for state, _ in states}
    machine = KnobMachine.make(tmp_path / "machine", {"eth1": {}}, files)
    name = "host.idle-latency-us"
    found = look(machine, ENDS, {name: [asked]})
    with hold(machine, ENDS, {name: asked}, tmp_path) as held:
        assert held.facts == {f"knob.{name}": longest, f"knob.was.{name}": "133"}
    assert found[f"knob.found.{name}"] == "133"


@pytest.mark.parametrize(
    ("processors", "cpus", "printed"),
    [
        (2, "0", "1"),
        (8, "0-3", "0f"),
        (8, "none", "00"),
        (12, "0-3,8", "10f"),
        (12, "0", "001"),
        (32, "31", "80000000"),
        (40, "0-3", "00,0000000f"),
        (40, "35", "08,00000000"),
        (48, "none", "0000,00000000"),
        (64, "0-3", "00000000,0000000f"),
        (64, "35", "00000008,00000000"),
        (64, "none", "00000000,00000000"),
    ],
)
@pytest.mark.parametrize("present", [0, 1])
def test_masks_are_compared_at_the_kernels_width(
    tmp_path: Path, processors: int, cpus: str, printed: str, present: int
) -> None:
    """The width follows the number of processors (bitmap_string of the kernel): 0f of 8, 0000,0000000f of 48."""
    digits = f"{((1 << processors) - 1) * present:0{-(-processors // 4)}x}"
    before = ",".join(filter(None, (digits[:-16], digits[-16:-8], digits[-8:])))
    assert len(before) == len(printed)
    files = {"/sys/class/net/eth1/queues/rx-0/rps_cpus": f"{before}\n"}
    machine = KnobMachine.make(tmp_path / "machine", {"eth1": {}}, files)
    (cell,) = plan(machine, {"nic.rps-cpus": cpus}, [ETH1]).planned
    assert cell.accept == (printed,)


class TestMpi:
    def test_each_library_has_its_own_parameters(self) -> None:
        setting = {"mpi.progress": "blocking", "nic.rx-usecs": 0}
        assert mpi_environment(setting, "openmpi").env["OMPI_MCA_threads_pthreads_yield_strategy"] == "nanosleep"
        assert mpi_environment(setting, "mpich").env["MPIR_CVAR_ENABLE_HEAVY_YIELD"] == "1"
        assert mpi_environment(setting, "mvapich2").env == {"MV2_USE_BLOCKING": "1"}

    def test_settings_that_a_library_lacks_are_refused(self) -> None:
        with pytest.raises(BadInputError, match="openmpi5 has no"):
            mpi_environment({"mpi.srq-limit": 30}, "openmpi5")
        with pytest.raises(BadInputError, match="does not exist in openmpi4"):
            mpi_environment({"mpi.progress": "blocking"}, "openmpi4")

    def test_watermark_above_the_queue_is_refused(self) -> None:
        with pytest.raises(BadInputError, match="srq-limit 600 is above"):
            mpi_environment({"mpi.srq-size": 512, "mpi.srq-limit": 600}, "mvapich2")

    def test_a_watermark_is_set_as_asked_or_refused(self) -> None:
        """One as high as the queue became the next lower one for Open MPI 4."""
        with pytest.raises(BadInputError, match=r"below the size, 512"):
            mpi_environment({"mpi.srq-size": 512, "mpi.srq-limit": 512}, "openmpi4")
        assert mpi_environment({"mpi.srq-size": 512, "mpi.srq-limit": 512}, "mvapich2").env["MV2_SRQ_LIMIT"] == "512"

    def test_open_mpi_4_has_size_and_watermark_in_one_variable(self) -> None:
        queues = "OMPI_MCA_btl_openib_receive_queues"
        both = mpi_environment({"mpi.srq-limit": 30, "mpi.srq-size": 512}, "openmpi4").env
        assert both == {queues: "S,65536,512,30"}
        assert mpi_environment({"mpi.srq-size": 512}, "openmpi4").env == {queues: "S,65536,512,384"}
        assert mpi_environment({"mpi.srq-limit": 30}, "openmpi4").env == {queues: "S,65536,256,30"}

    def test_each_version_of_open_mpi_has_its_own_parameters(self) -> None:
        assert mpi.dialect("openmpi", "4.1.4") == "openmpi4"
        assert mpi.dialect("openmpi", "5.0.11") == "openmpi5"
        assert mpi.dialect("mpich", "4.3.2") == "mpich"
        assert mpi_environment({"mpi.srq-size": 512}, "openmpi5").env["UCX_RC_MLX5_RX_QUEUE_LEN"] == "512"

    @pytest.mark.parametrize(
        ("flavour", "eager"),
        [
            ("openmpi4", {"OMPI_MCA_btl_tcp_eager_limit": "8272", "OMPI_MCA_btl_openib_eager_limit": "8272"}),
            ("openmpi5", {"OMPI_MCA_btl_tcp_eager_limit": "8272"}),
            ("ucx", {"UCX_RNDV_THRESH": "8193"}),
        ],
    )
    def test_a_message_of_the_eager_size_is_eager_itself(self, flavour: str, eager: dict[str, str]) -> None:
        """Open MPI counts the header, and UCX makes a rendezvous from its threshold on: each made one of this size."""
        assert mpi_environment({"mpi.eager-bytes": 8192}, flavour).env == eager

    def test_mpich_over_ucx_has_an_eager_size(self) -> None:
        """Only variables of libfabric and ch3 were set, which UCX, as in the build of PyPI, does not look at."""
        given = mpi_environment({"mpi.eager-bytes": 8192}, "mpich").env
        assert given["UCX_RNDV_THRESH"] == "8193"
        assert given["MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD"] == "8192"

    @pytest.mark.parametrize("bind", [{}, {"mpi.bind": "none"}])
    def test_mpich_maps_what_it_binds(self, bind: dict[str, Scalar]) -> None:
        """Its launcher takes any word after -map-by in silence where it binds no rank."""
        with pytest.raises(BadInputError, match=r"mpich ignores mpi\.map"):
            mpi_environment({**bind, "mpi.map": "core"}, "mpich")
        with pytest.raises(BadInputError, match=r"mpich has no mpi\.map = 'node'"):
            mpi_environment({"mpi.bind": "core", "mpi.map": "node"}, "mpich")
        assert mpi_environment({"mpi.bind": "core", "mpi.map": "socket"}, "mpich").argv[2:] == ("-map-by", "socket")

    def test_binding_is_an_argument(self) -> None:
        assert mpi_environment({"mpi.bind": "core", "mpi.map": "numa"}, "openmpi").argv == (
            *("--bind-to", "core"),
            *("--map-by", "numa"),
        )

    @pytest.mark.parametrize("knob", mpi.KNOBS, ids=lambda knob: knob.name)
    def test_every_knob_renders_for_each_library_it_names(self, knob: mpi.MpiKnob) -> None:
        value = "polling" if knob.name == "mpi.progress" else "core" if knob.name in {"mpi.bind", "mpi.map"} else "64"
        for flavour in knob.renders:
            assert flavour in mpi.FLAVOURS
            bound = {"mpi.bind": "core"} if knob.name == "mpi.map" else {}
            given = mpi_environment({**bound, knob.name: value}, flavour)
            assert given.env or given.argv


def test_most_knobs_are_plain_table_rows() -> None:
    assert sum(type(knob) is Knob for knob in KNOBS) >= len(KNOBS) - 7


def test_the_reference_page_matches_the_tables() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "knobs.md"
    assert page.read_text() == reference(), "run `make reference`"


@pytest.mark.parametrize(("bit", "legal"), [("0", False), ("1", True)])
def test_virtio_coalesces_only_if_the_device_offers_it(tmp_path: Path, bit: str, legal: bool) -> None:
    features = {"/sys/class/net/eth1/device/features": "0" * 53 + bit + "0" * 10 + "\n"}
    machine = KnobMachine.make(tmp_path, {"eth1": {"driver": "virtio_net", "adaptive-rx": "off"}}, features)
    if legal:
        assert plan(machine, {"nic.rx-usecs": 8}, [ETH1]).planned
    else:
        with pytest.raises(BadInputError, match="NOTF_COAL"):
            plan(machine, {"nic.rx-usecs": 8}, [ETH1])
