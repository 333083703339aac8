"""How one value of the kernel is read and written, as data.

An access is a command that prints the value, where to find it in what is printed, and a file or a command that
changes it. As data it runs through any `Shell` and renders into a POSIX shell script: the watchdog and the undo
script need neither nearmetal nor Python on the machine. The journal holds its key alone.

NICs are reached with the `ethtool` program because it is on every machine that has NICs worth tuning, while
pyroute2 or a Python helper would have to be brought to namespaces, guests and far hosts. Only lines whose label
is known are read, so a line that a newer ethtool adds changes nothing.
"""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.hosts.host import Shell
from nearmetal.process import Finished
from nearmetal.units import by_key

BLANKS = "[ \t]*"
"""Matches blanks in both Python's regular expressions and the extended ones of sed."""

NOT_LISTED = "n/a"
"""What ethtool prints for a parameter that the driver does not have."""

_CAT = ("cat", "--")
_NO_PROGRAM_STATUS = (126, 127)
_C_LOCALE = {"LC_ALL": "C"}

ERRNO_TEXTS = {
    "Operation not supported": "EOPNOTSUPP",
    "Invalid argument": "EINVAL",
    "Numerical result out of range": "ERANGE",
    "Device or resource busy": "EBUSY",
    "Operation not permitted": "EPERM",
    "Permission denied": "EACCES",
    "Read-only file system": "EROFS",
    "No space left on device": "ENOSPC",
    "No such device": "ENODEV",
    "No such file or directory": "ENOENT",
    "Input/output error": "EIO",
    "I/O error": "EIO",
    "Argument list too long": "E2BIG",
    "Cannot allocate memory": "ENOMEM",
}
"""What the C library says for the errors that drivers answer with."""


class KnobError(NearmetalError):
    """A knob could not be written, or did not take the value; `errno_name` is the kernel's answer when known."""

    def __init__(self, message: str, *, errno_name: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.errno_name = errno_name


@dataclass(frozen=True, slots=True)
class Pick:
    """Where a value is in what a command prints.

    The value is the group of the first line that matches `line` entirely, at or after the first line that starts
    with `after`. `label` starts the line that says why there is no value. Both patterns keep to what Python and
    `sed -E` read alike.
    """

    line: str = "(.*)"
    after: str = ""
    label: str = ""

    def find(self, text: str) -> str | None:
        """Return the value with single blanks, or None."""
        matched = re.compile(self.line).fullmatch
        for line in self._from_start(text):
            if found := matched(line):
                return " ".join(found[1].split())
        return None

    def why_not(self, text: str) -> str:
        """Return why there is no value, as far as the output says."""
        if not self.label:
            return ""
        begins = re.compile(self.label).match
        for line in self._from_start(text):
            if begins(line):
                if "[fixed]" in line:
                    return "the driver holds it fixed"
                if NOT_LISTED in line:
                    _, _, reason = line.partition(f"{NOT_LISTED}, ")
                    return reason or "the driver does not list this parameter"
        return ""

    def _from_start(self, text: str) -> Iterable[str]:
        lines = text.splitlines()
        start = next((i for i, line in enumerate(lines) if line.startswith(self.after)), len(lines))
        return lines[start:]

    def sed(self) -> str:
        """Return the sed script (for `sed -nE`) that prints the value."""
        pattern = self.line.replace("/", "\\/")
        scope = f"/^{self.after.replace('/', chr(92) + '/')}/,$" if self.after else ""
        return f"{scope}s/^{pattern}$/\\1/p"


@dataclass(frozen=True, slots=True)
class Access:
    """One value: the node it is on, how to read it, and how to change it.

    `show` prints it. A change goes to `path` when there is one, as a single write; else `change` is run with the
    word `{}` replaced by the value, and may be `called` something shorter. `ceiling` and `floor` find limits in the
    same output; `choices_path` is a file that lists the words that are allowed. Where a device follows its own default
    until it is given a value, `default` finds a word in the output while it does, and `reset` makes it do so again.
    """

    node: str
    show: tuple[str, ...]
    pick: Pick = Pick()
    path: str = ""
    change: tuple[str, ...] = ()
    called: str = ""
    ceiling: Pick | None = None
    floor: Pick | None = None
    choices_path: str = ""
    default: Pick | None = None
    reset: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return one text that names the value on its node."""
        return self.path or self.called or shlex.join(self.change)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the key, and that of journals from when commands were called nothing."""
        return self.key, shlex.join(self.change)

    def change_argv(self, value: str) -> tuple[str, ...]:
        """Return the command that sets a value; only for accesses without a path."""
        return tuple(value if word == "{}" else word for word in self.change)

    def script_reads(self) -> str:
        """Return what prints the value in a shell script that begins with `undo.VALUE_OF_FUNCTION`."""
        return f"value_of {shlex.quote(self.pick.sed())} {shlex.join(self.show)}"

    def script_sets(self, quoted: str) -> str:
        """Return what sets a value in a shell script, to a word of the shell's that is quoted already."""
        if self.path:
            return f"printf '%s\\n' {quoted} > {shlex.quote(self.path)}"
        # `change` holds the value as a separate word.
        return " ".join(quoted if word == "{}" else shlex.quote(word) for word in self.change)

    def script_puts_back(self, quoted: str, is_default: str) -> str:
        """Return what sets a value, or resets it where a condition of the shell's holds."""
        sets = self.script_sets(quoted)
        return f"if {is_default}; then {shlex.join(self.reset)}; else {sets}; fi" if self.reset else sets


def file_access(node: str, path: str, *, pick: Pick | None = None, choices_path: str = "") -> Access:
    """Return the access to a file of sysfs or procfs whose first line is the value."""
    return Access(node, (*_CAT, path), pick or Pick(), path=path, choices_path=choices_path)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read: a value, or None with the reason. Limits are None where the machine reports none.

    `default` says that the device follows its own default.
    """

    value: str | None
    reason: str = ""
    lowest: int | None = None
    highest: int | None = None
    choices: tuple[str, ...] = ()
    default: bool = False


def read_all(shell: Shell, accesses: Iterable[Access]) -> list[Reading]:
    """Read values, each command once; what is absent is a reading with a reason, never an error."""
    return CommandOutputs(shell).read_all(accesses)


def read_one(shell: Shell, access: Access) -> Reading:
    """Read one value."""
    return read_all(shell, (access,))[0]


def write_one(shell: Shell, access: Access, value: str) -> None:
    """Set one value; raise KnobError with the kernel's answer when it is not accepted."""
    if access.path:
        try:
            shell.write(access.path, f"{value}\n".encode(), node=access.node)
        except NearmetalError as error:
            raise refusal(access, value, error.message) from error
        return
    _run_change(shell, access, access.change_argv(value), value)


def reset_one(shell: Shell, access: Access) -> None:
    """Let a device follow its own default again; raise KnobError when it does not accept that."""
    _run_change(shell, access, access.reset, "default")


def _run_change(shell: Shell, access: Access, argv: tuple[str, ...], value: str) -> None:
    finished = run_c(shell, argv, access.node)
    if not finished.ok:
        raise refusal(access, value, finished.complaint())


def refusal(access: Access, value: str, reason: str) -> KnobError:
    """Return the error for a write that was not accepted."""
    name = next((name for text, name in ERRNO_TEXTS.items() if text in reason), "")
    what = access.path or access.called or shlex.join(access.change_argv(value))
    place = f" on {access.node}" if access.node else ""
    hint = "run as root on the machine that owns the device" if name in {"EPERM", "EACCES", "EROFS"} else ""
    return KnobError(f"{what}{place} did not accept {value!r}: {reason.strip()}", errno_name=name, hint=hint)


def run_c(shell: Shell, argv: Iterable[str], node: str, *, stdin: bytes = b"") -> Finished:
    """Run a program with messages in the C locale; the status is for the caller to judge."""
    return shell.run(tuple(argv), node=node, env=_C_LOCALE, stdin=stdin, check=False)


class CommandOutputs:
    """What commands print, each run at most once; plain files of a node are read together."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._kept: dict[tuple[str, tuple[str, ...]], tuple[str, str]] = {}
        self._readings: dict[Access, Reading] = {}

    def read_all(self, accesses: Iterable[Access]) -> list[Reading]:
        """Read values as they were when the command of each was first run here."""
        wanted = list(accesses)
        new = [access for access in wanted if access not in self._readings]
        self._read_files(new)
        self._readings |= {access: _reading(self, access) for access in new}
        return [self._readings[access] for access in wanted]

    def of(self, node: str, argv: tuple[str, ...]) -> tuple[str, str]:
        """Return what it printed, and its error when it failed or printed nothing."""
        if (node, argv) not in self._kept:
            self._kept[node, argv] = self._run(node, argv)
        return self._kept[node, argv]

    def _read_files(self, accesses: Iterable[Access]) -> None:
        """Read the plain files of each node with one program instead of one program each."""
        shown = ((access.node, access.show) for access in accesses if access.show[:-1] == _CAT)
        paths = by_key((node, show[-1]) for node, show in shown if (node, show) not in self._kept)
        for node, files in paths.items():
            if len(files) > 1:
                self._read_together(node, list(dict.fromkeys(files)))

    def _read_together(self, node: str, files: list[str]) -> None:
        # Whatever is absent, empty or not readable is left to `cat`, which says why.
        lines = run_c(self._shell, ("grep", "-sH", "", *files), node).text.splitlines()
        for path in files:
            if found := [line.removeprefix(f"{path}:") for line in lines if line.startswith(f"{path}:")]:
                self._kept[node, (*_CAT, path)] = ("\n".join(found), "")

    def _run(self, node: str, argv: tuple[str, ...]) -> tuple[str, str]:
        try:
            finished = run_c(self._shell, argv, node)
        except UnavailableError as error:
            return "", f"{error.message}, so it is unknown"  # not gone, as a file that is not there
        if finished.exit_status in _NO_PROGRAM_STATUS:
            return "", f"the program {argv[0]} is not installed there"
        errors = finished.stderr.decode(errors="replace").strip().splitlines()
        return finished.text, errors[-1] if errors else ""


def _reading(printed: CommandOutputs, access: Access) -> Reading:
    text, complaint = printed.of(access.node, access.show)
    value = access.pick.find(text)
    if value is None or value == NOT_LISTED:
        reason = access.pick.why_not(text) or complaint or "it is not in the output of " + shlex.join(access.show)
        return Reading(None, reason)
    choices = printed.of(access.node, ("cat", "--", access.choices_path))[0].split() if access.choices_path else []
    default = access.default is not None and access.default.find(text) is not None
    return Reading(value, "", _limit(access.floor, text), _limit(access.ceiling, text), tuple(choices), default)


def _limit(pick: Pick | None, text: str) -> int | None:
    found = pick.find(text) if pick else None
    # 0 stands for "no limit" where the kernel prints one.
    return int(found) or None if found and found.isdigit() else None
