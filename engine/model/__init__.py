"""Load a model from its files, judge whether it can be served, and replace its layers by faster
ones.

The package must not depend on sessions or on how segments are fed. It computes reference logits
with the original network, before any layer is replaced. To understand this package, read `load`
first, which performs all steps, and then `linears`.
"""
