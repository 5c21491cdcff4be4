"""Compute forward passes for many sessions at once. The package lays out the rows of a pass,
computes attention over the pool of keys and values, and replaces some layers of a network with its
own implementations.

The package must not know how a network was loaded, how steps are composed, or how the logits are
used. Start reading in `segment`, which describes what a session feeds, then in `attention`, which
every layer of a network calls.
"""
