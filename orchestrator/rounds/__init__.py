"""One request's streams at a drafter and a verifier, and the relay between them. The package is
pure: time and messages come in as calls, so it must not know gRPC, event loops, replicas or
clients. Start reading in `relay`.
"""
