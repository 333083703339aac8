"""Measure what virtualization costs a parallel program's network, explain it, close it, predict it."""

__version__ = "0.1.0"
