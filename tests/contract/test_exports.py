"""Each export is read by its real consumer where that is installed; otherwise the test skips and names it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nearmetal import process
from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.knobs import coalesce, nic
from nearmetal.knobs.knob import OneOf
from nearmetal.tune.export.table import EXPORTS, export
from nearmetal.tune.profile import Profile, ProfileEvidence

if TYPE_CHECKING:
    from pathlib import Path

EVIDENCE = ProfileEvidence(
    "race", 80, 6, 0.81, 0.79, 0.83, 0.95, "geometric mean of medians", {"latency": [0.8, 0.7, 0.9]}
)
PROFILE = Profile(
    "low-latency",
    "latency-bound",
    ("v0",),
    {
        "nic.adaptive-rx": "off",
        "nic.rx-usecs": "0",
        "nic.rx-frames": "1",
        "nic.gro": "off",
        "nic.ring-rx": "512",
        "nic.mtu": "9000",
        "nic.napi-defer-hard-irqs": "2",
        "nic.pause-rx": "off",
        "host.tcp_rmem": "4096 131072 6291456",
        "host.tcp_autocorking": "0",
        "mpi.progress": "polling",
        "mpi.bind": "core",
    },
    {"nic.rx-usecs": "3"},
    "openmpi5",
    EVIDENCE,
)


def need(program: str) -> str:
    found = shutil.which(program)
    if not found:
        pytest.skip(f"{program} is not installed")
    return found


def _write(folder: Path, to: str, profile: Profile = PROFILE) -> list[Path]:
    places = []
    for name, text in export(profile, to).files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        places.append(place)
    return places


@pytest.mark.parametrize("to", ["ethtool", "udev", "ansible", "slurm"])
def test_writes_are_in_an_order_that_drivers_accept(to: str) -> None:
    """iavf recreates its rings when the number of queues changes, adaptive at 50 us; usecs 0 is refused while frames is
    0.
    """
    wanted = {"nic.adaptive-rx": "off", "nic.rx-usecs": "0", "nic.rx-frames": "1", "nic.channels-combined": "4"}
    made = export(Profile("p", "latency-bound", ("v0",), wanted), to)
    text = next(iter(made.files.values())).replace('", "', " ").partition("combined 4")
    assert text[1], text[0]
    for before in ("adaptive-rx off", "rx-usecs 0", "rx-frames 1"):
        assert before not in text[0], text[0]
    assert text[2].index("adaptive-rx off") < text[2].index("rx-frames 1") < text[2].index("rx-usecs 0")


@pytest.mark.parametrize("to", ["ethtool", "udev", "ansible", "slurm"])
def test_values_of_one_queue_follow_those_of_all(to: str) -> None:
    """Written for all queues last, 0 became that of the queue with a value of its own."""
    wanted = {"nic.rx-usecs.queue0": "50", "nic.rx-usecs": "0"}
    text = next(iter(export(Profile("p", "latency-bound", ("v0",), wanted), to).files.values())).replace('", "', " ")
    assert text.index("-C v0 rx-usecs 0") < text.rindex("--coalesce rx-usecs 50")


@pytest.mark.parametrize("to", ["systemd-link", "networkmanager", "tuned", "udev"])
def test_settings_that_a_driver_resets_beside_the_profile_are_reported(to: str) -> None:
    def text(setting: dict[str, str]) -> str:
        return "".join(export(Profile("p", "any", ("v0",), setting), to).files.values())

    moderation = "adaptive-tx, nic.rx-usecs, nic.tx-usecs"
    queues = text({"nic.channels-combined": "4", "nic.adaptive-rx": "off"})
    assert f"# With nic.channels-combined, i40e and iavf set to their own defaults: nic.{moderation}" in queues
    assert "own defaults" not in text({"nic.ring-rx": "512"})


def test_segmentation_in_a_link_file_covers_ipv4_and_ipv6() -> None:
    (text,) = export(Profile("p", "latency-bound", ("v0",), {"nic.tso": "off"}), "systemd-link").files.values()
    assert "TCPSegmentationOffload=no\nTCP6SegmentationOffload=no\n" in text


def test_a_link_file_repeats_all_that_the_default_one_sets() -> None:
    """A VF without an address of its own got another one at each boot."""
    (text,) = export(PROFILE, "systemd-link").files.values()
    for line in _DEFAULT_LINK:
        assert f"\n{line}\n" in text


_DEFAULT_LINK = (
    "NamePolicy=keep kernel database onboard slot path",
    "AlternativeNamesPolicy=database onboard slot path",
    "MACAddressPolicy=persistent",
)
"""99-default.link of systemd 252."""


def test_a_parameter_that_tuned_does_not_know_is_left_out() -> None:
    """Tuned refuses a list with one: `unknown coalesce parameter(s)`, and set no moderation at all."""
    made = export(Profile("p", "any", ("v0",), {"nic.cqe-mode-rx": "off", "nic.rx-usecs": "0"}), "tuned")
    assert made.left_out == {"nic.cqe-mode-rx": "tuned has no option for it"}
    (text,) = made.files.values()
    assert "\ncoalesce=rx-usecs 0\n" in text


def test_tuned_knows_every_parameter(tmp_path: Path) -> None:
    setting = {knob.name: knob.kind.canon("on" if isinstance(knob.kind, OneOf) else 7) for knob in OF_TUNED}
    (place,) = _write(tmp_path, "tuned", Profile("p", "any", ("v0",), setting))
    listed = dict(line.split("=", 1) for line in place.read_text().splitlines() if "=" in line)
    check = (
        "import json, sys\nfrom tuned.plugins.plugin_net import NetTuningPlugin as net\n"
        "known = {name: list(getattr(net, f'_get_config_options_{name}')()) for name in sys.argv[1:]}\n"
        "print(json.dumps(known))\n"
    )
    read = process.run([tuned_python(), "-c", check, "coalesce", "ring", "channels", "pause"], timeout_s=600)
    assert read.ok, read.complaint()
    for name, known in json.loads(read.text).items():
        assert set(listed[name].split()[::2]) <= set(known)


OF_TUNED = [knob for family in (coalesce.KNOBS, nic.RINGS, nic.CHANNELS, nic.PAUSE) for knob in family]


def test_tuned_sets_the_length_of_a_queue_once() -> None:
    """Two of its plugins would save what the other had set."""
    (text,) = export(Profile("p", "any", ("v0",), {"nic.txqueuelen": "500"}), "tuned").files.values()
    assert "txqueuelen=500" in text
    assert "tx_queue_len" not in text


def test_what_older_networkmanagers_ignore_is_said() -> None:
    """1.42 drops channels without a word (`nmcli --offline connection modify`)."""
    made = export(Profile("p", "any", ("v0",), {"nic.channels-combined": "4"}), "networkmanager")
    assert "channels need NetworkManager 1.46" in made.where
    assert "channels" not in export(PROFILE, "networkmanager").where


@pytest.mark.parametrize("to", EXPORTS)
class TestEveryExport:
    def test_exports_each_knob_or_names_it_as_left_out(self, to: str) -> None:
        made = export(PROFILE, to)
        text = "".join(made.files.values())
        for knob, value in PROFILE.setting.items():
            if knob not in made.left_out:
                assert any(word in text for word in (value, "yes", "no", "false", "0")), knob
        assert "0.810" in text
        assert made.where

    def test_names_the_knobs_of_interfaces_of_a_profile_that_names_none(self, to: str) -> None:
        """They were neither written nor said to be left out beside knobs of the machine."""
        nowhere = replace(PROFILE, interfaces=())
        if to in {"systemd-link", "networkmanager", "udev"}:
            with pytest.raises(BadInputError, match=r"nic\.mtu: the profile names no interface"):
                export(nowhere, to)
        else:
            of_interfaces = {knob for knob in PROFILE.setting if knob.startswith("nic.")}
            assert of_interfaces <= export(nowhere, to).left_out.keys()

    def test_is_deterministic(self, to: str) -> None:
        assert export(PROFILE, to) == export(PROFILE, to)

    def test_an_empty_profile_is_refused(self, to: str) -> None:
        with pytest.raises(BadInputError, match="cannot express anything"):
            export(Profile("empty", "any", ("v0",), {}), to)


@pytest.mark.parametrize("to", ["ethtool", "slurm"])
def test_scripts_parse(tmp_path: Path, to: str) -> None:
    for place in _write(tmp_path, to):
        assert process.run(["sh", "-n", str(place)], timeout_s=600, check=True).ok


def test_networkmanager_reads_the_keyfile(tmp_path: Path) -> None:
    nmcli = need("nmcli")
    (place,) = _write(tmp_path, "networkmanager")
    argv = [nmcli, "--offline", "connection", "modify", "connection.autoconnect", "no"]
    read = process.run(argv, timeout_s=600, stdin=place.read_bytes())
    if "--offline" in read.complaint():
        pytest.skip("this nmcli has no --offline")
    assert read.ok, read.complaint()
    for line in ("coalesce-rx-usecs=0", "coalesce-adaptive-rx=0", "feature-gro=false", "ring-rx=512", "mtu=9000"):
        assert line in read.text
    assert "pause-rx=false" in read.text


def test_networkmanager_takes_a_file_with_negotiated_pause_frames(tmp_path: Path) -> None:
    """It refused the whole connection: `pause-autoneg cannot be enabled when setting rx/tx options`."""
    setting = {"nic.pause-autoneg": "on", "nic.pause-rx": "off", "nic.rx-usecs": "0"}
    profile = Profile("p", "any", ("v0",), setting)
    made = export(profile, "networkmanager")
    assert made.left_out == {"nic.pause-rx": "NetworkManager sets it only where pause frames are not negotiated"}
    (place,) = _write(tmp_path, "networkmanager", profile)
    assert "pause-autoneg=true\ncoalesce-rx-usecs=0\n" in place.read_text()
    argv = [need("nmcli"), "--offline", "connection", "modify", "connection.autoconnect", "no"]
    read = process.run(argv, timeout_s=600, stdin=place.read_bytes())
    if "--offline" in read.complaint():
        pytest.skip("this nmcli has no --offline")
    assert read.ok, read.complaint()


def tuned_python() -> str:
    candidates = [os.environ.get("NEARMETAL_TUNED_PYTHON", ""), "/usr/bin/python3", sys.executable]
    probe = ["-c", "import tuned.profiles.loader"]
    python = next((one for one in candidates if one and process.run([one, *probe], timeout_s=600).ok), None)
    if python is None:
        pytest.skip("the tuned package cannot be imported")
    return python


def test_tuned_loads_the_profile(tmp_path: Path) -> None:
    python = tuned_python()
    (place,) = _write(tmp_path, "tuned")
    load = (
        "import sys\nfrom tuned.profiles import factory, functions, loader, locator, merger, variables\n"
        "from tuned.utils.config_parser import ConfigParser\n"
        "import tuned.utils.global_config as g\n"
        "made = loader.Loader(locator.Locator([sys.argv[1]]), factory.Factory(), merger.Merger(),"
        " g.GlobalConfig(sys.argv[3]), variables.Variables())\n"
        "units = made.load([sys.argv[2]]).units\n"
        "print(units['net'].options['coalesce'], units['net'].options['ring'], units['sysctl'].options)\n"
    )
    (tmp_path / "main.conf").touch()
    argv = [python, "-c", load, str(tmp_path), place.parent.name, str(tmp_path / "main.conf")]
    read = process.run(argv, timeout_s=600)
    assert read.ok, read.complaint()
    assert "adaptive-rx off rx-usecs 0 rx-frames 1" in read.text
    assert "net.ipv4.tcp_autocorking" in read.text


def test_tuned_finds_every_sysctl(tmp_path: Path) -> None:
    """It looked for `net.ipv6.conf.v0.10.mtu` below an interface v0, and logged that this does not exist."""
    profile = Profile("p", "any", ("v0", "v0.10"), {"nic.ipv6-mtu": "1300", "host.tcp_rmem": "4096 131072 6291456"})
    made = export(profile, "tuned")
    assert made.left_out == {"nic.ipv6-mtu": "tuned takes the dot of v0.10 for a slash"}
    (place,) = _write(tmp_path, "tuned", profile)
    names = re.findall(r"^(net\.\S+)=", place.read_text(), re.MULTILINE)
    check = "import sys\nfrom tuned.plugins.plugin_sysctl import _get_sysctl_path as p\nprint(*map(p, sys.argv[1:]))\n"
    read = process.run([tuned_python(), "-c", check, *names], timeout_s=600)
    assert read.text.split() == ["/proc/sys/net/ipv6/conf/v0/mtu", "/proc/sys/net/ipv4/tcp_rmem"], read.complaint()


def test_ansible_checks_the_play(tmp_path: Path) -> None:
    playbook = need("ansible-playbook")
    (place,) = _write(tmp_path, "ansible")
    env = {**os.environ, "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_LOCALHOST_WARNING": "0", "LC_ALL": "C.UTF-8"}
    argv = [playbook, "--check", "--connection", "local", "--inventory", "localhost,", "--extra-vars"]
    argv += [f"ansible_become=false ansible_python_interpreter={sys.executable}", str(place)]
    checked = process.run(argv, timeout_s=600, env=env)
    assert checked.ok, checked.complaint() + checked.text
    assert "unreachable=0    failed=0" in checked.text


def played(place: Path, before: str, after: str, times: int = 1) -> process.Finished:
    """Play a profile in a namespace with v0, a veth, between commands of a shell."""
    playbook = need("ansible-playbook")
    if os.geteuid() != 0 or not shutil.which("ethtool"):
        pytest.skip("needs root and ethtool")
    home = str(place.parent)
    env = {**os.environ, "ANSIBLE_HOME": home, "ANSIBLE_LOCALHOST_WARNING": "0", "LC_ALL": "C.UTF-8"}
    words = f"ansible_become=false ansible_python_interpreter={sys.executable}"
    once = '"$@"; ' * times
    script = f"mount -t sysfs sysfs /sys; ip link add v0 type veth peer name v1\n{before}\n{once}\n{after}"
    play = [playbook, "--connection", "local", "--inventory", "localhost,", "--extra-vars", words, str(place)]
    return process.run(["unshare", "--mount", "--net", "--", "sh", "-c", script, "x", *play], timeout_s=600, env=env)


def recap(ran: process.Finished) -> list[tuple[str, str, str]]:
    """Return how many tasks of each play went well, changed something and failed."""
    return re.findall(r"ok=(\d) +changed=(\d) .* failed=(\d)", ran.text)


@pytest.mark.netns
def test_a_play_is_idempotent(tmp_path: Path) -> None:
    setting = {"nic.mtu": "1400", "nic.gro": "on", "host.tcp_rmem": "4096 131072 6291456"}
    (place,) = _write(tmp_path, "ansible", Profile("job", "any", ("v0",), setting))
    before = "echo 4096 131072 5000 > /proc/sys/net/ipv4/tcp_rmem"
    ran = played(place, before, "cat /sys/class/net/v0/mtu /proc/sys/net/ipv4/tcp_rmem", times=2)
    assert recap(ran) == [("3", "3", "0"), ("3", "0", "0")], ran.text
    assert "1400\n4096\t131072\t6291456" in ran.text, ran.complaint()


@pytest.mark.netns
@pytest.mark.parametrize(
    ("knob", "value", "before"),
    [("nic.sg", "off", "true"), ("nic.tso", "on", "ethtool -K v0 tx-tcp-mangleid-segmentation off")],
)
def test_a_play_sets_every_feature_of_a_word_and_says_so(tmp_path: Path, knob: str, value: str, before: str) -> None:
    """It left the others as they were where one made the word read on, and took what ethtool prints for no change."""
    (place,) = _write(tmp_path, "ansible", Profile("job", "any", ("v0",), {knob: value}))
    ran = played(place, before, "ethtool -k v0", times=2)
    assert recap(ran) == [("1", "1", "0"), ("1", "0", "0")], ran.text + ran.complaint()
    assert ("tx-tcp-mangleid-segmentation: on" in ran.text) == (value == "on")


def in_a_private_tree(folder: str, source: Path, argv: list[str]) -> process.Finished:
    """Run a program that sees `source` in place of a system directory, in a mount namespace of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root to show udev a private directory")
    script = 'mkdir -p "$1" && mount --bind "$2" "$1" && shift 2 && exec "$@"'
    wrapped = ["unshare", "--mount", "--net", "--", "sh", "-c"]
    inner = 'ip link add v0 type veth peer name v1; mount -t sysfs sysfs /sys; exec sh -c "$0" tree "$@"'
    return process.run([*wrapped, inner, script, folder, str(source), *argv], timeout_s=600)


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        (PROFILE.setting, None),
        ({"nic.channels-rx": "0", "nic.channels-combined": "4"}, ("nic.channels-rx", "RxChannels")),
        *(
            ({"nic.sample-interval": value, "nic.rx-usecs": "0"}, ("nic.sample-interval", "CoalescePacketRateSample"))
            for value in ("0", "4295")
        ),
        ({"nic.sample-interval": "4294", "nic.channels-tx": "1"}, None),
    ],
)
def test_udev_takes_every_line_of_the_link_file(
    tmp_path: Path, setting: dict[str, str], refused: tuple[str, str] | None
) -> None:
    """It passed over `RxChannels=0`, as `Invalid`, and set the rest."""
    udevadm = need("udevadm")
    profile = replace(PROFILE, setting=setting)
    left_out = export(profile, "systemd-link").left_out
    _write(tmp_path, "systemd-link", profile)
    argv = [udevadm, "test-builtin", "net_setup_link", "/sys/class/net/v0"]
    read = in_a_private_tree("/run/systemd/network", tmp_path, argv)
    output = read.text + read.stderr.decode()
    assert "10-nearmetal-v0.link" in output, output
    for complaint in ("Unknown key", "Unknown section", "Failed to parse", "ignoring: 0", "Too large", "Invalid"):
        assert complaint not in output, output
    if refused:
        knob, key = refused
        assert left_out[knob].startswith(f"systemd.link takes no {setting[knob]} for {key}"), left_out


def test_udev_reads_the_rule(tmp_path: Path) -> None:
    udevadm = need("udevadm")
    (place,) = _write(tmp_path, "udev")
    read = in_a_private_tree("/run/udev/rules.d", tmp_path, [udevadm, "test", "--action=add", "/sys/class/net/v0"])
    output = read.text + read.stderr.decode()
    complaints = [line for line in output.splitlines() if place.name in line and "Reading rules file" not in line]
    assert not [line for line in complaints if "nvalid" in line or "nknown" in line], output
    assert "ethtool -C v0 rx-usecs 0" in output


def test_udev_sets_the_largest_packet_of_ipv6_after_the_frames(tmp_path: Path) -> None:
    """The export failed with an IndexError; the kernel resets the former with the latter."""
    udevadm = need("udevadm")
    _write(tmp_path, "udev", replace(PROFILE, setting={"nic.ipv6-mtu": "1300", "nic.mtu": "1400"}))
    read = in_a_private_tree("/run/udev/rules.d", tmp_path, [udevadm, "test", "--action=add", "/sys/class/net/v0"])
    output = read.text + read.stderr.decode()
    frames, packets = "run: '/usr/sbin/ip link set dev v0 mtu 1400'", "echo 1300 > /proc/sys/net/ipv6/conf/v0/mtu"
    assert output.index(frames) < output.index(packets, output.index(frames)), output


def test_module_file_is_valid_tcl(tmp_path: Path) -> None:
    tclsh = need("tclsh")
    (place,) = _write(tmp_path, "module")
    script = 'proc setenv {n v} {puts "$n=$v"}; proc module-whatis {t} {}; source [lindex $argv 0]\n'
    read = process.run([tclsh, "/dev/stdin", str(place)], timeout_s=600, stdin=script.encode())
    assert "OMPI_MCA_mpi_yield_when_idle=0" in read.text, read.complaint()


@pytest.mark.netns
def test_slurm_prolog_sets_and_epilog_restores(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("ethtool"):
        pytest.skip("needs root and ethtool")
    setting = {"nic.mtu": "1400", "nic.gro": "on", "nic.napi-defer-hard-irqs": "2", "host.tcp_autocorking": "0"}
    prolog, epilog = _write(tmp_path, "slurm", Profile("job", "any", ("v0",), setting))
    script = """set -e
mount -t tmpfs tmpfs /run; mount -t sysfs sysfs /sys
ip link add v0 type veth peer name v1
show() { cat /sys/class/net/v0/mtu /sys/class/net/v0/napi_defer_hard_irqs /proc/sys/net/ipv4/tcp_autocorking
    ethtool -k v0 | grep ^generic-receive; }
before=$(show); sh "$1"; during=$(show); sh "$2"; after=$(show); sh "$2"
[ "$before" = "$after" ] && [ "$before" != "$during" ] && ls /run/nearmetal && echo "$during"
"""
    argv = ["unshare", "--mount", "--net", "--", "sh", "-c", script, "job", str(prolog), str(epilog)]
    ran = process.run(argv, timeout_s=600, env={**os.environ, "SLURM_JOB_ID": "77"})
    assert ran.text.split() == ["1400", "2", "0", "generic-receive-offload:", "on"], ran.complaint() + ran.text


@pytest.mark.netns
def test_slurm_epilog_restores_the_features_of_tso_one_by_one(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("ethtool"):
        pytest.skip("needs root and ethtool")
    setting = {"nic.tso": "off", "nic.sg": "off"}
    prolog, epilog = _write(tmp_path, "slurm", Profile("job", "any", ("v0",), setting))
    script = """set -e
mount -t tmpfs tmpfs /run
ip link add v0 type veth peer name v1
ethtool -K v0 tx-tcp-mangleid-segmentation off
before=$(ethtool -k v0); sh "$1" > /dev/null; during=$(ethtool -k v0); sh "$2" > /dev/null; after=$(ethtool -k v0)
[ "$before" != "$during" ]; [ "$before" = "$after" ]; ls /run/nearmetal
"""
    argv = ["unshare", "--mount", "--net", "--", "sh", "-c", script, "job", str(prolog), str(epilog)]
    ran = process.run(argv, timeout_s=600, env={**os.environ, "SLURM_JOB_ID": "77"})
    assert (ran.exit_status, ran.text) == (0, ""), ran.complaint()


@pytest.mark.netns
def test_slurm_epilog_restores_the_largest_frames_of_what_is_built_on_a_port(tmp_path: Path) -> None:
    """Macvlans and VLANs of the node stayed at the frames of the first job, and IPv6 at packets of that size."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    prolog, epilog = _write(tmp_path, "slurm", Profile("job", "any", ("v0",), {"nic.mtu": "1400"}))
    script = """mount -t tmpfs tmpfs /run; mount -t sysfs sysfs /sys
ip link add v0 type veth peer name v1
for one in m0 m1; do ip link add link v0 name $one type macvlan || exit 9; done
ip link set m1 mtu 1450
cd /proc/sys/net/ipv6/conf; echo 1300 > v0/mtu; echo 1310 > m1/mtu
show() { cat /sys/class/net/v0/mtu /sys/class/net/m0/mtu /sys/class/net/m1/mtu v0/mtu m0/mtu m1/mtu; }
show; sh "$1"; show; sh "$2"; show; ls /run/nearmetal
"""
    argv = ["unshare", "--mount", "--net", "--", "sh", "-c", script, "job", str(prolog), str(epilog)]
    ran = process.run(argv, timeout_s=600, env={**os.environ, "SLURM_JOB_ID": "77"})
    if ran.exit_status == 9:
        pytest.skip(ran.complaint())
    before = ["1500", "1500", "1450", "1300", "1500", "1310"]
    assert ran.text.split() == [*before, *["1400"] * 6, *before], ran.complaint()


@pytest.mark.netns
@pytest.mark.parametrize(
    ("mtu", "lost"), [("1279", "fd00::5/64 on v0 the route to fd00:6::/64 on v0"), ("1400", "mtu 1400 of the route to")]
)
def test_slurm_prolog_leaves_frames_that_would_cost_ipv6_something_for_good(
    tmp_path: Path, mtu: str, lost: str
) -> None:
    """The kernel took addresses and routes from the node, or raised the largest packets of routes, and left it so."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    setting = {"nic.mtu": mtu, "nic.napi-defer-hard-irqs": "2"}
    prolog, epilog = _write(tmp_path, "slurm", Profile("job", "any", ("v0",), setting))
    script = """mount -t tmpfs tmpfs /run; mount -t sysfs sysfs /sys
ip link add v0 type veth peer name v1; ip link set v0 up
ip -6 address add fd00::5/64 dev v0 nodad && ip -6 route add fd00:6::/64 dev v0 mtu 1400 || exit 9
logger() { echo "$4"; }
show() { ip -6 address show dev v0; ip -6 route show; cat /sys/class/net/v0/mtu; }
before=$(show); (. "$1"); during=$(show); cat /sys/class/net/v0/napi_defer_hard_irqs
(. "$2"); [ "$before" = "$during" ] && [ "$before" = "$(show)" ] && ls /run/nearmetal
"""
    argv = ["unshare", "--mount", "--net", "--", "sh", "-c", script, "job", str(prolog), str(epilog)]
    ran = process.run(argv, timeout_s=600, env={**os.environ, "SLURM_JOB_ID": "77"})
    if ran.exit_status == 9:
        pytest.skip(ran.complaint())
    said, defers = ran.text.splitlines()
    assert said.startswith(f"nic.mtu {mtu} on v0 was not set, it would take for good: {lost}"), ran.text
    assert (defers, ran.exit_status) == ("2", 0)


@pytest.mark.netns
def test_slurm_epilog_restores_what_went_with_queues(tmp_path: Path) -> None:
    """Queues came back without the processors that they led to."""
    if os.geteuid() != 0 or not shutil.which("ethtool"):
        pytest.skip("needs root and ethtool")
    prolog, epilog = _write(tmp_path, "slurm", Profile("job", "any", ("v0",), {"nic.channels-rx": "1"}))
    script = """mount -t tmpfs tmpfs /run; mount -t sysfs sysfs /sys
ip link add v0 numrxqueues 3 type veth peer name v1 numrxqueues 3 && cd /sys/class/net/v0/queues || exit 9
for one in 0 1 2; do echo $((one % 2 + 1)) > rx-$one/rps_cpus && echo 64 > rx-$one/rps_flow_cnt || exit 9; done
show() { ls -d rx-*; cat rx-*/rps_*; }
before=$(show); sh "$1"; during=$(show); sh "$2"
[ "$before" = "$(show)" ] && ls /run/nearmetal && echo "$during"
"""
    argv = ["unshare", "--mount", "--net", "--", "sh", "-c", script, "job", str(prolog), str(epilog)]
    ran = process.run(argv, timeout_s=600, env={**os.environ, "SLURM_JOB_ID": "77"})
    if ran.exit_status == 9:
        pytest.skip(ran.complaint())
    assert ran.text.split() == ["rx-0", "1", "64"], ran.complaint()


def test_slurm_epilog_restores_once_what_a_knob_of_the_machine_changes(tmp_path: Path) -> None:
    """It was saved for each interface of the profile, and for none where that has none."""
    for interfaces in ((), ("v0", "v1")):
        profile = Profile("job", "any", interfaces, {"host.transparent-hugepages": "never"})
        prolog, epilog = _write(tmp_path, "slurm", profile)
        assert prolog.read_text().count("/proc/sys/vm/min_free_kbytes") == 1
        assert epilog.read_text().count("> /proc/sys/vm/min_free_kbytes") == 1, "it followed large pages no more"


def test_slurm_scripts_leave_alone_what_only_a_left_out_knob_changes() -> None:
    exported = export(Profile("job", "any", (), {"host.cpu-governor": "performance", "host.busy_read": "50"}), "slurm")
    assert "host.cpu-governor" in exported.left_out
    assert not [name for name, text in exported.files.items() if "cpufreq" in text]


class TestQueuesThatResetModeration:
    """With a stand-in ethtool that behaves like iavf: changing the queues makes moderation adaptive at 50 us."""

    ETHTOOL = """#!/bin/sh
cd {folder}
case $1 in
-L) echo "$4" > queues; echo on > adaptive; echo 50 > usecs ;;
-l) printf 'Current hardware settings:\\nCombined:\\t%s\\n' "$(cat queues)" ;;
-C) case $3 in adaptive-rx) echo "$4" > adaptive ;; rx-usecs) echo "$4" > usecs ;; *) exit 1 ;; esac ;;
-c) printf 'Adaptive RX: %s  TX: n/a\\nrx-usecs:\\t%s\\ntx-usecs:\\tn/a\\n' "$(cat adaptive)" "$(cat usecs)" ;;
esac
"""

    def run(self, folder: Path, adaptive: str, script: str, *argv: str | Path) -> list[str]:
        if os.geteuid() != 0:
            pytest.skip("needs root")
        (folder / "bin").mkdir()
        (folder / "bin" / "ethtool").write_text(self.ETHTOOL.format(folder=folder))
        (folder / "bin" / "ethtool").chmod(0o755)
        for name, value in (("queues", "8"), ("adaptive", adaptive), ("usecs", "3")):
            (folder / name).write_text(f"{value}\n")
        words = ["unshare", "--mount", "--", "sh", "-c", f"cd {folder}; {script}", "x", *map(str, argv)]
        path = f"{folder}/bin:{os.environ['PATH']}"
        given = {"SLURM_JOB_ID": "77", "ANSIBLE_HOME": str(folder), "LC_ALL": "C.UTF-8", "PATH": path}
        ran = process.run(words, timeout_s=600, env={**os.environ, **given})
        assert ran.ok, ran.complaint() + ran.text
        return ran.text.split()

    @pytest.mark.parametrize(("adaptive", "after"), [("off", ["4", "off", "3"]), ("on", ["4", "on", "50"])])
    def test_a_script_rewrites_reset_values_like_apply(self, tmp_path: Path, adaptive: str, after: list[str]) -> None:
        (place,) = _write(tmp_path, "ethtool", Profile("p", "any", ("v0",), {"nic.channels-combined": "4"}))
        assert self.run(tmp_path, adaptive, 'sh "$1" && cat queues adaptive usecs', place) == after

    def test_values_in_the_profile_are_set_as_given(self, tmp_path: Path) -> None:
        setting = {"nic.channels-combined": "4", "nic.adaptive-rx": "off", "nic.rx-usecs": "9"}
        (place,) = _write(tmp_path, "ethtool", Profile("p", "any", ("v0",), setting))
        assert self.run(tmp_path, "on", 'sh "$1" && cat queues adaptive usecs', place) == ["4", "off", "9"]

    def test_a_slurm_job_leaves_everything_as_it_was(self, tmp_path: Path) -> None:
        places = _write(tmp_path, "slurm", Profile("p", "any", ("v0",), {"nic.channels-combined": "4"}))
        script = 'mount -t tmpfs tmpfs /run; for one; do sh "$one"; cat queues adaptive usecs; done; ls /run/nearmetal'
        assert self.run(tmp_path, "off", script, *places) == ["4", "off", "3", "8", "off", "3"]

    def test_a_play_rewrites_reset_values(self, tmp_path: Path) -> None:
        playbook = need("ansible-playbook")
        (place,) = _write(tmp_path, "ansible", Profile("p", "any", ("v0",), {"nic.channels-combined": "4"}))
        words = f"ansible_become=false ansible_python_interpreter={sys.executable}"
        play = [playbook, "--connection", "local", "--inventory", "localhost,", "--extra-vars", words, place]
        assert self.run(tmp_path, "off", '"$@" > output && cat queues adaptive usecs', *play) == ["4", "off", "3"]


class TestProfileFile:
    def test_round_trips(self, tmp_path: Path) -> None:
        place = tmp_path / "p.json"
        place.write_text(PROFILE.to_json())
        assert Profile.read(place) == PROFILE

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"profile_format": 2}', "\x00", '{"profile_format": 1}'])
    def test_foreign_files_are_refused(self, tmp_path: Path, text: str) -> None:
        place = tmp_path / "p.json"
        place.write_text(text)
        with pytest.raises(ForeignFileError):
            Profile.read(place)

    @pytest.mark.parametrize(
        ("name", "interfaces", "setting"),
        [
            ("a/b", ("v0",), {}),
            ("ok", ("v0; rm",), {}),
            ("ok", ("v0",), {"nic.rx-usecs": "0; reboot"}),
            ("ok", ("v0",), {"nic.no-such-knob": "1"}),
            ("-rf", ("v0",), {}),
            ("a..b", ("v0",), {}),
            ("ok\nreboot", ("v0",), {}),
            ("ok\n", ("v0",), {}),
            ("ok", ("-v0",), {}),
            ("ok", ("..",), {}),
            ("ok", ("eth*",), {}),
            ("ok", ("v0\x1b[2J",), {}),
            ("ok", ("v0\n",), {}),
            ("ok", ("v0",), {"host.cpu-governor": "${f:exec:reboot}"}),
            ("ok", ("v0",), {"host.cpu-governor": "$(reboot)"}),
        ],
    )
    def test_nothing_that_could_reach_a_shell_is_accepted(
        self, name: str, interfaces: tuple[str, ...], setting: dict[str, str]
    ) -> None:
        with pytest.raises(BadInputError):
            Profile(name, "any", interfaces, setting)
