"""Simulate the drafting policy in many worlds, and compare its tokens per second with fixed shapes.

The package must not decide how much is drafted, because the code of the services decides that.
Simulated models, kernels and networks do nothing but take time. Start reading in `simulation`, then
in `world`.
"""
