"""Measurements of Tandem, each a command: `python -m tandem.benchmarks.NAME`.

No service may import this package, and nothing that a service does may depend on being measured.
Start reading in `throughput`; `page` makes RESULTS.md of the JSON files that benchmarks write.
"""
