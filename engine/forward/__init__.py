"""Compute forward passes for many sessions at once: the layout of their rows, attention over the
pool of keys and values, and the layers that replace a network's own.

The package must not know how a network was loaded, how steps are composed, or what logits are for.
Start reading in `segment`, which says what is fed, then in `attention`, which every layer of a
network calls.
"""
