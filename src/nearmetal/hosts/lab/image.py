"""The lab's image: a kernel and an initramfs, made once and cached by everything that decides its content.

Two layers, two archives in one initramfs: the *root* (packages; needs mmdebstrap, made by `nearmetal lab build`)
and nearmetal's own files over it (made again in a second whenever they change). A snapshot of every configuration
that was used is kept too. Each folder has a manifest with checksums; what does not match them is made again.

Folders under ${XDG_CACHE_HOME:-~/.cache}/nearmetal/lab: `root-<key>`, `image-<key>`, `snapshot-<keys>`.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nearmetal import native, process, scratch
from nearmetal.errors import ForeignFileError, NearmetalError, UnavailableError
from nearmetal.hosts.lab import root as rootfs
from nearmetal.hosts.lab.closure import byte_code, import_closure
from nearmetal.hosts.lab.cpio import Node, with_parents, write_archive
from nearmetal.hosts.lab.frames import STAND_GUEST
from nearmetal.hosts.lab.machine import CALLER, Boot, emulator_argv
from nearmetal.hosts.lab.manifest import Manifest, seal
from nearmetal.hosts.lab.trim import TrimRules, meaningful_lines, trim
from nearmetal.hosts.lab.vm import Vm

_KEY_DIGITS = 16
LOCK = "lock"
"""How the name of a lock of the cache begins."""
_STATE, _MEMORY = "state", "memory"
_COPY_TIMEOUT_S = 480.0
_CODE_ROOT = "opt/nearmetal/nearmetal"
_AGENT = "nearmetal.run.agent"
"""What the guest's first process starts; lab/init names it too."""


@dataclass(frozen=True, slots=True)
class Image:
    """A built image: its folder, its key, and what it was made from."""

    folder: Path
    manifest: Manifest

    @property
    def kernel(self) -> Path:
        """The guest's kernel."""
        return self.folder / "kernel"

    @property
    def initrd(self) -> Path:
        """The guest's whole root."""
        return self.folder / "initramfs"


def cache_folder() -> Path:
    """Return the lab's folder in the cache."""
    return native.cache_dir() / "lab"


def root_recipe_key() -> str:
    """Return the key of what nearmetal itself puts into the root layer."""
    return rootfs.recipe_digest()[:_KEY_DIGITS]


def code_nodes() -> tuple[Node, ...]:
    """Return nearmetal's own files for the image: the first process, all that the agent imports, and the caller."""
    package = Path(native.__file__).parent
    nodes = [Node.file("init", rootfs.lab_file("init").read_bytes(), executable=True)]
    nodes += [Node.directory(name) for name in ("dev", "proc", "run", "sys", "tmp")]
    nodes.append(Node.file("etc/hosts", b"127.0.0.1 localhost\n"))
    nodes.append(Node.file("etc/openmpi/openmpi-mca-params.conf", rootfs.lab_file("openmpi.conf").read_bytes()))
    nodes.append(Node.file(f"{rootfs.PREBUILT}/{CALLER.name}", native.build(CALLER).read_bytes(), executable=True))
    nodes += [
        Node.file(f"{_CODE_ROOT}/{path.relative_to(package)}", path.read_bytes())
        for path in import_closure(package, _AGENT)
    ]
    return tuple(nodes)


def compiled_nodes(nodes: Sequence[Node]) -> list[Node]:
    """Return the byte code of the Python files among these."""
    sources = {node.path: node.data for node in nodes if node.path.endswith(".py")}
    return [Node.file(path, data) for path, data in byte_code(sources).items()]


def compiles_for(root: Manifest) -> bool:
    """Return whether the Python of a root layer takes this one's byte code: it does if it is of the same minor version.

    Compiling takes it 0.7 virtual s of each boot.
    """
    return f"python3.{sys.version_info.minor}-minimal" in root.versions


def code_key() -> str:
    """Return the hash of nearmetal's own files in the image."""
    digest = hashlib.sha256()
    for node in code_nodes():
        digest.update(f"{node.path}\0{node.mode}\0{len(node.data)}\0".encode() + node.data)
    return digest.hexdigest()[:_KEY_DIGITS]


@contextlib.contextmanager
def locked(target: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of one folder of the cache: two labs at once make it once, the second waits for the first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f"{LOCK}-{target.name}")
    with contextlib.ExitStack() as stack:
        while True:
            lock = stack.enter_context(path.open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another nearmetal that is making {target.name}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):  # `clean` may have removed it meanwhile
                if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                    break
        yield


def build(say: Callable[[str], None], *, again: bool = False) -> Image:
    """Make the image for what the release's archive holds now, or return the cached one; `again` ignores the cache.

    Raises UnavailableError when this machine cannot build it and NearmetalError when the build fails.
    """
    release = rootfs.this_release()
    say(f"resolving the packages of {release.distribution} {release.codename}")
    versions = rootfs.resolve(release)
    text = json.dumps([root_recipe_key(), versions], sort_keys=True)
    folder = cache_folder() / f"root-{hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]}"
    with locked(folder, say):
        if again or _sound(folder, say) is None:
            _build_root(release, versions, folder, say)
    return _assemble(folder, say)


def require_built() -> None:
    """Raise UnavailableError unless a root layer for this nearmetal is here; nothing is verified yet."""
    if not fitting_roots():
        state = "was built for other sources" if folders("root") else "has not been built on this machine"
        raise UnavailableError(f"the lab's image {state}", hint="`nearmetal lab build` makes it in about a minute")


def current(say: Callable[[str], None]) -> Image:
    """Return the image for this nearmetal, verified; nearmetal's own files are put over the root again if needed.

    Raises UnavailableError when the root layer has not been built here, or only for other sources.
    """
    require_built()
    for folder in fitting_roots():
        with contextlib.suppress(_DamagedRootError):
            return _assemble(folder, say)
    raise _DamagedRootError("the lab's image is damaged", hint="`nearmetal lab build` makes it again")


def package_version(package: str) -> str:
    """Return the upstream version of a package in the image, empty where no image for this nearmetal is here."""
    for folder in fitting_roots():
        with contextlib.suppress(ForeignFileError):
            return Manifest.load(folder).versions.get(package, "").rpartition(":")[2].partition("-")[0]
    return ""


def fitting_roots() -> list[Path]:
    """Return the root layers that are of this nearmetal's sources, newest first."""
    recipe = root_recipe_key()
    return [folder for folder in folders("root") if _facts(folder).get("recipe") == recipe]


def _build_root(release: rootfs.Release, versions: dict[str, str], folder: Path, say: Callable[[str], None]) -> None:
    recipe = root_recipe_key()  # what is read from here on is what this key stands for
    rules = TrimRules.parse(rootfs.lab_file("trim.txt").read_text())
    modules = meaningful_lines(rootfs.lab_file("modules.txt").read_text())
    with _replacing(folder) as fresh, scratch.folder("nearmetal-root") as work:
        archive = work / "root.tar"
        say(f"installing {len(versions)} packages and building the measuring programs (about a minute)")
        rootfs.build(release, archive, work)
        say("trimming")
        trimmed = trim(archive, rules, modules)
        (fresh / "kernel").write_bytes(trimmed.kernel)
        with (fresh / "root.cpio").open("wb") as stream:
            write_archive(stream, with_parents(trimmed.nodes), mtime_s=rootfs.EPOCH_S)
        facts = {
            "distribution": release.distribution,
            "codename": release.codename,
            "kernel": trimmed.kernel_release,
            "recipe": recipe,
        }
        seal(fresh, "root", folder.name.removeprefix("root-"), facts, versions)


class _DamagedRootError(UnavailableError):
    """A root layer is not as it was made."""


def _assemble(root: Path, say: Callable[[str], None]) -> Image:
    """Put nearmetal's own files over a root layer; both archives make one initramfs.

    Where that was done before, the layer itself is not read. Raises _DamagedRootError when it is needed and damaged.
    """
    base = Manifest.load(root)
    code = code_key()
    key = image_key(base, code)
    folder = cache_folder() / f"image-{key}"
    with locked(folder, say):
        manifest = _sound(folder, say)
        if manifest is None:
            with locked(root, say):
                whole = _sound(root, say) is not None
            if not whole:
                raise _DamagedRootError(f"{root.name} is damaged", hint="`nearmetal lab build` makes it again")
            say("putting nearmetal's own files into the image")
            with _replacing(folder) as fresh:
                shutil.copyfile(root / "kernel", fresh / "kernel")
                shutil.copyfile(root / "root.cpio", fresh / "initramfs")
                with (fresh / "initramfs").open("ab") as stream:
                    nodes = code_nodes()
                    nodes += tuple(compiled_nodes(nodes)) if compiles_for(base) else ()
                    write_archive(stream, with_parents(nodes), mtime_s=rootfs.EPOCH_S, first_inode=1 << 20)
                seal(fresh, "image", key, {**base.facts, "root": root.name, "code": code}, base.versions)
            manifest = Manifest.load(folder)
    return Image(folder, manifest)


def image_key(root: Manifest, code: str) -> str:
    """Return the key of the image that a root layer and nearmetal's own files of such a hash make."""
    compiler = sys.version if compiles_for(root) else ""
    return hashlib.sha256(f"{root.key}{root.files['root.cpio']}{code}{compiler}".encode()).hexdigest()[:_KEY_DIGITS]


def snapshot(
    image: Image,
    boot: Boot,
    version: str,
    say: Callable[[str], None],
    *,
    timeout_s: float,
    variant: int = 0,
    known: Callable[[Vm], contextlib.AbstractContextManager[None]],
    lower: Callable[[], Path],
) -> Path:
    """Return the frozen machine that every trial starts from, booting it once per image, machine and emulator.

    A snapshot is part of what a figure depends on, so it is kept with its checksum. Each `variant` is a boot of its
    own: another seed for the kernel's random numbers, and so another layout of its memory. A machine with a guest is
    restored from the snapshot without, which `lower` returns, and frozen again. `known` holds the machine for as long
    as it boots. Raises NearmetalError when the machine does not boot within `timeout_s`.
    """
    anywhere = replace(boot, emulator="", kernel=Path("kernel"), initrd=Path("initrd"))
    argv = emulator_argv(anywhere, Path(), seed=variant, restore=False)
    described = f"{boot.machine!r} {version} {boot.wire.name} {argv}"
    key = hashlib.sha256(described.encode()).hexdigest()[:_KEY_DIGITS]
    folder = cache_folder() / f"snapshot-{image.manifest.key}-{boot.machine.name}-{key}"
    with locked(folder, say):
        if _sound(folder, say) is None:
            which = f", variant {variant}" if variant else ""
            below = lower() if boot.machine.guest else None
            doing = "starting a guest in" if below else "booting"
            say(f"{doing} the lab ({boot.machine.about}{which}) to its snapshot, about 25 s")
            with _replacing(folder) as fresh:
                boot = replace(boot, memory=fresh / _MEMORY, lasting=True)
                with _started(boot, below, variant) as vm, known(vm):
                    if below:
                        vm.restore(below)
                    vm.freeze(fresh / _STATE, timeout_s=timeout_s)
                facts = {"machine": boot.machine.name, "variant": str(variant), **made_with(version, boot.wire)}
                seal(fresh, "snapshot", key, facts | ({"guest": "started"} if below else {}), {})
    return folder / _STATE


def made_with(version: str, wire: Path) -> dict[str, str]:
    """Return the facts of a snapshot that an emulator of such a version makes with such a wire."""
    return {"emulator": version, "wire": wire.name}


def _started(boot: Boot, below: Path | None, variant: int) -> Vm:
    """Start a machine that is to be frozen, from the snapshot `below` if there is one."""
    if below is None:
        return Vm(boot, seed=variant)
    assert boot.memory is not None
    copy = ["cp", "--reflink=auto", "--sparse=auto", str(memory_of(below)), str(boot.memory)]
    process.run(copy, timeout_s=_COPY_TIMEOUT_S, check=True)
    return Vm(boot, order=STAND_GUEST, seed=variant, restore=True)


def memory_of(state: Path) -> Path:
    """Return the file with the memory of a snapshot."""
    return state.with_name(_MEMORY)


def digest_of(folder: Path) -> str:
    """Return the first digits of the SHA-256 of what a cached folder's manifest says of its files."""
    files = Manifest.load(folder).files
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]


@contextlib.contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Give a fresh folder that takes `folder`'s place when all went well, and vanishes otherwise."""
    fresh = scratch.make("unfinished", folder.parent)
    try:
        yield fresh
        shutil.rmtree(folder, ignore_errors=True)
        fresh.chmod(0o755)
        fresh.rename(folder)
    except OSError as error:
        raise NearmetalError(
            f"the lab's image cannot be written: {error}",
            hint=f"about 1 GB must be free in {folder.parent} and 3 GB in TMPDIR; "
            "`nearmetal lab clean --old` removes what is no longer used",
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _sound(folder: Path, say: Callable[[str], None]) -> Manifest | None:
    """Return the manifest of a folder that is as it was made; say so when it is there and damaged."""
    if not folder.is_dir():
        return None
    try:
        manifest = Manifest.load(folder)
        damaged = manifest.damaged_since(folder)
    except ForeignFileError as error:
        say(f"{error.message}; making it again")
        return None
    if damaged:
        say(f"{folder.name}: {', '.join(damaged)} does not match its checksum; making it again")
        return None
    return manifest


def _facts(folder: Path) -> dict[str, str]:
    with contextlib.suppress(ForeignFileError):
        return Manifest.load(folder).facts
    return {}


def folders(kind: str) -> list[Path]:
    """Return the cached folders of one kind, newest first."""
    return sorted(cache_folder().glob(f"{kind}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
