"""The client API: who may call it and when, how answers are streamed, and the service's status. All
protocols share this package, so only `servicer`, `messages` and `client_guard` may know gRPC, and
no module may import the HTTP API. Start reading in `answers`, which takes a request from its
admission to its last chunk.
"""
