"""The drafters and verifiers of a cell: how their addresses are found, whether their models fit
together, and whether they serve. The package must not depend on client requests or on the links
that carry them. To understand this package, first read `replicas`.
"""
