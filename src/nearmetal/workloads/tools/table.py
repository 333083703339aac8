"""Every foreign program: a new one is one file and one row."""

from __future__ import annotations

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

TOOLS: tuple[Tool, ...] = (
    sockperf.TOOL,
    omb.TOOL,
    mpi4py.TOOL,
    imb.TOOL,
    hpcc.TOOL,
    npb.TOOL,
    perftest.TOOL,
    iperf2.TOOL,
    iperf3.TOOL,
    netperf.TOOL,
    qperf.TOOL,
    nuttcp.TOOL,
)
"""The most telling marks of a file first."""
FIGURES: dict[str, Figure] = {name: figure for tool in TOOLS for name, figure in tool.figures.items()}
"""Operation -> the figure that people expect of it."""
