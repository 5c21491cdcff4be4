"""The client API: authentication and admission of requests, streaming of answers, and the service's
status. gRPC and HTTP share this package, so only `servicer`, `messages` and `client_guard` may
depend on gRPC, and no module may import the HTTP API. To understand this package, first read
`answers`, which handles a request from its admission to its last chunk.
"""
