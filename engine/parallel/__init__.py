"""Tensor parallelism: several processes, called ranks, compute each pass together. Each rank has a
part of every layer's heads and inner size.

Rank 0 is the service: it alone knows sessions and draws tokens. The other ranks must not know
sessions; they feed the segments that rank 0 sends them. Start reading in `ranks`; `shards` splits a
network.
"""
