"""The model thread: what goes into each pass, and what passes cost."""
