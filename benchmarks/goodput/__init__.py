"""Simulate the drafting policy: its tokens per second in many worlds, beside fixed shapes.

The package must not decide how much is drafted: the code of the services does, and models, kernels
and networks only take simulated time. Start reading in `simulation`, then in `world`.
"""
