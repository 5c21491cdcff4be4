"""Triton kernels for CUDA devices. Kernels must not know sessions: they get rows and slots. Start
reading in `attend`.

The result of a row depends on that row alone: on its own input, its own position, and the shapes of
weights. Neither the order of a sum nor the compiled variant of a kernel depends on the number of
rows, so batch invariance holds by construction. These modules import Triton, which comes with
PyTorch's builds for CUDA, so other modules import them only where there is a CUDA device.
"""
