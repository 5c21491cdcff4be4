"""Figures of benchmarks: timed steps of the engine, checks beside them, the machine, and reports.

This package must know the engine alone and no service: requests are measured elsewhere. Start
reading in `report`, which all benchmarks use, and in `steps`.
"""
