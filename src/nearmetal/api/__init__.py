"""Runs for Python programs and notebooks: `import nearmetal as nm`."""
