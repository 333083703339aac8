"""Every foreign program: a new one is one file and one row."""

from nearmetal.workloads.figures import Figure
from nearmetal.workloads.tools import (
    hpcc,
    imb,
    iperf2,
    iperf3,
    mpi4py,
    netperf,
    npb,
    nuttcp,
    omb,
    perftest,
    qperf,
    sockperf,
)
from nearmetal.workloads.tools.tool import Tool

_MODULES = (sockperf, omb, mpi4py, imb, hpcc, npb, perftest, iperf2, iperf3, netperf, qperf, nuttcp)
TOOLS: tuple[Tool, ...] = tuple(module.TOOL for module in _MODULES)
"""The most telling marks of a file first."""
FIGURES: dict[str, Figure] = {name: figure for tool in TOOLS for name, figure in tool.figures.items()}
"""Operation -> the figure that people expect of it."""
