"""Serve many sessions on one model: the code that drafter and verifier share, with all that runs
a model in torch.
"""
