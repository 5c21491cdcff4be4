"""One request's streams at a drafter and a verifier, and the relay between them. The package is
pure: callers pass in time and messages. This package must not depend on gRPC, event loops, replicas
or clients. To understand it, first read `relay`.
"""
