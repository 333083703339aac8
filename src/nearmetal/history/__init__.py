"""Many runs in one file: each cell's level over time, and when it changed."""
