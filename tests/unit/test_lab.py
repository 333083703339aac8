"""The parts of the lab that need no emulator: arguments, rules, archives, and the files it reads."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import marshal
import os
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import nearmetal
from knob_machine import KnobMachine
from nearmetal import process
from nearmetal.cli.lab import command as lab_commands
from nearmetal.errors import BadInputError, NearmetalError, UnavailableError
from nearmetal.facts import inventory
from nearmetal.hosts import plain_files
from nearmetal.hosts.host import HYPERVISOR
from nearmetal.hosts.lab import cache, closure, cpio, image, root, terminal, trim
from nearmetal.hosts.lab.cpio import Node, with_parents, write_archive
from nearmetal.hosts.lab.machine import MACHINES, Boot, emulator_argv, machine_named
from nearmetal.hosts.lab.manifest import Manifest, seal
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.native import cache_dir
from nearmetal.process import Finished
from nearmetal.run import agent
from nearmetal.workloads.mpi.table import find_mpi

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE = Path(nearmetal.__file__).parent
RUN = Path("/run")
BASE = Boot("qemu", MACHINES["base"], RUN / "kernel", RUN / "initrd", RUN / "wire.so")


def argv(name: str, *, seed: int = 1, restore: bool = False) -> str:
    return " ".join(emulator_argv(replace(BASE, machine=MACHINES[name]), RUN, seed=seed, restore=restore))


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_counts_instructions_and_never_reads_the_host_clock(name: str) -> None:
    line = argv(name, seed=42)
    assert "-icount shift=0,sleep=off" in line
    assert "thread=single" in line
    assert "clock=vm" in line
    assert "-seed 42" in line
    for forbidden in ("virtio", "blk", "drive", "user,id", "kvm=on", "-netdev tap", "-netdev user"):
        assert forbidden not in line


@pytest.mark.parametrize("name", MACHINES)
def test_both_ports_are_on_one_wire(name: str) -> None:
    assert argv(name).count("hubport,id=h") == 2
    assert argv(name).count("hubid=0") == 2
    assert argv(name).count("-device igb") == 2


def test_the_tick_is_armed_only_when_restored() -> None:
    assert "filter-buffer" not in argv("smp2")
    assert "filter-buffer,id=ticker,netdev=tick,interval=4" in argv("smp2", restore=True)
    assert "filter-buffer" not in argv("base", restore=True)


def test_the_hypervisor_machine_keeps_its_memory_below_4_gib() -> None:
    assert MACHINES["kvm"].memory_mib <= 2048
    assert "intel-iommu" in argv("kvm")
    assert "+svm" in argv("kvm")


def test_the_console_can_be_attached_to_a_terminal() -> None:
    words = emulator_argv(replace(BASE, terminal=RUN / "tty"), RUN, seed=1, restore=True)
    assert [words[place + 1] for place, word in enumerate(words) if word == "-serial"] == [
        "unix:/run/tty,server=off",
        "file:/run/answer",
    ]


def test_a_key_leaves_the_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (keys, typing), console = os.pipe(), socket.socket(socket.AF_UNIX)
    with closing(console), socket.create_server(str(tmp_path / "tty"), family=socket.AF_UNIX) as listener:
        console.connect(str(tmp_path / "tty"))
        console.sendall(b"n0# ")
        os.write(typing, b"ls\n")
        with open(keys) as stdin, ThreadPoolExecutor(1) as pool:  # noqa: PTH123 - a descriptor has no path
            monkeypatch.setattr(sys, "stdin", stdin)
            left = pool.submit(terminal.attend, listener, lambda: False)
            assert console.recv(100) == b"ls\n"
            os.write(typing, b"\x1d")
            assert left.result()
    os.close(typing)


def test_a_console_that_never_connects_ends_with_its_machine(tmp_path: Path) -> None:
    with socket.create_server(str(tmp_path / "tty"), family=socket.AF_UNIX) as listener:
        assert not terminal.attend(listener, lambda: True)


def test_an_unknown_machine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInputError) as caught:
        machine_named("big")
    assert "smp2" in caught.value.hint


def test_the_first_rule_that_matches_decides() -> None:
    rules = trim.TrimRules.parse("# why\n+ usr/share/keep/*\n- usr/share/*\n- *.a\n")
    assert rules.keeps("usr/share/keep/this.a")
    assert not rules.keeps("usr/share/other/deep/file")
    assert not rules.keeps("usr/lib/libc.a")
    assert rules.keeps("usr/lib/libc.so")


@pytest.mark.parametrize("line", ["usr/share/*", "* usr", "-", "- "])
def test_an_invalid_rule_is_refused(line: str) -> None:
    with pytest.raises(BadInputError):
        trim.TrimRules.parse(line)


def test_the_shipped_rules_keep_everything_a_trial_needs() -> None:
    rules = trim.TrimRules.parse(root.lab_file("trim.txt").read_text())
    libraries = "usr/lib/x86_64-linux-gnu"
    for path in (
        "usr/bin/python3.11",
        "usr/lib/python3.11/json/__init__.py",
        "usr/lib/python3.11/encodings/utf_8.py",
        f"{libraries}/libmpi.so.40.30.4",
        f"{libraries}/libmpich.so.12.2.2",
        f"{libraries}/openmpi/lib/openmpi3/mca_btl_tcp.so",
        "usr/bin/mpirun.openmpi",
        "usr/bin/mpiexec.hydra",
        "usr/bin/qemu-system-x86_64",
        "usr/sbin/ethtool",
        "opt/nearmetal-programs/nmrelay",
        "usr/share/qemu/bios-256k.bin",
        "usr/share/openmpi/mpicc-wrapper-data.txt",
    ):
        assert rules.keeps(path), path
    for path in ("usr/lib/gcc/x86_64-linux-gnu/12/cc1", "var/lib/dpkg/status", "usr/include/mpi.h", "boot/initrd.img"):
        assert not rules.keeps(path), path
    for path in ("etc/resolv.conf", "etc/hostname", "etc/apt/sources.list"):
        assert not rules.keeps(path), f"{path} is the builder's own"


def test_modules_include_their_dependencies() -> None:
    dependencies = (
        "kernel/net/a/igb.ko: kernel/lib/dca.ko kernel/lib/algo-bit.ko\n"
        "kernel/lib/dca.ko:\nkernel/lib/algo-bit.ko.xz:\nkernel/lib/algo-bit.ko: kernel/lib/core.ko\n"
        "kernel/lib/core.ko:\nkernel/net/other.ko:\n"
    )
    found = trim.module_closure(["igb", "builtin-one"], dependencies)
    assert found == {"kernel/net/a/igb.ko", "kernel/lib/dca.ko", "kernel/lib/algo-bit.ko", "kernel/lib/core.ko"}
    assert trim.module_name("kernel/drivers/vfio/vfio-pci.ko.xz") == "vfio_pci"


def archive(nodes: list[Node], mtime_s: int = 7) -> bytes:
    stream = io.BytesIO()
    length = write_archive(stream, nodes, mtime_s=mtime_s)
    assert length == len(stream.getvalue())
    return stream.getvalue()


def test_an_archive_is_reproducible_and_has_parents_first() -> None:
    one = [Node.file("a/b/c", b"text", executable=True), Node.link("a/l", "b/c"), Node.directory("z")]
    assert archive(with_parents(one)) == archive(with_parents(reversed(one)))
    assert [node.path for node in with_parents(one)] == ["a", "a/b", "a/b/c", "a/l", "z"]
    assert archive(with_parents(one)) != archive(with_parents([*one[:2]]))


def test_an_archive_has_the_layout_in_the_kernels_documentation() -> None:
    data = archive([Node.file("ab", b"hello")])
    assert data[:6] == b"070701"
    fields = [int(data[6 + 8 * i : 14 + 8 * i], 16) for i in range(13)]
    inode, mode, uid, gid, links, mtime, size, *_, name_size, check = fields
    assert (inode, mode, uid, gid, links, mtime, size, name_size, check) == (1, 0o100644, 0, 0, 1, 7, 5, 3, 0)
    assert data[110:113] == b"ab\0"
    assert data[116:121] == b"hello"  # the header and the name are padded to a multiple of four
    assert b"TRAILER!!!" in data
    assert len(data) % 512 == 0
    assert cpio.Node.link("x", "y").mode == 0o120777


def test_package_sources_are_the_releases_own_without_backports() -> None:
    targets = (
        "http://mirror/debian/|bookworm|main|Debian\nhttp://mirror/debian/|bookworm-updates|main|Debian\n"
        "http://mirror/debian/|bookworm-backports|main|Debian Backports\nhttps://vendor/|bookworm|main|Vendor\n"
        "http://mirror/security/|bookworm-security|main|Debian\nhttp://mirror/debian/|bookworm|main|Debian\n\n"
    )
    found = root.apt_sources(targets, "bookworm", "/k.gpg")
    assert found == (
        "deb [signed-by=/k.gpg] http://mirror/debian/ bookworm main",
        "deb [signed-by=/k.gpg] http://mirror/debian/ bookworm-updates main",
        "deb [signed-by=/k.gpg] http://mirror/security/ bookworm-security main",
    )


def test_packages_have_a_name_in_each_distribution() -> None:
    wanted = ("python3", "linux-image-amd64|linux-image-generic")
    assert root.choose_packages(wanted, "debian") == ("python3", "linux-image-amd64")
    assert root.choose_packages(wanted, "ubuntu") == ("python3", "linux-image-generic")
    assert "perftest" in root.wanted_packages()


def test_quotes_in_os_release_are_parsed() -> None:
    assert root.parse_os_release('ID=debian\nNAME="De bian"\n# x\nVERSION_CODENAME=trixie\n')["NAME"] == "De bian"


def test_guest_code_needs_only_the_standard_library() -> None:
    files = closure.import_closure(PACKAGE, "nearmetal.run.agent")
    names = {str(path.relative_to(PACKAGE)) for path in files}
    assert {"run/agent.py", "run/trial.py", "hosts/lab/guest.py", "paths/vf.py", "__init__.py"} <= names
    assert "study/spec.py" not in names
    assert {"facts/counters.sh", "facts/tracing.sh", "hosts/lab/guest_root.sh"} <= names
    for path in (one for one in files if one.suffix == ".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
            for module in modules:
                top = module.split(".")[0]
                assert top in sys.stdlib_module_names or top == "nearmetal", f"{path} imports {module}"


def test_imports_are_found_in_every_statement_except_under_type_checking() -> None:
    source = """
import nearmetal.a, os
from nearmetal import b
class C:
    def method(self):
        for _ in (): import nearmetal.c
        else: import nearmetal.d
try: import nearmetal.e
except OSError: import nearmetal.f
finally: import nearmetal.g
match 0:
    case 1: from nearmetal.h import i
with open("x"): import nearmetalic
if TYPE_CHECKING: import nearmetal.never
if 1: import nearmetal.j
"""
    wanted = ["a", "b", "c", "d", "e", "f", "g", "h", "h.i", "j"]
    assert sorted(closure.imports(source)) == ["nearmetal", *(f"nearmetal.{name}" for name in wanted)]


def test_a_closure_with_a_missing_module_is_refused() -> None:
    with pytest.raises(NearmetalError):
        closure.import_closure(PACKAGE, "nearmetal.nothing")


MADE = {"emulator": "10.0.2", "wire": "wire-2b9.so"}
OTHERS = ({"emulator": "10.0.1"}, {"wire": "wire-2b8.so"})


def cached_folder(name: str, facts: dict[str, str]) -> Path:
    folder = image.cache_folder() / name
    folder.mkdir(parents=True)
    (folder / "root.cpio").write_bytes(name.encode())
    kind, _, key = name.partition("-")
    seal(folder, kind, key, facts, {})
    return folder


def test_cache_entries_of_other_versions_are_summed_up_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = cache_dir() / "programs"  # those that the lab's key is of take seconds to build
    built.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("nearmetal.cli.lab._makes", lambda: MADE)
    cache_dir().mkdir()
    (cache_dir() / "programs").symlink_to(built)
    old_root = cached_folder("root-old", {"recipe": "another"})
    serving_root = cached_folder("root-new", {"recipe": image.root_recipe_key()})
    key = image.image_key(Manifest.load(serving_root), image.code_key())
    serving = [
        serving_root,
        *(
            cached_folder(f"{kind}-{key}{more}", {"distribution": "debian", "kernel": "6.1.0-56-amd64"})
            for kind, more in (("image", ""), ("snapshot", "-base-6e608d2b943d686c"))
        ),
        cached_folder(f"snapshot-{key}-base-8c42136b71fbfef2", MADE),
    ]
    old = [
        old_root,
        *(cached_folder(name, {}) for name in ("image-gone", "snapshot-gone-base-1")),
        *(cached_folder(f"snapshot-{key}-base-{n}", MADE | other) for n, other in enumerate(OTHERS)),
        cached_folder(f"snapshot-{key}-base-damaged", MADE),
    ]
    (old[-1] / "manifest.json").write_text("{}")
    unfinished = image.cache_folder() / "unfinished-1"
    unfinished.mkdir()

    shown = CliRunner().invoke(lab_commands, ["status"]).output
    assert "7 folders of other sources, packages or emulators hold" in shown
    assert ", \n" not in shown
    assert all(folder.name in shown for folder in serving)
    assert not any(folder.name in shown for folder in old)
    assert set(cache.clean(MADE, everything=False, old_only=True)) == {*old, unfinished}
    assert all(folder.is_dir() for folder in serving)
    assert not any(folder.exists() for folder in old)
    assert "hold" not in CliRunner().invoke(lab_commands, ["status"]).output
    assert set(cache.clean(MADE, everything=False, old_only=False)) == set(serving[1:])


def test_nothing_counts_as_old_if_the_image_cannot_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise UnavailableError("no C compiler")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "code_key", refuse)
    root = cached_folder("root-new", {"recipe": image.root_recipe_key()})
    kept = cached_folder("image-0", {})
    assert cache.clean(MADE, everything=False, old_only=True) == ()
    assert cache.clean(MADE, everything=False, old_only=False) == (kept,)
    assert root.is_dir()


def test_options_all_and_old_exclude_each_other() -> None:
    result = CliRunner().invoke(lab_commands, ["clean", "--all", "--old"])
    assert isinstance(result.exception, BadInputError)


def test_byte_code_is_the_same_in_every_build() -> None:
    source = b"def look(name):\n    return name in {'lossy', 'rate', 'delay'} and 'lossy' or __file__\n"
    made = closure.byte_code({"opt/nearmetal/a/look.py": source, "opt/nearmetal/b.py": b"import a\n"})
    assert made == closure.byte_code({"opt/nearmetal/b.py": b"import a\n", "opt/nearmetal/a/look.py": source})
    path = importlib.util.cache_from_source("opt/nearmetal/a/look.py")
    assert sorted(made) == sorted((path, importlib.util.cache_from_source("opt/nearmetal/b.py")))
    assert made[path][:8] == importlib.util.MAGIC_NUMBER + b"\1\0\0\0", "by hash, and never compared (PEP 552)"
    assert marshal.loads(made[path][16:]).co_filename == "/opt/nearmetal/a/look.py"


def test_source_that_cannot_be_compiled_makes_no_image() -> None:
    with pytest.raises(NearmetalError, match="SyntaxError"):
        closure.byte_code({"opt/nearmetal/a.py": b"def\n"})


def test_an_image_has_the_byte_code_of_its_own_python_or_none() -> None:
    here = f"python3.{sys.version_info.minor}-minimal"
    roots = [
        Manifest("root", "key", {"root.cpio": "sum"}, {}, {package: "3"})
        for package in (here, f"python3.{sys.version_info.minor + 1}-minimal")
    ]
    assert [image.compiles_for(one) for one in roots] == [True, False]
    assert image.image_key(roots[0], "code") != image.image_key(roots[1], "code")
    nodes = image.compiled_nodes([Node.file("opt/a.py", b"a = 1\n"), Node.file("init", b"#!/bin/sh\n")])
    assert [node.path for node in nodes] == [importlib.util.cache_from_source("opt/a.py")]


class Machine(KnobMachine):
    """A machine of the lab with one port, as the shell that its nodes share; its files are those of this machine."""

    disposable = True

    def run(self, argv: Sequence[str], **others: Any) -> Finished:
        if argv[0] == "ip":
            port = {"ifname": "eth1", "parentbus": "pci", "mtu": 1500}
            return Finished(tuple(argv), 0, json.dumps([port]).encode(), b"", 1)
        return super().run(argv, **others)

    def read_all(self, paths: Sequence[str], *, node: str = "") -> dict[str, bytes]:
        return plain_files.read_all(paths)


def test_what_a_first_launch_looks_up_is_in_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling patterns took 12 ms of every first launch, asking an MPI for its version 23."""
    machine = Machine.make(tmp_path, {"eth1": {"adaptive-rx": "off"}}, {})
    here = Machine(machine.root)
    monkeypatch.setattr(agent, "LabShell", lambda: nullcontext(here))
    monkeypatch.setattr(process, "_VERSIONS", {})
    before = here.state()
    re.purge()
    agent.read_ahead()
    assert (here.writes, here.state()) == ([], before), "it only reads"

    def refuse(*what: object, **_: object) -> None:
        raise AssertionError(f"{what} was not in the snapshot")

    monkeypatch.setattr(process, "run", refuse)
    monkeypatch.setattr(re._compiler, "compile", refuse)  # type: ignore[attr-defined]
    plan(here, {"nic.rx-usecs": 8}, [Target("", "eth1")])
    inventory.machine_facts(here)
    inventory.sharing_facts(here, [HYPERVISOR])
    assert find_mpi("openmpi").version
