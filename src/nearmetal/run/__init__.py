"""Carrying out trials: one trial, and the order in which trials run."""
