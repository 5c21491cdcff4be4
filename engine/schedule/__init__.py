"""The model thread: it decides what goes into each forward pass, and learns what passes cost."""
