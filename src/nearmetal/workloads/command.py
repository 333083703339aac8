"""Workload `command`: any program; the study says what to run, what to time, how to verify and where the figure is.

Options: `argv` (a list; `{address}`, `{peer}`, `{node}` and `{scratch}` are filled in), `env` (a list of
`NAME=value`), `stdin` (text), `files` (a list of `NAME=text`, written into `{scratch}` of every node), `mpi` (launch
it as a parallel program over the placement: `true`, or the directory of the MPI that it was built with, such as
`/usr`), `output` (the file that it writes, `stdout` by default), `figure` (`wall`, `regex` or `json`), `pattern` (a
regular expression with one group; each match is a sample), `path` (keys and numbers joined by dots, `*` for every
element), `unit` (of `figures.UNITS`), `expect` and `forbid` (regular expressions that must and must not match),
`accept` (exit statuses that are no failure), `packets` (how many each end of a network path must have carried at the
least), `needs` (a list of programs that must be on PATH), `install` (a sentence that says where they come from).
Standard library only.
"""

import json
import re
from collections.abc import Iterator, Mapping

from nearmetal.errors import ForeignFileError, TrialError, UnavailableError
from nearmetal.hosts.host import Shell
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.reading import parse_json
from nearmetal.study.order import Order, Scalar, WorkloadOrder
from nearmetal.units import decimal
from nearmetal.workloads.build import mpi_for
from nearmetal.workloads.figures import unit_named
from nearmetal.workloads.pairs import WHERE_IS, check_in_time, check_options, text_option
from nearmetal.workloads.parallel import mpi_prefix, parallel_launch
from nearmetal.workloads.program_group import LOG, Command, group_argv, read_log
from nearmetal.workloads.workload import Launch

OUTPUT = "command.output"
"""The name of what the program printed or wrote, in an outcome."""

_OPTIONS = {"argv", "env", "stdin", "files", "mpi", "output", "figure", "pattern", "path", "unit"}
_OPTIONS |= {"expect", "forbid", "accept", "packets", "needs", "install"}
_FIGURES = ("wall", "regex", "json")
ASKED = "command.asked"
"""The name of what the study asked for: the options as JSON, so that an outcome can be read by itself."""

_STDOUT = "command.stdout"
_TIMEOUT_MARGIN_S = 2.0
_MOST_SAMPLES = 1_000_000
_NUMBER = re.compile(r"(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?")
_IN_NUMBERS = frozenset("0123456789.eE+-")
_MOST_DIGITS = 40


class CommandWorkload:
    """Launches what the study says; its samples are what the study says."""

    kind = "command"

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for options that cannot work, before anything is started."""
        check_options(workload, _OPTIONS)
        if not _words(workload, "argv"):
            raise workload.invalid("a command needs `argv`")
        for word in _words(workload, "env"):
            if not re.fullmatch(r"[A-Za-z_]\w*=.*", word, re.DOTALL):
                raise workload.invalid(f"{word!r} in `env` is not NAME=value")
        _files(workload)
        _words(workload, "needs")
        text_option(workload, "install", "")
        mpi_prefix(workload)
        for name in ("pattern", "expect", "forbid"):
            _pattern(workload, name)
        _check_figure(workload)
        _accepted(workload)
        if workload.number("packets") < 0:
            raise workload.invalid(f"option 'packets' is at least 0, not {workload.number('packets')}")

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Return how to launch the command on the first rank's node, or as a parallel program."""
        workload = order.workload
        first = endpoints.ends[workload.placement[0]]
        folder = f"{shell.scratch}/{first.node}"
        for program in _words(workload, "needs"):
            if not shell.run([*WHERE_IS, program], node=first.node, check=False).ok:
                message = f"{program} is not on the PATH of {first.node}"
                raise UnavailableError(message, hint=text_option(workload, "install", ""))
        filled = _filled(workload, endpoints, folder)
        facts: dict[str, Scalar] = {}
        late_hint = ""
        asked_env = dict(word.split("=", 1) for word in _words(workload, "env"))
        if workload.options.get("mpi"):
            mpi = mpi_for(shell, order.mpi, mpi_prefix(workload))
            # A launcher's own environment does not reach the ranks of other nodes.
            launch = parallel_launch(shell, order, endpoints, mpi, filled, environment=asked_env)
            argv, env, facts, late_hint = launch.argv, dict(launch.env), launch.facts, launch.late_hint
        else:
            argv, env = filled, {}
        env |= asked_env
        command = Command(
            "", argv, _STDOUT, accept=_accepted(workload), env=env, stdin=text_option(workload, "stdin", "")
        )
        for name, text in _files(workload).items():
            for node in dict.fromkeys(endpoints.ends[index].node for index in workload.placement):
                shell.run(["mkdir", "-p", folder], node=node)
                shell.write(f"{folder}/{name}", text.encode(), node=node)
        asked = f"{folder}/{ASKED}"
        shell.write(asked, json.dumps(workload.options).encode(), node=first.node)
        output = text_option(workload, "output", "stdout")
        read = f"{folder}/{_STDOUT}" if output == "stdout" else output.replace("{scratch}", folder)
        return Launch(
            group_argv(shell, first.node, max(1.0, order.timeout_s - _TIMEOUT_MARGIN_S), [command]),
            first.node,
            {},
            {OUTPUT: read, ASKED: asked, LOG: f"{folder}/{LOG}"},
            facts,
            late_hint=late_hint,
        )

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless the command ended as it should and its output says what it must."""
        check_in_time(order.workload, finished)
        if not finished.ok:
            raise TrialError(f"the command failed: {finished.complaint()}", hint="option `accept` lists good statuses")
        text = files[OUTPUT].decode(errors="replace")
        expect, forbid = (_pattern(order.workload, name) for name in ("expect", "forbid"))
        if expect and not expect.search(text):
            message = f"its verification failed: nothing matches {expect.pattern!r}"
            raise TrialError(message, hint=f"its last output: {text[-300:]}")
        if forbid and (match := forbid.search(text)):
            raise TrialError(f"its verification failed: {match[0][:100]!r} matches {forbid.pattern!r}")
        figures_ns(order.workload.options, files)

    def least_packets(self, order: Order) -> int:
        """Return what the study says: only its author knows what the command sends."""
        return order.workload.number("packets", 0)


def figures_ns(options: Mapping[str, Scalar | list[Scalar]], files: Mapping[str, bytes]) -> list[int]:
    """Return the command's samples in order, as the store keeps them; raise ForeignFileError when there are none."""
    unit = unit_named(str(options.get("unit", "s")))
    figure = options.get("figure", "wall")
    if figure == "wall":
        return [max(1, one.ended_ns - one.began_ns) for one in read_log(files[LOG])]
    text = files[OUTPUT].decode(errors="replace")
    if figure == "regex":
        matches = re.finditer(str(options["pattern"]), text, re.MULTILINE)
        found: list[object] = [_whole(text, *match.span(1)) for match in matches]
    else:
        try:
            found = list(_at(parse_json(text), str(options["path"]).split(".")))
        except ValueError as error:
            raise ForeignFileError(f"the command's output is not JSON: {error}") from error
    if not 0 < len(found) <= _MOST_SAMPLES:
        message = f"{len(found)} figures were found in the command's output"
        raise ForeignFileError(message, hint="look at `pattern` or `path` of the study")
    return [unit.to_ns(_number(value)) for value in found]


def _whole(text: str, begin: int, end: int) -> str:
    """Return what a pattern took; raise ForeignFileError where that is a part of a number: 05 of 1.5e-05 is no 5."""
    first = max(0, begin - _MOST_DIGITS)
    beside = text[begin - 1 : begin], text[end : end + 1]
    near = _NUMBER.finditer(text, first, end + _MOST_DIGITS) if _IN_NUMBERS.intersection(beside) else ()
    for number in near:
        if number.start() < begin < number.end() or number.start() < end < number.end():
            message = f"the pattern takes {text[begin:end][:60]!r} out of {number[0]!r}"
            raise ForeignFileError(message, hint=r"let its group take complete numbers: ([\d.eE+-]+)")
    return text[begin:end]


def _at(value: object, keys: list[str]) -> Iterator[object]:
    """Yield what stands at a path of keys; nothing where the path leads nowhere."""
    if not keys:
        yield value
    elif isinstance(value, list) and keys[0] == "*":
        for one in value:
            yield from _at(one, keys[1:])
    elif isinstance(value, list) and keys[0].isdecimal() and int(keys[0]) < len(value):
        yield from _at(value[int(keys[0])], keys[1:])
    elif isinstance(value, dict) and keys[0] in value:
        yield from _at(value[keys[0]], keys[1:])


def _number(value: object) -> float:
    try:
        return decimal(str(value))
    except ValueError:
        raise ForeignFileError(f"the figure {str(value)[:60]!r} is not a number") from None


def _check_figure(workload: WorkloadOrder) -> None:
    """Raise BadInputError unless the options say where one figure is, and its unit."""
    figure = text_option(workload, "figure", "wall", _FIGURES)
    unit = unit_named(text_option(workload, "unit", "s"))
    if figure == "wall" and (unit.rate or "pattern" in workload.options or "path" in workload.options):
        raise workload.invalid("the wall clock gives a time and needs no pattern or path")
    if figure == "regex" and re.compile(text_option(workload, "pattern", "")).groups != 1:
        raise workload.invalid("`pattern` needs exactly one group, the figure")
    if figure == "json" and not text_option(workload, "path", ""):
        raise workload.invalid("figure 'json' needs `path`")
    for name, of in (("path", "json"), ("pattern", "regex")):
        if name in workload.options and figure != of:
            raise workload.invalid(f"`{name}` would have no effect: it is for figure = {of!r}")


def _words(workload: WorkloadOrder, name: str) -> list[str]:
    value = workload.options.get(name, [])
    if not isinstance(value, list):
        raise workload.invalid(f"option {name!r} is a list, not {value!r}")
    return [str(word) for word in value]


def _files(workload: WorkloadOrder) -> dict[str, str]:
    """Return the texts of input files by their names, which are names and not paths."""
    found = dict[str, str]()
    for word in _words(workload, "files"):
        name, equals, text = word.partition("=")
        if not equals or not re.fullmatch(r"\w[\w.-]*", name):
            raise workload.invalid(f"{word[:40]!r} in `files` is not NAME=text")
        found[name] = text
    return found


def _pattern(workload: WorkloadOrder, name: str) -> re.Pattern[str] | None:
    text = text_option(workload, name, "")
    try:
        return re.compile(text, re.MULTILINE) if text else None
    except re.error as error:
        raise workload.invalid(f"`{name}` is not a regular expression: {error}") from error


def _accepted(workload: WorkloadOrder) -> tuple[int, ...]:
    return tuple(workload.numbers("accept")) or (0,)


def _filled(workload: WorkloadOrder, endpoints: Endpoints, folder: str) -> tuple[str, ...]:
    """Return argv with the places filled in; `peer` is the address of the second rank's node."""
    own, peer = (endpoints.ends[workload.placement[min(rank, len(workload.placement) - 1)]] for rank in (0, 1))
    values = {"address": own.address, "peer": peer.address, "node": own.node, "scratch": folder}
    return tuple(
        re.sub(r"\{(address|peer|node|scratch)\}", lambda match: values[match[1]], word)
        for word in _words(workload, "argv")
    )
