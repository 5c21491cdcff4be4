"""Tensor parallelism: several processes, called ranks, compute each pass together. Each rank has
its part of every layer's attention heads and inner size.

Rank 0 is the service: only rank 0 knows the sessions and samples tokens. The other ranks must not
depend on sessions; they feed the segments that rank 0 sends them. To understand this package, read
`ranks` first, which runs the processes, and then `shards`, which splits a network.
"""
