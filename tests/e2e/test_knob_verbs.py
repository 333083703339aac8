"""The knob verbs, from the command line to the kernel, in a separate namespace."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import nearmetal
from fake_runs import SEARCH
from nearmetal import process
from nearmetal.cli.main import run
from nearmetal.tune.profile import Profile


def _in_namespace(tmp_path: Path, script: str, *arguments: str) -> process.Finished:
    if os.geteuid() != 0 or not shutil.which("ethtool"):
        pytest.skip("needs root and ethtool")
    source = str(Path(nearmetal.__file__).parents[1])
    env = {
        **os.environ,
        "PYTHONPATH": source,
        "XDG_STATE_HOME": str(tmp_path),
        "NEARMETAL_MACHINE_STATE": str(tmp_path / "machine"),
        "NM": sys.executable,
        "SSH_CONNECTION": "",
    }
    head = (
        'nm() { "$NM" -c "from nearmetal.cli.main import main; main()" "$@"; }\n'
        "mtu() { cat /sys/class/net/v0/mtu; }\n"
        # Applies profile $1, with its output in $2, and leaves it to wait as process $waits; `abandon` kills that.
        'applied() { "$NM" -c "from nearmetal.cli.main import main; main()" apply "$1" --confirm 600 </dev/null '
        '>"$2" 2>&1 &\n'
        "waits=$!; until grep -q 'type yes' \"$2\" 2>/dev/null; do kill -0 $waits || break; sleep 0.05; done; }\n"
        'abandon() { applied "$@"; kill -9 $(pgrep -f nearmetal-watchdo[g] --ns $$ --nslist net) $waits; wait; }\n'
        "mount -t sysfs sysfs /sys; ip link add v0 type veth peer name v1\n"
        "ip link set v0 up; ip link set v1 up\n"
    )
    argv = ["unshare", "--net", "--mount", "--", "sh", "-c", head + script, "verbs", *arguments]
    return process.run(argv, timeout_s=600, env=env)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    place = tmp_path / "p.json"
    place.write_text(Profile("p", "any", ("v0",), {"nic.mtu": "1400", "nic.gro": "on"}).to_json())
    return place


pytestmark = pytest.mark.netns


def test_apply_keeps_the_profile_after_yes(tmp_path: Path, profile: Path) -> None:
    ran = _in_namespace(tmp_path, 'echo yes | nm apply "$1"; echo "status $?"; mtu; nm rollback; mtu', str(profile))
    assert "CONFIRMED" in ran.text, ran.complaint()
    assert ran.text.split()[-1] == "1400", "a confirmed setting is not rolled back"
    assert "nic.mtu = 1400" in ran.text


def test_an_answer_may_come_in_parts_or_after_another_line(tmp_path: Path, profile: Path) -> None:
    """`yes` behind another line was lost as long as the pipe was open; of a part the end was waited for, for ever."""
    script = """mkfifo "$2"; for lines in 'wat\\nyes\\n' 'y_es\\n' 'n_'; do
nm apply "$1" --confirm 5 < "$2" & waits=$!
exec 3> "$2"; printf "${lines%_*}" >&3; case $lines in *_?*) printf "${lines#*_}" >&3 ;; esac
wait $waits; echo "status $?"; exec 3>&-; mtu; nm rollback; ip link set v0 mtu 1500
done"""
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path / "answers"))
    found = [line for line in ran.text.splitlines() if line.startswith("status") or line.isdecimal()]
    assert found == ["status 0", "1400", "status 0", "1400", "status 4", "1500"], ran.complaint()


# Puts an uptime and a number of interrupts of their own before the watchdog, and a `ping` which counts its looks.
_OWN_CLOCK = """cd "$2"; echo 1000.00 0 > uptime; echo intr 0 > stat; echo > pings
mount --bind uptime /proc/uptime; mount --bind stat /proc/stat; PATH=$2:$PATH
nm apply "$1" --confirm 60 --probe 10.9.9.9 --storm 1000 </dev/null >said 2>&1 & waits=$!
until grep -q 'type yes' said; do kill -0 $waits || break; sleep 0.05; done
"""
_THREE_LOOKS = (
    "looks=$(wc -l < pings)\nwhile kill -0 $waits && [ $(wc -l < pings) -lt $((looks + 3)) ]; do sleep 0.05; done\n"
)
_ACCEPTED = """nm apply "$1" --accept; echo "status $?"; wait $waits; cat said; mtu"""


def _program(place: Path, script: str) -> None:
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o700)


def test_the_time_to_confirm_begins_when_everything_is_written(tmp_path: Path, profile: Path) -> None:
    """What writing took was missing: the watchdog acted within the time that the user was told."""
    _program(tmp_path / "ping", f"echo >> {tmp_path}/pings")
    slow = f"case $* in *'mtu 1400'*) echo 1060.00 0 > {tmp_path}/uptime ;; esac"
    _program(tmp_path / "ip", f'{slow}\nexec {shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin")} "$@"')
    script = f"{_OWN_CLOCK}echo 1080.00 0 > uptime\n{_THREE_LOOKS}{_ACCEPTED}"
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path))
    assert "CONFIRMED" in ran.text, ran.complaint() + ran.text
    assert ran.text.split()[-1] == "1400"


def test_interrupts_are_counted_over_the_time_that_a_look_takes(tmp_path: Path, profile: Path) -> None:
    """900 in each second were too many where the limit was 1000 and a look took three seconds."""
    _program(
        tmp_path / "ping",
        f"""cd {tmp_path}; read -r up rest < uptime; read -r word count < stat
echo "$((${{up%.*}} + 3)).00 0" > uptime; echo "intr $((count + 2700))" > stat; echo >> pings""",
    )
    script = f"{_OWN_CLOCK}{_THREE_LOOKS}{_ACCEPTED}"
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path))
    assert "CONFIRMED" in ran.text, ran.complaint() + ran.text
    assert ran.text.split()[-1] == "1400"


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [("TERM", "4", ""), ("KILL", "1", "error: the watchdog is gone, so the profile was rolled back")],
)
def test_a_watchdog_that_acts_is_told_from_one_that_was_killed(
    tmp_path: Path, profile: Path, end: str, status: str, said: str
) -> None:
    """It was said to be gone, with the hint to find out what had killed it, and the code was that of a failure."""
    script = """applied "$1" "$2"; kill -s "$3" $(pgrep -f nearmetal-watchdo[g] --ns $$ --nslist net)
wait $waits; echo "status $?"; mtu; cat "$2" """
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path / "output"), end)
    assert ran.text.startswith(f"status {status}\n1500\n"), ran.complaint()
    assert "RESTORED: every setting is back to its old value" in ran.text
    assert ("restored because it was told to end" in ran.text, "is gone" in ran.text) == (not said, bool(said))
    assert said in ran.text


def test_a_link_that_was_down_before_is_not_lost(tmp_path: Path, profile: Path) -> None:
    """Nothing could be applied to such a port: it was rolled back because its link was lost."""
    _program(tmp_path / "ping", f"echo >> {tmp_path}/pings")
    many = _THREE_LOOKS.replace("+ 3", "+ 7")
    script = f"ip link set v0 down\n{_OWN_CLOCK}{many}{_ACCEPTED}"
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path))
    assert "CONFIRMED" in ran.text, ran.complaint() + ran.text
    assert ran.text.split()[-1] == "1400"


def test_apply_without_confirmation_restores_everything(tmp_path: Path, profile: Path) -> None:
    ran = _in_namespace(tmp_path, 'nm apply "$1" --confirm 1 < /dev/null; echo "status $?"; mtu', str(profile))
    assert "RESTORED" in ran.text, ran.complaint()
    assert ran.text.split()[-2:] == ["4", "1500"], "0 would say that the profile is on"


def test_a_profile_without_interfaces_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "p.json"
    place.write_text(Profile("p", "any", (), {"nic.mtu": "1400"}).to_json())
    script = 'nm apply "$1" --confirm 1; echo "status $?"; echo yes | nm apply "$1" --interface v0; mtu'
    ran = _in_namespace(tmp_path, script, str(place))
    assert "status 2" in ran.text
    assert b"--interface" in ran.stderr
    assert ran.text.split()[-1] == "1400", ran.complaint()


def test_an_interface_that_does_not_exist_is_a_wrong_name(tmp_path: Path, profile: Path) -> None:
    script = """nm knobs -i v00; echo "status $?"; nm apply "$1" -i v00 < /dev/null; echo "status $?"; mtu
ip link property add dev v0 altname another; nm knobs -i another; echo "status $?"
nm apply "$1" -i another < /dev/null; echo "status $?"; mtu """
    ran = _in_namespace(tmp_path, script, str(profile))
    assert ran.text.split() == ["status", "2", "status", "2", "1500"] * 2, ran.complaint()
    error = "error: there is no interface v00\nhint: did you mean 'v0'?"
    assert ran.stderr.decode().count(error) == 2
    # Its files have the other name, so `knobs` said that there are none.
    assert ran.stderr.decode().count("error: another is another name of the interface v0\nhint: name it v0") == 2


@pytest.mark.parametrize(
    ("setting", "words", "message"),
    [
        ({"nic.mtu": "1400"}, "-i ''", "it is empty"),
        ({"mpi.bind": "core"}, "", "p.json sets nothing on a machine: mpi.bind"),
        ({"nic.mtu": "1400"}, "--storm -5", "-5 is not in the range"),
        ({"nic.mtu": "1400"}, "--probe 10.9.9.9", "the address of --probe, 10.9.9.9, does not answer a ping"),
        ({"nic.mtu": "1400"}, "--probe=-f", "the address of --probe, -f, does not answer a ping"),
    ],
)
def test_settings_that_apply_cannot_write_are_refused_before_a_write(
    tmp_path: Path, setting: dict[str, str], words: str, message: str
) -> None:
    place = tmp_path / "p.json"
    place.write_text(Profile("p", "any", ("v0",), setting).to_json())
    ran = _in_namespace(tmp_path, f'nm apply "$1" {words} --confirm 5 < /dev/null; echo "status $?"; mtu', str(place))
    assert message in ran.stderr.decode(), ran.complaint()
    assert ran.text.split() == ["status", "2", "1500"]


def test_a_rollback_needs_an_existing_directory_of_journals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run(["rollback", "--journals", str(tmp_path / "none")]) == 2
    assert "there is no directory of journals" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert run(["rollback", "--forget", "1-1.journal"]) == 2
    assert "there is no journal 1-1.journal in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["rollback", "-o", "user=root"], "--option has no effect on this machine"),
        (["rollback", "--script", "--force"], "--force has no effect with --script"),
        (["rollback", "far", "--script", "-o", "user=root"], "--option has no effect with --script"),
        (["rollback", "--forget", "1-1.journal", "--script"], "--script has no effect with --forget"),
        (["apply", "PROFILE", "--accept", "-i", "eth1"], "--interface has no effect with --accept"),
        (["apply", "PROFILE", "--confirm", "60", "--accept"], "--confirm has no effect with --accept"),
        (["apply", "PROFILE", "--accept", "--allow-management"], "--allow-management has no effect with --accept"),
    ],
)
def test_options_without_effect_are_refused(
    profile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    refused: str,
) -> None:
    """`rollback -o` went to this machine, and ended well."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run([str(profile) if word == "PROFILE" else word for word in words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {refused}\n")


def test_apply_reports_that_it_could_verify_nothing(tmp_path: Path, profile: Path) -> None:
    ran = _in_namespace(tmp_path, 'nm apply "$1" --verify 10.9.9.9 --confirm 1 < /dev/null', str(profile))
    assert b"warning: --verify has verified nothing" in ran.stderr, ran.complaint()


def test_apply_can_be_accepted_from_another_process(tmp_path: Path, profile: Path) -> None:
    script = """nm apply "$1" --confirm 600 < /dev/null > "$2" 2>&1 & waits=$!
until grep -q 'type yes' "$2" 2>/dev/null; do kill -0 $waits || break; sleep 0.05; done
printed=$(sed -n 's/.*elsewhere: nearmetal //p' "$2"); cd /; eval "nm ${printed:-none}" || kill $waits
wait $waits; cat "$2"; mtu"""
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path / "output"))
    assert "CONFIRMED" in ran.text, ran.complaint() + ran.text
    assert ran.text.split()[-1] == "1400"


def test_a_profile_of_the_same_name_is_not_accepted_for_the_one_that_waits(tmp_path: Path, profile: Path) -> None:
    """It was told that its setting is kept, and the other one's was."""
    other = tmp_path / "other.json"
    other.write_text(Profile("p", "any", ("v0",), {"nic.mtu": "1300"}).to_json())
    script = """nm apply "$1" --confirm 600 < /dev/null > "$2" 2>&1 & waits=$!
until grep -q 'type yes' "$2" 2>/dev/null; do kill -0 $waits || break; sleep 0.05; done
nm apply "$3" --accept; echo "status $?"; nm apply "$1" --accept; echo "status $?"; wait $waits; mtu"""
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path / "output"), str(other))
    assert ran.text.split() == ["status", "1", "status", "0", "1400"], ran.complaint()
    assert b"no `apply` of p is waiting on this machine" in ran.stderr


def test_no_undoes_a_profile_without_waiting(tmp_path: Path, profile: Path) -> None:
    ran = _in_namespace(tmp_path, 'echo no | nm apply "$1" --confirm 3600; echo "status $?"; mtu', str(profile))
    assert "RESTORED" in ran.text, ran.complaint()
    assert ran.text.endswith("status 4\n1500\n")


def test_accept_without_a_waiting_apply_is_reported(tmp_path: Path, profile: Path) -> None:
    script = """nm apply "$1" --accept; echo "status $?"
echo yes | nm apply "$1"; nm apply "$1" --accept; echo "status $?" """
    ran = _in_namespace(tmp_path, script, str(profile))
    stderr = ran.stderr.decode()
    assert stderr.count("no `apply` of p is waiting on this machine") == 2
    assert "Traceback" not in stderr
    assert ran.text.count("status 1") == 2


def test_a_killed_session_blocks_others_until_it_is_rolled_back(tmp_path: Path, profile: Path) -> None:
    (tmp_path / "s.toml").write_text(SEARCH.replace('kind = "fake"', 'kind = "local"'))
    script = """abandon "$1" "$2"; mtu
for verb in "apply $1" "run $3 --out $4" "tune $3 --run $4"; do nm $verb </dev/null; echo "status $?"; done
nm rollback; echo "status $?"; mtu"""
    ran = _in_namespace(
        tmp_path, script, str(profile), str(tmp_path / "output"), str(tmp_path / "s.toml"), str(tmp_path / "run")
    )
    assert ran.text.startswith("1400\nstatus 1\nstatus 1\nstatus 1\n")
    assert {"put back: nic.gro of v0", "put back: nic.mtu of v0"} <= set(ran.text.splitlines())
    assert ran.text.endswith("\nstatus 0\n1500\n")
    assert (
        ran.stderr.decode().count("left settings changed: nic.gro of v0, which was off; nic.mtu of v0, which was 1500")
        == 3
    )
    assert ran.stderr.decode().count("hint: run `nearmetal rollback` to restore them") == 3
    assert not (tmp_path / "run").exists()


def test_another_namespace_is_not_rolled_back_from_here(tmp_path: Path, profile: Path) -> None:
    script = """abandon "$1" "$2"
unshare --net -- sh -c '
ip link add v0 mtu 1400 type dummy; "$NM" -c "from nearmetal.cli.main import main; main()" rollback
echo "status $?"; ip -o link show v0 | grep -o "mtu [0-9]*"'
mtu; nm rollback; echo "status $?"; mtu"""
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path / "output"))
    here, there = ran.text.split("1400\n", 2)[0:2]
    assert "not here: nic.mtu of v0, which was 1500: it was in network namespace" in here
    assert "status 1" in here
    assert "put back: nic.mtu of v0" in there, there + ran.complaint()
    assert ran.text.endswith("\nstatus 0\n1500\n")


def test_a_session_with_another_state_directory_is_rolled_back(tmp_path: Path, profile: Path) -> None:
    script = """abandon "$1" "$2"; mtu; export XDG_STATE_HOME="$2.other"
nm apply "$1" < /dev/null; echo "status $?"; nm rollback --script | grep -c '^# was: nic.mtu of v0 1500'
nm rollback; echo "status $?"; mtu; nm rollback; echo "status $?" """
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path / "output"))
    first, _, then = ran.text.partition("status 1\n1\n")
    assert first == "1400\n", ran.complaint()
    assert "put back: nic.mtu of v0\n" in then
    assert then.endswith("\nstatus 0\n1500\nstatus 0\n")
    assert "left settings changed: nic.gro of v0, which was off; nic.mtu of v0, which was 1500" in ran.stderr.decode()
    assert ran.stderr.decode().endswith("nothing to restore\n")
    assert not [*tmp_path.rglob("*.undo.sh")]


def test_settings_are_restored_where_nothing_can_be_written(tmp_path: Path, profile: Path) -> None:
    script = """mkdir "$2.state"; mount -t tmpfs tmpfs "$2.state"; export XDG_STATE_HOME="$2.state"
abandon "$1" "$2"; rm "$2.state/nearmetal/journal/lock"; mount -o remount,ro "$2.state"; mtu
nm rollback; echo "status $?"; mtu; mount -o remount,rw "$2.state"; nm rollback; echo "status $?"
XDG_STATE_HOME=/proc/nothing; nm rollback; echo "status $?" """
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path / "output"))
    read_only, _, then = ran.text.partition("status 1\n")
    assert read_only.startswith("1400\nput back: "), ran.complaint()
    assert then == "1500\nstatus 0\nstatus 0\n"
    said = ran.stderr.decode()
    assert "warning: not locked, cannot use the directory of undo journals " in said
    assert "error: every setting is back to its old value, but cannot write the undo journal" in said
    assert said.endswith("nothing to restore\n")


def test_sessions_with_different_state_directories_lock_each_other_out(tmp_path: Path, profile: Path) -> None:
    script = """applied "$1" "$2"; export XDG_STATE_HOME="$2.other"
for verb in "apply $1" rollback; do nm $verb < /dev/null; echo "status $?"; done
mtu; kill $waits; until [ "$(mtu)" = 1500 ]; do sleep 0.05; done"""
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path / "output"))
    assert ran.text == "status 1\nstatus 1\n1400\n", ran.complaint()
    assert ran.stderr.decode().count("holds the knobs of this host") == 2


@pytest.mark.parametrize("lost", ["rm -r", "chown -R 12345"])
def test_a_session_whose_journal_cannot_be_read_is_named_until_it_is_given_up(
    tmp_path: Path, profile: Path, lost: str
) -> None:
    script = """abandon "$1" "$2"; $3 "$XDG_STATE_HOME/nearmetal/journal"; export XDG_STATE_HOME="$2.other"
nm apply "$1" < /dev/null; echo "status $?"; nm rollback; echo "status $?"; mtu
nm rollback --script | sh; mtu; name=$(basename "$NEARMETAL_MACHINE_STATE"/*.journal.0.undo.sh .0.undo.sh)
nm rollback --forget "$name"; echo "status $?"; nm rollback; echo "status $?" """
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path / "output"), lost)
    assert [line for line in ran.text.splitlines() if "generic" not in line] == [
        "status 1",
        "unknown: nic.gro of v0 off",
        "unknown: nic.mtu of v0 1500",
        "status 1",
        "1400",
        "put back: nic.mtu of v0 to 1500",
        "1500",
        "given up: nic.gro of v0 off",
        "given up: nic.mtu of v0 1500",
        "status 0",
        "status 0",
    ], ran.complaint()
    said = ran.stderr.decode()
    assert "an earlier session may have left settings changed: nic.gro of v0 off, nic.mtu of v0 1500, nic." in said
    assert ("No such file" if "rm" in lost else "belongs to user 12345") in said
    assert said.count("nothing to restore") == 1


def test_a_profile_writable_by_others_is_not_applied(tmp_path: Path, profile: Path) -> None:
    profile.chmod(0o666)
    ran = _in_namespace(tmp_path, 'echo yes | nm apply "$1"; echo "status $?"; mtu', str(profile))
    assert ran.text.split() == ["status", "1", "1500"]
    assert b"can be written by others (mode 666)" in ran.stderr
    assert b"chmod go-w" in ran.stderr


def test_a_killed_apply_is_rolled_back_by_the_verb(tmp_path: Path, profile: Path) -> None:
    script = """applied "$1" "$2"; kill -9 $waits; nm rollback --script; nm rollback; mtu; nm rollback"""
    ran = _in_namespace(tmp_path, script, str(profile), str(tmp_path / "output"))
    # The watchdog may have been faster than the verb: either way everything is restored.
    assert ran.text.split()[-1] == "1500", ran.complaint() + ran.text
    assert "ip link set dev v0 mtu" in ran.text
    assert b"nothing to restore" in ran.stderr


def test_management_interface_is_refused(tmp_path: Path, profile: Path) -> None:
    script = (
        'ip address add 10.9.0.1/24 dev v0; ip route add default via 10.9.0.2; nm apply "$1"; echo "status $?"; mtu'
    )
    ran = _in_namespace(tmp_path, script, str(profile))
    assert b"carries the default route" in ran.stderr
    assert ran.text.split()[-2:] == ["2", "1500"]


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (
            "ip link add br0 up type bridge; ip link set v0 master br0; ip address add 10.9.0.1/24 dev br0;"
            " ip route add default via 10.9.0.2",
            "it is below br0, which carries the default route",
        ),
        (
            "ip link add br0 up type bridge; ip link set v0 master br0; ip link add link br0 name m0 up type macvlan;"
            " ip address add 10.9.0.1/24 dev m0; export SSH_CONNECTION='10.9.0.2 50000 10.9.0.1 22'",
            "it is below m0, which leads to 10.9.0.2",
        ),
        ("export SSH_CONNECTION='fe80::2%v0 50000 fe80::1%v0 22'", "it leads to fe80::2"),
        (
            "ip address add 10.9.0.1/24 dev v0; OTHER; ip route add default dev d0;"
            " export SSH_CONNECTION='10.7.0.2 50000 10.9.0.1 22'",
            "it has 10.9.0.1, which you are logged in to",
        ),
        (
            "ip address add 10.9.0.1/24 dev v0; OTHER; ip address add 10.8.0.1/24 dev d0;"
            " ip route add default dev d0; ip route add 10.7.0.0/24 dev v0 table 7; ip rule add from 10.8.0.1 table 7;"
            " export SSH_CONNECTION='10.7.0.2 50000 10.8.0.1 22'",
            "it leads to 10.7.0.2, which you are logged in from",
        ),
        (
            # A bridge replaces the datapath: this kernel may have no Open vSwitch.
            "ip link add ovs-system up type bridge; ip link set v0 master ovs-system; OTHER;"
            " ip address add 10.9.0.1/24 dev d0; ip route add default via 10.9.0.2;"
            """ printf '#!/bin/sh\\ncase "$*" in "-o link show type openvswitch")\\n"""
            """echo "3: ovs-system: <UP>"; echo "4: d0: <UP>" ;; *) exec /sbin/ip "$@" ;; esac\\n' > "$1.ip";"""
            """ mkdir "$1.bin"; mv "$1.ip" "$1.bin/ip"; chmod +x "$1.bin/ip"; PATH="$1.bin:$PATH" """,
            "it is below d0, which carries the default route",
        ),
    ],
    ids=["bridge", "macvlan of a bridge", "link-local address", "own address", "policy route", "Open vSwitch"],
)
def test_interfaces_under_the_management_interface_are_refused(
    tmp_path: Path, profile: Path, before: str, message: str
) -> None:
    before = before.replace("OTHER", "ip link add d0 up type veth peer name d1; ip link set d1 up")
    ran = _in_namespace(tmp_path, f'{before}; nm apply "$1"; echo "status $?"; mtu', str(profile))
    assert message in ran.stderr.decode(), ran.complaint()
    assert ran.text.split()[-2:] == ["2", "1500"]


def test_the_interface_to_the_user_is_refused_under_sudo(tmp_path: Path, profile: Path) -> None:
    script = """ip address add 10.9.0.1/24 dev v0
SSH_CONNECTION='10.9.0.2 50000 10.9.0.1 22' sh -c '
    env -u SSH_CONNECTION "$NM" -c "from nearmetal.cli.main import main; main()" apply "$1"; echo "status $?"' sh "$1"
mtu"""
    ran = _in_namespace(tmp_path, script, str(profile))
    assert "leads to 10.9.0.2, which you are logged in from" in ran.stderr.decode(), ran.complaint()
    assert ran.text.split()[-2:] == ["2", "1500"]


def test_knobs_lists_as_json(tmp_path: Path) -> None:
    ran = _in_namespace(tmp_path, "nm knobs -i v0 --all --format json")
    rows = {row["knob"]: row for row in json.loads(ran.text)}
    assert rows["nic.mtu"]["value"] == "1500"
    assert rows["nic.rx-usecs"]["value"] is None
    assert "not supported" in rows["nic.rx-usecs"]["reason"]
    assert rows["nic.channels-rx"]["takes"] == "0 to 1 queues" or rows["nic.channels-rx"]["value"] is not None


def test_knobs_of_another_namespace_below_sys_are_not_listed(tmp_path: Path) -> None:
    """The files of an interface of the same name there were shown as its own, which `apply` refuses to touch."""
    inner = 'ip link add v0 type veth peer name v1; "$NM" -c "from nearmetal.cli.main import main; main()" knobs'
    ran = _in_namespace(tmp_path, f"""unshare --net -- sh -c '{inner}; echo "status $?"' """)
    assert ran.text.endswith("status 2\n"), ran.complaint()
    assert b"error: /sys shows the interfaces of another network namespace" in ran.stderr


def test_tune_on_a_flat_surface_recommends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = tmp_path / "s.toml"
    study.write_text(SEARCH)
    assert run(["tune", str(study), "--out", str(tmp_path / "p.json"), "--run", "first"]) == 0
    printed = capsys.readouterr()
    assert "no setting" in printed.out
    assert "warning" not in printed.err
    assert not (tmp_path / "p.json").exists()
    (tmp_path / "p.json").write_text("of an earlier search")  # and was taken for what this one had found
    assert run(["tune", str(study), "--out", str(tmp_path / "p.json"), "--run", "second"]) == 0
    assert f"warning: {tmp_path}/p.json is not of this search" in capsys.readouterr().err
    assert (tmp_path / "p.json").read_text() == "of an earlier search"


def test_export_writes_files_and_names_the_knobs_left_out(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(profile), "--to", "systemd-link", "--out", str(tmp_path)]) == 0
    assert "MTUBytes=1400" in (tmp_path / "10-nearmetal-v0.link").read_text()
    assert run(["export", str(profile), "--to", "module"]) == 2
    assert "cannot express anything" in capsys.readouterr().err
    assert run(["export", str(profile), "--to", "systemd-link", "--out", str(profile)]) == 1
    assert f"cannot write {profile}/" in capsys.readouterr().err
