"""Triton kernels for CUDA devices. Kernels must not depend on sessions: their inputs are rows and
slots. To understand this package, read `attend` first.

The result of a row depends only on the row's own input and position, and on the shapes of the
weights. Neither the order of a sum nor the compiled variant of a kernel depends on the number of
rows, so batch invariance holds by construction. These modules import Triton, which comes with
PyTorch's builds for CUDA, so other modules import them only where there is a CUDA device.
"""
