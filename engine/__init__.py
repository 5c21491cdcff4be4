"""Serve many sessions on one model. Drafter and verifier share this code, which contains everything
that runs a model in torch.

The engine must not depend on what logits are used for: it contains no code for commits, proposals
or the acceptance of drafts. To understand this package, read `schedule.scheduler` first, whose
thread runs the steps, and then `runner`, which runs a forward pass. The module `host` creates and
connects all parts of the engine.
"""
