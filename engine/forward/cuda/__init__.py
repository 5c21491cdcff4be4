"""Passes of all rows at once, captured and replayed, on CUDA devices."""
