"""Cause faults in the processes of a running system, and check what clients notice.

The verdict must depend on the recorded history alone, so that a history can be judged again without
running a system. To understand this package, read `__main__` first. `history` computes the verdict,
and `system` causes the faults.
"""
