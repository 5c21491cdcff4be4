"""Make a draft model for a target: collect the target's answers, and train a small network on them.

This package must not import the engine: Tandem serves the target, and this package is only a
client. Start reading in `__main__`. The training loop is in `train`.
"""
