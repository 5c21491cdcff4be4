"""Make a draft model for a target: its answers are collected, and a small network learns them.

Must not know the engine: the target is served as always, and asked as any client asks. Start
reading in `__main__`; `train` is the loop.
"""
