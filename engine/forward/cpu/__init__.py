"""Kernels for CPUs, and layers that are computed by them."""
