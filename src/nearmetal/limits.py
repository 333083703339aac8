"""How much a file, or a program that it describes, may ask for; each limit can be raised in the environment."""

import os
from dataclasses import dataclass

from nearmetal.errors import BadInputError


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound with its default; `variable` is the environment variable that sets another."""

    variable: str
    default: int
    what: str

    def value(self) -> int:
        """Return the limit in force; raise BadInputError when the environment gives no whole number above 0."""
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default
        if not (text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) > 0):
            raise BadInputError(
                f"{self.variable}={text[:40]!r} is not a whole number above 0", hint=f"it is the number of {self.what}"
            )
        return int(text)

    @property
    def hint(self) -> str:
        """Return how to raise the limit."""
        return f"if this is intended, raise the limit of {self.value()} {self.what}: {self.variable}={2 * self.value()}"


STEPS = Limit("NEARMETAL_MAX_STEPS", 10_000_000_000, "steps of one replay")
MEMORY = Limit("NEARMETAL_MAX_MEMORY", 16 << 30, "bytes of memory for a replay")
FILE = Limit("NEARMETAL_MAX_FILE", 1 << 30, "bytes of a file")
TEXT = Limit("NEARMETAL_MAX_TEXT", 16 << 20, "bytes of a file of text, such as a record or a profile")
TIME = Limit("NEARMETAL_MAX_TIME", 120_000, "ms of processor time for reading a file of text, a trace or an archive")
RANKS = Limit("NEARMETAL_MAX_RANKS", 1 << 20, "ranks that a foreign file may name")
TRACE_LISTS = Limit("NEARMETAL_MAX_TRACE_LISTS", 1 << 21, "numbers in the lists of one rank's trace")
TRACE_VALUES = Limit("NEARMETAL_MAX_TRACE_VALUES", 8_000_000, "values of the events of one kernel trace")
