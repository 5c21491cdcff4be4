"""Shared parts of benchmarks: timing and checking steps of the engine, describing the machine, and
reporting results.

This package may use the engine, but it must not use services. Benchmarks that send requests to
services belong in other packages. Start reading in `report`, which all benchmarks use, and in
`steps`.
"""
