"""Sample tokens from logits: apply every sampling option, and draw with keyed noise.

This package must not depend on sessions or networks: its input is rows of logits, sampling options
and positions. Start reading in `sampler`, which has the reference implementation of a draw, then in
`drawing`, which draws faster.
"""
