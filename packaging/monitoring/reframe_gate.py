"""A ReFrame 4 check that runs a study and gates it: `reframe -c reframe_gate.py -r -S study=... -S base=...`.

The check fails where the gate calls the run worse or undecided; `gate.json` in its stage directory says why. Every cell
becomes a performance variable, with the base as its reference.
"""

import json

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import deferrable, run_before, sanity_function, variable


@rfm.simple_test
class NearmetalGate(rfm.RunOnlyRegressionTest):
    """Measure with `nearmetal run`, judge with `nearmetal gate`."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    local = True
    study = variable(str, value="paths")
    base = variable(str, value="base/run")
    margin = variable(str, value="5%")
    executable = "nearmetal"

    @run_before("run")
    def say_what_to_run(self):
        """Run the study, then the gate; its JSON is the check's output."""
        self.prerun_cmds = [f"nearmetal run {self.study} --out run"]
        self.executable_opts = [f"gate run --against {self.base} --margin {self.margin}"]
        self.executable_opts += ["--no-remeasure --format json > gate.json"]
        self.postrun_cmds = ["echo gate ended with $?"]

    @sanity_function
    def is_within(self):
        """Hold only where the gate says that the run is within the margin of the base."""
        return sn.assert_found(r"^gate ended with 0$", self.stdout, "the gate says worse or undecided: see gate.json")

    @run_before("performance")
    def take_cells(self):
        """Make a variable of every cell that could be compared."""
        with open(f"{self.stagedir}/gate.json", encoding="utf-8") as file:
            cells = [one for one in json.load(file)["cells"] if not one["part"]]
        found = {_name(one): one for one in cells if one["difference"]}
        self.perf_variables = {
            name: sn.make_performance_function(_value(one["run"]), one["unit"]) for name, one in found.items()
        }
        self.reference = {"*": {name: (one["base"], None, None, one["unit"]) for name, one in found.items()}}


def _name(cell):
    """Return a cell's name: path, workload, operation where that is another, bytes, setting."""
    known = {**cell, "operation": "" if cell["operation"] == cell["workload"] else cell["operation"]}
    words = (str(known[key]) for key in ("path", "workload", "operation", "message_bytes", "setting"))
    return "_".join(filter(None, words)).replace("-", "_").replace(".", "_")


@deferrable
def _value(level):
    return level
