"""Benchmarks of Tandem. Run a benchmark with `python -m tandem.benchmarks.NAME`.

No service may import this package, and no service may behave differently while a benchmark measures
it. To understand this package, read `throughput` first. The module `page` generates the tables in
RESULTS.md from the JSON files that benchmarks write.
"""
