"""Compute forward passes for many sessions at once. The package lays out the rows of a pass,
computes attention over the pool of keys and values, and replaces some layers of a network with
layers of its own.

The package must not know how a network was loaded, how steps are composed, or what logits are for.
Start reading in `segment`, which describes what a session feeds, then in `attention`, which every
layer of a network calls.
"""
