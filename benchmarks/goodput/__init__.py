"""Simulate the drafting policy in many worlds, and compare its tokens per second with those of
fixed draft shapes.

The package must not decide how much is drafted, because the real code of the services decides that.
Simulated models, kernels and networks compute nothing, but take simulated time. Start reading in
`simulation`, then in `world`.
"""
