"""Machines that a batch system hands out."""
