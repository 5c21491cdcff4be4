"""The verifier: runs the target model and decides which draft tokens are accepted.

This package must not import the drafter or the orchestrator, because the verifier knows its callers
only by the messages of the contract in `tandem.protos`. To understand this package, read `decoding`
first, which contains the job that decodes one session, and then `acceptance`, which contains the
acceptance rules. `service` makes the verifier available over gRPC.
"""
