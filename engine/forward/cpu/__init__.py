"""Compute layers and attention on a CPU with this project's compiled kernels.

The package must not know sessions or whole networks: it gets layers, rows and segments. Start
reading in `kernels`, which calls the compiled code, then in `panels` for linear layers and in
`paths` for attention.
"""
