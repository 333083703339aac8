"""A knob session on a scripted machine: every record, script, watchdog and pause, exactly."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from knob_machine import AnswerError, KnobMachine
from nearmetal.errors import TrialError
from nearmetal.knobs import registry, session
from nearmetal.knobs.access import CommandOutputs, KnobError, file_access
from nearmetal.knobs.hold import hold
from nearmetal.knobs.journal import EndState, read_state
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.watchdog import WatchLimits
from nearmetal.paths.path import Endpoint, Endpoints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.process import Finished
    from nearmetal.study.order import Scalar

NICS = ("eth1", "eth2")
FILES = {
    "/proc/sys/net/core/busy_read": "0\n",
    "/sys/class/net/eth1/carrier": "1\n",
    "/sys/class/net/eth2/carrier": "1\n",
    "/sys/class/net/eth3/carrier": "0\n",
}


@pytest.fixture
def machine(tmp_path: Path) -> KnobMachine:
    nics = {"eth1": {}, "eth2": {"rx-frames": "64"}, "eth3": {}}
    return KnobMachine.make(tmp_path / "machine", nics, FILES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "journals"
    place.mkdir()
    return place


class FarMachine(KnobMachine):
    """The same machine as nodes of a far host; records the commands run there."""

    machines = ("n0", "n1")
    site = SimpleNamespace(state="/far/state")
    disposable = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.ran: list[tuple[str, tuple[str, ...], bytes]] = []

    def machine_name(self, node: str) -> str:
        return f"machine of {node}"

    def way(self, node: str) -> dict[str, object]:
        return {}

    def lifeline(self, node: str) -> str:
        return "77"

    def run(self, argv: Sequence[str], *, node: str = "", stdin: bytes = b"", **others: Any) -> Finished:
        if tuple(argv[3:4]) in {("put",), ("forget",)}:
            self.ran.append((node, tuple(argv[3:]), stdin))
            argv = ("ls", "--", "/nothing")
        return super().run(argv, node=node, stdin=stdin, **others)


class DisposableMachine(FarMachine):
    disposable = True


class FakeWatchdog:
    """Records how it was armed; gives the scripted answer when it is disarmed."""

    armed: list[tuple[str, WatchLimits, str, str]]
    answers: list[str]

    def __init__(self, message: str = "", *, alive: bool = True) -> None:
        self._said = message
        self._alive = alive

    @classmethod
    def arm(cls, shell: object, node: str, guard: WatchLimits, script: str, report: str) -> FakeWatchdog:
        cls.armed.append((node, guard, script, report))
        answer = cls.answers.pop(0) if cls.answers else ""
        if answer == "refused":
            raise TrialError("the watchdog did not start")
        return cls(answer)

    def alive(self) -> bool:
        return self._alive

    def disarm(self) -> str:
        return self._said


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, WatchLimits, str, str]]:
    FakeWatchdog.armed, FakeWatchdog.answers = [], []
    monkeypatch.setattr(session, "Watchdog", FakeWatchdog)
    return FakeWatchdog.armed


def begin(
    shell: KnobMachine, folder: Path, setting: Mapping[str, Scalar], *targets: Target, **options: Any
) -> session.Session:
    return session.begin(shell, plan(shell, setting, targets or (Target("", "eth1"), Target(""))), folder, **options)


def records(begun: session.Session) -> list[dict[str, Any]]:
    return [json.loads(line)["record"] for line in begun.journal.path.read_bytes().splitlines()]


def kinds(begun: session.Session) -> list[str]:
    return [f"{one['kind']} {one.get('cell', one.get('state', ''))}".strip() for one in records(begun)]


def names(folder: Path) -> list[str]:
    """Return the suffixes of the files beside the journal."""
    return sorted(path.name.partition(".journal")[2] for path in folder.iterdir() if ".journal" in path.name)


def test_a_governor_gives_the_energy_preference_back(machine: KnobMachine, folder: Path) -> None:
    """amd_pstate leaves at performance what the governor of that name made so."""
    policy = machine.root / "sys/devices/system/cpu/cpufreq/policy0"
    governor, preference = policy / "scaling_governor", policy / "energy_performance_preference"
    policy.mkdir(parents=True)
    governor.write_text("powersave\n")
    preference.write_text("balance_power\n")
    policy.joinpath("affected_cpus").write_text("0\n")
    policy.joinpath("scaling_available_governors").write_text("performance powersave\n")

    def drive(what: str) -> None:
        if what.endswith("scaling_governor"):
            preference.write_text("performance\n")
        elif governor.read_text() == "performance\n":
            raise AnswerError("Device or resource busy")

    begun = begin(KnobMachine(machine.root, drive), folder, {"host.cpu-governor": "performance"}, Target(""))
    begun.apply()
    assert begun.disturbed() == {"host.cpu-energy-preference of machine": "balance_power -> performance"}
    assert not begun.restore()[0].unproven
    assert (governor.read_text(), preference.read_text()) == ("powersave\n", "balance_power\n")


class TestWrites:
    def test_each_write_is_announced_and_its_effects_are_recorded(self, machine: KnobMachine, folder: Path) -> None:
        begun = begin(machine, folder, {"nic.adaptive-rx": False, "host.busy_read": 50})
        begun.apply()
        numbers = {cell.knob: cell.cell for cell in begun.plan.cells}
        adaptive, usecs, frames = (numbers[f"nic.{name}"] for name in ("adaptive-rx", "rx-usecs", "rx-frames"))
        done = {one["cell"]: one for one in records(begun) if one["kind"] == "done"}
        assert done[adaptive]["read"] == done[adaptive]["value"] == "off"
        assert done[adaptive]["disturbed"] == {str(usecs): "3", str(frames): "64"}
        assert done[numbers["host.busy_read"]]["disturbed"] == {}
        assert [kind for kind in kinds(begun) if kind.startswith(("intent", "done"))] == [
            f"{kind} {cell.cell}" for cell in begun.plan.planned for kind in ("intent", "done")
        ]
        assert begun.disturbed() == {"nic.rx-usecs of eth1": "16 -> 3", "nic.rx-frames of eth1": "32 -> 64"}

    def test_values_that_could_have_changed_but_did_not_are_not_recorded(
        self, machine: KnobMachine, folder: Path
    ) -> None:
        machine.set_nic("eth1", adaptive_rx="off")
        begun = begin(machine, folder, {"nic.adaptive-rx": False})
        begun.apply()
        assert len(begun.plan.cells) > 1
        assert records(begun)[-1]["disturbed"] == {}

    def test_a_value_disturbed_by_an_earlier_write_is_recorded_once(self, machine: KnobMachine, folder: Path) -> None:
        begun = begin(machine, folder, {"nic.adaptive-rx": False, "nic.rx-usecs": 5})
        begun.apply()
        found = [one["disturbed"] for one in records(begun) if one["kind"] == "done"]
        assert found[0], "adaptive moderation resets frames"
        assert all(not disturbed for disturbed in found[1:])

    def test_values_of_several_targets_are_joined_where_they_differ(self, machine: KnobMachine, folder: Path) -> None:
        begun = begin(machine, folder, {"nic.rx-frames": 8, "nic.gro": False}, *(Target("", nic) for nic in NICS))
        begun.apply()
        assert begun.found() == {"nic.rx-frames": "32;64", "nic.gro": "on"}
        assert begun.facts() == {"knob.nic.rx-frames": "8", "knob.nic.gro": "off"}
        assert begun.disturbed() == {}

    def test_values_of_several_queues_are_joined_where_they_differ(self, machine: KnobMachine, folder: Path) -> None:
        """The last queue's stood for all."""
        machine.set_nic("eth1", channels_combined="4")
        queues = [f"/sys/class/net/eth1/queues/rx-{number}/rps_cpus" for number in range(4)]
        old = dict(zip(queues, ("1", "1", "2", "2"), strict=True))
        for path, mask in old.items():
            place = machine.root / path.lstrip("/")
            place.parent.mkdir(parents=True)
            place.write_text(f"{mask}\n")

        def shrink(what: str) -> None:
            for path in queues[1:] if "channels" in what else ():
                (machine.root / path.lstrip("/")).unlink()

        begun = begin(KnobMachine(machine.root, shrink), folder, {"nic.channels-combined": 1}, Target("", "eth1"))
        begun.apply()
        assert begun.disturbed() == {"nic.rps-cpus of eth1": "1 -> gone; 2 -> gone"}

    def test_an_interface_named_twice_is_set_once(self, machine: KnobMachine, folder: Path) -> None:
        """Two saved values had one number, so that a roll-back knew one of them only."""
        twice = (Target("", "eth1"), Target("", "eth1"), Target(""))
        begun = begin(machine, folder, {"nic.gro": False, "host.busy_read": 50}, *twice)
        assert [(cell.cell, cell.knob) for cell in begun.plan.cells if cell.new] == [
            (0, "nic.gro"),
            (1, "host.busy_read"),
        ]

    def test_a_value_that_is_so_already_is_not_written(self, machine: KnobMachine, folder: Path) -> None:
        """ethtool over ioctl, as on older kernels, ends with status 80 then, and the trial failed."""

        def refuse(what: str) -> None:
            if what in {"eth1 rx-usecs", "/proc/sys/net/core/busy_read"}:
                raise AnswerError("rx-usecs unmodified, ignoring\nno coalesce parameters changed, aborting")

        begun = begin(KnobMachine(machine.root, refuse), folder, {"nic.adaptive-rx": True, "nic.rx-frames": 8})
        begun.apply()
        assert begun.facts() == {"knob.nic.adaptive-rx": "on", "knob.nic.rx-frames": "8"}
        machine.set_nic("eth1", adaptive_rx="off")
        begun = begin(KnobMachine(machine.root, refuse), folder, {"nic.rx-usecs": 16, "host.busy_read": 0})
        begun.apply()
        assert begun.facts() == {"knob.nic.rx-usecs": "16", "knob.host.busy_read": "0"}
        assert begun.found() == {"nic.rx-usecs": "16", "host.busy_read": "0"}

    def test_a_value_that_is_so_already_is_looked_at_once(
        self, machine: KnobMachine, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing was written, so there is nothing to read back: a program in the lab starts for 3.5 ms."""
        begun = begin(machine, folder, {"nic.rx-frames": 32}, Target("", "eth1"))
        looks: list[Sequence[str]] = []
        run = machine.run
        monkeypatch.setattr(machine, "run", lambda argv, **how: (looks.append(argv), run(argv, **how))[1])
        begun.apply()
        assert begun.facts() == {"knob.nic.rx-frames": "32"}
        assert [*map(tuple, looks)] == [("ethtool", "-c", "eth1")] * 3, "is it as saved, to be written, so at the end"

    def test_a_value_that_was_so_until_another_write_is_written(self, machine: KnobMachine, folder: Path) -> None:
        busy_read = machine.root / "proc/sys/net/core/busy_read"
        machine = KnobMachine(machine.root, lambda what: busy_read.write_text("7\n") if "gro" in what else None)
        begun = begin(machine, folder, {"nic.gro": False, "host.busy_read": 0})
        begun.apply()
        assert begun.facts() == {"knob.nic.gro": "off", "knob.host.busy_read": "0"}
        assert busy_read.read_text() == "0\n"

    def test_a_value_that_a_write_resets_is_written_again(self, machine: KnobMachine, folder: Path) -> None:
        begun = begin(machine, folder, {"nic.adaptive-rx": False, "nic.rx-usecs": 16})
        begun.apply()
        assert machine.nic("eth1")["rx-usecs"] == "16"
        assert "eth1 rx-usecs" in machine.writes

    def test_a_value_that_the_driver_ignores_is_refused(self, machine: KnobMachine, folder: Path) -> None:
        machine.set_nic("eth1", driver="liar")
        begun = begin(machine, folder, {"nic.rx-usecs": 5})
        with pytest.raises(KnobError, match="reads back '16' after '5' was written"):
            begun.apply()

    def test_a_later_write_that_changes_an_earlier_one_is_named(self, machine: KnobMachine, folder: Path) -> None:
        def interfere(what: str) -> None:
            if "busy_read" in what:
                machine.set_nic("eth1", gro="on")

        shell = KnobMachine(machine.root, interfere)
        begun = begin(shell, folder, {"nic.gro": False, "host.busy_read": 50})
        with pytest.raises(KnobError, match=r"nic\.gro of eth1 was off and is on after other writes"):
            begun.apply()

    def test_an_inconclusive_read_back_is_named(self, machine: KnobMachine, folder: Path) -> None:
        setting = {"nic.rx-usecs": 10, "host.busy_read": 50}
        machine.set_nic("eth1", driver="liar", adaptive_rx="off")
        assert begin(machine, folder, setting).readback_doubts() == {}
        machine.set_nic("eth1", driver="igbvf")
        doubts = begin(machine, folder, setting).readback_doubts()
        assert list(doubts) == ["nic.rx-usecs"]
        assert doubts["nic.rx-usecs"]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ran: list[str] = []
    run = KnobMachine.run

    def counted(machine: KnobMachine, argv: Sequence[str], **others: Any) -> Finished:
        ran.append(" ".join(argv[:2]) if argv[0] == "ethtool" else argv[0])
        return run(machine, argv, **others)

    monkeypatch.setattr(KnobMachine, "run", counted)
    return ran


class TestCommands:
    """What each program costs: half a millisecond on this machine, a way to and fro on a far one."""

    def test_a_plan_runs_each_command_that_prints_values_once(self, machine: KnobMachine, programs: list[str]) -> None:
        machine.set_nic("eth1", adaptive_rx="off")
        plan(machine, {"nic.rx-usecs": 5, "nic.rx-frames": 8}, [Target("", "eth1")])
        assert programs.count("ethtool -c") == 1

    def test_files_are_read_together_and_once(self, machine: KnobMachine, programs: list[str]) -> None:
        files = [file_access("", name) for name in FILES if "eth" in name]
        outputs = CommandOutputs(machine)
        assert [one.value for one in outputs.read_all(files)] == ["1", "1", "0"]
        (machine.root / "sys/class/net/eth3/carrier").write_text("1\n")
        assert [one.value for one in outputs.read_all(files)] == ["1", "1", "0"]
        assert programs == ["grep"]

    def test_putting_one_value_back_reads_before_and_after(
        self, machine: KnobMachine, folder: Path, programs: list[str]
    ) -> None:
        machine.set_nic("eth1", adaptive_rx="off")
        begun = begin(machine, folder, {"nic.rx-usecs": 5}, Target("", "eth1"))
        begun.apply()
        programs.clear()
        begun.restore()
        assert programs == ["ip", "ethtool -c", "ethtool -C", "ethtool -c"]

    @pytest.mark.parametrize(
        ("shell", "expected"),
        [
            (KnobMachine, ["ethtool -c", "ethtool -C", "ethtool -c", "ethtool -c"]),
            (DisposableMachine, ["ethtool -C", "ethtool -c"]),
        ],
        ids=["shared", "disposable"],
    )
    def test_a_machine_of_ones_own_is_not_asked_for_the_doings_of_others(
        self,
        machine: KnobMachine,
        folder: Path,
        programs: list[str],
        shell: type[KnobMachine],
        expected: list[str],
    ) -> None:
        machine.set_nic("eth1", adaptive_rx="off")
        begun = begin(shell(machine.root), folder, {"nic.rx-usecs": 5}, Target("", "eth1"))
        assert {"sh", "ip", "readlink"} & set(programs) == ({"sh", "ip", "readlink"} if shell is KnobMachine else set())
        assert programs.count("ethtool -i") == 1
        programs.clear()
        begun.apply()
        assert programs == expected


class TestSuccessiveLaunches:
    """Launches of one setting on machines that end with the last of them."""

    ENDS = Endpoints((Endpoint("n0", "eth1"),), "10.77.0.0/24")
    SETTING: ClassVar = {"nic.rx-frames": 8}

    def test_a_setting_is_written_once_and_put_back_after_the_last_that_has_it(
        self, machine: KnobMachine, folder: Path, programs: list[str]
    ) -> None:
        there, kept, before = DisposableMachine(machine.root), dict[int, session.Session](), machine.nic("eth1")
        with hold(there, self.ENDS, self.SETTING, folder, kept=kept, put_back=False) as first:
            assert machine.nic("eth1")["rx-frames"] == "8"
        assert machine.nic("eth1")["rx-frames"] == "8"
        programs.clear()
        with hold(there, self.ENDS, self.SETTING, folder, kept=kept, put_back=True) as second:
            assert not {"ethtool -C", "ethtool -i"} & set(programs), "it stands already"
        assert second.facts == first.facts
        assert second.facts["knob.was.nic.rx-frames"] == "32", "not what the launch before left"
        assert (machine.nic("eth1"), kept, list(folder.glob("*.journal"))) == (before, {}, [])
        with hold(there, self.ENDS, {"nic.rx-frames": 4}, folder, kept=kept) as third:
            assert third.facts["knob.was.nic.rx-frames"] == "32"

    def test_each_launch_notices_that_its_setting_was_lost(self, machine: KnobMachine, folder: Path) -> None:
        there, kept = DisposableMachine(machine.root), dict[int, session.Session]()
        with hold(there, self.ENDS, self.SETTING, folder, kept=kept, put_back=False):
            pass
        with (
            pytest.raises(KnobError, match=r"rx-frames of .*eth1 was 8 and is 5"),
            hold(there, self.ENDS, self.SETTING, folder, kept=kept, put_back=False),
        ):
            machine.set_nic("eth1", rx_frames="5")


class TestBusy:
    @pytest.mark.parametrize(
        ("refusals", "message", "taken", "pauses"),
        [(4, "Device or resource busy", True, 4), (5, "Device or resource busy", False, 4), (1, "No", False, 0)],
        ids=["at last", "for ever", "refused for good"],
    )
    def test_a_busy_device_is_tried_five_times(
        self,
        machine: KnobMachine,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        refusals: int,
        message: str,
        taken: bool,
        pauses: int,
    ) -> None:
        slept: list[float] = []
        monkeypatch.setattr(session.time, "sleep", slept.append)
        left = [AnswerError(message)] * refusals

        def refuse(_what: str) -> None:
            if left:
                raise left.pop()

        begun = begin(KnobMachine(machine.root, refuse), folder, {"nic.rx-frames": 8})
        if taken:
            begun.apply()
        else:
            with pytest.raises(KnobError, match=message):
                begun.apply()
        assert (machine.nic("eth1")["rx-frames"] == "8") is taken
        assert slept == [0.05] * pauses
        assert not left


class TestEnds:
    SETTING = {"nic.rx-frames": 8}

    def test_a_confirmed_session_leaves_its_journal_alone(
        self, machine: KnobMachine, folder: Path, armed: list[Any]
    ) -> None:
        begun = begin(machine, folder, self.SETTING, guard=WatchLimits())
        begun.apply()
        assert names(folder) == ["", ".0.undo.sh"]
        assert begun.confirm() is EndState.CONFIRMED
        assert names(folder) == [""]
        assert begun.watchdogs == []
        assert kinds(begun)[-1] == "end confirmed"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(begun.journal._descriptor)

    def test_a_watchdog_that_has_acted_prevents_confirmation(
        self, machine: KnobMachine, folder: Path, armed: list[Any]
    ) -> None:
        FakeWatchdog.answers = ["restored because the deadline has passed"]
        begun = begin(machine, folder, self.SETTING, guard=WatchLimits())
        begun.apply()
        with pytest.raises(TrialError, match=r"too late to confirm, the watchdog has acted: .* deadline has passed"):
            begun.confirm()
        undone, report = begun.restore()
        assert undone.put_back == ("nic.rx-frames of eth1",)
        assert report == ""
        assert [kind for kind in kinds(begun) if kind.startswith("end")] == [
            "end confirmed",
            "end quarantined",
            "end restored",
        ]

    def test_a_value_that_changes_while_the_watchdog_ends_is_detected(
        self, machine: KnobMachine, folder: Path, armed: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun = begin(machine, folder, self.SETTING, guard=WatchLimits())
        begun.apply()
        monkeypatch.setattr(FakeWatchdog, "disarm", lambda _: machine.set_nic("eth1", rx_frames="9") or "")
        with pytest.raises(KnobError, match=r"nic\.rx-frames of eth1 was 8 and is 9"):
            begun.confirm()
        assert names(folder) == ["", ".0.undo.sh"], "a script that can be run by hand stays"

    def test_restored_values_are_reported_before_the_journal_ends(
        self, machine: KnobMachine, folder: Path, armed: list[Any]
    ) -> None:
        FakeWatchdog.answers = ["first", "", "third"]
        targets = (Target("n0", "eth1"), Target("n1", "eth2"), Target("n2", "eth3"))
        begun = begin(machine, folder, self.SETTING, *targets, guard=WatchLimits())
        begun.apply()
        heard: list[object] = []
        undone, report = begun.restore(lambda one: heard.append((one, read_state(begun.journal.path).end)))
        assert heard == [(undone, None)]
        assert report == "first; third"
        assert kinds(begun)[-1] == "end restored"
        assert sum(kind.startswith("end") for kind in kinds(begun)) == 1
        assert names(folder) == [""]

    @pytest.mark.parametrize(("alive", "unguarded"), [((), False), ((True, True), False), ((True, False), True)])
    def test_one_dead_watchdog_leaves_a_session_unguarded(
        self, machine: KnobMachine, folder: Path, alive: tuple[bool, ...], unguarded: bool
    ) -> None:
        begun = begin(machine, folder, self.SETTING)
        begun.watchdogs.extend(FakeWatchdog(alive=one) for one in alive)  # type: ignore[misc]
        assert begun.unguarded() is unguarded


def test_a_machine_setting_is_set_on_each_machine_of_a_trial(machine: KnobMachine, folder: Path) -> None:
    ends = Endpoints((Endpoint("n0", "eth1"), Endpoint("n1", "eth2")), "10.77.0.0/24")
    with hold(FarMachine(machine.root), ends, {"host.busy_read": 50}, folder) as held:
        (journal,) = folder.glob("*.journal")
        assert [(cell.target, cell.node) for cell in read_state(journal).cells.values()] == [("n0", "n0"), ("n1", "n1")]
        assert held.facts["knob.host.busy_read"] == "50"


class TestWatchdogs:
    SETTING = {"nic.rx-frames": 8, "host.busy_read": 50}
    NODES = (Target("n0", "eth1"), Target("n0", "eth3"), Target("n0"), Target("n1", "eth2"), Target(""))

    def test_none_is_armed_without_a_request(self, machine: KnobMachine, folder: Path, armed: list[Any]) -> None:
        assert begin(machine, folder, self.SETTING).watchdogs == []
        assert armed == []

    @pytest.mark.parametrize(
        ("own_links", "links"),
        [(False, [("wan",)] * 3), (True, [("wan", "eth1"), ("wan", "eth2"), ("wan",)])],
        ids=["named links", "own links too"],
    )
    def test_each_node_gets_one_with_its_script_and_links(
        self,
        machine: KnobMachine,
        folder: Path,
        armed: list[Any],
        own_links: bool,
        links: list[tuple[str, ...]],
    ) -> None:
        guard = WatchLimits(deadline_s=9, links=("wan", "wan"), own_links=own_links)
        begun = begin(machine, folder, self.SETTING, *self.NODES, guard=guard)
        journal = begun.journal.path
        assert [node for node, *_ in armed] == ["n0", "n1", ""]
        assert [limits.links for _, limits, *_ in armed] == links
        assert {limits.deadline_s for _, limits, *_ in armed} == {9}
        assert [report for *_, report in armed] == [f"{journal}.{number}.watchdog" for number in range(3)]
        scripts = [script for _, _, script, _ in armed]
        assert scripts == [Path(f"{journal}.{number}.undo.sh").read_text() for number in range(3)]
        assert begun.undo_script == "\n".join(scripts)
        assert ["eth1" in script for script in scripts] == [True, False, False]
        assert len(begun.watchdogs) == 3

    def test_one_that_does_not_start_ends_the_session_before_any_write(
        self, machine: KnobMachine, folder: Path, armed: list[Any]
    ) -> None:
        FakeWatchdog.answers = ["", "refused"]
        with pytest.raises(TrialError, match="did not start"):
            begin(machine, folder, self.SETTING, *self.NODES, guard=WatchLimits())
        assert len(armed) == 2
        assert machine.writes == []
        assert names(folder) == [""]
        (path,) = folder.glob("*.journal")
        assert read_state(path).end is EndState.RESTORED


class TestFar:
    SETTING = {"nic.rx-frames": 8}
    NODES = (Target("n0", "eth1"), Target("n1", "eth2"))

    def test_undo_scripts_stay_on_each_far_machine_until_a_clean_end(
        self, machine: KnobMachine, folder: Path, armed: list[Any]
    ) -> None:
        far = FarMachine(machine.root)
        begun = begin(far, folder, self.SETTING, *self.NODES, guard=WatchLimits())
        name = begun.journal.path.name
        scripts = [(folder / f"{name}.{number}.undo.sh").read_bytes() for number in (0, 1)]
        origin = registry.origin(begun.journal.path)
        assert far.ran == [
            (f"n{number}", ("put", "/far/state/journal", f"{name}.{number}.undo.sh", origin), scripts[number])
            for number in (0, 1)
        ]
        assert [report for *_, report in armed] == [f"/far/state/journal/{name}.{number}.watchdog" for number in (0, 1)]
        far.ran.clear()
        begun.apply()
        begun.restore()
        assert [(node, argv) for node, argv, _ in far.ran] == [
            (node, ("forget", "/far/state", name)) for node in ("n0", "n1")
        ]

    @pytest.mark.parametrize("shell", [KnobMachine, DisposableMachine])
    def test_nothing_is_left_on_machines_that_do_not_outlive_the_session(
        self, machine: KnobMachine, folder: Path, armed: list[Any], shell: type[KnobMachine]
    ) -> None:
        there = shell(machine.root)
        begun = begin(there, folder, self.SETTING, *self.NODES, guard=WatchLimits())
        assert getattr(there, "ran", []) == []
        assert [report for *_, report in armed] == [f"{begun.journal.path}.{number}.watchdog" for number in (0, 1)]

    @pytest.mark.parametrize(
        ("shell", "host", "reported"),
        [(FarMachine, "local", True), (FarMachine, "named", False), (KnobMachine, "local", False)],
    )
    def test_the_journal_names_far_machines_only_if_no_host_does(
        self, machine: KnobMachine, folder: Path, shell: type[KnobMachine], host: str, reported: bool
    ) -> None:
        begun = begin(shell(machine.root), folder, self.SETTING, *self.NODES, host=host)
        first = records(begun)[0]
        assert first["host"] == host
        assert first.get("machines") == (
            {node: [f"machine of {node}", "boot-1"] for node in ("n0", "n1")} if reported else None
        )
