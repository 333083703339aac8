"""The native programs that the image holds ready, built inside it against its own MPI libraries."""

from __future__ import annotations

from nearmetal.native import Recipe, prebuilt_name

_RECIPES = (
    Recipe(name="nmrelay", room="relay"),
    # Recipe(name="nmbench", room="bench", compiler=("mpicc.openmpi",), compiler_id="openmpi"),
    # Recipe(name="nmbench", room="bench", compiler=("mpicc.mpich",), compiler_id="mpich"),
)

PROGRAMS = {prebuilt_name(recipe): recipe for recipe in _RECIPES}
"""Recipes by the file name that a program has in the image."""
