"""Decides, once and for all, which draft tokens stand."""
