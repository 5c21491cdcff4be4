"""Compute forward passes for many sessions at once. The package lays out the rows of a pass,
computes attention over the pool of keys and values, and replaces some layers of a network with its
own implementations.

The code of this package must not depend on how a network was loaded, how steps are composed, or how
the logits are used. To understand this package, read `segment` first, which describes what a
session feeds, and then `attention`, which every layer of a network calls.
"""
