"""Sample tokens from logits: apply every sampling option, and draw with keyed noise.

The package must not know sessions or networks: it is given rows of logits, options and positions.
Start reading in `sampler`, which has the reference implementation of a draw, then in `drawing`,
which draws faster.
"""
