"""Tokens per second of the drafting policy in simulated worlds, beside the best fixed shape."""
