"""Settings of every test: no example has a deadline, and continuous integration draws the same examples each time."""

import os

from hypothesis import settings

settings.register_profile("nearmetal", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("nearmetal")

# Tests start hundreds of programs of ours; without compiled modules each start takes half a CPU second longer.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
