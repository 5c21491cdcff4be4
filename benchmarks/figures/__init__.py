"""Shared parts of benchmarks: timing and checking steps of the engine, describing the machine, and
reporting results.

This package may use the engine but must not use services, because other packages measure requests.
Start reading in `report`, which all benchmarks use, and in `steps`.
"""
