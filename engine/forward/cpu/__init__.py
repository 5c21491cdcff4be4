"""Compute layers and attention on a CPU with this project's compiled kernels.

The code of this package must not depend on sessions or whole networks: its inputs are layers, rows
and segments. To understand this package, read `kernels` first, which calls the compiled code, and
then `panels` for linear layers and `paths` for attention.
"""
