"""Run the model thread: decide what goes into each forward pass, and learn what passes cost.

The package must not know commits, proposals or networks: jobs offer it segments and rows, and a
function computes their logits. Start reading in `scheduler`, which runs a step, then in `batch`,
which composes a step.
"""
