"""The drafters and verifiers that there are: how their addresses are found, whether their models
fit together, and how they are doing. The package must not know requests or the links over which
they run. Start reading in `replicas`.
"""
