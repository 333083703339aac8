"""The wire's Python side: its build, its requirements on an emulator, and its arguments."""

import dataclasses
from pathlib import Path

import pytest

from nearmetal import native, process
from nearmetal.errors import ForeignFileError, UnavailableError
from nearmetal.hosts.lab import wire
from tests.compiled import compile_to

_FIELDS = Path(__file__).parents[1] / "native" / "wire_fields.c"


@pytest.fixture(scope="module")
def library() -> Path:
    return native.build(wire.RECIPE)


def test_it_builds_without_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.build(dataclasses.replace(wire.RECIPE, extra_flags=(*wire.RECIPE.extra_flags, "-Werror"))).exists()


def test_its_licence_is_beside_its_sources() -> None:
    assert "GNU GENERAL PUBLIC LICENSE" in (native.source_dir("wire") / "LICENSE").read_text()
    for source in native.all_files(wire.RECIPE).values():
        assert source.read_text().startswith("// SPDX-License-Identifier: GPL-2.0-or-later\n"), source


def test_an_emulator_without_the_symbols_is_refused_by_name(library: Path) -> None:
    with pytest.raises(
        UnavailableError, match=r"exports 0 functions of the \d+ that the wire needs, not all_cpu_threads_idle, "
    ):
        wire.check(Path("/bin/true"), "10.0.2", library)


def test_one_missing_symbol_is_enough(library: Path, tmp_path: Path) -> None:
    wanted = [name for name, defined in wire.symbols(library).items() if not defined]
    source = tmp_path / "almost.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in wanted if "icount" not in name))
    almost = tmp_path / "almost"
    compile_to(almost, ["cc", "-w", "-fno-builtin", "-shared", "-fPIC", str(source)])
    with pytest.raises(UnavailableError, match=r", not icount_get, icount_prepare_for_run, icount_start"):
        wire.check(almost, "10.0.2", library)


@pytest.mark.parametrize("shapes", ["", "-DLATER_FIELD", "-DLATER_DESCRIPTION", "-DLATER_FIELD -DLATER_DESCRIPTION"])
def test_a_field_of_a_cpu_is_found_as_old_and_new_emulators_describe_it(tmp_path: Path, shapes: str) -> None:
    room, program = native.source_dir("wire"), tmp_path / "fields"
    sources = [str(_FIELDS), str(room / "fields.c")]
    compile_to(program, ["cc", "-D_GNU_SOURCE", f"-I{room}", *shapes.split(), *sources])
    assert process.run([str(program)], timeout_s=60).text == "77 1128 1600 1232"
    unknown = process.run([str(program), "env.rip"], timeout_s=60)
    assert (unknown.exit_status, unknown.text.partition(": ")[2]) == (70, "its CPU's description has no env.rip")


def test_an_unknown_version_is_refused(library: Path) -> None:
    with pytest.raises(UnavailableError, match=r"not known to fit QEMU 12\.0\.1"):
        wire.check(Path("/bin/true"), "12.0.1", library)


def test_a_file_that_is_not_a_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    with pytest.raises(ForeignFileError, match="script is not a 64-bit ELF file"):
        wire.symbols(tmp_path / "script")


def test_the_plugin_argument_has_both_networks_and_escaped_commas() -> None:
    place = wire.WirePlace("/proc/1/fd/3", node=1, nodes=2)
    link = wire.Link(delay_ns=1500, rate_mbps=1000, queue_bytes=9000, loss_ppm=5)
    argument = wire.plugin_argument(
        Path("/a,b/wire.so"), place, seed=7, counts=Path("c"), trace=Path("t"), measured=link
    )
    assert argument == (
        "file=/a,,b/wire.so,shm=/proc/1/fd/3,node=1,nodes=2,seed=7,stat=c,trace=t,"
        "delay=1500,rate=1000,queue=9000,loss=5,delay1=2000,rate1=0,queue1=1048576,loss1=0"
    )


def test_shared_memory_is_anonymous_and_ends_with_its_owner() -> None:
    with wire.shared_memory() as path:
        Path(path).write_bytes(b"x")
        assert str(Path(path).readlink()).startswith("/memfd:")
    assert not Path(path).exists()
