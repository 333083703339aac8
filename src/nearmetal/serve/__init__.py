"""Runs in a web browser: a read-only server on this machine, which draws what `report` says."""
