"""Kernels of our own for CPUs, and what uses them."""
