"""The drafters and verifiers of a cell: how their addresses are found, whether their models fit
together, and whether they serve. The package must not know requests or the links that carry
requests. Start reading in `replicas`.
"""
