"""Tools that benchmarks share: timed steps, checks, and the way in which figures are shown."""
