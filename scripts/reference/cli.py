"""The command line as pages, made from the verbs: `make reference` writes docs/reference/cli.md and the man page.

Both are made from one list of `Page`, so that they cannot differ. `python scripts/reference/cli.py man` prints the
man page, without `man` the reference.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import dataclass

import click

from nearmetal import __version__
from nearmetal.cli.main import group
from nearmetal.errors import ExitCode
from nearmetal.results.gated import GateExit

_HEAD = """# Command line

Made from `src/nearmetal/cli` by `make reference`; `nearmetal VERB --help` says the same, and so does the man page,
`man packaging/man/nearmetal.1`. Data goes to stdout, messages to stderr. When nobody reads
them any more (`| head`, a login that is gone), a verb goes on in silence and ends with its own exit code. Shell
completion: [Install](../how-to/install.md).
"""
EXIT_CODES = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed; for `fabric`: a node or a link was named",
    ExitCode.USAGE: "wrong usage, a wrong study, or a foreign or damaged file: nothing was started",
    ExitCode.UNAVAILABLE: "this machine lacks something: a program, a device, a permission",
    ExitCode.PARTIAL: "done, but a path failed under a workload and setting in two blocks in a row, or in every trial; "
    "for `fabric`: not measured to the end; for `apply`: not confirmed, so everything was restored; "
    "for `verify`: some files have no recorded checksum",
    ExitCode.INTERRUPTED: "interrupted, by Ctrl-C, SIGTERM or SIGHUP; `run` and `tune` say how to continue",
}
"""What each exit code means, in the one table that all pages show."""
GATE_CODES = {
    GateExit.WITHIN: "within the margin, or better",
    GateExit.WORSE: "worse",
    GateExit.UNDECIDED: "undecided",
    GateExit.UNAVAILABLE: "something is missing on this machine",
    GateExit.USAGE: "wrong usage or input",
    GateExit.FAILED: "failed",
    GateExit.INTERRUPTED: "interrupted, by Ctrl-C, SIGTERM or SIGHUP",
}


@dataclass(frozen=True, slots=True)
class Page:
    """One verb: its whole name, usage line, text in paragraphs, arguments' and options' rows (name, what it does)."""

    name: str
    usage: str
    paragraphs: tuple[str, ...]
    options: tuple[tuple[str, str], ...]


def pages() -> list[Page]:
    """Return a page for the program and for every verb below it, in the order of `nearmetal --help`."""
    return _walk(group, click.Context(group, info_name="nearmetal"))


def _walk(command: click.Command, context: click.Context) -> list[Page]:
    found = [_page(command, context)]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            verb = command.get_command(context, name)
            assert verb is not None, name
            found += _walk(verb, click.Context(verb, info_name=name, parent=context))
    return found


def _page(command: click.Command, context: click.Context) -> Page:
    # \b, which keeps click from wrapping a paragraph, is nothing that a page shows
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    paragraphs = [" ".join(part.split()) for part in f"{text}\n\n{command.epilog or ''}".split("\n\n")]
    shown = [one.get_help_record(context) for one in command.params if isinstance(one, click.Option)]
    options = [(name, " ".join(about.split())) for name, about in filter(None, shown)]
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    return Page(context.command_path, usage, tuple(filter(None, paragraphs)), tuple(options))


def reference() -> str:
    """Return the reference page as Markdown."""
    parts = [_HEAD, "## Exit codes\n", _codes("every verb but `gate`", EXIT_CODES), "", _codes("`gate`", GATE_CODES)]
    for page in pages():
        level = "#" * (2 + page.name.count(" ") // 2)
        parts += [f"\n{level} `{page.name}`\n", f"    {page.usage}\n", "\n\n".join(page.paragraphs)]
        if page.options:
            rows = [f"| `{_cell(name)}` | {_cell(about)} |" for name, about in page.options]
            parts += ["\n| option | what it does |\n|---|---|", *rows]
    return "\n".join(parts) + "\n"


def _codes(title: str, codes: dict[ExitCode, str] | dict[GateExit, str]) -> str:
    rows = [f"| {int(code)} | {about} |" for code, about in codes.items()]
    return "\n".join([f"| exit code | {title} |", "|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def man() -> str:
    """Return the manual page as roff."""
    first, *verbs = pages()
    lines = [
        f'.TH NEARMETAL 1 "" "nearmetal {__version__}" "User Commands"',
        ".SH NAME",
        r"nearmetal \- measure what virtualization costs a cluster's network",
        ".SH SYNOPSIS",
        ".B nearmetal",
        "VERB [OPTIONS] [ARGS]...",
        ".SH DESCRIPTION",
        *_man_text(first.paragraphs[:1]),
        *_man_options(first.options),
        ".SH VERBS",
    ]
    for page in verbs:
        lines += [f".SS {_man(page.usage)}", *_man_text(page.paragraphs), *_man_options(page.options)]
    lines += [".SH EXIT STATUS", *_man_codes(EXIT_CODES), ".PP", "Of the verb gate:", *_man_codes(GATE_CODES)]
    return "\n".join(lines) + "\n"


def _man_text(paragraphs: tuple[str, ...]) -> list[str]:
    return [line for text in paragraphs for line in (".PP", _man(text))][1:]


def _man_options(options: tuple[tuple[str, str], ...]) -> list[str]:
    return [line for name, about in options for line in (".TP", rf"\fB{_man(name)}\fR", _man(about))]


def _man_codes(codes: dict[ExitCode, str] | dict[GateExit, str]) -> list[str]:
    return [line for code, about in codes.items() for line in (".TP", f"{int(code)}", _man(about))]


def _man(text: str) -> str:
    r"""Escape what roff reads as its own: backslashes, hyphens that are typed, and a leading dot or quote."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("`", "")
    lines = textwrap.wrap(text, 78, break_long_words=False, break_on_hyphens=False)
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in lines)


if __name__ == "__main__":
    sys.stdout.write(man() if sys.argv[1:] == ["man"] else reference())
