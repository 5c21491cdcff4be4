"""Make a draft model for a target: collect the target's answers, and train a small network on them.

This package must not import the engine: Tandem serves the target, and this package is only a
client. To understand this package, read `__main__` first for the command, then `train` for the
training loop.
"""
