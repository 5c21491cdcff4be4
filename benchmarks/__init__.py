"""Measurements of Tandem. Each is run by `python -m tandem.benchmarks.NAME`.

No service may import this package, and nothing that a service does may depend on being measured.
Start reading in `throughput`. `page` writes the figures in RESULTS.md from the JSON files that
benchmarks write.
"""
