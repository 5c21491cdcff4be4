"""Figures of benchmarks: timed steps of the engine, checks of them, the machine, and reports.

This package must know the engine but no service: other packages measure requests. Start reading in
`report`, which all benchmarks use, and in `steps`.
"""
