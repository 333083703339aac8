"""The image's root file system, from the packages of this machine's own release, by mmdebstrap.

Release and mirror come from the machine's apt, so the image follows the site's mirror and needs no address of
its own. The measuring programs are built inside, against the release's MPI libraries.
"""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nearmetal import native, process
from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.hosts.lab.trim import meaningful_lines

EPOCH_S = 1_767_225_600
"""Every file of the image is as old as 2026-01-01."""

PREBUILT = "opt/nearmetal-programs"
"""Where the image keeps the programs that nearmetal builds elsewhere at first use."""

_ROOTS = (Path(__file__).parents[2] / "lab", Path(__file__).parents[4] / "lab")
_KEYRINGS = {"debian": "debian-archive-keyring.gpg", "ubuntu": "ubuntu-archive-keyring.gpg"}
_ORIGINS = {"Debian", "Ubuntu"}
_PROGRAM_ROOMS = ("apps", "apps/common", "bench", "common", "fabric", "relay", "trace")
_BUILD_TIMEOUT_S = 3600.0
"""On a quiet machine it takes one minute, and was seen to take six where others worked; only a hang takes an hour."""
_RESOLVE_TIMEOUT_S = 120.0
_INSTALL_LINE = re.compile(r"^Inst (\S+) \((\S+) ", re.MULTILINE)
_NOT_INSTALLED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def lab_file(name: str) -> Path:
    """Return a file of lab/, in the installed package or in the checkout."""
    for root in _ROOTS:
        if (root / name).is_file():
            return root / name
    raise NearmetalError(f"lab/{name} is in neither {_ROOTS[0]} nor {_ROOTS[1]}", hint="the installation is damaged")


@dataclass(frozen=True, slots=True)
class Release:
    """A distribution's release and where this machine gets its packages."""

    distribution: str
    codename: str
    sources: tuple[str, ...]


def this_release() -> Release:
    """Ask this machine for its release and its apt sources.

    Only the release itself, its updates and its security archive are used, so the image is the stock release.
    Raises UnavailableError when the machine is neither Debian nor Ubuntu.
    """
    facts = parse_os_release(Path("/etc/os-release").read_text())
    distribution, codename = facts.get("ID", "unknown"), facts.get("VERSION_CODENAME", "")
    if distribution not in _KEYRINGS or not codename or shutil.which("apt-get") is None:
        raise UnavailableError(
            f"the lab's image is made from Debian or Ubuntu packages, and this machine runs {distribution!r}",
            hint="build the image on Debian 12 or later or Ubuntu 24.04 or later, and copy ~/.cache/nearmetal/lab here",
        )
    form = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)"
    targets = process.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"], timeout_s=30, check=True
    )
    path = Path("/usr/share/keyrings") / _KEYRINGS[distribution]
    sources = apt_sources(targets.text, codename, str(path) if path.is_file() else "")
    if not sources:
        message = f"apt on this machine has no source for {codename}"
        raise UnavailableError(message, hint="`apt-get update`, and look into /etc/apt")
    return Release(distribution, codename, sources)


def parse_os_release(text: str) -> dict[str, str]:
    """Read /etc/os-release: `NAME=value` lines, values quoted as the shell does."""
    pairs = (line.partition("=") for line in meaningful_lines(text) if "=" in line)
    return {name: " ".join(shlex.split(value)) for name, _, value in pairs}


def apt_sources(targets: str, codename: str, keyring: str = "") -> tuple[str, ...]:
    """Return one-line apt sources for a release out of `URI|release|component|origin` lines."""
    wanted = {codename, f"{codename}-updates", f"{codename}-security"}
    option = f"[signed-by={keyring}] " if keyring else ""
    lines = []
    for line in targets.splitlines():
        uri, release, component, origin = (*line.split("|"), "", "", "")[:4]
        if release in wanted and origin in _ORIGINS:
            lines.append(f"deb {option}{uri} {release} {component}")
    return tuple(dict.fromkeys(lines))


def wanted_packages() -> tuple[str, ...]:
    """Return the lines of lab/packages.txt."""
    return meaningful_lines(lab_file("packages.txt").read_text())


def choose_packages(wanted: Sequence[str], distribution: str) -> tuple[str, ...]:
    """Return one name a line: of `debian-name|ubuntu-name` the one that the distribution has."""
    place = 0 if distribution == "debian" else -1
    return tuple(line.split("|")[place] for line in wanted)


def require_builder() -> str:
    """Return mmdebstrap's mode here; raise UnavailableError that says what building needs."""
    if shutil.which("mmdebstrap") is None:
        message = "building the lab's image needs mmdebstrap, which is not installed"
        raise UnavailableError(message, hint="`apt install mmdebstrap` (running a built lab needs neither it nor root)")
    if os.geteuid() == 0:
        return "root"
    if shutil.which("newuidmap") is None or not _has_subordinate_ids():
        raise UnavailableError(
            "building the lab's image without root needs subordinate user ids, and this user has none",
            hint="`apt install uidmap` and a line for this user in /etc/subuid and /etc/subgid; or build as root",
        )
    return "unshare"


def _has_subordinate_ids() -> bool:
    with contextlib.suppress(OSError):
        user = os.environ.get("USER") or str(os.geteuid())
        return any(line.split(":")[0] in {user, str(os.geteuid())} for line in Path("/etc/subuid").read_text().split())
    return False


def _mmdebstrap(release: Release, mode: str, target: str, *options: str) -> list[str]:
    packages = ",".join(choose_packages(wanted_packages(), release.distribution))
    return [
        *("mmdebstrap", f"--mode={mode}", "--variant=essential", f"--include={packages}"),
        *('--aptopt=APT::Install-Recommends "false"', "--dpkgopt=force-unsafe-io"),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _NOT_INSTALLED),
        *options,
        *(release.codename, target, *release.sources),
    ]


def resolve(release: Release) -> dict[str, str]:
    """Return the version of every package that the image would hold now: a few seconds, no package is fetched."""
    mode = require_builder()
    argv = _mmdebstrap(release, mode, "/dev/null", "--simulate", "--verbose")
    finished = process.run(argv, timeout_s=_RESOLVE_TIMEOUT_S)
    versions = dict(_INSTALL_LINE.findall(finished.stderr.decode(errors="replace") + finished.text))
    if not finished.ok or not versions:
        raise NearmetalError(
            f"the packages of {release.codename} cannot be resolved: {finished.complaint()}",
            hint="the mirror in /etc/apt must be reachable; `apt-get update` shows whether it is",
        )
    return versions


def build(release: Release, target: Path, staging: Path) -> None:
    """Write the root file system to `target`, a tar archive; `staging` is scratch space.

    Raises NearmetalError with mmdebstrap's last words.
    """
    mode = require_builder()
    package = Path(native.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "tests", "native")
    shutil.copytree(package, staging / "build" / "src" / "nearmetal", ignore=ignored)
    shutil.copytree(native.source_dir("."), staging / "build" / "native", ignore=ignored)
    hook = staging / "customize"
    hook.write_text(_CUSTOMIZE)
    hook.chmod(0o755)
    staging.chmod(0o755)
    hooks = (f"--customize-hook=copy-in {staging}/build /tmp", f"--customize-hook={hook}")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH_S), "INITRD": "No", "LC_ALL": "C.UTF-8"}
    # With its own mounts, so that the kernel removes them when it is killed.
    argv = [*(("unshare", "--mount", "--") if mode == "root" else ()), *_mmdebstrap(release, mode, str(target), *hooks)]
    finished = process.run(argv, timeout_s=_BUILD_TIMEOUT_S, env={**environment, "TMPDIR": str(staging)})
    if not finished.ok:
        message = f"the lab's root file system cannot be built: {finished.complaint()}"
        raise NearmetalError(message, hint="3 GB of free space in TMPDIR and a reachable mirror are needed")


def recipe_digest() -> str:
    """Return the hash of what nearmetal itself puts into the root: lists, rules, and all that builds its programs."""
    package = Path(native.__file__).parent
    paths = [lab_file(name) for name in ("packages.txt", "modules.txt", "trim.txt")]
    builders = ("build.py", "apps.py", "fabric.py")
    paths += [package / name for name in ("native.py", "run/prebuild.py", *(f"workloads/{name}" for name in builders))]
    paths += sorted(path for room in _PROGRAM_ROOMS for path in native.source_dir(room).glob("*.[ch]"))
    digest = hashlib.sha256(_CUSTOMIZE.encode())
    for path in paths:
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


# What mmdebstrap runs on the installed root, given as $1: build the programs, compile Python, note the packages.
# Python files are compiled with hashes that are never checked, because their times change in the image. The paths
# of the compilers' own caches are fixed, so the programs are the same in every build.
_CUSTOMIZE = Path(__file__).with_suffix(".sh").read_text().replace("PREBUILT", PREBUILT)
