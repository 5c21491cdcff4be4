"""Run forward passes over all rows at once on CUDA devices. Passes are captured as CUDA graphs and
replayed.

The package must not know networks or sessions: it is given segments and a function that runs a
pass. Start reading in `rows`, which describes a pass, then in `table`, which splits a step into
passes, and in `graphs`.
"""
