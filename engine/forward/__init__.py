"""One pass for many sessions: how its rows are laid out, and attention over the pool."""
