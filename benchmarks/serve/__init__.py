"""Put load on a server, and measure what its users notice: `tandem bench serve`.

This package must know servers only by what clients see, over gRPC or over HTTP. Start reading in
`__main__`; `asking` sends one request, and `load` sends many.
"""
