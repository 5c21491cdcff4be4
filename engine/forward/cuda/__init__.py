"""Forward passes over all rows at once, captured and replayed, on CUDA devices."""
