"""Make a draft model for a target: collect the target's answers, and train a small network on them.

This package must not import the engine: the target is served as always, and asked as any client
asks. Start reading in `__main__`; the training loop is in `train`.
"""
