"""Crosses the streams of facts and guesses for many requests."""
