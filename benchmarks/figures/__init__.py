"""Shared parts of benchmarks: timing and checking steps of the engine, describing the machine, and
reporting results.

This package may use the engine, but it must not use services. Benchmarks that send requests to
services belong in other packages. To understand this package, read `report` first, which all
benchmarks use, and then `steps`.
"""
