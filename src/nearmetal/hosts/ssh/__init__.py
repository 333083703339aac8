"""Machines reached over ssh."""
