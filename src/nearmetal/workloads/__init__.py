"""Measured programs: how to launch them, how to read what they leave."""
