"""Send many requests to a server, and measure what its users notice: `tandem bench serve`.

This package must use only what clients of a server can see, over gRPC or over HTTP. To understand
this package, read `__main__` first, which has the command, then `asking`, which sends one request,
and `load`, which sends many requests.
"""
