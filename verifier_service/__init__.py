"""Decides which draft tokens are accepted."""
