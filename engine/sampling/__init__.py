"""Sample tokens from logits: apply every sampling option, and draw with keyed noise.

This package must not depend on sessions or networks: its input is rows of logits, sampling options
and positions. To understand this package, read `sampler` first, which has the reference
implementation of a draw, then `drawing`, which draws faster.
"""
