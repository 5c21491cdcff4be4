"""Make every alert fire by its fault, with a real Prometheus and a real Alertmanager.

This package must not know the alerts' thresholds: it takes the rules as they are shipped in
`deploy/prometheus`. Start reading in `__main__`, which has the faults and the alerts of each.
"""
