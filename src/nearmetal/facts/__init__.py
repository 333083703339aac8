"""What a machine is, and what happened on it during a trial."""
