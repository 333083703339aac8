"""Plays random histories of knob sessions on real devices, and checks that no setting is ever silently left changed.

`knob_campaign.py` plays many in parallel and counts events. Each history is a few random actions on veth and dummy
devices: the real verbs `apply` and `rollback` and a trial's `hold`, killed, hung or with a failing disk at a random
step; watchdogs killed; values written by another program; bits flipped in journals; roll-backs tried from another
network namespace, on another machine of the same home, and after a reboot. At the end one more roll-back runs
undisturbed. A history fails when

- a value is not what it was, unless another program set it meanwhile or a bit of its journal was flipped and a command
  that did not exit with 0 named it;
- a value of the other namespace, or one outside every session, was changed; or
- a command showed a traceback, or a watchdog did not act.

Verbs run in forked children with real signals, locks, watchdogs and kernel values; see `knob_world.py`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from knob_player import Player
from knob_world import (
    KNOBS,
    OF_SLURM,
    Boot,
    Command,
    Fault,
    QuickShell,
    elsewhere,
    hangs,
    of_this_machine,
    other_namespace,
    set_value,
    slurm_does,
    state,
)
from nearmetal.cli import apply as apply_verb
from nearmetal.cli.main import run as run_verb
from nearmetal.errors import NearmetalError
from nearmetal.knobs import journal, undo
from nearmetal.knobs.folder import journal_folder
from nearmetal.knobs.hold import hold
from nearmetal.knobs.watchdog import WatchLimits
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.run import trial
from nearmetal.tune.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nearmetal.study.order import Scalar

T = TypeVar("T")


class History(Player):
    """One history: `play` returns what went wrong, or nothing."""

    faults = ("", "", "", "kill", "kill", "kill", "interrupt", "ENOSPC", "EDQUOT", "EROFS", "EIO")
    answers = ("yes", "no", "kill", "both", "both", "shutdown")
    reboots = 0.03
    tunes = 0.02
    placement = "[0, 1]"
    to: tuple[str, ...] = ()
    host: tuple[str, ...] = ()

    # ---- actions

    def setting(self) -> dict[str, str]:
        chosen = self.random.sample(sorted(KNOBS), self.random.randint(1, 3))
        return {name: self.random.choice(KNOBS[name][1]) for name in chosen}

    def fault(self, most: int) -> Fault:
        kind = "hang" if self.random.random() < 0.01 else self.random.choice(self.faults)
        return Fault(kind, self.random.randrange(most), self.random.random() < 0.5)

    def apply(self) -> None:
        """Start `apply`; it waits for confirmation, unless it ended before."""
        knobs, fault = self.setting(), self.fault(30)
        profile = self.root / f"p{len(self.log)}.json"
        interfaces = tuple(dict.fromkeys(name.split()[-1] for name in knobs if name.startswith("nic.")))
        words = {name.split()[0]: value for name, value in knobs.items()}
        if len(words) < len(knobs) or (len(interfaces) > 1 and any(name.startswith("nic.") for name in knobs)):
            # A profile sets a knob on all of its interfaces.
            knobs = dict([next(iter(knobs.items()))])
            words = {name.split()[0]: value for name, value in knobs.items()}
            interfaces = tuple(name.split()[-1] for name in knobs if name.startswith("nic."))
        profile.write_text(Profile("p", "any", interfaces, words).to_json())
        profile.chmod(0o600)
        hanging = fault.kind == "hang"

        self.note("apply", f"{knobs} {fault}")
        command = self.start_apply(["apply", str(profile), "--confirm", "1" if hanging else "600", *self.to], fault)
        command.knobs = knobs
        self.touched |= set(knobs)
        while (status := command.ended()) is None:
            if "type yes" in command.text():
                self.live = command
                return
            if hangs(command.process) and not self.watchdogs():
                command.signal(signal.SIGKILL)
            command.pause()
        os.close(command.answer)
        self.judge(command, status)

    def start_apply(self, argv: list[str], fault: Fault) -> Command:
        def verb() -> int:
            quick_apply(hanging=fault.kind == "hang")
            return run_verb(argv)

        return self.start(verb, fault)

    def answer(self) -> None:
        """Confirm, decline or kill the apply that waits; with no apply, start one."""
        if self.live is None:
            self.apply()
            return
        command, self.live = self.live, None
        what = self.random.choice(self.answers)
        self.note(f"answer {what}")
        if what == "yes":
            self.type_yes(command)
        elif what == "no":
            command.signal(signal.SIGINT)
        elif what == "cut":
            self.counts["cut"] += 1
            os.kill(os.getpid(), signal.SIGUSR1)
            self.type_yes(command)
        elif what in OF_SLURM:
            self.counts[what] += 1
            slurm_does(what)
        elif what == "shutdown":
            self.kill_watchdogs(signal.SIGTERM)
            command.signal(signal.SIGTERM)
        else:
            self.counts["kill"] += 1
            if what == "both":
                self.kill_watchdogs()
            command.signal(signal.SIGKILL)
        self.finish(command)

    @staticmethod
    def type_yes(command: Command) -> None:
        with contextlib.suppress(BrokenPipeError):  # it may have ended, for example without its watchdog
            os.write(command.answer, b"yes\n")

    def hold(self) -> None:
        """Hold a setting like a trial of `tune`, or let `tune` itself do it."""
        if self.random.random() < self.tunes:
            self.tune()
            return
        (device, knobs), fault = self.setting_of_a_device(), self.fault(30)
        fails = self.random.random() < 0.3
        self.touched |= set(knobs)

        def verb() -> int:
            try:
                return self.trial(device, _words(knobs), hanging=fault.kind == "hang", fails=fails)
            except NearmetalError as error:
                sys.stderr.write(error.render() + "\n")
            except KeyboardInterrupt:
                sys.stderr.write("interrupted\n")
            return 1

        self.note("hold", f"{knobs} {fault} fails={fails}")
        self.finish(self.start(verb, fault))

    def setting_of_a_device(self) -> tuple[str, dict[str, str]]:
        knobs = self.setting()
        device = next((name.split()[-1] for name in knobs if name.startswith("nic.")), "v0")
        return device, {name: value for name, value in knobs.items() if name.split()[-1] in {device, "machine"}}

    def trial(self, device: str, words: dict[str, Scalar], *, hanging: bool, fails: bool) -> int:
        """Hold a setting on this machine."""
        ends = Endpoints((Endpoint("", device, "10.0.0.1"),), "10.0.0.0/24")
        guard = WatchLimits(deadline_s=1 if hanging else 600, look_ms=100)
        with QuickShell() as shell, hold(shell, ends, words, journal_folder(), guard=guard):
            if fails:
                raise NearmetalError("the launch failed")
        return 0

    def tune(self) -> None:
        """Let `tune` search settings, and stop it midway in some way, because a full search takes long."""
        (device, knobs), fault = self.setting_of_a_device(), self.fault(40)
        study = self.root / f"tune-{len(self.log)}.toml"
        values = "\n".join(f'"{name}" = [{value}]' for name, value in _words(knobs).items())
        study.write_text(f"{_STUDY.replace('{placement}', self.placement)}{self.tuned(device)}[tune.knobs]\n{values}\n")
        self.touched |= set(knobs)

        def verb() -> int:
            from nearmetal.tune.measure import Launches  # not in the lab's guest

            os.chdir(self.root)
            quick_trials(hanging=fault.kind == "hang")
            mock.patch.object(Launches, "launch", _few(Launches.launch)).start()
            return run_verb(["tune", str(study), "--run", f"{study}.search", "--out", str(self.root)])

        self.note("tune", f"{knobs} {fault}")
        self.finish(self.start(verb, fault))

    def tuned(self, device: str) -> str:
        """Return where `tune` measures, as TOML of a study; here its nodes are namespaces that disappear with it."""
        del device
        return '[host]\nkind = "local"\n[[path]]\nname = "p"\nkind = "veth"\n'

    def roll_back(self, fault: Fault | None = None, *, away: bool = False, boot: Boot | None = None) -> int:
        fault = fault or Fault()
        self.note("rollback", f"{fault} away={away} {boot}")
        self.counts["another machine" if boot else "another namespace"] += away
        return self.finish(self.start(lambda: run_verb(["rollback", *self.host]), fault, away=away, boot=boot))

    def roll_back_somehow(self) -> None:
        """Roll back here with a fault, from another namespace, or on another machine with the same home."""
        match self.random.randrange(4):
            case 0:
                self.roll_back(away=True)
            case 1:
                machine = self.random.choice(["machine-1", "machine-2"])
                self.roll_back(away=True, boot=Boot(machine, "boot-of-another", 1e9))
            case _:
                fault = self.fault(20)
                self.roll_back(Fault() if fault.kind == "hang" else fault)

    def final_roll_back(self) -> int:
        """Roll back after everything was put back and named."""
        return self.roll_back()

    def reboot(self) -> None:
        """Reboot the machine: no process survives, and every value is the default."""
        self.note("reboot")
        self.power_off()
        for name, value in self.before.items():
            set_value(name, value)
        self.boot = Boot(self.boot.machine, f"{self.boot.boot}+", 0.0)
        self.expected = dict(self.before)
        self.excused.clear()

    def write_by_another(self) -> None:
        """Write a value like another program; while a session is open, its owner can be ambiguous."""
        about = self.about_open()
        name = self.random.choice(sorted(about if about and self.random.random() < 0.5 else KNOBS))
        value = KNOBS[name][2]
        self.note("somebody else sets", f"{name} = {value}")
        set_value(name, value)
        if name in about:
            self.excused.add(name)
        else:
            self.expected[name] = value

    def about_open(self) -> set[str]:
        """Return the settings in open journals of this boot, or in the undo scripts of damaged ones."""
        found: set[str] = set()
        for path in self.journals():
            with contextlib.suppress(NearmetalError):
                state = journal.read_state(path)
                is_open = state.end in {None, journal.EndState.QUARANTINED} and state.boot_id == self.boot.boot
                if state.touched() and is_open:
                    found |= {of_this_machine(undo.name_of(cell)) for cell in state.cells.values()}
                continue
            found |= self.in_scripts(path)
        return found

    def in_scripts(self, path: Path) -> set[str]:
        scripts = [of_this_machine(script.read_text()) for script in path.parent.glob(f"{path.name}.*.undo.sh")]
        return {name for name in KNOBS if any(name in script for script in scripts)}

    def flip(self) -> None:
        """Flip a bit of a journal, or empty it."""
        files = self.journals()
        if not files:
            return
        path = self.random.choice(files)
        content = bytearray(path.read_bytes())
        about = self.in_scripts(path)
        if content and self.random.random() < 0.8:
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        else:
            content = bytearray()
        self.note("flip a bit", f"of {path.name}, which is about {sorted(about)}")
        path.write_bytes(content)
        self.excused |= about

    # ---- the whole

    def play(self) -> list[str]:
        """Play the history; return what went wrong."""
        away = elsewhere(self.other)
        actions = [self.answer, self.answer, self.hold, self.hold, self.roll_back_somehow]
        actions += [self.write_by_another, self.flip, self.kill_watchdogs, self.answer]
        try:
            for _ in range(self.random.randint(2, 6)):
                # What an interrupted session left behind is where later ones can fail.
                after = (
                    [self.roll_back_somehow, self.write_by_another] if self.live is None and self.about_open() else []
                )
                action = self.random.choice([*actions, *after * 5])
                (self.reboot if self.random.random() < self.reboots else action)()
            while self.live is not None:
                self.answer()
            self.settle()
            self.roll_back()
            wrong = self._wrong()
            wrong += [] if elsewhere(self.other) == away else ["the other namespace was touched"]
            if not wrong and self.final_roll_back() and not self.excused:
                wrong.append("a second roll-back did not end with 0")
        except AssertionError as error:
            wrong = [str(error)]
        finally:
            self.power_off()
            for name, value in self.before.items():
                set_value(name, value)
            shutil.rmtree(self.root, ignore_errors=True)
        return wrong

    def _wrong(self) -> list[str]:
        found = []
        for name, value in state().items():
            if value == self.expected[name]:
                continue
            if name not in self.excused:
                found.append(f"{name} is {value} and was {self.expected[name]}")
            elif name not in self.named:
                found.append(f"{name} is {value}, was {self.expected[name]}, and nobody named it")
        return found


_STUDY = """format = 1
name = "t"
baseline = "p"
[[workload]]
name = "w"
kind = "command"
placement = {placement}
options = { argv = ["true"] }
[trials]
timeout = "60 s"
[tune]
method = "grid"
max_trials = 10
"""
_LAUNCHES = 6
"""How many launches of `tune` are waited for."""


def _words(knobs: dict[str, str]) -> dict[str, Scalar]:
    return {name.split()[0]: int(value) for name, value in knobs.items()}


def _few(launch: Callable[..., T]) -> Callable[..., T]:
    asked = iter(range(_LAUNCHES))

    def launch_or_stop(*given: Any) -> T:
        if next(asked, None) is None:
            raise KeyboardInterrupt
        return launch(*given)

    return launch_or_stop


def quick_trials(*, hanging: bool) -> None:
    """Let trials not wait for locks, and their watchdogs check often."""

    def guard(**given: Any) -> WatchLimits:
        return replace(WatchLimits(**given), look_ms=100, **({"deadline_s": 1} if hanging else {}))

    mock.patch.object(trial, "WatchLimits", guard).start()
    mock.patch.object(trial, "_LOCK_PATIENCE_S", 0.0).start()


def quick_apply(*, hanging: bool) -> None:
    """Let the watchdog of `apply` check often, and wait no longer than the verb."""

    def guard(deadline_s: int, **_: object) -> WatchLimits:
        return WatchLimits(1 if hanging else deadline_s, look_ms=100)

    mock.patch.object(apply_verb, "WatchLimits", guard).start()
    mock.patch.object(apply_verb, "_SPARE_S", 0).start()


def main() -> int:
    """Play histories in this namespace; print one line of JSON for each."""
    first, step, last = map(int, sys.argv[1:4])
    # A shell without job control starts background jobs with ctrl-C ignored, and forked children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.freeze()  # pages that the garbage collector never touches stay shared with forked children
    with other_namespace() as other, contextlib.ExitStack() as stack:
        make: Callable[[int, tuple[int, int]], History] = History
        if sys.argv[4:] == ["slurm"]:
            from knob_slurm import in_slurm

            make = stack.enter_context(in_slurm(other))
        elif sys.argv[4:] == ["ssh"]:
            from knob_ssh import over_ssh

            make = stack.enter_context(over_ssh(other))
        for seed in range(first, last, step):
            history = make(seed, other)
            wrong = history.play()
            result = {"seed": seed, "wrong": wrong, "counts": history.counts, "log": history.log if wrong else []}
            print(json.dumps(result), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
