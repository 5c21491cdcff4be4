"""Test a model when a service starts: whether it computes the right logits, and whether the logits
of a text have the same bits in every batch.

The package must not depend on how a forward pass is computed: it feeds segments through the
runner's interface. To understand this package, read `exactness` first, which judges what `trial`
measures.
"""
