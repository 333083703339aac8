"""Machines reached over ssh."""

from nearmetal.hosts.far import host as far

OPTIONS = {
    "identity": "file of the private key (ssh's own and the agent's)",
    "known_hosts": "file of known host keys (ssh's own)",
    "config": "ssh_config file to read",
    "connect_timeout_s": "timeout for one connection (20)",
    **far.OPTIONS,
}
"""What a study may say of it, known where asyncssh is not installed, too."""
