"""Kernels in Triton for CUDA devices: what a row gets depends on that row alone."""
