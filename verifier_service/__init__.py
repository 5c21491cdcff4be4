"""The verifier: runs the target model and decides which draft tokens are accepted.

This package must not import the drafter or the orchestrator, because the verifier knows its callers
only by the messages of the contract in `tandem.protos`. Start reading in `decoding`, which has the
job of one session, and in `acceptance`, which has the rules. `service` puts both behind gRPC.
"""
