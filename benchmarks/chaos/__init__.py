"""Make faults in the processes of a running system, and check whether a client could tell.

The verdict must depend on the recorded history alone, so that a history can be judged again without
a system. Start reading in `__main__`; the verdict is in `history`, and faults are made in `system`.
"""
