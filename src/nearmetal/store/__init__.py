"""The run directory: trials appended for good, raw samples, provenance."""
