"""Cause the faults that the alerts must detect, and check with a real Prometheus that each alert
fires.

This package must not know the alerts' thresholds: it takes the rules as they are shipped in
`deploy/prometheus`. To understand this package, read `__main__` first: it lists the faults and the
alerts that each fault must fire.
"""
