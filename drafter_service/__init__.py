"""The drafter: runs the draft model on a cheap device and proposes token trees that continue the
sessions' texts.

This package must not import the verifier or the orchestrator, because the drafter knows its callers
only by the messages of the contract in `tandem.protos`. To understand this package, read `service`
first, and then `drafting`.
"""
