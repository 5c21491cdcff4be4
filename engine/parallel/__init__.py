"""Tensor parallelism: several processes, called ranks, compute each pass together. Each rank has
its part of every layer's attention heads and inner size.

Rank 0 is the service: only rank 0 knows the sessions and samples tokens. The other ranks must not
depend on sessions; they feed the segments that rank 0 sends them. Start reading in `ranks`, which
runs the processes; `shards` splits a network.
"""
