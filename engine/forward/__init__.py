"""Forward passes for many sessions at once: the layout of their rows, and attention over the pool
of keys and values.
"""
