"""Run forward passes over all rows at once on CUDA devices. Passes are captured as CUDA graphs and
replayed.

The code of this package must not depend on networks or sessions: its inputs are segments and a
function that runs a pass. To understand this package, read `rows` first, which describes a pass,
and then `table`, which splits a step into passes, and `graphs`.
"""
