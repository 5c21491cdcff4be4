"""Simulate the drafting policy in many worlds, and compare its tokens per second with those of
fixed draft shapes.

This package must not decide how much is drafted: it runs the code of the services, which decides
that. Simulated models, kernels and networks compute nothing, but take simulated time. To understand
this package, read `simulation` first, and then `world`.
"""
