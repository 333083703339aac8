"""Knobs: what can be set on a NIC, a host and an MPI launch, and how it is put back."""

from nearmetal.knobs.hold import HeldSetting, hold
from nearmetal.knobs.mpi import mpi_environment

__all__ = ["HeldSetting", "hold", "mpi_environment"]
