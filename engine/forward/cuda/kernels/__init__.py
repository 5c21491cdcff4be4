"""Kernels for CUDA devices, in Triton.

What a row gets is a function of that row alone: of its own numbers, its own position, and the
shapes of weights. No order of sums depends on how many rows there are, nor does the variant of a
kernel that is compiled; so batch invariance holds by construction. They import Triton, which comes
with PyTorch's builds for CUDA, so they are imported where there is a device.
"""
