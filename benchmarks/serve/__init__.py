"""Send many requests to a server, and measure what its users notice: `tandem bench serve`.

This package must use only what clients of a server can see, over gRPC or over HTTP. Start reading
in `__main__`. The module `asking` sends one request, and the module `load` sends many requests.
"""
