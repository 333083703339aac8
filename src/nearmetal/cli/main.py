"""`nearmetal`: the table of verbs, and the one place where errors become text and exit codes."""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import importlib.util
import io
import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

import nearmetal
from nearmetal.errors import ExitCode, NearmetalError, QuarantinedError, visible

VERBS: dict[str, tuple[str, str]] = {
    "between": ("between", "Measure the network between two machines; no study file needed."),
    "run": ("run", "Run a study, or resume one, and report."),
    "try": ("try_", "Open a finished example run in the browser."),
    "init": ("init", "Write a commented study file from five questions."),
    "studies": ("studies", "List the studies that ship with nearmetal."),
    "plan": ("plan", "Show what a study would run and how long it takes."),
    "compare": ("compare", "Compare the paths of a run."),
    "gate": ("gate", "Compare a run with an earlier one; the exit code is the verdict."),
    "history": ("history", "Track many runs in one file and show when results changed."),
    "explain": ("explain", "Break a message's time down by stage, from traced trials."),
    "advise": ("advise", "Rank what to try next, with evidence from a run."),
    "report": ("report", "Write an HTML report of a run."),
    "plot": ("plot", "Draw one chart of a run for a paper, and save its data."),
    "serve": ("serve", "Browse, compare and follow runs in a web browser."),
    "show": ("show", "Show the trials and samples of a run."),
    "verify": ("verify", "Check every file of a run against its recorded checksum."),
    "archive": ("archive", "Pack a run into one file."),
    "unarchive": ("unarchive", "Unpack an archived run."),
    "fabric": ("fabric", "Measure all pairs of nodes; find slow nodes and links."),
    "import": ("import_", "Import existing output of other benchmarks as a run."),
    "lab": ("lab", "Build, inspect or open the emulated SR-IOV cluster."),
    "trace": ("trace", "Trace an MPI program, or show a trace."),
    "predict": ("predict", "Predict a traced program's run time on each path."),
    "place": ("place", "Recommend a path and a rank mapping, written for your launcher."),
    "knobs": ("knobs", "List a host's tunable settings, their values and ranges."),
    "tune": ("tune", "Search for better settings; confirm the winner on new trials."),
    "apply": ("apply", "Apply a profile; it is rolled back unless you confirm it."),
    "rollback": ("rollback", "Restore settings that an interrupted session left changed."),
    "export": ("export", "Write a profile as configuration for another tool."),
    "guests": ("guests", "Show libvirt guests and their NICs; warn about confounders."),
    "clean": ("clean", "Show or remove temporary files that killed runs left behind."),
    "self-test": ("self_test", "Check that this installation works."),
    "doctor": ("doctor", "Check what is missing on this machine and how to fix it."),
}
"""Verb -> module in this package, and the line in `--help`. A verb is loaded only when it is used."""
_EMPTY = "it is empty (perhaps a variable of the shell that is not set)."
_SAID = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
}
"""What is said for click's words about types."""
_PLAINLY = "nearmetal.plainly"
_PLAIN = dict(zip("▁▂▃▄▅▆▇█·░▒▓│╎▼▲≈…", "12345678.-+#|:v^=~", strict=True))


def _keep_loaded() -> None:
    """Search for garbage from here on, but not in what was loaded: that would be a fifth of a command's start."""
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Load what a verb needs beyond its `--help`; in a program that is not this command, garbage stays as it is."""
    if not gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _keep_loaded()


class FilePath(click.Path):
    """A path; an empty one, which a variable of the shell that is not set leaves, would be the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; raise BadParameter for an empty one."""
        if not str(value):
            self.fail(_EMPTY, param, ctx)
        return super().convert(value, param, ctx)


def _refuse_empty(command: click.Command) -> None:
    """Let options of text refuse an empty one: `--probe "$GATEWAY"` of no variable must not mean no probe."""

    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if given and (value == "" or (isinstance(value, tuple) and "" in value)):
            raise click.BadParameter(_EMPTY, ctx, param)
        return value

    for one in command.commands.values() if isinstance(command, click.Group) else ():
        _refuse_empty(one)
    for param in command.params:
        if isinstance(param, click.Option) and param.type is click.STRING and param.callback is None:
            param.callback = refuse


class _Verbs(click.Group):
    """A group that imports a verb's module when the verb is called, so that `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"nearmetal.cli.{VERBS[cmd_name][0]}")
        if not gc.isenabled():
            _keep_loaded()
        command = module.command
        assert isinstance(command, click.Command)
        _refuse_empty(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        with formatter.section("Verbs"):
            formatter.write_dl([(name, about) for name, (_, about) in VERBS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a verb without loading all that begin with these letters."""
        verbs = [CompletionItem(name, help=about) for name, (_, about) in VERBS.items() if name.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            import difflib  # noqa: PLC0415 (only for a typo)

            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean `nearmetal {close[0]}`?" if close else "`nearmetal --help` lists the commands"
            raise click.UsageError(f"there is no command {args[0]!r}\nhint: {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 something is missing on this machine, "
    "4 done but for a path that failed, or `apply` was not confirmed, 130 interrupted. `gate` has its own.",
)
@click.version_option(nearmetal.__version__, prog_name="nearmetal")
def group() -> None:
    """Measure what virtualization costs an MPI program's network, explain it, close the gap, predict the effect."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit; data goes to stdout, everything else to stderr."""
    gc.disable()  # until a verb is loaded
    sys.meta_path.insert(0, _OnUse())
    _open_closed()
    _handle_signals()
    sys.exit(run(sys.argv[1:] if argv is None else argv))


class _OnUse:
    """Loads modules of numpy's on their first use, which is none: scipy takes all that numpy offers, these too.

    They are a tenth of each start. A program that imports nearmetal keeps its numpy as it is.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in {"numpy.f2py", "numpy.testing"}:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def _open_closed() -> None:
    """Let what was closed at the start (`>&-`) go nowhere; else the next files to be opened would get its numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 (open as long as this process)


class OutputError(NearmetalError):
    """Standard output cannot be written."""


class EndedError(KeyboardInterrupt):
    """A scheduler, a service manager or a closed terminal ends this process: handled like Ctrl-C, and named."""


def _handle_signals() -> None:
    """Let SIGTERM and SIGHUP end what runs, undo what was set and say how to go on; `nohup` keeps its meaning."""
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) == signal.SIG_DFL]

    def ended(number: int, _frame: object) -> None:
        for one in numbers:  # a terminal and a shell may send both; not SIG_IGN, which programs would inherit
            signal.signal(one, lambda *_: None)
        raise EndedError(f"ended by {signal.Signals(number).name}")

    for one in numbers:
        signal.signal(one, ended)


def run(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    try:
        with _guarded_output():
            return _run(argv)
    except OutputError as error:
        _drop_output()
        with contextlib.suppress(OSError):  # standard error may be what is full
            click.echo(error.render(), err=True)
        return error.exit_code


def _drop_output() -> None:
    """Let what is left in the buffers go nowhere, so that the end of the process does not try again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _to_nowhere(stream)


def _to_nowhere(stream: IO[Any]) -> None:
    """Let a stream go nowhere from here on, together with what it holds, and with what programs inherit of it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _run(argv: Sequence[str]) -> int:
    try:
        result = group.main(list(argv), prog_name="nearmetal", standalone_mode=False)
    except OutputError:
        raise
    except QuarantinedError as error:
        click.echo(f"QUARANTINED\n{error.render()}", err=True)
        click.echo(error.undo_script)
        return error.exit_code
    except NearmetalError as error:
        click.echo(error.render(), err=True)
        return error.exit_code
    except click.UsageError as error:
        click.echo(_usage(error), err=True)
        return ExitCode.USAGE
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise  # a bug: who opens files says what failed
        click.echo(f"error: {error.filename}: {error.strerror}\nhint: a name may have 255 bytes", err=True)
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort) as error:
        cause = error.__cause__ or error  # click makes an Abort of what ends it
        click.echo(f"error: {cause if isinstance(cause, EndedError) else 'interrupted'}", err=True)
        return ExitCode.INTERRUPTED
    return int(result) if isinstance(result, int) else ExitCode.OK


def _usage(error: click.UsageError) -> str:
    """Return what to say of a command line that cannot be understood; the help itself where nothing was asked."""
    message = error.format_message()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return message
    for clicks, ours in _SAID.items():
        message = message.replace(clicks, ours)
    if error.ctx is None or "\nhint: " in message:
        return f"error: {message}"
    return f"error: {message}\nhint: {error.ctx.command_path} --help"


# ---- standard output and error


class _GuardedStream:
    """A stream whose reader may go away; `clean` makes control characters of text visible.

    That nobody reads any more (`| head`, a terminal or a login that is gone) ends nothing: a measurement goes on and
    keeps its results, and every verb ends with its own exit code. Talk that cannot be written ends nothing either;
    other failures of standard output say what could not be written.
    """

    def __init__(self, stream: IO[Any], name: str, *, clean: bool) -> None:
        self._stream = stream
        self._name = name
        self._clean = clean

    @property
    def rich_proxied_file(self) -> _GuardedStream:
        """The stream that rich writes to: its own control codes have to pass."""
        return _GuardedStream(self._stream, self._name, clean=False)

    @property
    def buffer(self) -> _GuardedStream:
        """The stream of bytes below the text."""
        binary: IO[bytes] = self.__getattr__("buffer")
        return _GuardedStream(binary, self._name, clean=False)

    def write(self, data: Any) -> int:
        """Write text, or bytes of a `buffer`; raise OutputError when standard output cannot be written."""
        try:
            return self._stream.write(visible(data) if self._clean else data)
        except OSError as error:
            self._lose(error)
            return len(data)

    def flush(self) -> None:
        """Flush; raise as `write` does."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: OSError) -> None:
        if self._name == "output" and not _nobody_reads(self._stream, error):
            text = f"cannot write to standard output: {error.strerror}"
            raise OutputError(text, hint="free some space, or write to another place") from error
        _to_nowhere(self._stream)


def _nobody_reads(stream: IO[Any], error: OSError) -> bool:
    """Return whether what failed is a pipe without a reader, or a terminal that is gone."""
    if isinstance(error, BrokenPipeError):
        return True
    return error.errno == errno.EIO and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return letters of ASCII for what an encoding lacks, and where to go on: a handler of `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(one, one.encode("ascii", "backslashreplace").decode()) for one in lacking), error.end


@contextlib.contextmanager
def _guarded_output() -> Iterator[None]:
    """Guard standard output and error for the time of a command, and flush them at its end.

    What the locale cannot write is written as an escape, on standard output as on standard error; on the former, bars
    and marks are one letter each, so that charts of letters keep their columns.
    """
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, io.TextIOWrapper):  # of a locale without UTF-8, which has no bars and no arrows
        codecs.register_error(_PLAINLY, _plain)
        sys.stdout.reconfigure(errors=_PLAINLY)
    sys.stdout = _GuardedStream(sys.stdout, "output", clean=True)
    sys.stderr = _GuardedStream(sys.stderr, "error", clean=True)
    try:
        yield
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        sys.stdout, sys.stderr = before
