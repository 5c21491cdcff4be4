"""The verifier: runs the target model and decides which draft tokens are accepted.

This package must not import the drafter or the orchestrator, because it knows callers only by the
messages of the contract in `tandem.protos`. Start reading in `decoding`, the job of one session,
and in `acceptance`, which has the rules; `service` puts both behind gRPC.
"""
