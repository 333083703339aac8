"""Advice is given only where the run has evidence for it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fake_runs import STUDY as FAKE_STUDY
from nearmetal.cli.main import run as nearmetal
from nearmetal.report.advice import advise
from nearmetal.results.paths import build_view
from nearmetal.stats.equivalence import Finding
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.store.archive import unarchive
from nearmetal.store.rundir import RunDir
from nearmetal.study.facts import SHARED
from nearmetal.study.spec import parse_study
from nearmetal.tune.profile import Profile
from tests.unit.report.synthetic_run import ONE_SIZE, Recipe, make_run

if TYPE_CHECKING:
    from nearmetal.store.rundir import TrialRecord

OLDER_RUN = Path(__file__).parents[2] / "data" / "older-lab-run.zip"
"""Of `sriov-gap`: the bare port and its function, before messages at random times were part of it."""
STUDY = """
format = 1
name = "a"
baseline = "native"
[host]
kind = "HOST"
[[path]]
name = "native"
[[path]]
name = "guest"
kind = "KIND"
[[workload]]
name = "latency"
sizes = [8]
progress = "PROGRESS"
"""
SETTINGS = """
[mpi]
flavour = "mpich"
[host.options]
"times.nic.rx-usecs=100" = 2.0
"times.nic.gro=True" = 0.8
"times.mpi.bind=core" = 0.9
[[setting]]
name = "slow"
knobs = { "nic.rx-usecs" = 100 }
[[setting]]
name = "as-found"
[[setting]]
name = "both"
knobs = { "nic.gro" = true, "mpi.bind" = "core" }
[[setting]]
name = "launch"
knobs = { "mpi.bind" = "core" }
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return make_run(tmp_path_factory.mktemp("advice") / "run", Recipe(blocks=5))


def remedies(
    run: RunDir,
    counters: dict[str, int],
    facts: dict[str, object] | None = None,
    *,
    kind: str = "veth",
    host: str = "lab",
    progress: str = "polling",
) -> list[str]:
    study = parse_study(STUDY.replace("KIND", kind).replace("HOST", host).replace("PROGRESS", progress), "s")
    return [one.remedy for one in advise(study, [trial(run, counters, facts or {})])]


def trial(run: RunDir, counters: dict[str, int], facts: dict[str, object]) -> TrialRecord:
    """One valid trial of the guest over 1,000 iterations."""
    one = next(record for record in run.trials() if record.valid)
    order = replace(
        one.order,
        path=replace(one.order.path, label="guest"),
        workload=replace(one.order.workload, label="latency"),
    )
    outcome = replace(one.outcome, counters={"tool.iterations": 1000, **counters}, facts=facts)  # type: ignore[arg-type]
    return replace(one, order=order, outcome=outcome)


def test_ranks_that_share_a_processor_are_not_advised_to_poll(run: RunDir) -> None:
    text = STUDY.replace("KIND", "veth").replace("HOST", "lab").replace("PROGRESS", "blocking")
    study, one = parse_study(text, "s"), trial(run, {"sched.context_switches": 4000}, {})
    assert [found.remedy for found in advise(study, [one])] == ["polling ranks, where each has a core to itself"]
    assert advise(parse_study(text + "placement = [0, 1, 0, 1]\n", "s"), [one]) == []


def test_advice_on_a_lone_path_is_by_its_launches_under_both_names(run: RunDir) -> None:
    text = STUDY.replace('[[path]]\nname = "guest"\nkind = "KIND"\n', "").replace("HOST", "local")
    one = trial(run, {"cpu.user": 95, "cpu.steal": 5}, {})
    again = replace(one, order=replace(one.order, path=replace(one.order.path, label="native-again")))
    (found,) = advise(parse_study(text.replace("PROGRESS", "polling"), "s"), [again])
    assert (found.path, found.evidence) == ("native", "5.0 % of processor time was stolen")


def test_advice_is_by_the_counters_of_one_setting_which_it_names(run: RunDir) -> None:
    """Of a moderated setting and one without, 1 and 2 interrupts were 1.5, and the last launch decided on the clock."""
    text = STUDY.replace("KIND", "veth").replace("HOST", "lab").replace("PROGRESS", "polling")
    text += '[[setting]]\nname = "default"\n'
    text += '[[setting]]\nname = "fast"\nknobs = { "host.cpu-governor" = "performance" }\n'
    default = trial(run, {"irq.24.eth0": 1000}, {"cpu.governor": "powersave"})
    fast = trial(run, {"irq.24.eth0": 2000}, {"cpu.governor": "performance"})
    records = [
        replace(one, order=replace(one.order, setting=name)) for one, name in ((default, "default"), (fast, "fast"))
    ]
    evidence = ["1.00 device interrupts per iteration for two messages of 8 B to 64 KiB", "the governor is powersave"]
    study = parse_study(text, "s")
    assert [one.evidence for one in advise(study, records)] == [f"{one} (under `default`)" for one in evidence]
    assert [one.evidence for one in advise(study, records[:1])] == evidence
    assert advise(study, records[1:]) == []


def test_counters_of_a_launch_that_workloads_share_are_not_those_of_each(run: RunDir) -> None:
    """2.0 interrupts of a ping-pong and 0.9 of a broadcast were "1.45 for two messages", 7 drops of a launch 14."""
    text = STUDY.replace("KIND", "vf").replace("HOST", "lab").replace("PROGRESS", "polling")
    study = parse_study(text + '[[workload]]\nname = "bcast"\nsizes = [8]\n', "s")

    def told(counters: dict[str, int]) -> list[str]:
        one = trial(run, {**counters, "tool.iterations": 2000}, {SHARED: "latency, bcast"})
        of_both = [replace(one.order.workload, label=name) for name in ("latency", "bcast")]
        trials = [replace(one, order=replace(one.order, workload=workload)) for workload in of_both]
        return [found.evidence for found in advise(study, trials)]

    assert told({"irq.24.eth0": 2900}) == []
    assert told({"link.n0.eth0.rx_dropped": 7}) == ["7 drops and retransmits in 2 trials"]


def test_a_run_without_evidence_gets_no_advice(run: RunDir) -> None:
    assert remedies(run, {"irq.24.eth0": 2000, "cpu.user": 1000, "sched.context_switches": 9000}) == []


@pytest.mark.parametrize(
    ("counters", "facts", "asked", "remedy"),
    [
        ({"irq.24.eth0": 1000}, {}, {}, "no interrupt moderation"),
        ({"kvm.exits": 9000}, {}, {"kind": "e1000"}, "`vhost` instead of an emulated card"),
        ({"kvm.exits": 5000}, {}, {"kind": "virtio"}, "`vhost` instead of user space"),
        ({"kvm.exits": 4000}, {}, {"kind": "vhost"}, "an SR-IOV virtual function"),
        ({}, {"guest.vm1.nic0.backend": "qemu"}, {}, "`vhost` instead of the emulator's"),
        ({"sched.context_switches": 4000}, {}, {"progress": "blocking"}, "polling ranks"),
        ({"cpu.steal": 20, "cpu.user": 980}, {}, {}, "vCPUs pinned"),
        ({}, {"guest.vm1.vcpus_pinned": 0}, {}, "vCPUs pinned"),
        ({}, {"guest.vm1.hugepages": False}, {}, "huge pages"),
        ({"link.n0.eth0.rx_dropped": 7}, {}, {}, "longer receive rings"),
        ({}, {"cpu.governor": "powersave"}, {}, "a constant clock"),
        ({}, {"n1.eth0.100.qdisc": "tbf", "n0.eth0.qdisc": "fq_codel"}, {}, "the interface without its traffic shaper"),
    ],
)
def test_each_remedy_follows_from_its_evidence(
    run: RunDir, counters: dict[str, int], facts: dict[str, object], asked: dict[str, str], remedy: str
) -> None:
    found = remedies(run, counters, facts, **asked)
    assert len(found) == 1
    assert found[0].startswith(remedy)


@pytest.mark.parametrize(
    ("counters", "facts", "asked"),
    [
        ({"irq.24.eth0": 1600}, {}, {}),
        ({"irq.36.virtio1-req.0": 900, "irq.37.nvme0q1": 90, "irq.32.virtio0-reporting_vq": 2}, {}, {}),
        ({"sched.context_switches": 900}, {}, {"progress": "blocking"}),
        ({"cpu.steal": 9, "cpu.user": 991}, {}, {}),
        ({"link.n0.eth0.rx_dropped": 1}, {}, {}),
        ({}, {"cpu.governor": "performance", "guest.vm1.hugepages": True, "guest.vm1.vcpus_pinned": 2}, {}),
        ({}, {}, {"kind": "e1000"}),
        ({}, {"n0.eth0.qdisc": "mq", "n1.eth0.qdisc": "fq"}, {}),
    ],
)
def test_weak_evidence_gives_no_advice(
    run: RunDir, counters: dict[str, int], facts: dict[str, object], asked: dict[str, str]
) -> None:
    assert remedies(run, counters, facts, **asked) == []


def test_a_traffic_shaper_is_named_with_its_machine_unless_the_study_asked_for_it(run: RunDir) -> None:
    seen = [trial(run, {}, {"n1.eth0.100.qdisc": "netem", "machine.1": "vm7"})]
    text = STUDY.replace("KIND", "veth").replace("HOST", "local").replace("PROGRESS", "polling")
    (found,) = advise(parse_study(text, "s"), seen)
    assert found.evidence.startswith("eth0.100 on vm7 has the queueing discipline netem")
    assert found.attempt.startswith("`tc -s qdisc show dev eth0.100` on vm7 ")
    shaped = text.replace('kind = "veth"', 'kind = "veth"\noptions = { wire_delay_us = 20 }')
    assert shaped != text
    assert advise(parse_study(shaped, "s"), seen) == []


def test_a_path_without_a_nic_gets_no_advice_on_nics(run: RunDir) -> None:
    counters, cable = {"irq.24.eth0": 1000, "link.n0.eth0.rx_dropped": 7}, {"n0.eth0.kind": "veth"}
    assert remedies(run, counters, host="local") == []
    assert remedies(run, counters, cable, host="ssh") == []
    assert len(remedies(run, counters, {"n0.eth0.kind": "physical"}, host="ssh")) == 2


@pytest.mark.parametrize(
    ("counters", "kind", "progress", "file"),
    [
        ({"irq.24.eth0": 1000}, "veth", "polling", "rx0"),
        ({"link.n0.eth0.rx_dropped": 7}, "veth", "polling", "rings"),
        ({"sched.context_switches": 4000}, "veth", "blocking", "polling"),
        ({"kvm.exits": 5000}, "virtio", "polling", "vhost"),
        ({"kvm.exits": 5000}, "vhost", "polling", "guest-vf"),
    ],
)
def test_each_command_that_changes_the_study_yields_one_that_parses(
    run: RunDir, tmp_path: Path, counters: dict[str, int], kind: str, progress: str, file: str
) -> None:
    text = STUDY.replace("KIND", kind).replace("HOST", "lab").replace("PROGRESS", progress)
    (found,) = advise(parse_study(text, "s"), [trial(run, counters, {})])
    (tmp_path / "study.toml").write_text(text)
    make, _, start = found.attempt.replace("RUN/", f"{tmp_path}/").partition(" && ")
    subprocess.run(["sh", "-c", make], cwd=tmp_path, check=True)
    assert start == f"nearmetal run {file}.toml"
    more = parse_study((tmp_path / f"{file}.toml").read_text(), file)
    tried = {
        "rx0": more.setting[-1].knobs == {"nic.rx-usecs": 0},  # the lab's cards have no adaptive mode
        "rings": [one.name for one in more.setting] == ["as-found", "rings"],
        "polling": more.workload[0].progress == "polling",
        "vhost": more.path[-1].recipe == "vhost",
        "guest-vf": more.path[-1].recipe == "guest-vf",
    }
    assert tried[file]


@pytest.mark.parametrize(
    ("drivers", "adaptive"), [(("igb 6.1", "igbvf 6.1"), False), (("igb 6.1", "ice 6.1"), True), ((), True)]
)
def test_an_adaptive_mode_is_turned_off_where_there_is_one(
    run: RunDir, drivers: tuple[str, ...], adaptive: bool
) -> None:
    """Of a card without one each trial under the advised setting failed."""
    facts: dict[str, object] = {f"n{number}.eth0.driver": name for number, name in enumerate(drivers)}
    text = STUDY.replace("KIND", "declared").replace("HOST", "ssh").replace("PROGRESS", "polling")
    (found,) = advise(parse_study(text, "s"), [trial(run, {"irq.24.eth0": 1000}, facts)])
    assert ("nic.adaptive-rx" in found.attempt) == adaptive


@pytest.mark.parametrize("workload", ["progress='blocking'\n", 'progress = "blocking" # as in the paper\n', "inline"])
def test_ranks_are_made_to_poll_however_the_study_has_them_wait(run: RunDir, tmp_path: Path, workload: str) -> None:
    """The copy of the study was as before, so that advice was followed to no avail."""
    text = STUDY.replace("KIND", "veth").replace("HOST", "lab").replace('progress = "PROGRESS"\n', workload)
    if workload == "inline":
        text = "workload = [{ name = 'latency', sizes = [8], progress = 'blocking' }]\n" + text.split("[[workload]]")[0]
    (found,) = advise(parse_study(text, "s"), [trial(run, {"sched.context_switches": 4000}, {})])
    (tmp_path / "study.toml").write_text(text)
    make = found.attempt.replace("RUN/", f"{tmp_path}/").partition(" && ")[0]
    subprocess.run(["sh", "-c", make], cwd=tmp_path, check=True)
    assert parse_study((tmp_path / "polling.toml").read_text(), "s").workload[0].progress == "polling"


@pytest.mark.parametrize("value", ["0", "'0'"])
def test_moderation_that_was_tried_is_not_advised_however_it_is_written(run: RunDir, value: str) -> None:
    """A profile has its values as text, which was taken for another value."""
    text = STUDY.replace("KIND", "veth").replace("HOST", "lab").replace("PROGRESS", "polling")
    text += f"[[setting]]\nname = 'as-found'\n[[setting]]\nname = 'off'\nknobs = {{ 'nic.rx-usecs' = {value} }}\n"
    assert advise(parse_study(text, "s"), [trial(run, {"irq.24.eth0": 1000}, {})]) == []


def test_a_path_that_the_run_already_has_is_compared_instead_of_added(run: RunDir) -> None:
    text = STUDY.replace("KIND", "virtio").replace("HOST", "lab").replace("PROGRESS", "polling")
    study = parse_study(text.replace("[[workload]]", '[[path]]\nname = "vhost"\n[[workload]]'), "s")
    (found,) = advise(study, [trial(run, {"kvm.exits": 5000}, {})])
    assert found.attempt == "it is the path `vhost` of this run: nearmetal compare RUN/"


def test_a_setting_shown_to_be_faster_comes_with_its_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.chdir(tmp_path)
    unarchive(OLDER_RUN, Path("example"))
    assert nearmetal(["advise", "example"]) == 0
    stdout = capsys.readouterr().out
    assert stdout.startswith("1. vf: try setting `tuned`: nic.rx-usecs = 0\n")
    assert "faster than `default` in 4 of 4 cells\n   of this run\n" in stdout
    beyond = [line[:12] for line in stdout.splitlines() if len(line) > 50]
    assert beyond == ["   how: echo"], "in one piece, to be copied"
    command = stdout.partition("how: ")[2].partition(" && ")[0]
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert Profile.read(tmp_path / "tuned.json").setting == {"nic.rx-usecs": "0"}


def test_a_block_of_the_lab_is_timed_by_the_wall_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unarchive(OLDER_RUN, tmp_path / "example")
    assert nearmetal(["compare", str(tmp_path / "example")]) == 0
    stdout = capsys.readouterr().out
    assert "Figures from an emulated machine" in stdout, "the lab's label is kept as it was recorded"
    view = build_view(RunDir.open(tmp_path / "example"), distributions=False)
    assert 15 < view.block_ns / 60e9 < 20, "minutes, where the machine's own clock counts seconds"
    assert "512 B: a new run over more boots" in stdout, "blocks do not narrow what three boots leave open"


def test_a_setting_that_is_slower_somewhere_is_not_advised(tmp_path: Path) -> None:
    unarchive(OLDER_RUN, tmp_path / "example")
    opened = RunDir.open(tmp_path / "example")
    view, study = build_view(opened, distributions=False), parse_study(opened.study_text(), "s")
    contrasts = [one for one in view.settings if one.path == "vf"]
    interrupts = {row.unit: row.values for row in view.counters if row.name == "device interrupts"}
    assert interrupts.keys() == {"per iteration under default", "per iteration under tuned"}
    assert [round(float(one or 0)) for one in interrupts["per iteration under tuned"]] == [22, 19]
    assert [round(float(one or 0)) for one in interrupts["per iteration under default"]] == [7, 7]
    assert [one.path for one in advise(study, opened.trials(), contrasts)] == ["vf"]
    assert advise(study, opened.trials(), [one for one in view.settings if one.path != "vf"]) == []
    slower = view.cells[0].of("vf")
    assert slower
    assert slower.comparison
    worse = [replace(contrasts[0], comparison=slower.comparison), *contrasts[1:]]
    assert advise(study, opened.trials(), worse) == []
    estimates = {**contrasts[0].comparison.estimates, Metric.P99: slower.comparison.headline}
    longer = [replace(contrasts[0], comparison=replace(contrasts[0].comparison, estimates=estimates)), *contrasts[1:]]
    (told,) = advise(study, opened.trials(), longer)
    assert told.evidence.endswith("in 4 of 4 cells of this run, but by the p99 slower in 1 of 4 cells")


def test_what_is_advised_of_a_setting_can_be_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`apply` refused the profile of a switch given as true, of knobs of MPI alone, and of no knob at all."""
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(f"{FAKE_STUDY.replace('max_blocks = 3', 'max_blocks = 5')}{SETTINGS}")
    assert nearmetal(["run", "s.toml", "--out", "r", "--anyway"]) == 0
    capsys.readouterr()
    assert nearmetal(["advise", "r", "--format", "json"]) == 0
    both, launch, nothing = (one["attempt"] for one in json.loads(capsys.readouterr().out)["advice"])
    assert nothing == "leave the knobs alone; there is nothing to apply"
    for attempt, name, ends in (
        (both, "both", "nearmetal apply both.json --host HOST -i INTERFACE"),
        (launch, "launch", "nearmetal export launch.json --to module --out ."),
    ):
        write, *use = attempt.split(" && ")
        assert use[-1] == ends
        subprocess.run(["sh", "-c", write], check=True, timeout=60)
        assert Profile.read(Path(f"{name}.json")).mpi_flavour == "mpich"
        assert nearmetal(use[0].split()[1:]) == 0
        assert "-bind-to core" in Path(f"nearmetal/{name}").read_text()
    assert '"nic.gro": "on"' in both


def test_undecided_cells_and_parts_of_programs_are_in_no_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An undecided estimate of 100 times, or a program's communication, made a setting look so much better."""
    unarchive(OLDER_RUN, tmp_path / "example")
    view = build_view(RunDir.open(tmp_path / "example"), distributions=False)

    undecided = replace(view.settings[0].comparison.headline.judgement, finding=Finding.UNDECIDED)

    def told(*operations: str, **changes: Any) -> str:
        """Advise on a run of these operations; estimates of all but the first are changed."""
        cells, settings = [], []
        for name in operations:
            cells += [replace(one, group=replace(one.group, operation=name)) for one in view.cells]
            for one in view.settings:
                mean = replace(one.comparison.headline, **(changes if name != operations[0] else {}))
                found = replace(one.comparison, estimates={HEADLINE: mean})
                settings.append(replace(one, operation=name, comparison=found))
        made = replace(view, cells=tuple(cells), settings=tuple(settings))
        monkeypatch.setattr("nearmetal.cli.advise.build_view", lambda *_, **__: made)
        assert nearmetal(["advise", str(tmp_path / "example")]) == 0
        return capsys.readouterr().out

    alone = told("latency.total")
    assert "faster than `default` in 4 of 4 cells of this run" in alone
    assert told("latency.total", "latency.communication", ratio=0.01) == alone
    assert told("latency.total", "other", ratio=0.01, judgement=undecided) == alone.replace("4 of 4", "4 of 8")


def test_the_largest_measured_gain_comes_first(run: RunDir) -> None:
    found = remedies(run, {"irq.24.eth0": 1000, "kvm.exits": 9000, "link.n0.eth0.rx_dropped": 7}, kind="e1000")
    assert [one.split(" ")[0] for one in found] == ["no", "`vhost`", "longer"]


def test_the_verb_ends_with_the_next_step(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(["advise", str(run.root)]) == 0
    assert "next: change a copy of" in capsys.readouterr().out


@pytest.mark.parametrize("busy", [2, 0])
def test_a_busy_machine_comes_before_all_advice(tmp_path: Path, busy: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`compare` said that a quieter machine comes first, `advise` that nothing has a reason."""
    root = make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=3, busy=busy)).root
    assert nearmetal(["advise", str(root)]) == 0
    assert ("most launches ran on a busy machine" in capsys.readouterr().out) is bool(busy)


def test_advice_on_trials_of_mixed_provenance_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = Recipe(study=ONE_SIZE, blocks=3, facts=lambda order: {"kernel.release": f"6.{order.block // 2}"})
    root = str(make_run(tmp_path / "run", kernels).root)
    assert nearmetal(["advise", root]) == 0
    assert "MIXED PROVENANCE: kernel.release: 6.0 | 6.1\n" in capsys.readouterr().out
    assert nearmetal(["advise", root, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["mixed_provenance"] == ["kernel.release: 6.0 | 6.1"]


def test_a_run_without_a_valid_trial_is_not_reported_as_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(tmp_path / "run", Recipe(blocks=3, fails=lambda order, attempt: True))
    assert nearmetal(["advise", str(made.root)]) == 2
    captured = capsys.readouterr()
    assert "none of the " in captured.err
    assert f"hint: all reasons: nearmetal show {made.root}" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("sizes", "said"),
    [([8], "two messages of 8 B"), ([65536, 8, 1048576], "two messages of 8 B to 1 MiB"), ([], "two messages")],
)
def test_evidence_of_moderation_does_not_claim_that_a_message_is_one_frame(
    run: RunDir, sizes: list[int], said: str
) -> None:
    one = trial(run, {"irq.30.eth0-rx": 700}, {"n0.eth0.kind": "physical"})
    options = {**one.order.workload.options, "sizes": sizes}
    order = replace(one.order, workload=replace(one.order.workload, options=options))  # type: ignore[arg-type]
    study = parse_study(STUDY.replace("KIND", "vf").replace("HOST", "lab").replace("PROGRESS", "polling"), "s")
    (found,) = advise(study, [replace(one, order=order)])
    assert found.evidence == f"0.70 device interrupts per iteration for {said}"
