"""Kernels for CPUs, and the layers that use these kernels."""
