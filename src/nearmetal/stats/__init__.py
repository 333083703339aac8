"""Statistics: pure functions on arrays, no input or output, no global state, randomness only from a given generator.

Within a trial: `summarize`, `order`, `ecdf`, `tail_curve`. Over blocks: `estimate_level` of one path, `compare`,
`estimate_ratio`, `correct_family`, `noise_floor`. Between two runs: `difference`, `judge_family`; over many:
`find_changes`. While measuring: `StoppingPlan`, `look`. The reasons are in docs/explanation/statistics.md.
"""

import importlib.util
import sys

import numpy as np


def _load_on_use(name: str) -> None:
    """Put off loading a module of numpy's until something of it is used."""
    spec = importlib.util.find_spec(f"numpy.{name}")
    if spec is None or spec.loader is None or spec.name in sys.modules:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    setattr(np, name, module)


# scipy takes everything from numpy that has a name, and so loads these, which nothing here uses: a tenth of each start.
for _name in ("f2py", "testing"):
    _load_on_use(_name)
