"""MPI libraries: finding one, and the command lines that launch ranks on nodes. Standard library only."""
