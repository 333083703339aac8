"""Machines that are reached through a stream: what ssh and a batch system's steps have in common."""
