"""Make a draft model for a target: collect the target's answers, and train a small network on them.

This package must not import the engine: the target is served as always, and any client could ask
the same questions. Start reading in `__main__`; the training loop is in `train`.
"""
