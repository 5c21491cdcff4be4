"""Tensor parallelism: several processes, ranks, compute each pass together, each with a part of
every layer's heads and inner size.

Rank 0 is the service: it alone knows sessions and draws tokens. The other ranks know no session;
they feed what rank 0 tells them to. Start reading in `ranks`; `shards` splits a network.
"""
