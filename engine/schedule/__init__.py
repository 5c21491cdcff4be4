"""Run the model thread: decide what goes into each forward pass, and learn how long passes take.

This package must not depend on commits, proposals or networks: jobs provide segments and rows, and
a given function computes their logits. To understand this package, read `scheduler` first, which
runs a step, then `batch`, which composes a step.
"""
